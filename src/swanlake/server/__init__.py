"""The Flight SQL server: authenticates and decodes calls, finds the session, sends results.

``app`` runs the process; ``service`` answers the calls; ``actions`` declares the Flight actions.
"""

__all__ = ["app"]
