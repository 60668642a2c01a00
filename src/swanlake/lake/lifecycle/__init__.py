"""What happens to catalogs and files over time: forks, expiry, file clean-up, history, leases."""

__all__ = ["expiry", "file_cleanup", "history", "leases", "retention"]
