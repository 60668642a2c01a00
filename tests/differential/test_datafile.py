"""Our Parquet files and statistics equal those of the stock DuckLake extension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from swanlake.errors import InvalidRequest, Unsupported
from swanlake.lake.files.datafile import remove_files, write_delete_file, write_files
from swanlake.lake.model.layout import Column, DataFile, PartitionKey, Table, TableOptions
from swanlake.lake.model.stats import TableColumnStats, merge
from swanlake.lake.model.types import ColumnSpec, duckdb_type, number_columns
from tests.differential.stock_lake import StockLake, field_ids, write_both


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StockLake]:
    """One lake for all tests; every test uses its own table."""
    stock = StockLake(tmp_path_factory.mktemp("lake"))
    yield stock
    stock.close()


_numbers = count()


@pytest.fixture
def name() -> str:
    """A table name that no other test uses."""
    return f"t{next(_numbers)}"


#: A type, the values of a first insert and of a second one.
VALUES = {
    "boolean": ("BOOLEAN", "(false), (NULL)", "(true)"),
    "int8": ("TINYINT", "(-128), (5)", "(127), (NULL)"),
    "int16": ("SMALLINT", "(-5), (9)", "(10)"),
    "int32": ("INTEGER", "(-2147483648), (9)", "(10), (2147483647)"),
    "int64": ("BIGINT", "(-9223372036854775808), (9)", "(10), (9223372036854775807)"),
    "uint8": ("UTINYINT", "(9)", "(10), (255)"),
    "uint16": ("USMALLINT", "(9), (NULL)", "(10), (65535)"),
    "uint32": ("UINTEGER", "(9)", "(4294967295)"),
    "uint64": ("UBIGINT", "(9)", "(18446744073709551615), (10)"),
    "float32": ("FLOAT", "(9.5), (1e-7), (-0.0)", "(10), (3.4028235e38), (NULL)"),
    "float64": ("DOUBLE", "(9.5), (1e-300)", "(10), (1.7976931348623157e308)"),
    "float with NaN": ("DOUBLE", "('9.5'), ('NaN')", "(10), (NULL)"),
    "float infinite": ("DOUBLE", "('-inf'), ('0')", "('inf')"),
    "float32 infinite": ("FLOAT", "('inf')", "('-inf'), ('nan')"),
    "decimal4": ("DECIMAL(4,1)", "(99), (-1.5)", "(100.5)"),
    "decimal": ("DECIMAL(10,2)", "(9.5), (-10)", "(10), (NULL)"),
    "decimal18": ("DECIMAL(18,3)", "(9.5), (-10)", "(10), (NULL)"),
    "decimal38": ("DECIMAL(38,10)", "(9.5), (-1234567890123456789012345678.5)", "(10.1)"),
    "date": ("DATE", "('2024-02-29'), ('0044-03-15 (BC)')", "('12024-01-01'), (NULL)"),
    "date infinite": ("DATE", "('infinity'), ('2024-01-01')", "('-infinity')"),
    "time": ("TIME", "('00:00:00.1'), ('23:59:59.123456')", "('24:00:00')"),
    "timetz": ("TIMETZ", "('10:00:00+02')", "('09:00:00-10')"),
    "timestamp": ("TIMESTAMP", "('2024-01-01 00:00:00.5')", "('9999-12-31'), ('10000-01-01')"),
    "timestamp BC": ("TIMESTAMP", "('0044-03-15 (BC) 12:00:00')", "('0045-03-15 (BC) 12:00:00')"),
    "timestamp infinite": ("TIMESTAMP", "('infinity'), ('2024-01-01')", "('-infinity')"),
    "timestamp_s": ("TIMESTAMP_S", "('2024-01-01 00:00:01')", "('1960-01-01')"),
    "timestamp_ms": ("TIMESTAMP_MS", "('2024-01-01 00:00:01.25')", "('1960-01-01'), (NULL)"),
    "timestamp_ns": (
        "TIMESTAMP_NS",
        "('2024-01-01 00:00:01.123456789')",
        "('2024-01-01 00:00:01.12345679'), ('1960-01-01')",
    ),
    "timestamptz": ("TIMESTAMPTZ", "('2024-01-01 00:00:00+05')", "('2023-12-31 20:00:00+00')"),
    "timestamptz far": ("TIMESTAMPTZ", "('infinity')", "('0044-03-15 (BC) 00:00:00+00')"),
    "interval": ("INTERVAL", "('1 day')", "('2 months'), ('3 seconds')"),
    "varchar": ("VARCHAR", "('b'), ('it''s \"x\"')", "('a'), ('Z'), ('é'), (NULL)"),
    "varchar empty": ("VARCHAR", "(''), ('x')", "('y')"),
    "varchar astral": ("VARCHAR", "(chr(65533))", "(chr(128512))"),
    "varchar 256": ("VARCHAR", "(repeat('x', 256))", "(repeat('y', 257))"),
    "varchar 300": ("VARCHAR", "(repeat('z', 300)), (repeat('a', 300))", "(repeat('z', 299))"),
    "varchar cut in a char": ("VARCHAR", "(repeat('x', 255) || 'é')", "(repeat('x', 300))"),
    "json": ("JSON", "('{\"a\": 1}'), ('[1]')", "('null'), (NULL)"),
    "blob": ("BLOB", "('\\x00\\xFF'::BLOB), ('a'::BLOB)", "(''::BLOB), (repeat('z', 300)::BLOB)"),
    "uuid": (
        "UUID",
        "('ffffffff-0000-0000-0000-000000000000'), ('0fffffff-0000-0000-0000-000000000000')",
        "('80000000-0000-0000-0000-000000000000'), (NULL)",
    ),
    "all null first": ("INTEGER", "(NULL), (NULL)", "(3), (1)"),
    "all null second": ("TIMESTAMP", "('2024-01-01'), (NULL)", "(NULL), (NULL)"),
    "always null": ("DOUBLE", "(NULL)", "(NULL), (NULL)"),
    "all null text second": ("VARCHAR", "('x')", "(NULL)"),
    "struct": (
        'STRUCT("a b" INTEGER, "c""d" VARCHAR)',
        "({'a b': 1, 'c\"d': 'x'}), (NULL)",
        "({'a b': NULL, 'c\"d': 'y'})",
    ),
    "list": ("INTEGER[]", "([1, NULL, 9]), ([]), (NULL)", "([10])"),
    "list empty": ("INTEGER[]", "([]), ([])", "([7, 8])"),
    "map": ("MAP(VARCHAR, DECIMAL(5,2))", "(MAP {'k': 9.5}), (MAP {})", "(MAP {'j': 10})"),
    "deep": (
        "STRUCT(m MAP(INTEGER, STRUCT(d DATE, l VARCHAR[][])), j JSON)[]",
        "([{'m': MAP {1: {'d': DATE '2024-01-01', 'l': [['a'], []]}}, 'j': '1'}])",
        "([]), ([{'m': MAP {2: {'d': NULL, 'l': NULL}}, 'j': '2'}])",
    ),
    "geometry": (
        "GEOMETRY",
        "('POINT(1 2.5)'::GEOMETRY), (NULL)",
        "('LINESTRING Z(0 -1 3, 4 5 6)'::GEOMETRY), ('POINT(0.25 9)'::GEOMETRY)",
    ),
    "geometry empty": ("GEOMETRY", "('POINT EMPTY'::GEOMETRY)", "('POINT(1 2)'::GEOMETRY)"),
    "geometry null": ("GEOMETRY", "(NULL)", "('POINT(1 2)'::GEOMETRY)"),
}
#: Types whose values DuckDB does not count: we store NULL, the stock extension zero.
UNCOUNTED = ("timetz", "interval")


def without_uncounted(files: list[DataFile], table: Table) -> list[DataFile]:
    """The stock extension's files without counts of types that DuckDB does not count."""
    uncounted = {column.id for column in table.leaves() if column.type in UNCOUNTED}
    return [
        replace(
            file,
            column_stats=tuple(
                replace(stats, value_count=None, null_count=None)
                if stats.column_id in uncounted
                else stats
                for stats in file.column_stats
            ),
        )
        for file in files
    ]


