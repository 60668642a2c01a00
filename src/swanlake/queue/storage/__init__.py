"""Storage: the segment format, the files of a server, and the ownership of its directory."""

__all__ = ["segment_index"]
