"""Scripts of UPDATE and DELETE, in the format of ``insert_scripts``."""

from __future__ import annotations

from tests.integration.writes.insert_scripts import lines

_TEXTS = {
    "rows": r"""
CREATE TABLE t (id BIGINT, s VARCHAR, d DOUBLE)
INSERT INTO t SELECT range, 'r' || range, range / 4 FROM range(40)
INSERT INTO t VALUES (100, 'a', 1), (101, 'b', 2), (102, NULL, NULL)
UPDATE t SET s = 'one' WHERE id = 1
UPDATE t SET s = s || '!', d = d + id WHERE id IN (1, 2, 101)
UPDATE t SET id = id + 1000
UPDATE t SET d = NULL WHERE id > 1030
UPDATE t SET s = 'none' WHERE id = -1
DELETE FROM t WHERE id = 1003
DELETE FROM t WHERE id IN (1004, 1100)
DELETE FROM t WHERE id = -1
UPDATE t SET s = 'again' WHERE id = 1001
DELETE FROM t WHERE id BETWEEN 1005 AND 1020
DELETE FROM t WHERE s = 'again'
UPDATE t SET s = upper(s) WHERE d IS NULL
DELETE FROM t
UPDATE t SET s = 'x'
DELETE FROM t
INSERT INTO t VALUES (1, 'back', 0)
UPDATE t SET s = 'there' WHERE id = 1
""",
    "expressions": r"""
CREATE TABLE t (a INTEGER, b INTEGER, "C d" VARCHAR, l VARCHAR)
INSERT INTO t SELECT range, range * 10, 'x', '' FROM range(12)
UPDATE t SET a = b, b = a WHERE a < 3
UPDATE t SET "C d" = CASE WHEN a IS DISTINCT FROM b THEN 'differs' ELSE 'same' END WHERE b < 50
UPDATE t SET "c D" = "C d" || ',' || a, b = b*2
UPDATE t AS x SET b = x.a * 3 WHERE x.a = 4
UPDATE t x SET b = x.a WHERE x.a > 5
UPDATE t SET b = t.a * (t.b + 1) WHERE t.a = 7
UPDATE {schema}.t SET b = 5 WHERE {schema}.t.a = 8
UPDATE swanlake.{schema}.t SET b = 6 WHERE swanlake.{schema}.t.a = 9
UPDATE t SET b = (SELECT max(a) FROM t), l = [a, b][1] WHERE a = 10
UPDATE t SET b = 1 WHERE a IN (SELECT a + 1 FROM t WHERE a < 4)
UPDATE t SET b = 2 WHERE EXISTS (SELECT 1 FROM t AS other WHERE other.a = t.b)
UPDATE t SET a = '42' WHERE a = 11
UPDATE t SET a = 4.6 WHERE a = 42
UPDATE t SET l = a, "C d" = TRUE WHERE a = 5;
UPDATE t SET l = 'a;b' WHERE a = 5; -- where a = 6
UPDATE t SET l = 'it''s' /* set l = 'no' where */ WHERE a = 5
UPDATE t↵SET l = 'line' -- comment↵WHERE a = 5 -- and this
DELETE FROM t AS x WHERE x.a = 5
DELETE FROM t x WHERE x.a = 6
DELETE FROM {schema}.t WHERE b = (SELECT max(b) FROM t)
DELETE FROM t WHERE a NOT IN (SELECT a FROM t WHERE b > 3) AND l = ''
""",
    "few": r"""
CREATE TABLE t (id INTEGER NOT NULL, s VARCHAR, d DECIMAL(6,2), w TIMESTAMP)
INSERT INTO t VALUES (1, 'a', 1.5, '2024-01-01'), (2, 'b', NULL, NULL), (3, NULL, -1, '2024-02-29 12:00:00')
INSERT INTO t SELECT range, 'r' || range, range, NULL FROM range(4, 8)
UPDATE t SET s = upper(s) || '!', d = d + id WHERE id IN (1, 3, 5)
UPDATE t SET id = id + 10
UPDATE t AS x SET d = x.id WHERE x.d IS NULL
UPDATE t SET s = CASE WHEN d > 3 THEN 'many' ELSE s END, w = '2024-03-01' WHERE id BETWEEN 12 AND 14
UPDATE t SET d = '7.126', s = 5 WHERE id = 11
UPDATE t↵SET s = 'line' -- comment↵WHERE id = 12 -- and this
UPDATE t SET s = 'none' WHERE id = -1
UPDATE t SET id = NULL WHERE id = 11
UPDATE t SET d = 100000 WHERE id = 11
UPDATE t SET d = sum(d)
UPDATE t SET id = row_number() OVER ()
UPDATE t SET s = *
UPDATE t SET z = 1
UPDATE t SET d = 1, d = 2
DELETE FROM t WHERE z = 1
DELETE FROM t WHERE id = 11
DELETE FROM t x WHERE x.s = 'many' OR x.id = 12
INSERT INTO t VALUES (1, 'again', 0, NULL)
UPDATE t SET s = 'there' WHERE id = 1
DELETE FROM t
UPDATE t SET s = 'x'
""",  # noqa: E501
    "others": r"""
CREATE TABLE t (a INTEGER, b INTEGER)
CREATE TABLE u (a INTEGER, b INTEGER)
INSERT INTO t SELECT range, 0 FROM range(6)
INSERT INTO u VALUES (1, 10), (2, 20)
UPDATE t SET b = u.b FROM u WHERE u.a = t.a
DELETE FROM t USING u WHERE u.a = t.a AND u.b = 20
WITH v AS (SELECT 3 AS k) UPDATE t SET b = 9 WHERE a IN (SELECT k FROM v)
WITH v AS (SELECT 3 AS k) DELETE FROM t WHERE a IN (SELECT k FROM v)
UPDATE t SET (a, b) = (7, 8) WHERE a = 4
TRUNCATE u
""",
    "refusals": r"""
CREATE TABLE t (a INTEGER NOT NULL, b VARCHAR)
INSERT INTO t SELECT range, 'x' FROM range(5)
UPDATE t SET a = NULL WHERE a = 1
UPDATE t SET a = NULL WHERE a = -1
UPDATE t SET a = 'bad' WHERE a = 1
UPDATE t SET a = b WHERE a = 1
UPDATE t SET a = 3000000000 WHERE a = 1
UPDATE t SET z = 1
UPDATE t SET b = z
UPDATE t SET b = 1 WHERE z = 1
UPDATE t SET b = 1, b = 2
UPDATE t SET a = sum(a)
UPDATE t SET a = row_number() OVER ()
UPDATE t SET a = unnest([1])
UPDATE t SET b = *
UPDATE t SET b = COLUMNS(*)
UPDATE t SET rowid = 1
UPDATE t SET b = nofunc(1)
UPDATE t SET b = error('no') WHERE a = 2
UPDATE t SET a = DEFAULT WHERE a = 2
UPDATE nowhere SET a = 1
UPDATE swanlake.nope.t SET a = 1
UPDATE t SET a = (SELECT a FROM t)
DELETE FROM t WHERE z = 1
DELETE FROM t WHERE sum(a) = 1
DELETE FROM t WHERE error('no')
DELETE FROM nowhere
DELETE FROM t WHERE a = 'bad'
CREATE VIEW v AS SELECT * FROM t
UPDATE v SET a = 1
DELETE FROM v
UPDATE t SET b = 'still' WHERE a = 1
""",
    "types": r"""
CREATE TABLE t (k INTEGER, a BOOLEAN, b TINYINT, c UBIGINT, d FLOAT, e DECIMAL(12,3), f DATE, g TIME, h TIMESTAMP, i TIMESTAMPTZ, j BLOB, l UUID, m JSON, n TIMESTAMP_NS, o DOUBLE)
INSERT INTO t (k) SELECT range FROM range(4)
UPDATE t SET a = true, b = -5, c = 18446744073709551615, d = 0.1, e = 1234.5678, f = '2024-02-29', g = '23:59:59.999999', h = '2024-01-01 01:02:03.456', i = '2024-01-01 00:00:00+02', j = '\x00\xFF'::BLOB, l = '11111111-2222-3333-4444-555555555555', m = '{"a": [1]}', n = '2024-01-01 00:00:00.123456789', o = 'nan' WHERE k = 1
UPDATE t SET o = 'infinity', f = 'infinity', h = '-infinity' WHERE k = 2
UPDATE t SET k = k + 10
UPDATE t SET m = '{' WHERE k = 11
DELETE FROM t WHERE l IS NOT NULL
""",  # noqa: E501
    "nested": r"""
CREATE TABLE n (k INTEGER, s STRUCT(a INTEGER, b VARCHAR), l INTEGER[], m MAP(VARCHAR, INTEGER), h HUGEINT, iv INTERVAL, z TIMETZ)
INSERT INTO n SELECT range, {'a': range, 'b': 'x'}, [range], MAP {'k': range}, range, INTERVAL 1 DAY, '10:00:00+01' FROM range(4)
UPDATE n SET s = {'a': 7, 'b': NULL} WHERE k = 1
UPDATE n SET l = [1, NULL], h = -1 WHERE k = 2
DELETE FROM n WHERE k = 3
DELETE FROM n WHERE s.a = 7
""",  # noqa: E501
    "shapes": r"""
CREATE TABLE t (a INTEGER, b VARCHAR)
INSERT INTO t SELECT range, 'x' FROM range(6)
ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 5
UPDATE t SET c = c + 1 WHERE a = 1
ALTER TABLE t RENAME COLUMN b TO "B b"
UPDATE t SET "B b" = 'renamed' WHERE a = 2
ALTER TABLE t ALTER a TYPE BIGINT
UPDATE t SET a = 3000000000 WHERE a = 3
ALTER TABLE t DROP COLUMN c
UPDATE t SET "B b" = 'dropped' WHERE a = 4
DELETE FROM t WHERE a = 5
ALTER TABLE t RENAME TO t2
UPDATE t2 SET a = 0 WHERE a = 1
CREATE TABLE p (k INTEGER, v VARCHAR)
ALTER TABLE p SET PARTITIONED BY (k)
INSERT INTO p SELECT range % 3, 'v' || range FROM range(9)
UPDATE p SET v = 'new' WHERE k = 1
DELETE FROM p WHERE v = 'v0'
DELETE FROM p WHERE k = 2
UPDATE p SET k = 5 WHERE k = 0
CREATE TABLE o (filename VARCHAR, rowid_ INTEGER)
INSERT INTO o VALUES ('a', 1), ('b', 2)
UPDATE o SET filename = 'c' WHERE rowid_ = 1
DELETE FROM o WHERE filename = 'b'
CREATE TABLE "odd ""name" ("select" INTEGER, "from" INTEGER)
INSERT INTO "odd ""name" VALUES (1, 2), (3, 4)
UPDATE "odd ""name" SET "select" = "from", "from" = 0 WHERE "select" = 1
DELETE FROM "odd ""name" WHERE "from" = 4
""",
}

#: The statements of each script, by subject.
SCRIPTS = {subject: lines(text) for subject, text in _TEXTS.items()}
