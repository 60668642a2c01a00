"""Callers: who they are, and what they may do.

``identity`` is what the rest of the server knows of a caller. ``policy``, ``files`` and ``scope``
decide what it may do. The other modules find out who it is: ``callers`` (credentials of the lake),
``token_files``, ``login_tokens`` (after a password), ``jwt_tokens`` and ``certificates``.
"""

__all__ = [
    "callers",
    "certificates",
    "files",
    "grant_text",
    "granting",
    "identity",
    "jwt_tokens",
    "login_limiter",
    "login_tokens",
    "policy",
    "recently_verified",
    "refreshed",
    "scope",
    "secret_text",
    "token_files",
]