def merged_stats(table: Table, files: list[DataFile]) -> dict[int, TableColumnStats]:
    """Table statistics that our merge computes from the files, in order."""
    types = {column.id: column.type for column in table.leaves()}
    merged: dict[int, TableColumnStats] = {}
    for file in files:
        for stats in file.column_stats:
            id_ = stats.column_id
            merged[id_] = merge(types[id_], merged.get(id_), stats)
    return merged


@pytest.mark.parametrize("case", VALUES)
def test_files_and_statistics_equal_the_stock_extensions(
    lake: StockLake, name: str, case: str
) -> None:
    type_, first, second = VALUES[case]
    lake.execute(f'CREATE TABLE lake.{name} (id INTEGER, "x ""y" {type_})')
    table = lake.table(name)
    specs = [ColumnSpec("id", "INTEGER"), ColumnSpec('x "y', type_)]
    assert table.columns == number_columns(specs)

    all_ours = []
    for values in (first, second):
        query = f"SELECT 7, x::{type_} FROM (VALUES {values}) v(x)"
        ours, stock_files = write_both(lake, name, query)
        assert ours == without_uncounted(stock_files, table)
        all_ours += ours
    for path in Path(table.directory).iterdir():
        assert field_ids(path) == field_ids(lake.stock_file_path(name))

    expected = lake.table_stats(name)
    for column in table.leaves():
        if column.type in UNCOUNTED:
            expected[column.id] = replace(expected[column.id], contains_null=None)
    assert merged_stats(table, all_ours) == expected


