"""Callers: who they are, and what they may do.

``identity`` is what the rest of the server knows of a caller. The other modules find it out:
``callers`` (credentials of the lake), ``token_files``, ``login_tokens`` (after a password),
``jwt_tokens`` and ``certificates``.
"""

__all__ = [
    "callers",
    "certificates",
    "grant_text",
    "identity",
    "jwt_tokens",
    "login_limiter",
    "login_tokens",
    "recently_verified",
    "refreshed",
    "secret_text",
    "token_files",
]
