"""Decides whether a caller may run a statement, from the facts of the statement alone.

Everything is denied to readers and writers that is not listed here. Which catalogs a statement
reaches, through views and macros too, is decided by the engine: that of a caller has only the
catalogs that the caller may read, and those that it may not write are read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duckdb import StatementType

from swanlake.access.files import FileAccess, FileRules
from swanlake.access.identity import Identity, Privilege, Role
from swanlake.errors import AccessDenied, Code, QueryError
from swanlake.sql.expressions import all_builtin_functions, builtin_views
from swanlake.sql.facts import StatementFacts

#: The prefix of the database in which DuckLake reads the metadata of a catalog.
METADATA_PREFIX = "__ducklake_metadata_"

#: The statements of readers and writers; all others are for admins. A reader's engine has no
#: catalog that can be written, so only temporary objects are left to change.
_STATEMENTS = frozenset(
    {
        StatementType.SELECT,
        StatementType.EXPLAIN,
        StatementType.PREPARE,
        StatementType.EXECUTE,
        StatementType.TRANSACTION,
        StatementType.SET,
        StatementType.VARIABLE_SET,
        StatementType.CALL,
        StatementType.INSERT,
        StatementType.UPDATE,
        StatementType.DELETE,
        StatementType.MERGE_INTO,
        StatementType.COPY,
        StatementType.CREATE,
        StatementType.ALTER,
        StatementType.DROP,
    }
)
_WRITER_STATEMENTS = frozenset({StatementType.ANALYZE, StatementType.VACUUM})
_OBJECTS = frozenset("table view column macro function schema sequence type index prepared".split())

#: Settings of a session: ``SET`` changes them for its connection only.
_SESSION_SETTINGS = frozenset(
    "use variable timezone calendar schema search_path integer_division ieee_floating_point_ops "
    "explain_output order_by_non_integer_literal scalar_subquery_error_on_multiple_rows "
    "preserve_identifier_case pivot_limit pivot_filter_threshold lambda_syntax "
    "disable_timestamptz_casts binary_as_string errors_as_json".split()
)
#: Settings of a session if the statement says ``SET SESSION``; without it, they are for all.
_SCOPED_SETTINGS = frozenset(
    "default_collation default_order default_null_order null_order old_implicit_casting "
    "preserve_insertion_order".split()
)
#: Settings on which the server depends: no caller may change them.
_REFUSED_SETTINGS = frozenset(
    "allowed_configs allowed_directories allowed_paths disabled_filesystems enable_external_access "
    "lock_configuration max_expression_depth".split()
)
#: What current_setting() gives to readers and writers; other settings may hold secrets.
_READABLE_SETTINGS = (
    _SESSION_SETTINGS | _SCOPED_SETTINGS | {"threads", "memory_limit", "max_memory"}
)

#: Table functions of readers and writers; all others that DuckDB or an extension has are admins'.
_TABLE_FUNCTIONS = frozenset(
    "duckdb_columns duckdb_constraints duckdb_coordinate_systems duckdb_databases "
    "duckdb_dependencies duckdb_functions duckdb_indexes duckdb_keywords duckdb_optimizers "
    "duckdb_prepared_statements duckdb_schemas duckdb_sequences duckdb_tables duckdb_types "
    "duckdb_variables duckdb_views generate_series histogram histogram_values icu_calendar_names "
    "json_each json_tree pg_timezone_names pragma_collations pragma_database_size pragma_platform "
    "pragma_show pragma_storage_info pragma_table_info pragma_user_agent pragma_version range "
    "repeat repeat_row summary test_all_types unnest "
    # of DuckLake, also as functions of a catalog and without the prefix
    "ducklake_current_snapshot ducklake_last_committed_snapshot ducklake_list_files "
    "ducklake_options ducklake_settings ducklake_snapshots ducklake_table_changes "
    "ducklake_table_deletions ducklake_table_info ducklake_table_insertions".split()
)
#: Pragmas that have the name of another function.
_HARMLESS_PRAGMAS = frozenset("collations database_list functions platform show version".split())
_FILE_FUNCTIONS = frozenset(
    "glob parquet_bloom_probe parquet_file_metadata parquet_full_metadata parquet_kv_metadata "
    "parquet_metadata parquet_scan parquet_schema read_blob read_csv read_csv_auto read_json "
    "read_json_auto read_json_objects read_json_objects_auto read_ndjson read_ndjson_auto "
    "read_ndjson_objects read_parquet read_text sniff_csv".split()
)
#: Scalar functions of admins: they run or plan a text, or reach beyond the database.
_ADMIN_SCALARS = frozenset("getenv json_serialize_plan write_log".split())
#: They take addresses of memory, and end the process if these are wrong.
_REFUSED_FUNCTIONS = frozenset("arrow_scan arrow_scan_dumb pandas_scan python_map_function".split())
#: They hand a text to another database, past DuckDB's parser.
_RAW_FUNCTIONS = frozenset(
    "postgres_attach postgres_execute postgres_query sqlite_attach sqlite_query".split()
)
#: They show the settings, of which some hold secrets.
_ADMIN_VIEWS = frozenset({"pg_settings"})
_SYSTEM = "duckdb_"
_DUCKLAKE = "ducklake_"
#: Statements that write files, or open them for writing.
_WRITES_FILES = frozenset({StatementType.COPY, StatementType.EXPORT, StatementType.ATTACH})
#: Statements that write nothing themselves; a DETACH of the metadata is refused as one of its
#: catalog.
_READS = frozenset(
    {
        StatementType.SELECT,
        StatementType.EXPLAIN,
        StatementType.PREPARE,
        StatementType.ATTACH,
        StatementType.DETACH,
    }
)
_ROW_WRITES = frozenset(
    {
        StatementType.INSERT,
        StatementType.UPDATE,
        StatementType.DELETE,
        StatementType.MERGE_INTO,
        StatementType.COPY,
    }
)
_MACROS = ("macro", "function")
_SYSTEM_SCHEMAS = frozenset({"information_schema", "pg_catalog"})


@dataclass(frozen=True)
class AccessRules:
    """What decisions depend on besides the statement and the caller."""

    files: FileRules = field(default_factory=FileRules)
    #: The table functions and pragmas of the engine, in lower case.
    table_functions: frozenset[str] = frozenset()


def require(identity: Identity, catalog: str, privilege: Privilege) -> None:
    """Raises AccessDenied if a caller does not have a privilege on a catalog."""
    if identity.privilege(catalog) < privilege:
        verb = "write to" if privilege is Privilege.WRITE else "read"
        raise AccessDenied(f"{_caller(identity)} may not {verb} the catalog {catalog}.")


def require_role(identity: Identity, role: Role, what: str) -> None:
    """Raises AccessDenied if a caller has a lower role."""
    if not identity.role.includes(role):
        raise AccessDenied(f"{_caller(identity)} may not use {what}: it needs the role {role}.")


def check_safety(facts: StatementFacts, files: FileRules) -> None:
    """Raises for a statement that would break the server for others; it holds for admins, too."""
    if facts.setting is not None and facts.setting.name in _REFUSED_SETTINGS:
        raise QueryError(
            f"{facts.setting.name} cannot be changed: the server depends on it. Set it in "
            "ducklake_init_sql if you must.",
            identifier="SETTING_REFUSED",
            code=Code.PERMISSION_DENIED,
        )
    called = {call.name for call in facts.calls}
    if refused := sorted(called & _REFUSED_FUNCTIONS):
        raise AccessDenied(f"{refused[0]} cannot be called: it takes addresses of memory.")
    if _writes_metadata(facts) or (called & _RAW_FUNCTIONS and _names_metadata(facts)):
        raise AccessDenied(
            "Only SwanLake writes the metadata of a catalog. Change the tables of the catalog."
        )
    _check_shadowing(facts)
    writes_files = facts.type in _WRITES_FILES or called & _RAW_FUNCTIONS
    if writes_files and any(map(files.is_of_server, facts.texts)):
        raise AccessDenied("Statements may not write the files of the server, or attach them.")


def _writes_metadata(facts: StatementFacts) -> bool:
    if facts.type in _READS or facts.copies_out:
        return False
    is_view = facts.type == StatementType.CREATE and facts.object_kind in ("table", "view")
    if (facts.type in _ROW_WRITES or is_view) and facts.target is not None:
        return any(map(_is_metadata, facts.target))
    return _names_metadata(facts)


def _names_metadata(facts: StatementFacts) -> bool:
    return any(map(_is_metadata, facts.names))


def _is_metadata(name: str) -> bool:
    return METADATA_PREFIX in name.lower()


def _check_shadowing(facts: StatementFacts) -> None:
    """Raises for an object that would replace one of DuckDB's own for all sessions."""
    for name in facts.new_names:
        check_new_name("view", name)
    if facts.type != StatementType.CREATE or facts.is_temporary or not facts.object_name:
        return
    in_temp = facts.object_name[0].lower() == "temp" and len(facts.object_name) > 1
    if not in_temp:
        check_new_name(facts.object_kind, facts.object_name[-1])


