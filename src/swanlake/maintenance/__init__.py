"""Maintenance of catalogs: the jobs, when they run, and the history of runs.

``registry`` declares each job once, for the SQL procedures, the command line and the scheduler.
``service`` does the work; ``runs`` locks catalogs and records runs. Nothing here imports Spark.
"""

__all__ = ["compaction", "registry", "runs", "scheduler", "service", "settings"]
