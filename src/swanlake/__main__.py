"""``python -m swanlake``."""

from swanlake.cli import main

main()
