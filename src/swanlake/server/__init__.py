"""The Flight SQL server: decodes requests, finds the session, answers."""
