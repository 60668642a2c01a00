"""DuckDB: instances with the lake attached, their connections, extensions and errors.

``host`` gives sessions a connection and replaces an instance that a fatal error has invalidated.
"""

__all__ = ["database", "errors", "host", "instance", "object_storage", "serial"]
