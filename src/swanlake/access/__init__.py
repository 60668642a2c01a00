"""Callers: who they are, and what they may do."""

__all__ = ["files", "identity", "policy", "scope"]
