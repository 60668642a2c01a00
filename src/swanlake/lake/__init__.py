"""The lake: where it is, how it is attached, and the order in which it is written."""
