"""Transforms: PySpark functions of users that change rows between the queue and the lake."""

__all__ = ["registry"]
