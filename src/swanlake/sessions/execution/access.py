"""Checks the statements of a session before they are described or run."""

from __future__ import annotations

from duckdb import StatementType

from swanlake._internal.lru_cache import LruCache
from swanlake.access.identity import Privilege
from swanlake.access.policy import METADATA_PREFIX, AccessRules, check, check_safety
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sql.facts import StatementFacts, read_facts
from swanlake.sql.statement import Statement

#: Statements of admins that need no look at their facts unless one of these words is in them.
_ROWS = frozenset(
    {
        StatementType.SELECT,
        StatementType.INSERT,
        StatementType.UPDATE,
        StatementType.DELETE,
        StatementType.MERGE_INTO,
        StatementType.TRANSACTION,
    }
)
_SUSPECT_WORDS = (
    METADATA_PREFIX,
    "arrow_scan",
    "pandas_scan",
    "python_map",
    "postgres_",
    "sqlite_",
)


class AccessGuard:
    """Decides once for each text; what depends on the state of the session is checked each time."""

    def __init__(self, session: EngineSession, parser: StatementParser) -> None:
        self._session = session
        self._parser = parser
        #: The facts of statements that passed; True if they do not matter any more.
        self._passed: LruCache[StatementFacts | bool] = LruCache()
        #: The last statement and its facts: a long text is not cached, and may run for many rows.
        self._last: tuple[Statement | None, StatementFacts | bool] = (None, True)

    def check(self, statement: Statement) -> None:
        """Raises AccessDenied if the caller may not run a statement."""
        last, passed = self._last
        if statement is not last:
            passed = self._passed.get(statement.text) or self._check_text(statement)
            self._passed.put(statement.text, passed)
            self._last = statement, passed
        if isinstance(passed, StatementFacts) and passed.target is not None:
            self._check_target(passed.target)

    def _check_text(self, statement: Statement) -> StatementFacts | bool:
        is_admin = self._session.identity.is_admin
        if is_admin and statement.type in _ROWS and not _is_suspect(statement.text):
            return True
        facts = read_facts(statement)
        files = self._session.services.files
        check_safety(facts, files)
        if not is_admin:
            rules = AccessRules(files, self._session.engine.table_functions)
            check(facts, self._session.identity, rules)
        if facts.inner is not None:
            for inner in self._parser.parse(facts.inner):
                self.check(inner)
        return is_admin or facts

    def _check_target(self, target: tuple[str, ...]) -> None:
        """Raises AccessDenied for a table of the lake; the engine refuses the others."""
        name = self._session.names.resolve_table(target)
        if name is not None:
            self._session.require(name[0], Privilege.WRITE)


def _is_suspect(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in _SUSPECT_WORDS)
