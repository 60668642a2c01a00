"""What DuckLake's extension would damage: sessions prevent it, or refuse the statement."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.contenders import ContendedCatalog, Deployment, deployment_fixture

deployment = deployment_fixture(servers=1)

#: The extension loses or cannot read every one of them after it has inlined them.
STRUCTS = [
    "{'a': 'it''s \\ \"quoted\"'}",
    "{'a': DATE '2024-02-29'}",
    "{'a': TIMESTAMP '2024-02-29 01:02:03'}",
    "{'a': 'ee53d6a1-f1fe-4bbb-9eda-5df34d45590f'::UUID}",
    "[{'a': 'x''y'}]",
    "MAP {'k': {'a': 'x''y'}}",
]


def new_catalog(deployment: Deployment, inlined_rows: int, *statements: str) -> ContendedCatalog:
    catalog = deployment.new_catalog()
    session = catalog.session()
    session(f"CALL {catalog.name}.set_option('data_inlining_row_limit', {inlined_rows})")
    for sql in statements:
        session(sql)
    return catalog


@pytest.mark.parametrize("inlined_rows", [0, 10])
def test_structs_written_in_a_transaction_are_read_back(
    deployment: Deployment, inlined_rows: int
) -> None:
    catalog = new_catalog(deployment, inlined_rows)
    session = catalog.session()
    for number, value in enumerate(STRUCTS):
        table = f"t{number}"
        session(f"CREATE TABLE {table} AS SELECT 1 AS k, {value} AS v LIMIT 0")
        for sql in (
            f"BEGIN; INSERT INTO {table} SELECT 1, {value}; COMMIT",
            f"BEGIN; INSERT INTO {table} SELECT 2, NULL; UPDATE {table} SET v = {value}; COMMIT",
            f"MERGE INTO {table} USING (SELECT 3 AS k, {value} AS v) s USING (k) "
            "WHEN NOT MATCHED THEN INSERT BY NAME",
            f"BEGIN; ALTER TABLE {table} ADD COLUMN n INTEGER; UPDATE {table} SET n = k; COMMIT",
        ):
            session(sql)
        query = f"SELECT k, n, v IS NOT DISTINCT FROM {value} FROM {table} ORDER BY k"
        with deployment.stock(catalog.name) as stock:
            assert session(query) == stock(query) == [(k, k, True) for k in (1, 2, 3)]


def test_struct_in_a_table_of_the_same_transaction_is_not_inlined(deployment: Deployment) -> None:
    catalog = new_catalog(deployment, 10)
    session = catalog.session()
    session("BEGIN; CREATE TABLE t (s STRUCT(a DATE))")
    with pytest.raises(pa.ArrowNotImplementedError, match="commit its CREATE TABLE"):
        session("INSERT INTO t VALUES ({'a': DATE '2024-02-29'})")
    with pytest.raises(pa.ArrowNotImplementedError, match="commit its CREATE TABLE"):
        session("CREATE TABLE c AS SELECT {'a': DATE '2024-02-29'} AS s")
    session("COMMIT; INSERT INTO t VALUES ({'a': DATE '2024-02-29'})")
    assert session("SELECT s.a::VARCHAR FROM t") == [("2024-02-29",)]


def test_option_of_other_programs_stays(deployment: Deployment) -> None:
    catalog = new_catalog(deployment, 10, "CREATE TABLE t (s STRUCT(a INTEGER))")
    session = catalog.session()
    options = f"SELECT option_name, value, scope FROM ducklake_options('{catalog.name}')"
    before = sorted(session(options))
    session("BEGIN; INSERT INTO t VALUES ({'a': 1}); COMMIT")
    assert sorted(session(options)) == before


@pytest.mark.parametrize("inlined_rows", [0, 10])
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO t VALUES (1)",
        "UPDATE t SET a = 7",
        "DELETE FROM t WHERE a = 5",
        "INSERT INTO t VALUES (1); ALTER TABLE t RENAME TO u; ALTER TABLE u RENAME TO t",
        "DROP TABLE t; CREATE TABLE t AS SELECT 1 AS a",
    ],
)
def test_column_cannot_be_added_after_rows_in_a_transaction(
    deployment: Deployment, inlined_rows: int, change: str
) -> None:
    """The extension would give b = 355, or not find the row by b = 99."""
    catalog = new_catalog(deployment, inlined_rows, "CREATE TABLE t (a INTEGER)")
    session = catalog.session()
    session(f"BEGIN; {change}")
    with pytest.raises(pa.ArrowNotImplementedError, match="ADD COLUMN cannot follow"):
        session("ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 99")
    session("ALTER TABLE t RENAME a TO c")
    session("COMMIT; ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 99; INSERT INTO t VALUES (2, 300)")
    rows = session("SELECT b FROM t ORDER BY b")
    assert rows == [(99,)] * (len(rows) - 1) + [(300,)]
    assert session("SELECT count(*) FROM t WHERE b = 99") == [(len(rows) - 1,)]


def test_column_can_be_added_before_rows_in_a_transaction(deployment: Deployment) -> None:
    catalog = new_catalog(deployment, 0, "CREATE TABLE t (a INTEGER)", "CREATE TABLE o (a INTEGER)")
    session = catalog.session()
    session("BEGIN; INSERT INTO o VALUES (1); ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 99")
    session("INSERT INTO t (a) VALUES (1); INSERT INTO t VALUES (2, 300); COMMIT")
    assert session("SELECT b FROM t ORDER BY b") == [(99,), (300,)]


def test_statement_that_would_break_the_engine_is_refused(deployment: Deployment) -> None:
    fields = "s STRUCT(x STRUCT(y INTEGER), w INTEGER), l STRUCT(z DATE)[]"
    catalog = new_catalog(deployment, 0, f"CREATE TABLE t (a INTEGER, {fields})")
    other, session = catalog.session(), catalog.session()
    other("CREATE TEMP TABLE kept AS SELECT 1 AS a")
    for begin in ("", "BEGIN"):
        session(begin or "SELECT 1")
        for statement in (
            "COMMENT ON COLUMN t.nope IS 'x'",
            "COMMENT ON COLUMN t.rowid IS 'x'",
            "ALTER TABLE t DROP COLUMN s.x.y",
            "ALTER TABLE t DROP l.element.z",
            "EXPLAIN ANALYZE ALTER TABLE t DROP COLUMN s.x.y",
        ):
            with pytest.raises(pa.ArrowInvalid, match=r"BINDER_ERROR|CATALOG_ERROR"):
                session(statement)
            assert session("SELECT count(*) FROM t") == [(0,)]
    assert other("FROM kept") == [(1,)]


def test_comments_on_columns_and_drops_of_other_fields_are_allowed(deployment: Deployment) -> None:
    catalog = new_catalog(deployment, 0, "CREATE TABLE t (a INTEGER, s STRUCT(x DATE, y DATE))")
    session = catalog.session()
    session(f"COMMENT ON COLUMN {catalog.name}.main.T.A IS 'x'; ALTER TABLE t DROP COLUMN S.X")
    session("CREATE TEMP TABLE own (s STRUCT(x INTEGER)); COMMENT ON COLUMN own.s IS 'y'")
    assert session("SELECT comment FROM duckdb_columns() WHERE comment IS NOT NULL ORDER BY 1") == [
        ("x",),
        ("y",),
    ]
    assert [row[1] for row in session("DESCRIBE t")] == ["INTEGER", "STRUCT(y DATE)"]


def test_table_cannot_be_renamed_after_another_change_in_a_transaction(
    deployment: Deployment,
) -> None:
    """The extension would leave two tables with one id: the catalog could not be read again."""
    catalog = new_catalog(deployment, 0, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    for change in (
        "ALTER TABLE t ADD COLUMN b INTEGER",
        "ALTER TABLE t RENAME a TO b",
        "COMMENT ON TABLE t IS 'x'",
        "ALTER TABLE t RENAME TO o; COMMENT ON TABLE o IS 'x'; ALTER TABLE o RENAME TO t",
    ):
        with pytest.raises(pa.ArrowNotImplementedError, match="RENAME TO cannot follow"):
            session(f"BEGIN; {change}; ALTER TABLE t RENAME TO u")
        session("ROLLBACK")
    session("BEGIN; ALTER TABLE t RENAME TO u; ALTER TABLE u ADD COLUMN b INTEGER; COMMIT")
    assert session("FROM u") == [(1, None)]


def test_view_cannot_be_renamed_after_a_comment_in_a_transaction(deployment: Deployment) -> None:
    """The extension would keep it under both names."""
    session = new_catalog(deployment, 0, "CREATE VIEW v AS SELECT 1 AS a").session()
    with pytest.raises(pa.ArrowNotImplementedError, match="RENAME TO cannot follow"):
        session("BEGIN; COMMENT ON VIEW v IS 'x'; ALTER VIEW v RENAME TO w")


def test_table_of_the_same_transaction_can_be_renamed_after_changes(deployment: Deployment) -> None:
    session = new_catalog(deployment, 0).session()
    session("BEGIN; CREATE TABLE t (a INTEGER); ALTER TABLE t RENAME TO u")
    session("ALTER TABLE u ADD COLUMN b INTEGER; ALTER TABLE u RENAME TO t; COMMIT")
    assert [row[0] for row in session("DESCRIBE t")] == ["a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 5; ALTER TABLE t ALTER c TYPE BIGINT",
        "ALTER TABLE t ALTER d TYPE BIGINT",
        "ALTER TABLE t RENAME d TO e; ALTER TABLE t ALTER e TYPE BIGINT",
    ],
)
def test_column_with_a_default_keeps_its_values_when_its_type_changes(
    deployment: Deployment, change: str
) -> None:
    """The extension would read NULL in older rows until the COMMIT, and store it."""
    catalog = new_catalog(
        deployment,
        0,
        "CREATE TABLE t (a INTEGER)",
        "CREATE TABLE o AS SELECT 1 AS k",
        "CREATE VIEW v AS FROM t",
        "CREATE MACRO m() AS TABLE FROM t",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD COLUMN d INTEGER DEFAULT 9",
    )
    session = catalog.session()
    session(f"BEGIN; {change}")
    column = change.split()[-3]
    for after in (
        f"ALTER TABLE t ALTER {column} DROP DEFAULT",
        f"ALTER TABLE t RENAME {column} TO f",
        f"ALTER TABLE t ALTER {column} TYPE HUGEINT",
        "UPDATE t SET a = 2",
        "FROM t",
        "FROM v",
        "FROM m()",
    ):
        with pytest.raises(pa.ArrowNotImplementedError, match="Commit the change of the type"):
            session(after)
    session("ALTER TABLE t RENAME a TO b; ALTER TABLE t ALTER b SET DEFAULT 4")
    session("UPDATE o SET k = 2; COMMIT")
    assert session("SELECT COLUMNS(* EXCLUDE b) FROM t")[0][0] == 9


def test_column_without_a_default_can_be_used_after_its_type_changed(
    deployment: Deployment,
) -> None:
    catalog = new_catalog(deployment, 0, "CREATE TABLE t (a INTEGER)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    session("BEGIN; ALTER TABLE t ALTER a TYPE BIGINT; UPDATE t SET a = a << 40; COMMIT")
    assert session("FROM t") == [(1 << 40,)]
