"""Names, roles and grants as operators write them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from swanlake.access.identity import Grant, Privilege, Role
from swanlake.errors import InvalidRequest

#: Without colons, which set names from identity providers apart, and without a leading dot.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,127}")
_PATTERN = re.compile(r"[A-Za-z0-9_*?]+")
#: Takes every catalog away.
NO_CATALOG = (Grant("*", Privilege.NONE),)


def checked_caller_name(name: str) -> str:
    """The name; raises InvalidRequest if a caller cannot have it."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name!r} cannot be the name of a caller: use up to 128 letters, digits and _.@+-, "
            "and start with a letter, a digit or an underscore."
        )
    return name


def parse_role(text: str) -> Role:
    """A role by its name; raises InvalidRequest."""
    try:
        return Role(text)
    except ValueError:
        names = ", ".join(Role)
        raise InvalidRequest(f"{text!r} is not a role; the roles are {names}.") from None


def parse_grant(text: str) -> Grant:
    """The grant of a text such as ``sales_*=read``; raises InvalidRequest."""
    pattern, _, privilege = text.partition("=")
    if not _PATTERN.fullmatch(pattern) or privilege.upper() not in Privilege.__members__:
        raise InvalidRequest(
            f"{text!r} is not a grant: write a pattern of catalog names and read, write or none, "
            "such as sales_*=read."
        )
    return Grant(pattern, Privilege[privilege.upper()])


def parse_grants(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Several grants; raises InvalidRequest."""
    return tuple(parse_grant(text) for text in texts)


def parse_explicit_grants(texts: object) -> tuple[Grant, ...]:
    """The grants of a list in a document; an empty list grants nothing, unlike a missing one."""
    if texts is None:
        return ()
    if not isinstance(texts, list):
        raise InvalidRequest("The grants are not a list.")
    return parse_grants(map(str, texts)) or NO_CATALOG


def format_grant(grant: Grant) -> str:
    """The grant as ``parse_grant`` reads it."""
    return f"{grant.pattern}={grant.privilege.name.lower()}"
