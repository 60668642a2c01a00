"""The one writer of Parquet files: data files, and the files that mark rows as deleted.

DuckDB writes them, with the field ids, names, partition folders and statistics of the stock
extension. A commit makes them part of the lake; until then ``remove_files`` undoes the write.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import duckdb
import pyarrow as pa

from swanlake._internal.disk import fsync_path, make_directories
from swanlake.errors import Code, InvalidRequest, InvalidValue, Unsupported
from swanlake.lake.files.copy_stats import file_column_stats
from swanlake.lake.files.storage import delete_all, is_url
from swanlake.lake.model.conditions import any_value_sql
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.layout import Column, DataFile, DeleteFile, Table
from swanlake.lake.model.partitioning import Partition, folder_path, partitions
from swanlake.lake.model.type_registry import find_type
from swanlake.lake.model.types import duckdb_type, stored_type
from swanlake.sql.quoting import identifier, literal

log = logging.getLogger("swanlake.lake")

TARGET_FILE_SIZE = 512 * 1024 * 1024
#: Iceberg's ids for the two columns of a delete file.
_DELETE_FIELD_IDS = "{'file_path': 2147483646, 'pos': 2147483645}"
#: The column with the snapshot of a row, or of its delete, in a file that covers several.
SNAPSHOT_ID = "_ducklake_internal_snapshot_id"
#: The column with row ids, in a file whose rows come from other files.
ROW_ID = "_ducklake_internal_row_id"
#: The field ids of both, by which readers find the columns.
INTERNAL_FIELD_IDS = {ROW_ID: 2147483540, SNAPSHOT_ID: 2147483539}
_PARTIAL_DELETE_FIELD_IDS = _DELETE_FIELD_IDS.replace("}", f", '{SNAPSHOT_ID}': 2147483539}}")
_ONE_FILE = 1 << 60
_VERSION, _OLD_VERSION = "V2", "V1"
#: Types with any number of values in a row.
_REPEATED = {"list", "map"}
_WITH_LEVELS = "zstd"
#: Raised in SQL, for a message with the name of the table.
_TOO_LONG = "the time of an INTERVAL is too long for Parquet"

#: Query parameters, by position or by name.
Parameters = Sequence[object] | Mapping[str, object]


def write_files(
    connection: duckdb.DuckDBPyConnection, query: str, table: Table, *, parameters: Parameters = ()
) -> list[DataFile]:
    """Writes the rows of a query to new files in the table's directory; no rows, no files.

    The query yields the table's columns in order; names do not matter, and values are cast to the
    columns' types. The table's options set the encoding and the approximate file size; files of a
    partitioned table are not split, as in the stock extension. After a failure a local directory is
    unchanged; an object store may keep complete files, which are orphans.
    """
    _check_writable(table)
    query = query.strip().rstrip(";")
    _check_width(connection, query, table, parameters)
    keys = partitions(table)
    copy_options = [
        "GEOPARQUET_VERSION 'NONE'",
        f"FIELD_IDS {{{', '.join(map(_field_id, table.columns))}}}",
        *_encoding(table),
    ]
    folders = table.options.partition_folders
    if keys:
        names = ", ".join(identifier(key.column) for key in keys)
        # Computed keys are not columns of the table and stay out of the files.
        keep = all(key.expression is None for key in keys)
        copy_options += [
            f"PARTITION_BY ({names})",
            f"WRITE_PARTITION_COLUMNS {keep}",
            f"HIVE_FILE_PATTERN {folders}",
        ]
    else:
        size = table.options.target_file_size or TARGET_FILE_SIZE
        copy_options += [f"FILE_SIZE_BYTES {size}", "WRITE_EMPTY_FILE false"]
    rows = _stored_sql(rows_sql(query, table, keys), table)
    with _folder(table) as folder, _explaining(table):
        written = _copy(connection, rows, folder, "ducklake-{uuidv7}", copy_options, parameters)
        files = {
            one.path: one.data_file(
                # Only files that are moved can get another folder.
                folder_path(one.path, keys) if folders and folder != table.directory else one.path,
                table,
                tuple((one.partition_values or {}).values()),
            )
            for one in written
        }
        _move(folder, table, files)
    return list(files.values())


def rows_sql(query: str, table: Table, keys: Sequence[Partition] = ()) -> str:
    """SQL for the rows of a query as files hold them: cast to the columns' types, and sorted.

    It fails at a NULL in a NOT NULL column. Computed partition keys follow the columns.
    """
    names = ", ".join(identifier(column.name) for column in table.columns)
    values = ", ".join(_value(column, table) for column in table.columns)
    rows = f"SELECT {values} FROM ({query}\n) AS source({names})"
    if table.sort_keys and table.options.sort_inserts:
        order = ", ".join(key.sql for key in table.sort_keys)
        rows = f"SELECT * FROM ({rows}) ORDER BY {order}"
    computed = [f"{key.expression} AS {identifier(key.column)}" for key in keys if key.expression]
    # Outside the sort, whose expressions must not see these columns.
    return f"SELECT *, {', '.join(computed)} FROM ({rows})" if computed else rows


@dataclass(frozen=True)
class UnpartitionedFile:
    """A written file, and the bounds of its internal columns."""

    file: DataFile
    bounds: Mapping[str, tuple[int, int]]


def write_plain_file(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    table: Table,
    *,
    internal: Sequence[str] = (),
    folder: str = "",
    partition_values: tuple[str | None, ...] = (),
) -> UnpartitionedFile | None:
    """Writes rows of the table to one new file, in their order; no rows, no file.

    They have the table's columns by name, then the ``internal`` ones. The folder is relative to the
    table's directory, with a slash at the end.
    """
    _check_writable(table)
    internal_ids = (f"{literal(name)}: {INTERNAL_FIELD_IDS[name]}" for name in internal)
    field_ids = ", ".join((*map(_field_id, table.columns), *internal_ids))
    path = f"{folder}ducklake-{uuid7()}.parquet"
    copy_options = [
        "FORMAT parquet",
        "RETURN_STATS",
        "WRITE_EMPTY_FILE false",
        "GEOPARQUET_VERSION 'NONE'",
        f"FIELD_IDS {{{field_ids}}}",
        *_encoding(table),
    ]
    rows = _stored_sql(rows, table)
    with _folder(table) as directory, _explaining(table):
        os_path = directory + path
        if not is_url(directory):
            os.makedirs(os.path.dirname(os_path), exist_ok=True)
        returned = connection.execute(
            f"COPY ({rows}) TO {literal(os_path)} ({', '.join(copy_options)})"
        ).fetchall()
        if not returned:
            return None
        ((_, *rest),) = returned
        one = _Written(path, *rest)
        file = one.data_file(path, table, partition_values)
        _move(directory, table, {path: file})
    found = {name: one.statistics[identifier(name)] for name in internal}
    bounds = {name: (int(stats["min"]), int(stats["max"])) for name, stats in found.items()}
    return UnpartitionedFile(file, bounds)


def write_delete_file(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    data_file_path: str,
    positions: pa.Array | Iterable[int],
    snapshot_ids: pa.Array | Iterable[int] | None = None,
) -> DeleteFile:
    """Writes the delete file of a data file, whose absolute path is given.

    ``positions`` count from 0. A file of several snapshots has the snapshot of each delete.
    """
    _check_writable(table)
    deleted = pa.table({"pos": pa.array(positions, pa.int64())})
    extra, field_ids = "", _DELETE_FIELD_IDS
    if snapshot_ids is not None:
        deleted = deleted.append_column(SNAPSHOT_ID, pa.array(snapshot_ids, pa.int64()))
        extra, field_ids = f", {SNAPSHOT_ID}", _PARTIAL_DELETE_FIELD_IDS
    if not deleted.num_rows:
        raise InvalidRequest("A delete file needs at least one row.")
    view = f"swanlake_deleted_{uuid4().hex}"
    rows = (
        f"SELECT DISTINCT {literal(data_file_path)} AS file_path, pos{extra} "
        f"FROM {identifier(view)} ORDER BY pos"
    )
    options = [f"FIELD_IDS {field_ids}", f"FILE_SIZE_BYTES {_ONE_FILE}"]
    with _folder(table) as folder:
        connection.register(view, deleted)
        try:
            (one,) = _copy(connection, rows, folder, "ducklake-{uuidv7}-delete", options)
        finally:
            connection.unregister(view)
        file = DeleteFile(one.path, one.row_count, one.size, one.footer_size)
        _move(folder, table, {one.path: file})
    return file


def remove_files(table: Table, files: Iterable[DataFile | DeleteFile]) -> None:
    """Removes files that will not become part of the lake; missing ones are ignored.

    Best effort: the caller has an error of its own to report, and what remains is an orphan. No
    marker of the store is needed: no other lake has files of these names, which were just made.
    """
    problems = delete_all([table.directory + file.path for file in files])
    for path, problem in problems.items():
        log.warning("%s remains until the next clean-up of orphans: %s", path, problem)


class _Written(NamedTuple):
    """COPY's result for one file; the path is relative to COPY's target."""

    path: str
    row_count: int
    size: int
    footer_size: int
    statistics: dict[str, dict[str, str]]
    partition_values: dict[str, str | None] | None

    def data_file(self, path: str, table: Table, values: tuple[str | None, ...]) -> DataFile:
        """The data file at its final path, with its partition values."""
        stats = file_column_stats(self.statistics, table)
        return DataFile(path, self.row_count, self.size, self.footer_size, stats, values)


def _copy(
    connection: duckdb.DuckDBPyConnection,
    rows: str,
    folder: str,
    name: str,
    options: Sequence[str],
    parameters: Parameters = (),
) -> list[_Written]:
    all_options = [
        "FORMAT parquet",
        "RETURN_STATS",
        "OVERWRITE_OR_IGNORE",  # the folder may not be empty, and the names are unique
        f"FILENAME_PATTERN {literal(name)}",
        *options,
    ]
    returned = connection.execute(
        f"COPY ({rows}) TO {literal(folder.rstrip('/'))} ({', '.join(all_options)})",
        _bindings(parameters),
    ).fetchall()
    for path, *_ in returned:
        if not path.startswith(folder):
            raise Unsupported(
                f"DuckDB was told to write to {folder!r} and wrote {path!r}; give the lake's data "
                "path in the form that DuckDB uses."
            )
    return [_Written(path.removeprefix(folder), *rest) for path, *rest in returned]


@contextmanager
def _folder(table: Table) -> Iterator[str]:
    """Where COPY writes: a temporary folder, or the table's directory in an object store.

    When COPY fails, DuckDB leaves files behind under unknown names.
    """
    if is_url(table.directory):
        yield table.directory
        return
    folder = f"{table.directory}.swanlake-{uuid4().hex}/"
    created = make_directories(folder)
    try:
        # The name of a new table's directory; the directory itself is synced with its files.
        for directory in created - set(map(os.path.abspath, (folder, table.directory))):
            fsync_path(directory)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: str, table: Table, files: Mapping[str, DataFile | DeleteFile]) -> None:
    """Moves written files to the table's directory: all, or none.

    Files and names are synced: a power failure after the commit must not lose them.
    """
    if folder == table.directory:
        return
    directories: set[str] = set()
    try:
        for path, file in files.items():
            target = table.directory + file.path
            directories |= make_directories(os.path.dirname(target))
            fsync_path(folder + path)
            os.replace(folder + path, target)
        for directory in directories:
            fsync_path(directory)
    except BaseException:
        remove_files(table, files.values())
        raise


def _encoding(table: Table) -> list[str]:
    """Options of COPY; all but the Parquet version default to DuckDB's."""
    options = table.options
    # DuckDB refuses a level for other codecs, even one set for the whole catalog.
    level = options.compression_level if options.compression == _WITH_LEVELS else None
    given = {
        "COMPRESSION": options.compression and literal(options.compression),
        "COMPRESSION_LEVEL": level,
        # Delta and byte-stream encodings: files are smaller, and written and read faster.
        "PARQUET_VERSION": literal(options.version or _default_version(table)),
        "ROW_GROUP_SIZE": options.row_group_size,
    }
    return [f"{name} {value}" for name, value in given.items() if value is not None]