PARTITIONS = {
    "identity": ("k VARCHAR, v INTEGER", "k", "('a', 1), ('b', 2), (NULL, 3), ('a', 4)"),
    "empty text": ("k VARCHAR", "k", "(''), (NULL), ('__HIVE_DEFAULT_PARTITION__')"),
    "escaped": ('"k/ =%é" VARCHAR', '"k/ =%é"', "('a/b=c d%é\n''\"'), ('..'), ('~_-.')"),
    "two": ("a INTEGER, b DATE", "b, a", "(1, '2024-01-02'), (NULL, '2024-01-02'), (1, NULL)"),
    "numbers": ("a DOUBLE, b DECIMAL(5,2)", "a, b", "('1.5', 2.5), ('nan', -3), ('inf', NULL)"),
    "time": ("a TIMESTAMP, b BOOLEAN", "a, b", "('2024-01-02 03:04:05.6', true)"),
    "calendar": (
        "t TIMESTAMP, v INTEGER",
        "year(t), month(t), day(t), hour(t)",
        "('2024-03-04 05:06:07', 1), ('2024-03-04 05:59:59', 2), (NULL, 3), ('0044-03-15 (BC)', 4)",
    ),
    "year twice": ("a DATE, b DATE", "year(a), year(b)", "('2024-01-01', '2023-01-01')"),
    "mixed": ("k VARCHAR, t DATE", "k, year(t)", "('x/y', '2024-01-01'), (NULL, NULL)"),
    "a column named year": ("year INTEGER, t DATE", "year(t), year", "(1, '2024-01-01')"),
    "zones": ("t TIMESTAMPTZ", "day(t)", "('2023-12-31 23:30:00+00'), ('2024-01-01 12:00:00+00')"),
    "bucket": ("k VARCHAR, v INTEGER", "bucket(4, k)", "('a', 1), ('b', 2), ('c', 3), (NULL, 4)"),
    "bucket and more": (
        "k BIGINT, d DATE",
        "bucket(3, k), month(d), d",
        "(1, '2024-01-01'), (2, '2024-02-01'), (-3, NULL)",
    ),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_partitioned_files_equal_the_stock_extensions(
    lake: StockLake, name: str, case: str
) -> None:
    columns, keys, values = PARTITIONS[case]
    lake.execute(f"CREATE TABLE lake.{name} ({columns})")
    lake.execute(f"ALTER TABLE lake.{name} SET PARTITIONED BY ({keys})")
    table = lake.table(name)
    types = ", ".join(f"c{n}::{duckdb_type(c)}" for n, c in enumerate(table.columns))
    names = ", ".join(f"c{n}" for n in range(len(table.columns)))
    ours, stock_files = write_both(lake, name, f"SELECT {types} FROM (VALUES {values}) v({names})")
    assert ours == stock_files
    stock = lake.stock_file_path(name)
    for path in Path(table.directory).rglob("*.parquet"):
        assert field_ids(path) == field_ids(stock)
    assert not list(Path(table.directory).glob(".swanlake-*"))


def test_rows_are_sorted_by_the_sort_keys(lake: StockLake, name: str) -> None:
    lake.execute(f"CREATE TABLE lake.{name} (k INTEGER, v VARCHAR)")
    lake.execute(f"ALTER TABLE lake.{name} SET SORTED BY (k % 3 DESC NULLS FIRST, v ASC)")
    table = lake.table(name)
    assert table.sort_keys
    query = "SELECT i, 'v' || i FROM range(9) r(i) UNION ALL SELECT NULL, 'n'"
    ours, stock_files = write_both(lake, name, query)
    assert ours == stock_files
    (path,) = Path(table.directory).iterdir()
    rows = f"SELECT k, v FROM read_parquet('{path}')"
    assert lake.execute(rows) == lake.execute(
        rows.replace(str(path), str(lake.stock_file_path(name)))
    )


class TestWiderStatistics:
    """Our statistics are wider than the stock extension's where its own would lose rows."""

    def files(self, lake: StockLake, name: str, type_: str, *inserts: str) -> list[DataFile]:
        lake.execute(f"CREATE TABLE lake.{name} (x {type_})")
        table = lake.table(name)
        return [
            file
            for values in inserts
            for file in write_files(lake.connection, f"SELECT * FROM (VALUES {values})", table)
        ]

    @pytest.mark.parametrize(
        ("values", "low"),
        [
            ("('a' || chr(0) || 'b'), ('c' || chr(0))", "a"),
            ("(repeat('é', 300))", ""),
            ("(repeat('é', 300)), (NULL)", ""),
        ],
    )
    def test_text_without_an_upper_bound_keeps_the_table_unbounded(
        self, lake: StockLake, name: str, values: str, low: str
    ) -> None:
        first, second = self.files(lake, name, "VARCHAR", values, "('x'), ('z')")
        assert (first.column_stats[0].min, first.column_stats[0].max) == (low, None)
        table = lake.table(name)
        merged = merged_stats(table, [first, second])[1]
        assert (merged.min, merged.max) == (low, None)
        assert merged_stats(table, [second, first])[1] == merged

        # The stock extension takes the bounds of the second file as the table's.
        for insert in (values, "('x'), ('z')"):
            lake.execute(f"INSERT INTO lake.{name} VALUES {insert}")
        assert (lake.table_stats(name)[1].min, lake.table_stats(name)[1].max) == ("x", "z")

    def test_file_of_nulls_keeps_the_table_unbounded(self, lake: StockLake, name: str) -> None:
        files = self.files(lake, name, "VARCHAR", "(NULL)", "('x')")
        merged = merged_stats(lake.table(name), files)[1]
        assert (merged.contains_null, merged.min, merged.max) == (True, "", None)

    def test_file_of_nan_keeps_the_bounds(self, lake: StockLake, name: str) -> None:
        files = self.files(lake, name, "DOUBLE", "(1), (2)", "('nan'::DOUBLE)")
        assert merged_stats(lake.table(name), files)[1] == TableColumnStats(
            1, False, True, "1.0", "2.0"
        )

    def test_bounding_boxes_are_rounded_outward(self, lake: StockLake, name: str) -> None:
        (file,) = self.files(lake, name, "GEOMETRY", "('POINT(0.0000004 -0.0000004)'::GEOMETRY)")
        assert file.column_stats[0].extra == (
            '{"bbox": {"xmin": 0.000000, "xmax": 0.000001, "ymin": -0.000001, "ymax": -0.000000, '
            '"zmin": null, "zmax": null, "mmin": null, "mmax": null}, "types": ["point"]}'
        )

    def test_struct_column_can_be_not_null(self, lake: StockLake, name: str) -> None:
        lake.execute(f"CREATE TABLE lake.{name} (s STRUCT(a INTEGER) NOT NULL)")
        with pytest.raises(duckdb.Error, match=f"NOT NULL constraint failed: main.{name}.s"):
            write_files(lake.connection, "SELECT NULL", lake.table(name))


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of one required number and one text, with no files yet."""
    specs = [ColumnSpec("n", "BIGINT", nullable=False), ColumnSpec("t", "VARCHAR")]
    return Table(1, "main", "t", f"{tmp_path}/new/t/", number_columns(specs))


def test_empty_input_writes_no_file(lake: StockLake, table: Table) -> None:
    assert write_files(lake.connection, "SELECT 1, 'a' WHERE false", table) == []
    partitioned = replace(table, partition_id=1, partition_keys=(PartitionKey(1),))
    assert write_files(lake.connection, "SELECT 1, 'a' WHERE false", partitioned) == []
    assert list(Path(table.directory).iterdir()) == []


def test_values_are_cast_and_parameters_bound(lake: StockLake, table: Table) -> None:
    query = "SELECT ? AS t, unnest([$2, 4]) AS n -- a comment;".replace("$2", "?")
    (file,) = write_files(lake.connection, query, table, parameters=["12", 3])
    rows = lake.execute(f"SELECT n, t FROM read_parquet('{table.directory}{file.path}')")
    assert rows == [(12, "3"), (12, "4")]


def test_large_input_is_split_into_files(lake: StockLake, table: Table) -> None:
    query = "SELECT i, md5(i::VARCHAR) FROM range(400_000) r(i)"
    small = replace(table, options=TableOptions(target_file_size=4_000_000))
    files = write_files(lake.connection, query, small)
    assert len(files) > 1
    assert sum(file.record_count for file in files) == 400_000


def test_rows_that_share_a_value_are_written(lake: StockLake, table: Table) -> None:
    # DuckDB's writer of newer Parquet files fails here.
    columns = (
        Column(1, "m", "map", children=(Column(2, "key", "varchar"), Column(3, "value", "int32"))),
    )
    query = (
        "SELECT CASE WHEN range = 0 THEN NULL::MAP(VARCHAR, INTEGER) "
        "ELSE MAP {'k': 1, 'l': NULL} END FROM range(3)"
    )
    (file,) = write_files(lake.connection, query, replace(table, columns=columns))
    rows = lake.execute(f"SELECT m FROM read_parquet('{table.directory}{file.path}')")
    assert rows == [(None,), ({"k": 1, "l": None},), ({"k": 1, "l": None},)]


def test_table_options_apply_to_the_file(lake: StockLake, table: Table) -> None:
    options = TableOptions("zstd", 5, "V2", row_group_size=2048)
    query = "SELECT i, 'a' FROM range(5000) r(i)"
    (file,) = write_files(lake.connection, query, replace(table, options=options))
    metadata = pq.ParquetFile(table.directory + file.path).metadata
    assert metadata.num_row_groups == 3
    assert metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize("keys", [(), (PartitionKey(1),)])
def test_failed_write_leaves_no_file(
    lake: StockLake, table: Table, keys: tuple[PartitionKey, ...]
) -> None:
    small = TableOptions(target_file_size=1_000_000)
    table = replace(table, partition_keys=keys, options=small)
    query = "SELECT CASE WHEN i < 300_000 THEN i % 3 END, md5(i::VARCHAR) FROM range(300_001) r(i)"
    with pytest.raises(duckdb.Error, match=r"NOT NULL constraint failed: main\.t\.n"):
        write_files(lake.connection, query, table)
    assert list(Path(table.directory).iterdir()) == []


def test_failed_rename_removes_all_files(
    lake: StockLake, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []

    def replace_once(source: str, target: str) -> None:
        if moved:
            raise OSError("the disk is full")
        moved.append(target)
        Path(source).rename(target)

    monkeypatch.setattr("os.replace", replace_once)
    partitioned = replace(table, partition_keys=(PartitionKey(1),))
    with pytest.raises(OSError, match="the disk is full"):
        write_files(lake.connection, "SELECT i, 'a' FROM range(3) r(i)", partitioned)
    assert moved
    assert list(Path(table.directory).rglob("*.parquet")) == []


def test_remove_files_is_idempotent(lake: StockLake, table: Table) -> None:
    files = write_files(lake.connection, "SELECT 1, 'a'", table)
    remove_files(table, files)
    remove_files(table, files)
    assert list(Path(table.directory).iterdir()) == []


def test_unsupported_writes_are_refused(lake: StockLake, table: Table) -> None:
    with pytest.raises(InvalidRequest, match="has 2 columns, and the rows to write have 3"):
        write_files(lake.connection, "SELECT 1, 'a', 2", table)
    with pytest.raises(Unsupported, match=r"main\.t is encrypted"):
        write_files(lake.connection, "SELECT 1, 'a'", replace(table, encrypted=True))
    time_ns = replace(table, columns=(Column(1, "x", "time_ns"),))
    with pytest.raises(Unsupported, match="TIME_NS"):
        write_files(lake.connection, "SELECT NULL", time_ns)
    unknown = replace(table, partition_keys=(PartitionKey(1, "truncate(3)"),))
    with pytest.raises(Unsupported, match=r"truncate\(3\)"):
        write_files(lake.connection, "SELECT 1, 'a'", unknown)
    with pytest.raises(InvalidRequest, match="at least one row"):
        write_delete_file(lake.connection, table, "/x.parquet", [])


def test_stock_extension_reads_our_delete_files(lake: StockLake, name: str) -> None:
    lake.execute(f"CREATE TABLE lake.{name} AS SELECT range AS i FROM range(10)")
    data_file = lake.stock_file_path(name)
    table = replace(lake.table(name), directory=f"{data_file.parent}/")
    deleted = write_delete_file(lake.connection, table, str(data_file), [7, 0, 7])
    assert deleted.delete_count == 2
    path = Path(table.directory, deleted.path)
    assert path.stat().st_size == deleted.file_size_bytes
    assert field_ids(path) == {"file_path": 2147483646, "pos": 2147483645}
    lake.write(
        "INSERT INTO ducklake_delete_file SELECT 1000000, table_id, begin_snapshot, NULL, "
        "data_file_id, ?, 1, 'parquet', ?, ?, ?, NULL, NULL FROM ducklake_data_file "
        "WHERE table_id = ?",
        deleted.path,
        deleted.delete_count,
        deleted.file_size_bytes,
        deleted.footer_size,
        table.id,
    )
    rows = lake.execute(f"SELECT i FROM lake.{name} ORDER BY i")
    assert rows == [(i,) for i in range(10) if i not in (0, 7)]
