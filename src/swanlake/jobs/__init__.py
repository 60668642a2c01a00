"""Jobs: units of work on the files of the lake, and where they run: on Spark, or in the server."""

__all__ = ["runner", "segment_transfer", "selection", "shared_directories", "spark", "transforms"]
