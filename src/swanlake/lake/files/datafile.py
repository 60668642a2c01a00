"""The one writer of Parquet files: data files, and the files that mark rows as deleted.

DuckDB does the writing, with the field ids, names, partition folders and statistics that the stock
DuckLake extension would have produced. What is written here becomes part of the lake by a commit;
until then ``remove_files`` undoes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple
from uuid import uuid4

import duckdb
import pyarrow as pa

from swanlake.errors import InvalidRequest, Unsupported
from swanlake.lake.disk import make_directories, sync
from swanlake.lake.files import delete, is_url
from swanlake.lake.ids import uuid7
from swanlake.lake.layout import Column, DataFile, DeleteFile, Table, TableOptions
from swanlake.lake.partitioning import Partition, folder_path, partitions
from swanlake.lake.stats import file_column_stats
from swanlake.lake.types import duckdb_type
from swanlake.sql.quoting import identifier, literal

TARGET_FILE_SIZE = 512 * 1024 * 1024
#: Iceberg's ids for the two columns of a file of deleted rows.
_DELETE_FIELD_IDS = "{'file_path': 2147483646, 'pos': 2147483645}"
#: The column of a file that covers several snapshots: from which one a row, or its delete, is.
SNAPSHOT_ID = "_ducklake_internal_snapshot_id"
#: The column of a file whose rows keep the ids they had in other files.
ROW_ID = "_ducklake_internal_row_id"
#: The field ids of both; they are how readers find the columns.
INTERNAL_FIELD_IDS = {ROW_ID: 2147483540, SNAPSHOT_ID: 2147483539}
_PARTIAL_DELETE_FIELD_IDS = _DELETE_FIELD_IDS.replace("}", f", '{SNAPSHOT_ID}': 2147483539}}")
_ONE_FILE = 1 << 60
_VERSION = "V2"
_WITH_LEVELS = "zstd"

#: Values for the parameters of a query, by number or by name.
Parameters = Sequence[object] | Mapping[str, object]


def write_files(
    connection: duckdb.DuckDBPyConnection,
    query: str,
    table: Table,
    *,
    parameters: Parameters = (),
) -> list[DataFile]:
    """Writes the rows of a query to new files in the table's directory, and describes them.

    The query yields the table's columns in their order; the names do not matter, and every value
    is cast to the column's type. No rows, no files. The table's options say how files are encoded
    and how large they become, or somewhat larger; those of a partitioned table are not split, as in
    the stock extension. If it fails, a local directory holds what it held; an object store may keep
    files that were complete by then, which no table refers to and
    ``ducklake_delete_orphaned_files`` removes.
    """
    _check_writable(table)
    query = query.strip().rstrip(";")
    _check_width(connection, query, table, parameters)
    keys = partitions(table)
    copy_options = [
        "GEOPARQUET_VERSION 'NONE'",
        f"FIELD_IDS {_field_ids(table.columns)}",
        *_encoding(table.options),
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
    rows = rows_of(query, table, keys)
    with _folder(table) as folder:
        written = _copy(connection, rows, folder, "ducklake-{uuidv7}", copy_options, parameters)
        files = {
            one.path: DataFile(
                # Only what is moved anyway can get another folder.
                folder_path(one.path, keys) if folders and folder != table.directory else one.path,
                one.row_count,
                one.size,
                one.footer_size,
                file_column_stats(one.statistics, table),
                tuple((one.partition_values or {}).values()),
            )
            for one in written
        }
        _move(folder, table, files)
    return list(files.values())


def rows_of(query: str, table: Table, keys: Sequence[Partition] = ()) -> str:
    """A query of what files hold of the rows of another: cast to the columns' types, and in order.

    It fails at a NULL where none may be. Keys that are computed come behind the columns.
    """
    names = ", ".join(identifier(column.name) for column in table.columns)
    values = ", ".join(_value(column, table) for column in table.columns)
    rows = f"SELECT {values} FROM ({query}\n) AS given({names})"
    if table.sort_keys and table.options.sort_inserts:
        order = ", ".join(key.sql for key in table.sort_keys)
        rows = f"SELECT * FROM ({rows}) ORDER BY {order}"
    computed = [f"{key.expression} AS {identifier(key.column)}" for key in keys if key.expression]
    # Outside of the sort, whose expressions must not see these columns.
    return f"SELECT *, {', '.join(computed)} FROM ({rows})" if computed else rows


@dataclass(frozen=True)
class PlainFile:
    """A file that was written as it was asked for, and the bounds of its internal columns."""

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
) -> PlainFile | None:
    """Writes rows that are rows of the table already to one new file, in their order.

    They have the table's columns under their names, then the internal ones that are given. The
    folder is inside the table's directory, with a slash at the end. No rows, no file.
    """
    _check_writable(table)
    field_ids = ", ".join(
        (
            *map(_field_id, table.columns),
            *(f"{literal(name)}: {INTERNAL_FIELD_IDS[name]}" for name in internal),
        )
    )
    path = f"{folder}ducklake-{uuid7()}.parquet"
    copy_options = [
        "FORMAT parquet",
        "RETURN_STATS",
        "WRITE_EMPTY_FILE false",
        "GEOPARQUET_VERSION 'NONE'",
        f"FIELD_IDS {{{field_ids}}}",
        *_encoding(table.options),
    ]
    with _folder(table) as place:
        os_path = place + path
        if not is_url(place):
            os.makedirs(os.path.dirname(os_path), exist_ok=True)
        returned = connection.execute(
            f"COPY ({rows}) TO {literal(os_path)} ({', '.join(copy_options)})"
        ).fetchall()
        if not returned:
            return None
        ((_, *rest),) = returned
        one = _Written(path, *rest)
        file = DataFile(
            path,
            one.row_count,
            one.size,
            one.footer_size,
            file_column_stats(one.statistics, table),
            partition_values,
        )
        _move(place, table, {path: file})
    found = {name: one.statistics[identifier(name)] for name in internal}
    bounds = {name: (int(stats["min"]), int(stats["max"])) for name, stats in found.items()}
    return PlainFile(file, bounds)


def write_delete_file(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    data_file_path: str,
    positions: pa.Array | Iterable[int],
    snapshot_ids: pa.Array | Iterable[int] | None = None,
) -> DeleteFile:
    """Writes the file that marks rows of a data file as deleted: their places in it, from 0 on.

    The path is that of the data file, absolute, as the catalog resolves it. A file that covers
    several snapshots says of each row in which one it was deleted.
    """
    _check_writable(table)
    deleted = pa.table({"pos": pa.array(positions, pa.int64())})
    extra, field_ids = "", _DELETE_FIELD_IDS
    if snapshot_ids is not None:
        deleted = deleted.append_column(SNAPSHOT_ID, pa.array(snapshot_ids, pa.int64()))
        extra, field_ids = f", {SNAPSHOT_ID}", _PARTIAL_DELETE_FIELD_IDS
    if not deleted.num_rows:
        raise InvalidRequest("A file of deleted rows marks at least one row.")
    view = f"swanlake_deleted_{uuid4().hex}"
    rows = (
        f"SELECT DISTINCT {literal(data_file_path)} AS file_path, pos{extra} "
        f"FROM {identifier(view)} "
        "ORDER BY pos"
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
    """Removes files that will not become part of the lake; one that is gone already is no error.

    Files at a URL are removed with the credentials of the environment, as pyarrow finds them.
    """
    for file in files:
        delete(table.directory + file.path)


class _Written(NamedTuple):
    """What COPY returns of one file; the path is relative to where it was told to write."""

    path: str
    row_count: int
    size: int
    footer_size: int
    statistics: dict[str, dict[str, str]]
    partition_values: dict[str, str | None] | None


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
        "OVERWRITE_OR_IGNORE",  # the folder is not empty, and the names are new
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
    """Where COPY writes: beside the table's files, or right there where nothing can be moved.

    DuckDB leaves what it wrote behind when it fails, under names that it does not tell.
    """
    if is_url(table.directory):
        yield table.directory
        return
    folder = f"{table.directory}.swanlake-{uuid4().hex}/"
    os.makedirs(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: str, table: Table, files: Mapping[str, DataFile | DeleteFile]) -> None:
    """Puts files that COPY wrote to their places in the table's directory: all, or none.

    They are on disk then, names included: once a commit says that they are there, no power failure
    may take them away.
    """
    if folder == table.directory:
        return
    directories: set[str] = set()
    try:
        for path, file in files.items():
            place = table.directory + file.path
            directories |= make_directories(os.path.dirname(place))
            sync(folder + path)
            os.replace(folder + path, place)
        for directory in directories:
            sync(directory)
    except BaseException:
        remove_files(table, files.values())
        raise


def _encoding(options: TableOptions) -> list[str]:
    """Options of COPY; what nobody asked for is left to DuckDB, but for the version."""
    # DuckDB refuses a level for other codecs, even one that was set for a whole catalog.
    level = options.compression_level if options.compression == _WITH_LEVELS else None
    given = {
        "COMPRESSION": options.compression and literal(options.compression),
        "COMPRESSION_LEVEL": level,
        # Delta and byte-stream encodings: files are smaller, and written and read faster.
        "PARQUET_VERSION": literal(options.version or _VERSION),
        "ROW_GROUP_SIZE": options.row_group_size,
    }
    return [f"{name} {value}" for name, value in given.items() if value is not None]


def _value(column: Column, table: Table) -> str:
    name = identifier(column.name)
    value = f"CAST({name} AS {duckdb_type(column)})"
    if not column.nullable:
        message = literal(f"NOT NULL constraint failed: {table.full_name}.{column.name}")
        value = f"CASE WHEN {name} IS NULL THEN error({message}) ELSE {value} END"
    return f"{value} AS {name}"


def _field_ids(columns: Sequence[Column]) -> str:
    return f"{{{', '.join(map(_field_id, columns))}}}"


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
        if column.type == "time_ns":
            # DuckDB's answer is an internal error, after which no connection works any more.
            raise Unsupported(
                f"The column {column.name!r} of {table.full_name} is a TIME_NS, which cannot be "
                "written to Parquet."
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