def check_new_name(kind: str, name: str) -> None:
    """Raises if DuckDB has an object of that kind and name, which statements would not find."""
    if name.lower() in _builtin_names(kind):
        raise AccessDenied(
            f"The {kind} {name} would replace DuckDB's own of that name for all sessions. Choose "
            "another name, or create it as TEMP."
        )


def _builtin_names(kind: str) -> frozenset[str]:
    if kind in _MACROS:
        return all_builtin_functions()
    if kind in ("table", "view"):
        return builtin_views()
    return _SYSTEM_SCHEMAS if kind == "schema" else frozenset()


def check(facts: StatementFacts, identity: Identity, rules: AccessRules) -> None:
    """Raises AccessDenied if a caller may not run a statement."""
    if identity.is_admin:
        return
    who = _caller(identity)
    allowed = _STATEMENTS
    if identity.role.includes(Role.WRITER):
        allowed |= _WRITER_STATEMENTS
    if facts.type not in allowed or facts.verb in ("checkpoint", "force"):
        role = Role.WRITER if facts.type in _WRITER_STATEMENTS else Role.ADMIN
        raise AccessDenied(f"{who} may not use {facts.verb.upper()}: it needs the role {role}.")
    _check_object(facts, identity)
    _check_setting(facts, who)
    if _names_metadata(facts):
        raise AccessDenied(f"{who} may not read the metadata of a catalog.")
    for name in map(str.lower, facts.names):  # some are views, too
        is_function = name.startswith(_SYSTEM) and _is_admin_function(name, rules.table_functions)
        if is_function or name in _ADMIN_VIEWS:
            raise AccessDenied(f"{who} may not read {name}: it needs the role admin.")
    for call in facts.calls:
        _check_call(call.name, call.texts, rules, who)
    _check_files(facts, rules.files, who)


