"""Runs random statements on both sides and compares their outcomes."""

from __future__ import annotations

from tests.sqllogic.runner import Difference, Pair
from tests.sqllogic.statements import Schema, StatementGenerator

#: Repeats a failure if it is set to the seed that the failure printed.
SEED_VARIABLE = "DIFFERENTIAL_SEED"
_COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE database_name = '{catalog}' AND NOT internal "
    "AND table_name NOT IN (SELECT view_name FROM duckdb_views()) ORDER BY table_name, column_index"
)
#: A statement with two mistakes may report either.
_EITHER = frozenset({"CONSTRAINT_ERROR", "CONVERSION_ERROR"})
#: In a transaction, the extension would do this wrong.
_REFUSALS = ("ADD COLUMN cannot follow a change",)
_SHOWN_STATEMENTS = 25


def compare_random_statements(pair: Pair, *, seed: int, statements: int) -> None:
    """Runs that many statements of a seed; raises Difference with the seed."""
    has_inlined_rows = "inlined" in pair.configuration
    generator = StatementGenerator(seed, has_inlined_rows=has_inlined_rows)
    done: list[str] = []
    schema: Schema = {}
    try:
        for _ in range(statements):
            sql = generator.next(schema)
            done.append(sql)
            outcome = pair.compare(
                sql,
                is_ordered="ORDER BY" in sql,
                either=_EITHER,
                refusals=_REFUSALS,
            )
            if sql in ("BEGIN", "COMMIT", "ROLLBACK"):
                generator.in_transaction = sql == "BEGIN"
            elif generator.in_transaction and outcome.error:
                # A COMMIT of an aborted transaction fails here and succeeds in DuckDB.
                done.append("ROLLBACK")
                pair.compare("ROLLBACK")
                generator.in_transaction = False
            if done[-1].startswith(("CREATE", "ALTER", "DROP", "ROLLBACK")):
                schema = _read_schema(pair)
        if generator.in_transaction:
            done.append("COMMIT")
            pair.compare("COMMIT")
        pair.compare_content(has_row_ids=not has_inlined_rows)
    except Difference as difference:
        where = f"{SEED_VARIABLE}={seed}, after {len(done)} statements, the last:"
        last = ";\n".join(done[-_SHOWN_STATEMENTS:])
        raise Difference(f"{difference}\n\n{where}\n{last}") from None


def _read_schema(pair: Pair) -> Schema:
    """The tables that both sides have."""
    outcome = pair.compare(_COLUMNS.replace("{catalog}", pair.catalog))
    schema: dict[str, dict[str, str]] = {}
    for row in outcome.rows:
        table, column, kind = row.split("\t")
        schema.setdefault(table, {})[column] = kind
    return schema
