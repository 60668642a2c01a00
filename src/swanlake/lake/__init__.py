"""The lake: DuckLake catalogs, and the one way in which anything is committed to them."""