def _default_version(table: Table) -> str:
    """The newer version, where DuckDB's writer of it is sound.

    For a list that several rows of a query share, such as a constant in a CASE, it computes too
    small a size and fails.
    """
    nested = {column.type for top in table.columns for column in top.tree()}
    return _OLD_VERSION if nested & _REPEATED else _VERSION


def _stored_sql(rows: str, table: Table) -> str:
    """SQL for rows of the table in the types that files store; it fails at unstorable values."""
    values = [
        f"{value} AS {identifier(column.name)}"
        for column in table.columns
        if (value := _stored_value(column)) != identifier(column.name)
    ]
    return f"SELECT * REPLACE ({', '.join(values)}) FROM ({rows})" if values else rows


def _stored_value(column: Column) -> str:
    name = identifier(column.name)
    value = name
    if stored_type(column) != duckdb_type(column):
        value = f"CAST({name} AS {stored_type(column)})"
    is_changed = any_value_sql(column, name, _changed_value)
    if is_changed is None:
        return value
    return f"CASE WHEN {is_changed} THEN error({literal(_TOO_LONG)}) ELSE {value} END"


def _changed_value(column: Column, value: str) -> str | None:
    type_ = find_type(column.type)
    return None if type_ is None or type_.changed_if is None else type_.changed_if.format(value)


