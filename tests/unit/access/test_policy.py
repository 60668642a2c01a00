"""What each role may do, by the facts of a statement."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from duckdb import StatementType

from swanlake.access.files import FileAccess, FileRules, is_within, parse_directories
from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.access.policy import (
    _FILE_FUNCTIONS,
    _TABLE_FUNCTIONS,
    AccessRules,
    check,
    check_safety,
    require,
    require_role,
)
from swanlake.engine.database import load_extensions
from swanlake.errors import AccessDenied, ConfigError, SwanLakeError
from swanlake.sql.facts import StatementFacts, read_facts
from swanlake.sql.statement import parse

READER, WRITER, ADMIN = (Identity("ana", role) for role in Role)
FILES = FileRules(
    FileAccess.DIRECTORIES,
    ("/srv/files", "s3://bucket/open"),
    data=("/srv/lake.d/data", "s3://bucket/data"),
    server=("/srv/home/catalogs",),
)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"allow_unsigned_extensions": True}) as connection:
        load_extensions(connection)
        yield connection


@pytest.fixture(scope="module")
def functions(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The table functions of DuckDB and the extensions of the server."""
    rows = connection.execute(
        "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE database_name = "
        "'system' AND function_type IN ('table', 'table_macro', 'pragma')"
    ).fetchall()
    return frozenset(name for (name,) in rows)


def facts(connection: duckdb.DuckDBPyConnection, sql: str) -> StatementFacts:
    [statement] = parse(connection, sql)
    return read_facts(statement)


def is_allowed(
    connection: duckdb.DuckDBPyConnection,
    functions: frozenset[str],
    sql: str,
    identity: Identity,
    files: FileRules,
) -> bool:
    found = facts(connection, sql)
    try:
        check_safety(found, files)
        check(found, identity, AccessRules(files, functions))
    except SwanLakeError:
        return False
    return True


def is_allowed_for(
    connection: duckdb.DuckDBPyConnection, functions: frozenset[str], sql: str
) -> bool:
    """True if a writer may run a text that names no open file."""
    return is_allowed(connection, functions, sql, WRITER, FILES)


