"""Sessions: one DuckDB connection each, with its statements, transactions, results and clock."""
