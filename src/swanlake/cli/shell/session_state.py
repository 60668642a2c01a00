"""What a session holds that a new one would not have: known from the statements that ran."""

from __future__ import annotations

from collections.abc import Sequence

from swanlake.cli.shell.lexing import Kind, pieces
from swanlake.sql.quoting import unquoted

_BEGIN, _END = ("begin", "start"), ("commit", "end", "rollback", "abort")
_TEMPORARY = ("temp", "temporary")


class SessionState:
    """Follows the statements of one session; ``lost()`` says what ends with it."""

    def __init__(self) -> None:
        self.in_transaction = False
        self._temporary: dict[str, None] = {}
        self._settings: dict[str, None] = {}
        self._prepared: dict[str, None] = {}
        self._attached: dict[str, None] = {}
        self._used = ""

    def record(self, sql: str) -> None:
        """Takes note of a statement that succeeded."""
        words = _words(sql)
        if not words:
            return
        first, rest = words[0].lower(), words[1:]
        if first in _BEGIN or first in _END:
            self.in_transaction = first in _BEGIN
        elif first == "create":
            self._record_create(rest)
        elif first == "drop":
            self._temporary.pop(_last_name(rest), None)
        elif first in ("set", "pragma", "reset"):
            self._record_setting(first, rest)
        elif first == "use":
            self._used = ".".join(rest)
        elif first == "prepare" and rest:
            self._prepared[unquoted(rest[0])] = None
        elif first == "deallocate":
            self._prepared.pop(_last_name(rest), None)
        elif first == "attach":
            self._attached[_last_name(rest)] = None
        elif first == "detach":
            self._attached.pop(_last_name(rest), None)

    def lost(self) -> list[str]:
        """What a new session does not have, as phrases; empty if there is nothing."""
        phrases = ["the open transaction"] if self.in_transaction else []
        for noun, names in (
            ("temporary", self._temporary),
            ("setting", self._settings),
            ("prepared", self._prepared),
            ("attached", self._attached),
        ):
            if names:
                phrases.append(f"{noun} {', '.join(names)}")
        if self._used:
            phrases.append(f"USE {self._used}")
        return phrases

    @property
    def is_empty(self) -> bool:
        """True if a new session is as good as this one."""
        return not self.lost()

    def _record_create(self, words: Sequence[str]) -> None:
        lower = [word.lower() for word in words]
        if lower[:2] == ["or", "replace"]:
            words, lower = words[2:], lower[2:]
        if len(words) < 3 or lower[0] not in _TEMPORARY:
            return
        name = 5 if lower[2:5] == ["if", "not", "exists"] else 2
        if len(words) > name:
            self._temporary[unquoted(words[name])] = None

    def _record_setting(self, verb: str, words: Sequence[str]) -> None:
        names = [word for word in words if word.lower() not in ("session", "local", "global")]
        if not names:
            return
        is_variable = names[0].lower() == "variable" and len(names) > 1
        name = names[1] if is_variable else names[0]
        if verb == "reset":
            self._settings.pop(name, None)
        else:
            self._settings[name] = None


def _words(sql: str) -> list[str]:
    """The first words of a statement, names with their quotes, without punctuation."""
    words = []
    for piece in pieces(sql):
        if piece.kind in (Kind.KEYWORD, Kind.NAME, Kind.QUOTED_NAME, Kind.STRING):
            words.append(piece.text)
        if len(words) == 10:
            break
    return words


def _last_name(words: Sequence[str]) -> str:
    return unquoted(words[-1]) if words else ""
