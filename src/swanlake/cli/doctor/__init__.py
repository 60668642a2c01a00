"""``swanlake doctor``: checks what a server needs, and says what to fix."""
