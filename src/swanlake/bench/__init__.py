"""Load tests that check every answer: ``fanout`` plans, ``runner`` executes, ``report`` sums up."""

__all__ = ["fanout", "report", "runner"]