@contextmanager
def _explaining(table: Table) -> Iterator[None]:
    """Names the values that no file can store, where DuckDB names only their types."""
    try:
        yield
    except duckdb.InvalidInputException as error:
        if _TOO_LONG not in str(error):
            raise
        raise _unstorable(
            f"An INTERVAL for {table.full_name} has a time of 2^32 milliseconds (1193 hours) or "
            "more, and its files cannot store it; write it with days."
        ) from None
    except duckdb.ConversionException as error:
        types = (find_type(column.type) for column in table.leaves())
        stored = {type_.stored_as for type_ in types if type_ is not None and type_.stored_as}
        if not any(f"to {name}" in str(error) for name in stored):
            raise
        raise _unstorable(
            f"A HUGEINT or UHUGEINT for {table.full_name} has more than 38 digits, and its files "
            "cannot store it."
        ) from None


def _unstorable(message: str) -> InvalidValue:
    return InvalidValue(message, identifier="CONVERSION_ERROR", code=Code.INVALID_ARGUMENT)


def _value(column: Column, table: Table) -> str:
    name = identifier(column.name)
    value = f"CAST({name} AS {duckdb_type(column)})"
    if not column.nullable:
        message = literal(f"NOT NULL constraint failed: {table.full_name}.{column.name}")
        value = f"CASE WHEN {name} IS NULL THEN error({message}) ELSE {value} END"
    return f"{value} AS {name}"


