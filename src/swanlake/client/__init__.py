"""The client: what the base install of SwanLake is."""