#: For readers; a writer may do the same. The engine decides about the tables.
READERS = """
    SELECT 1
    FROM t JOIN s.u USING (i)
    VALUES (1, 'a')
    WITH x AS (SELECT 1) SELECT * FROM x
    SELECT lower('A'), now(), list_value(1), sum(i) FROM range(3) t(i)
    SELECT current_setting('TimeZone')
    SELECT version()
    EXPLAIN SELECT 1
    PREPARE p AS SELECT 1
    EXECUTE p
    DEALLOCATE p
    BEGIN
    COMMIT
    ROLLBACK
    SET TimeZone = 'UTC'
    SET TIME ZONE 'UTC'
    SET SESSION default_order = 'desc'
    RESET SESSION TimeZone
    SET VARIABLE a = 1
    USE sales
    SET search_path = 'a,b'
    PRAGMA table_info('t')
    PRAGMA show_tables
    SHOW TABLES
    DESCRIBE t
    FROM duckdb_tables()
    FROM lake.snapshots()
    FROM ducklake_table_changes('lake', 'main', 't', 0, 1)
    CALL ducklake_snapshots('lake')
    CREATE TEMP TABLE t (i INTEGER)
    CREATE TEMPORARY VIEW v AS SELECT 1
    CREATE TEMP MACRO lower(x) AS x
    CREATE TEMP VIEW duckdb_tables AS SELECT 1
    INSERT INTO t VALUES (1, '/not/a/file.csv')
    UPDATE t SET i = 1
    DELETE FROM t
    MERGE INTO t USING u ON t.i = u.i WHEN MATCHED THEN DELETE
    ALTER TABLE t ADD COLUMN j INTEGER
    ALTER TABLE t ADD COLUMN sqlite_master INTEGER
    ALTER TABLE t RENAME i TO sqlite_master
    ALTER TABLE t DROP COLUMN IF EXISTS sqlite_master
    ALTER VIEW IF EXISTS v RENAME TO w
    COMMENT ON TABLE t IS 'x'
    COMMENT ON COLUMN t.i IS 'x'
    DROP VIEW IF EXISTS duckdb_tables
    DROP TABLE t
    FROM read_csv('/srv/files/a.csv')
    FROM read_parquet(['/srv/files/a', '/srv/files/b/*.parquet'], union_by_name = true)
    COPY t TO '/srv/files/out.csv' (HEADER)
    COPY t FROM 's3://bucket/open/in.csv'
"""
WRITERS = """
    CREATE TABLE t (i INTEGER)
    CREATE OR REPLACE VIEW v AS SELECT 1
    CREATE MACRO twice(x) AS 2 * x
    CREATE MACRO temp.lower(x) AS x
    CREATE MACRO temp.main.lower(x) AS x
    CREATE SCHEMA s
    VACUUM
    ANALYZE
"""
ADMINS = """
    SET threads = 1
    SET memory_limit = '1GB'
    SET GLOBAL TimeZone = 'UTC'
    SET default_order = 'desc'
    SET SESSION threads = 1
    RESET threads
    PRAGMA memory_limit = '1GB'
    PRAGMA enable_profiling
    PRAGMA disable_optimizer
    SET s3_secret_access_key = 'x'
    SELECT current_setting('s3_secret_access_key')
    SELECT current_setting('s3_' || 'secret_access_key')
    SELECT current_setting(['s3_secret_access_key', 'TimeZone'])
    ATTACH 'x.db'
    ATTACH ':memory:' AS m
    ATTACH 'host=evil' AS p (TYPE postgres, SECRET swanlake_metabase)
    DETACH m
    ALTER DATABASE sales SET ALIAS TO hr
    INSTALL spatial
    LOAD spatial
    EXPORT DATABASE '/srv/files/x'
    CHECKPOINT
    FORCE CHECKPOINT
    CREATE SECRET s (TYPE s3)
    CREATE SECRET (TYPE s3)
    CREATE OR REPLACE PERSISTENT SECRET s (TYPE s3)
    DROP SECRET s
    CALL enable_logging('QueryLog')
    FROM duckdb_logs
    FROM duckdb_logs()
    FROM duckdb_secrets()
    FROM duckdb_settings()
    FROM pg_catalog.pg_settings
    FROM query('SELECT 1')
    FROM query_table('t')
    FROM json_execute_serialized_sql('{}')
    SELECT json_serialize_plan('SELECT 1')
    FROM postgres_query('p', 'SELECT 1')
    CALL postgres_execute('p', 'DROP TABLE t')
    FROM sqlite_scan('x', 't')
    FROM postgres_scan('x', 's', 't')
    CALL lake.set_option('a', 'b')
    CALL ducklake_expire_snapshots('lake')
    CALL lake.merge_adjacent_files()
    CALL ducklake_add_data_files('lake', 't', 'x.parquet')
    FROM __ducklake_metadata_lake.ducklake_snapshot
    FROM "__DuckLake_Metadata_lake".ducklake_snapshot
    INSERT INTO t FROM __ducklake_metadata_lake.ducklake_snapshot
    CREATE TABLE t AS FROM __ducklake_metadata_lake.ducklake_snapshot
    CREATE VIEW v AS FROM __ducklake_metadata_lake.ducklake_snapshot
    COPY __ducklake_metadata_lake.ducklake_snapshot TO '/srv/files/x'
    INSERT INTO t VALUES ('/srv/home/catalogs/lake.sqlite')
    SELECT '/srv/home/catalogs/lake.sqlite'
    FROM read_text('/etc/passwd')
    FROM read_csv /* x */ ('/etc/passwd')
    FROM "read_csv"('/etc/passwd')
    FROM read_csv('/srv/files/../../etc/passwd')
    FROM read_csv('/srv/files/' || 'a')
    FROM read_csv(['/srv/files/a', '/etc/passwd'])
    FROM read_csv($1)
    FROM read_csv(e'/srv/files/a')
    FROM glob('/*')
    FROM parquet_metadata('/srv/lake.d/data/t.parquet')
    FROM '/srv/lake.d/data/t.parquet'
    FROM "/srv/lake"."d/data/t.parquet"
    FROM 's3://bucket/data/t.parquet'
    INSERT INTO t FROM read_text('/etc/passwd')
    UPDATE t SET a = (FROM read_text('/etc/passwd'))
    DELETE FROM t USING read_text('/etc/passwd') AS f
    CREATE TEMP VIEW v AS FROM read_text('/etc/passwd')
    CREATE TEMP MACRO m() AS TABLE FROM duckdb_secrets()
    COPY (FROM duckdb_secrets()) TO '/srv/files/x'
    COPY t TO '/etc/x'
    COPY t TO $1
    COPY t TO 's3://bucket/open/../data/x'
    EXPLAIN FROM duckdb_secrets()
    PREPARE p AS FROM duckdb_secrets()
    PIVOT (FROM read_text('/etc/passwd')) ON filename
    SET VARIABLE a = (SELECT content FROM read_text('/etc/passwd'))
"""
REFUSED = """
    SET lock_configuration = true
    SET GLOBAL enable_external_access = false
    SET "disabled_filesystems" = 'LocalFileSystem'
    PRAGMA max_expression_depth = 100000
    RESET allowed_directories
    DROP TABLE __ducklake_metadata_lake.ducklake_snapshot
    TRUNCATE __ducklake_metadata_lake.ducklake_snapshot
    INSERT INTO "__DUCKLAKE_METADATA_lake".t VALUES (1)
    UPDATE __ducklake_metadata_lake.main.t SET a = 1
    DELETE FROM __ducklake_metadata_lake.t
    CREATE TABLE __ducklake_metadata_lake.t (i INTEGER)
    CREATE SCHEMA __ducklake_metadata_lake.s
    ALTER TABLE __ducklake_metadata_lake.t ADD COLUMN i INTEGER
    COPY __ducklake_metadata_lake.t FROM 'x.csv'
    ALTER TABLE t RENAME TO __ducklake_metadata_lake
    CREATE MACRO m() AS TABLE FROM __ducklake_metadata_lake.t
    USE __ducklake_metadata_lake
    SET search_path = '__ducklake_metadata_lake'
    CALL postgres_execute('__ducklake_metadata_lake', 'DROP TABLE t')
    FROM postgres_query('__ducklake_metadata_lake', 'DROP TABLE t')
    CREATE MACRO lower(x) AS x
    CREATE OR REPLACE FUNCTION s."Lower"(x) AS x
    CREATE MACRO "+"(a, b) AS 1
    CREATE MACRO range(x) AS TABLE SELECT 1
    CREATE MACRO memory.main.sum(x) AS 1
    CREATE VIEW duckdb_tables AS SELECT 1
    CREATE OR REPLACE TABLE lake.main."Pragma_Database_List" (i INTEGER)
    ALTER TABLE t RENAME TO duckdb_columns
    ALTER TABLE IF EXISTS lake.main.t RENAME TO "Sqlite_Master"
    ALTER VIEW v RENAME TO duckdb_columns
    CREATE SCHEMA IF NOT EXISTS lake.information_schema
    COPY t TO '/srv/home/catalogs/lake.sqlite'
    COPY t TO '/srv/home/catalogs/lake.sqlite' (DELIMITER ';')
    COPY t TO '/srv/home/x/../catalogs/lake.sqlite'
    EXPORT DATABASE '/srv/home/catalogs'
    ATTACH '/srv/home/catalogs/lake.sqlite' (TYPE sqlite)
    CALL sqlite_attach('/srv/home/catalogs/lake.sqlite')
    ATTACH 'ducklake:sqlite:/srv/home/catalogs/lake.sqlite' AS l
    FROM arrow_scan(1, 2, 3)
    INSERT INTO t FROM pandas_scan(1)
"""


