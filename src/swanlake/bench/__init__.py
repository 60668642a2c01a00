"""Workloads that measure a server and check every answer while they do."""
