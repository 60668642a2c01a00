"""Random statements over the tables of a lake, reproducible from a seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from random import Random

from swanlake.sql.quoting import identifier

#: The types and names of columns by table.
Schema = Mapping[str, Mapping[str, str]]

#: Values of each type, with extremes. Texts have no quotes inside nested types: the extension
#: loses them when it inlines a row.
VALUES: dict[str, tuple[str, ...]] = {
    "TINYINT": ("-128", "0", "127"),
    "SMALLINT": ("-32768", "-1", "32767"),
    "INTEGER": ("-2147483648", "0", "1", "2", "3", "42", "2147483647"),
    "BIGINT": ("-9223372036854775807", "0", "7", "5000000000"),
    "UTINYINT": ("0", "255"),
    "USMALLINT": ("0", "65535"),
    "UINTEGER": ("0", "4294967295"),
    "UBIGINT": ("0", "1", "18446744073709551615"),
    "FLOAT": ("0.5", "-1.25", "'nan'", "'inf'", "1e30"),
    "DOUBLE": ("0.5", "-1e300", "'nan'", "'-inf'", "0.1"),
    "DECIMAL(9,2)": ("0", "1.25", "-9999999.99"),
    "DECIMAL(30,5)": ("0.00001", "-1234567890123456789012345.5", "2"),
    "VARCHAR": ("''", "'a'", "'it''s'", "'ünï😀'", "'NULL'", "'tab\tand; --'", "repeat('x', 300)"),
    "JSON": ("'null'", "'{\"a\": [1, null]}'", "'\"it''s\"'"),
    "BLOB": ("''", "'\\x00\\xFF'", "'abc'"),
    "UUID": (
        "'00000000-0000-0000-0000-000000000000'",
        "'a1b2c3d4-0000-4000-8000-123456789abc'",
    ),
    "BOOLEAN": ("true", "false"),
    "DATE": ("'1969-12-31'", "'2024-02-29'", "'9999-12-31'", "'infinity'"),
    "TIME": ("'00:00:00'", "'23:59:59.999999'"),
    "TIMESTAMP": ("'1969-12-31 23:59:59.999999'", "'2024-02-29 12:00:00'", "'-infinity'"),
    "TIMESTAMP WITH TIME ZONE": ("'2024-02-29 12:00:00+02'", "'1900-01-01 00:00:00Z'"),
    "TIMESTAMP_S": ("'2024-02-29 12:00:00'", "'1969-07-20 20:17:40'"),
    "TIMESTAMP_MS": ("'2024-02-29 12:00:00.123'", "'1969-07-20 20:17:40.5'"),
    "TIMESTAMP_NS": ("'2024-02-29 12:00:00.123456789'", "'1969-07-20 20:17:40'"),
    "INTERVAL": ("'1 year 2 days'", "'00:00:01.5'"),
    "INTEGER[]": ("[]", "[1, NULL, 3]", "[-1]"),
    "STRUCT(a INTEGER, b VARCHAR)": ("{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': NULL}"),
    "MAP(VARCHAR, INTEGER)": ("MAP {}", "MAP {'k': 1, 'l': NULL}"),
}
#: What DuckLake can widen a type to.
_WIDER = {
    "TINYINT": "SMALLINT",
    "SMALLINT": "INTEGER",
    "INTEGER": "BIGINT",
    "UTINYINT": "USMALLINT",
    "USMALLINT": "UINTEGER",
    "UINTEGER": "UBIGINT",
    "FLOAT": "DOUBLE",
}
_WITHOUT_STATISTICS = re.compile(r"STRUCT|MAP|INTERVAL|.*\[\]")
_SUMMABLE = {"TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER", "DECIMAL(9,2)"}
_COMPARISONS = ("=", "<>", "<", ">=", "IS DISTINCT FROM")
_MAX_TABLES = 5
_MAX_COLUMNS = 8
_NAMES = ("a", "b", "C", "with space", "select", 'quo"te', "ünï", "k", "l", "m")


class StatementGenerator:
    """Makes one statement after the other; ``in_transaction`` is for the caller to maintain."""

    def __init__(self, seed: int, *, has_inlined_rows: bool) -> None:
        self._random = Random(seed)
        self._kinds, self._row_id, self._some_rows = list(VALUES), "rowid", "rowid % 2 = 0"
        if has_inlined_rows:
            # SwanLake inlines no structs, and refuses what the extension would do wrong with them.
            self._kinds = [kind for kind in VALUES if not kind.startswith("STRUCT")]
            # Which rows are inlined differs, so an INSERT … SELECT reads them in another order.
            self._row_id, self._some_rows = "1", "true"
        self.in_transaction = False

    def next(self, schema: Schema) -> str:
        """A statement over these tables: mostly valid, sometimes not."""
        if not schema:
            return self._create(schema)
        makers: dict[Callable[[Schema], str], int] = {
            self._insert_values: 22,
            self._insert_query: 10,
            self._update: 16,
            self._delete: 10,
            self._select: 18,
            self._aggregate: 8,
            self._join: 5,
            self._create: 5 if len(schema) < _MAX_TABLES else 0,
            self._alter: 6,
            self._view: 3,
            self._drop: 2,
            self._transaction: 10,
            self._mistake: 5,
            self._flush: 0 if self.in_transaction else 2,
        }
        (maker,) = self._random.choices(list(makers), list(makers.values()))
        return maker(schema)

    def _create(self, schema: Schema) -> str:
        name = self._new_name(schema, "t")
        if schema and self._random.random() < 0.3:
            table, columns = self._table(schema)
            return f"CREATE TABLE {name} AS {self._rows_of(table, columns)}"
        names = self._random.sample(_NAMES, self._random.randint(1, 5))
        declared = [f"{identifier(column)} {self._declared_type()}" for column in names]
        return f"CREATE TABLE {name} ({', '.join(declared)})"

    def _declared_type(self) -> str:
        kind = self._random.choice(self._kinds)
        constraint = self._random.choice(["", "", "", " NOT NULL"])
        # The extension finds a NULL by the statistics of a file.
        return kind if _WITHOUT_STATISTICS.match(kind) else kind + constraint

    def _insert_values(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        names = list(columns)
        head = f"INSERT INTO {table}"
        if self._random.random() < 0.3:
            names = self._random.sample(names, self._random.randint(1, len(names)))
            head += f" ({', '.join(map(identifier, names))})"
        rows = [
            f"({', '.join(self._value(columns[name]) for name in names)})"
            for _ in range(self._random.choice([1, 1, 1, 2, 4, 12]))
        ]
        return f"{head} VALUES {', '.join(rows)}"

    def _insert_query(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        if self._random.random() < 0.4:
            return f"INSERT INTO {table} {self._rows_of(table, columns)}"
        selected = ", ".join(
            f"CASE WHEN range % {self._random.randint(2, 4)} = 0 "
            f"THEN {self._typed(kind)} ELSE {self._typed(kind)} END"
            for kind in columns.values()
        )
        return (
            f"INSERT INTO {table} SELECT {selected} FROM range({self._random.choice([0, 3, 40])})"
        )

    def _rows_of(self, table: str, columns: Mapping[str, str]) -> str:
        """A query of rows in a defined order, so that their row ids are the same on both sides."""
        return f"SELECT * FROM {table} WHERE {self._predicate(columns)} ORDER BY ALL"

    def _update(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        assigned = self._random.sample(list(columns), self._random.randint(1, len(columns)))
        sets = ", ".join(
            f"{identifier(name)} = {self._new_value(name, columns)}" for name in assigned
        )
        return f"UPDATE {table} SET {sets} WHERE {self._predicate(columns)}"

    def _delete(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        return f"DELETE FROM {table} WHERE {self._predicate(columns)}"

    def _select(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        names = self._random.sample(list(columns), self._random.randint(1, len(columns)))
        selected = ", ".join(map(identifier, names))
        distinct = self._random.choice(["", "", "DISTINCT "])
        sql = f"SELECT {distinct}{selected} FROM {table} WHERE {self._predicate(columns)}"
        if self._random.random() < 0.3:
            sql = f"SELECT {self._row_id}, {selected} FROM {table} ORDER BY ALL LIMIT 5"
        return sql

    def _aggregate(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        name, kind = self._random.choice(list(columns.items()))
        column = identifier(name)
        found = [f"count({column})", f"count(DISTINCT {column})", f"min({column})", "count(*)"]
        if kind in _SUMMABLE:
            found.append(f"sum({column})")
        group = identifier(self._random.choice(list(columns)))
        if self._random.random() < 0.5:
            return f"SELECT {', '.join(found)} FROM {table} WHERE {self._predicate(columns)}"
        return f"SELECT {group}, {', '.join(found)} FROM {table} GROUP BY {group}"

    def _join(self, schema: Schema) -> str:
        left, left_columns = self._table(schema)
        right, right_columns = self._table(schema)
        pairs = [
            (identifier(one), identifier(other))
            for one, kind in left_columns.items()
            for other, other_kind in right_columns.items()
            if kind == other_kind
        ]
        if not pairs:
            return f"SELECT count(*) FROM {left} x, {right} y"
        one, other = self._random.choice(pairs)
        how = self._random.choice(["JOIN", "LEFT JOIN", "FULL JOIN", "SEMI JOIN"])
        selected = f"x.{one}" if how == "SEMI JOIN" else f"x.{one}, y.{other}"
        return f"SELECT DISTINCT {selected} FROM {left} x {how} {right} y ON x.{one} = y.{other}"

    def _alter(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        name = self._random.choice(list(columns))
        free = [n for n in _NAMES if n.lower() not in {c.lower() for c in columns}]
        added = identifier(self._random.choice(free or list(_NAMES)))
        choices = [
            f"RENAME COLUMN {identifier(name)} TO {added}",
            f"DROP COLUMN {identifier(name)}",
        ]
        if len(columns) < _MAX_COLUMNS:
            kind = self._random.choice(self._kinds)
            choices += [f"ADD COLUMN {added} {kind}"] * 2
            plain = self._random.choice(["INTEGER", "VARCHAR", "DATE", "DECIMAL(9,2)"])
            # Expressions as defaults are not literal, and DuckLake refuses them.
            default = self._random.choice([v for v in VALUES[plain] if "repeat" not in v])
            choices.append(f"ADD COLUMN {added} {plain} DEFAULT {default}")
        # In a transaction, stock DuckDB fails fatally when it reads older rows.
        if columns[name] in _WIDER and not self.in_transaction:
            choices.append(f"ALTER COLUMN {identifier(name)} TYPE {_WIDER[columns[name]]}")
        return f"ALTER TABLE {table} {self._random.choice(choices)}"

    def _view(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        name = f"v{self._random.randint(0, 2)}"
        return self._random.choice(
            [
                f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM {table} "
                f"WHERE {self._predicate(columns)}",
                f"SELECT count(*) FROM {name}",
                f"SELECT * FROM {name}",
            ]
        )

    def _drop(self, schema: Schema) -> str:
        table, _ = self._table(schema)
        return f"DROP TABLE {table}" if len(schema) > 1 else f"DELETE FROM {table}"

    def _transaction(self, schema: Schema) -> str:
        return self._random.choice(["COMMIT", "ROLLBACK"] if self.in_transaction else ["BEGIN"])

    def _mistake(self, schema: Schema) -> str:
        table, columns = self._table(schema)
        name = identifier(self._random.choice(list(columns)))
        return self._random.choice(
            [
                f"INSERT INTO {table} SELECT {', '.join(['1'] * (len(columns) + 1))}",
                f"INSERT INTO {table} ({name}) VALUES ('no such value')",
                f"INSERT INTO {table} ({name}) VALUES (NULL)",
                f"UPDATE {table} SET {name} = NULL",
                f"UPDATE {table} SET nope = 1",
                f"SELECT nope FROM {table}",
                f"SELECT sum({name}) FROM {table}",
                f"DELETE FROM {table} WHERE {name} = 'no such value'",
                "SELECT * FROM nope",
                f"CREATE TABLE {table} (a INTEGER)",
            ]
        )

    def _flush(self, schema: Schema) -> str:
        # How many files there are depends on which rows are inlined.
        function = self._random.choice(["flush_inlined_data", "merge_adjacent_files"])
        return f"SELECT count(*) >= 0 FROM {{catalog}}.{function}()"

    def _table(self, schema: Schema) -> tuple[str, Mapping[str, str]]:
        name = self._random.choice(list(schema))
        return identifier(name), schema[name]

    def _new_name(self, schema: Schema, prefix: str) -> str:
        numbers = (number for number in range(100) if f"{prefix}{number}" not in schema)
        return f"{prefix}{next(numbers)}"

    def _value(self, kind: str) -> str:
        if self._random.random() < 0.15:
            return "NULL"
        return self._random.choice(VALUES[kind])

    def _typed(self, kind: str) -> str:
        return f"({self._value(kind)})::{kind}"  # a cast binds more tightly than a sign

    def _new_value(self, name: str, columns: Mapping[str, str]) -> str:
        kind = columns[name]
        same = [identifier(other) for other in columns if columns[other] == kind]
        choices = [self._value(kind), self._random.choice(same)]
        if kind in _SUMMABLE:
            choices.append(f"{identifier(name)} + 1")
        if kind == "VARCHAR":
            choices.append(f"{identifier(name)} || '+'")
        return self._random.choice(choices)

    def _predicate(self, columns: Mapping[str, str]) -> str:
        """A condition that some rows fulfil."""
        if self._random.random() < 0.15:
            return self._random.choice(["true", "false", self._some_rows])
        name, kind = self._random.choice(list(columns.items()))
        column = identifier(name)
        comparison = f"{column} {self._random.choice(_COMPARISONS)} {self._typed(kind)}"
        simple = self._random.choice(
            [comparison, comparison, f"{column} IS NULL", f"{column} IS NOT NULL"]
        )
        if self._random.random() < 0.25:
            operator = self._random.choice(["AND", "OR", "AND NOT"])
            return f"({simple}) {operator} ({self._predicate(columns)})"
        return simple