def cases() -> Iterator[tuple[str, set[Identity]]]:
    verdicts = (
        (READERS, {READER, WRITER, ADMIN}),
        (WRITERS, {WRITER, ADMIN}),
        (ADMINS, {ADMIN}),
        (REFUSED, set[Identity]()),
    )
    for texts, allowed in verdicts:
        for sql in filter(None, map(str.strip, texts.splitlines())):
            yield sql, allowed


@pytest.mark.parametrize(("sql", "allowed"), list(cases()))
def test_verdict_on_a_statement(
    connection: duckdb.DuckDBPyConnection,
    functions: frozenset[str],
    sql: str,
    allowed: set[Identity],
) -> None:
    verdicts = {
        identity
        for identity in (READER, WRITER, ADMIN)
        if is_allowed(connection, functions, sql, identity, FILES)
    }
    assert verdicts == allowed


def test_unknown_kinds_of_statements_and_objects_are_for_admins() -> None:
    for type_ in StatementType.__members__.values():
        unknown = StatementFacts(type_, "new", frozenset(), (), (), object_kind="new")
        check(unknown, ADMIN, AccessRules())
        known = (StatementType.CREATE, StatementType.ALTER, StatementType.DROP)
        if type_ in known or type_ == StatementType.ATTACH:
            with pytest.raises(AccessDenied):
                check(unknown, WRITER, AccessRules())


def test_every_listed_function_exists(functions: frozenset[str]) -> None:
    assert (_TABLE_FUNCTIONS | _FILE_FUNCTIONS) - functions - {"test_all_types"} == set()


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_csv('/srv/files/a.csv')",
        "FROM read_csv($1)",
        "COPY t TO '/srv/files/a.csv'",
        "COPY t TO $1",
        "FROM glob('/srv/*')",
    ],
)
def test_files_are_closed_unless_they_are_opened(
    connection: duckdb.DuckDBPyConnection, functions: frozenset[str], sql: str
) -> None:
    closed, all_open = FileRules(), FileRules(FileAccess.ALL)
    assert not is_allowed(connection, functions, sql, WRITER, closed)
    assert is_allowed(connection, functions, sql, WRITER, all_open)
    assert is_allowed(connection, functions, sql, ADMIN, closed)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("VACUUM", r"The reader ana may not use VACUUM: it needs the role writer\.$"),
        ("CHECKPOINT", r"The reader ana may not use CHECKPOINT: it needs the role admin\.$"),
        ("SET default_order = 'desc'", r"all sessions; use SET SESSION default_order\.$"),
        ("SET threads = 1", r"may not change threads for all sessions\.$"),
    ],
)
def test_refusal_says_what_is_needed(
    connection: duckdb.DuckDBPyConnection, sql: str, message: str
) -> None:
    with pytest.raises(AccessDenied, match=message):
        check(facts(connection, sql), READER, AccessRules())