def _check_object(facts: StatementFacts, identity: Identity) -> None:
    if facts.type not in (StatementType.CREATE, StatementType.ALTER, StatementType.DROP):
        return
    if facts.object_kind not in _OBJECTS:
        what = f"{facts.verb.upper()} {facts.object_kind.upper()}"
        raise AccessDenied(f"{_caller(identity)} may not use {what}: it needs the role admin.")
    creates = facts.type == StatementType.CREATE and not facts.is_temporary
    if creates and not identity.role.includes(Role.WRITER):
        raise AccessDenied(f"{_caller(identity)} may create temporary objects only.")


def _check_setting(facts: StatementFacts, who: str) -> None:
    setting = facts.setting
    if setting is None:
        return
    is_own = setting.name in _SESSION_SETTINGS and setting.scope in ("", "session")
    is_scoped = setting.name in _SCOPED_SETTINGS and setting.scope == "session"
    if is_own or is_scoped:
        return
    hint = f"; use SET SESSION {setting.name}" if setting.name in _SCOPED_SETTINGS else ""
    raise AccessDenied(f"{who} may not change {setting.name} for all sessions{hint}.")


def _check_call(name: str, texts: tuple[str, ...] | None, rules: AccessRules, who: str) -> None:
    if name in _FILE_FUNCTIONS:
        is_open = texts is not None and all(map(rules.files.is_open, texts))
        if not is_open and rules.files.access is not FileAccess.ALL:
            raise AccessDenied(f"{who} may not read this file with {name}.")
    elif name == "current_setting":
        if texts is None or texts[0].lower() not in _READABLE_SETTINGS:
            raise AccessDenied(f"{who} may read the settings of the session only.")
    elif name in _ADMIN_SCALARS or _is_admin_function(name, rules.table_functions):
        raise AccessDenied(f"{who} may not call {name}: it needs the role admin.")


def _is_admin_function(name: str, table_functions: frozenset[str]) -> bool:
    if name in _TABLE_FUNCTIONS or name in _HARMLESS_PRAGMAS:
        return False
    if _DUCKLAKE + name in table_functions:  # a function of a catalog
        return _DUCKLAKE + name not in _TABLE_FUNCTIONS
    return name in table_functions


def _check_files(facts: StatementFacts, files: FileRules, who: str) -> None:
    if facts.copies:
        file = facts.copied_file
        is_allowed = file is not None and files.is_open(file)
        if not is_allowed and not (file is None and files.access is FileAccess.ALL):
            raise AccessDenied(f"{who} may not use this file with COPY.")
    # DuckDB reads a file if no table has its name.
    paths = (name for name in (*facts.names, *facts.texts) if "/" in name)
    if any(map(files.is_of_lake, paths)):
        raise AccessDenied(f"{who} may not name the files of the lake.")


def _caller(identity: Identity) -> str:
    return f"The {identity.role} {identity.name}"
