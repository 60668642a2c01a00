"""The Flight SQL server: authenticates and decodes calls, finds the session, sends results.

``app`` runs the process, ``supervisor`` another one that starts it again; ``service`` answers the
calls; ``actions`` declares the Flight actions.
"""

__all__ = ["app", "heartbeat", "supervisor"]