def test_space_that_only_the_parser_knows_hides_no_function(
    connection: duckdb.DuckDBPyConnection, functions: frozenset[str]
) -> None:
    sql = "PIVOT (SELECT\u2003content FROM\u2003read_text\u00a0('x')) ON content"
    assert not is_allowed(connection, functions, sql, WRITER, FileRules())


LONG = "(1, -2.5e3, 'it''s')," * 300


@pytest.mark.parametrize(
    ("last", "is_allowed"),
    [
        ("(DATE '2020-01-01', TIMESTAMP '2020-01-01 00:00:00', DEFAULT)", True),
        ("('read_text(''/etc/passwd'')', NULL, true)", True),
        ("((SELECT content FROM read_text('/etc/passwd')), 1, 1)", False),
        ("((FROM '/srv/lake.d/data/t.parquet'), 1, 1)", False),
        ("(1e5, getenv('HOME'), 1)", False),
        ("(e'\\'', getenv('HOME'), '')", False),
        ("(1--'\n, getenv('HOME'), 1 --')\n)", False),
        ("(1, 1, 1) RETURNING (FROM duckdb_secrets())", False),
    ],
)
def test_long_insert_of_literals_hides_nothing(
    connection: duckdb.DuckDBPyConnection, functions: frozenset[str], last: str, is_allowed: bool
) -> None:
    sql = f"INSERT INTO t VALUES {LONG} {last}"
    assert is_allowed_for(connection, functions, sql) is is_allowed
    sql = f"INSERT INTO __ducklake_metadata_lake.t VALUES {LONG} {last}"
    assert not is_allowed_for(connection, functions, sql)


def test_statement_inside_another_is_found(connection: duckdb.DuckDBPyConnection) -> None:
    assert facts(connection, "EXPLAIN ANALYZE DELETE FROM t").inner == "DELETE FROM t"
    assert facts(connection, "EXPLAIN (FORMAT json) SELECT 1").inner == "SELECT 1"
    assert facts(connection, "EXPLAIN (SELECT 1)").inner == "(SELECT 1)"
    assert facts(connection, "PREPARE p AS INSERT INTO t FROM u").inner == "INSERT INTO t FROM u"
    assert facts(connection, "SELECT 1").inner is None


def test_privilege_on_a_catalog_is_required() -> None:
    caller = Identity("ana", Role.WRITER, (Grant("sales", Privilege.READ),))
    require(caller, "sales", Privilege.READ)
    with pytest.raises(AccessDenied, match="The writer ana may not write to the catalog sales"):
        require(caller, "sales", Privilege.WRITE)
    with pytest.raises(AccessDenied, match="may not read the catalog hr"):
        require(caller, "hr", Privilege.READ)


@pytest.mark.parametrize("needed", Role)
def test_role_includes_lower_roles(needed: Role) -> None:
    require_role(ADMIN, needed, "it")
    if needed is not Role.READER:
        with pytest.raises(AccessDenied, match=f"it needs the role {needed}"):
            require_role(READER, needed, "it")


@pytest.mark.parametrize(
    ("path", "directory", "inside"),
    [
        ("/a/b/c", "/a/b", True),
        ("/a/b", "/a/b", True),
        ("/a/bc", "/a/b", False),
        ("/a/b/../c", "/a/b", False),
        ("/a/x/../b/*.csv", "/a/b", True),
        ("file:/a/b/c", "/a/b", True),
        ("s3://b/x/y", "s3://b/x/", True),
        ("s3://b/xy", "s3://b/x", False),
        ("s3://b/x/../y", "s3://b/x", False),
        ("/a/b", "s3://b", False),
    ],
)
def test_path_is_within_a_directory(path: str, directory: str, inside: bool) -> None:
    assert is_within(path, directory) is inside


def test_directories_are_absolute() -> None:
    assert parse_directories("/a/b/, s3://x/y") == ("/a/b", "s3://x/y")
    assert parse_directories("") == ()
    with pytest.raises(ConfigError, match="'here' is not an absolute path or a URL"):
        parse_directories("/a, here")
