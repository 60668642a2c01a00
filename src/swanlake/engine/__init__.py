"""DuckDB: instances with the lake attached, their connections, and what their errors mean."""