def _field_id(column: Column) -> str:
    name = literal(column.name)
    if not column.children:
        return f"{name}: {column.id}"
    children = ", ".join(map(_field_id, column.children))
    return f"{name}: {{'__duckdb_field_id': {column.id}, {children}}}"


def _check_writable(table: Table) -> None:
    if table.encrypted:
        raise Unsupported(
            f"The table {table.full_name} is encrypted, and SwanLake cannot write encrypted files."
        )
    for column in table.leaves():
        type_ = find_type(column.type)
        if type_ is not None and not type_.is_storable:
            # DuckDB's answer is an internal error, after which no connection works any more.
            raise Unsupported(
                f"The column {column.name!r} of {table.full_name} is a {type_.duckdb}, which "
                "cannot be written to Parquet."
            )


def _bindings(parameters: Parameters) -> object:
    return parameters if isinstance(parameters, Mapping) else list(parameters)


def _check_width(
    connection: duckdb.DuckDBPyConnection, query: str, table: Table, parameters: Parameters
) -> None:
    width = len(connection.execute(f"DESCRIBE {query}", _bindings(parameters)).fetchall())
    if width != len(table.columns):
        raise InvalidRequest(
            f"The table {table.full_name} has {len(table.columns)} columns, and the rows to write "
            f"have {width}.",
            identifier="COLUMN_COUNT",
        )
