"""What a statement is, and how names are written in SQL. Nothing here executes anything."""
