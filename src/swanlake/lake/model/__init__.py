"""The values of the lake: tables, columns, types, statistics, files and operations. No I/O.

Spark workers import these modules without a database driver installed.
"""

__all__ = [
    "conditions",
    "credentials",
    "evolution",
    "ids",
    "layout",
    "operations",
    "partitioning",
    "table_files",
    "table_ref",
    "table_state",
    "type_registry",
    "types",
]
