"""The lake's files, and the rows that are inlined in the metadata instead.

``datafile`` is the one writer of Parquet, ``storage`` reaches directories and object stores with
``storage_options``, and ``inlining`` turns small inserts into inlined rows.
"""

__all__ = ["datafile", "inlined_tables", "inlining", "storage", "storage_options"]
