"""How a session executes a statement.

``router`` classifies it, and ``executor`` hands it to the executor of its route. ``engine_session``
holds the connection, the transaction and the settings that all of them share. ``parameters`` runs
statements with bound rows, ``prepared`` finds their schemas without running them.
"""

__all__ = ["binding", "prepared"]
