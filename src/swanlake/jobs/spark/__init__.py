"""Jobs on Spark: the runner in the server, the driver process, and the code in Python workers.

Workers import ``worker``, which needs only duckdb and pyarrow.
"""

__all__ = ["casts"]
