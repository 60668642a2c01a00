"""Client certificates: which caller a subject is."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swanlake.access.grant_text import checked_caller_name, parse_explicit_grants, parse_role
from swanlake.access.identity import Identity
from swanlake.errors import ConfigError, InvalidRequest

_KEYS = {"name", "role", "grants"}


def read_subjects(path: Path) -> Mapping[str, Identity]:
    """The identities by subject, from a TOML file; raises ConfigError.

    ["loader.example.com"]
    name = "loader"
    role = "writer"
    grants = ["sales_*=write"]
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return {subject: _identity(subject, entry) for subject, entry in document.items()}
    except OSError as unreadable:
        raise ConfigError(f"{path} cannot be read: {unreadable.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as malformed:
        raise ConfigError(f"{path} is not valid TOML: {malformed}.") from None
    except InvalidRequest as invalid:
        raise ConfigError(f"{path}: {invalid.message}") from None


def _identity(subject: str, entry: Any) -> Identity:
    if not isinstance(entry, dict) or not {"role"} <= entry.keys() <= _KEYS:
        raise InvalidRequest(
            f"the subject {subject!r} needs a table with role and, if wanted, name and grants."
        )
    return Identity(
        checked_caller_name(str(entry.get("name", subject))),
        parse_role(str(entry["role"])),
        parse_explicit_grants(entry.get("grants")),
    )
