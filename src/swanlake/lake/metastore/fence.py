"""The fence: triggers that make every writer, stock DuckDB included, commit in one order.

A trigger on ``ducklake_snapshot`` moves a one-row head table and refuses a snapshot that is not
newer than the head. A second one keeps files that forks share off the list for deletion.
"""

from __future__ import annotations

from swanlake.sql.quoting import identifier, literal

#: The second half of a commit lock's key; the stock extension's own proposal uses the same.
COMMIT_LOCK_CLASS = 0x44754C4B
#: Their names, in both databases.
FENCE_TRIGGERS = ("ducklake_fence", "swanlake_defer")
#: The table that allocates snapshot ids in SQLite.
SQLITE_SEQUENCE = "ducklake_snapshot_id_seq"


def snapshot_sequence(schema: str) -> str:
    """The sequence that allocates snapshot ids in a PostgreSQL schema, quoted."""
    return f"{identifier(schema)}.ducklake_snapshot_id_seq"


def postgres_fence(schema_name: str) -> list[str]:
    """The statements that install the fence in a PostgreSQL schema."""
    schema, sequence = identifier(schema_name), snapshot_sequence(schema_name)
    return [
        f"CREATE SEQUENCE IF NOT EXISTS {sequence} MINVALUE 0 START 1",
        f"SELECT setval({literal(sequence)}, greatest(1, snapshot_id), "
        f"snapshot_id > 0) FROM {schema}.ducklake_head",
        # The stock extension retries after a message with these words.
        f"""
CREATE OR REPLACE FUNCTION {schema}.ducklake_fence() RETURNS trigger LANGUAGE plpgsql AS $fence$
DECLARE moved int;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext(format('"%s"', TG_TABLE_SCHEMA)), {COMMIT_LOCK_CLASS});
  BEGIN
    UPDATE {schema}.ducklake_head
       SET snapshot_id = NEW.snapshot_id, next_catalog_id = NEW.next_catalog_id,
       next_file_id = NEW.next_file_id
     WHERE snapshot_id < NEW.snapshot_id AND next_catalog_id <= NEW.next_catalog_id
       AND next_file_id <= NEW.next_file_id;
    GET DIAGNOSTICS moved = ROW_COUNT;
  EXCEPTION WHEN serialization_failure THEN
    moved := 0;  -- a REPEATABLE READ writer whose base is stale
  END;
  IF moved = 0 THEN
    RAISE EXCEPTION 'snapshot % conflict: concurrent commit moved the DuckLake head',
      NEW.snapshot_id USING ERRCODE = '40001';
  END IF;
  PERFORM setval({literal(sequence)}, NEW.snapshot_id);
  RETURN NEW;
END $fence$""",
        f"CREATE OR REPLACE TRIGGER {FENCE_TRIGGERS[0]} BEFORE INSERT ON "
        f"{schema}.ducklake_snapshot FOR EACH ROW EXECUTE FUNCTION {schema}.ducklake_fence()",
        # Files that a fork can see must not reach the clean-up of one catalog alone.
        f"""
CREATE OR REPLACE FUNCTION {schema}.swanlake_defer() RETURNS trigger LANGUAGE plpgsql AS $defer$
DECLARE whole text;
BEGIN
  -- A fork updates this row: a transaction that began before it cannot see it and fails here.
  BEGIN
    SELECT CASE WHEN NEW.path_is_relative THEN value || NEW.path ELSE NEW.path END INTO whole
      FROM {schema}.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL FOR SHARE;
  EXCEPTION WHEN serialization_failure THEN
    RAISE EXCEPTION 'file % conflict: concurrent fork of the DuckLake catalog', NEW.path
      USING ERRCODE = '40001';
  END;
  IF EXISTS (SELECT 1 FROM {schema}.swanlake_shared_file WHERE path = whole) THEN
    INSERT INTO {schema}.swanlake_deferred_file VALUES (whole, clock_timestamp())
      ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  RETURN NEW;
END $defer$""",
        f"CREATE OR REPLACE TRIGGER {FENCE_TRIGGERS[1]} BEFORE INSERT ON "
        f"{schema}.ducklake_files_scheduled_for_deletion FOR EACH ROW "
        f"EXECUTE FUNCTION {schema}.swanlake_defer()",
    ]


def sqlite_fence() -> list[str]:
    """The statements that install the fence in a SQLite file."""
    return [
        "CREATE TABLE IF NOT EXISTS ducklake_snapshot_id_seq(last_value BIGINT NOT NULL)",
        "INSERT INTO ducklake_snapshot_id_seq SELECT 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM ducklake_snapshot_id_seq)",
        "UPDATE ducklake_snapshot_id_seq SET last_value = (SELECT snapshot_id FROM ducklake_head)",
        # The stock extension retries after a message with these words.
        """
CREATE TRIGGER IF NOT EXISTS ducklake_fence BEFORE INSERT ON ducklake_snapshot BEGIN
  SELECT RAISE(ABORT, 'snapshot conflict: concurrent commit moved the DuckLake head')
   WHERE NOT EXISTS (
     SELECT 1 FROM ducklake_head
      WHERE snapshot_id < NEW.snapshot_id AND next_catalog_id <= NEW.next_catalog_id
        AND next_file_id <= NEW.next_file_id);
  UPDATE ducklake_head SET snapshot_id = NEW.snapshot_id,
    next_catalog_id = NEW.next_catalog_id, next_file_id = NEW.next_file_id;
  UPDATE ducklake_snapshot_id_seq SET last_value = NEW.snapshot_id;
END""",
        # Files that a fork can see must not reach the clean-up of one catalog alone.
        """
CREATE TRIGGER IF NOT EXISTS swanlake_defer BEFORE INSERT ON ducklake_files_scheduled_for_deletion
WHEN EXISTS (
  SELECT 1 FROM swanlake_shared_file WHERE path = CASE WHEN NEW.path_is_relative THEN
    (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || NEW.path
    ELSE NEW.path END)
BEGIN
  INSERT OR IGNORE INTO swanlake_deferred_file
  VALUES (CASE WHEN NEW.path_is_relative THEN
    (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || NEW.path
    ELSE NEW.path END, strftime('%Y-%m-%d %H:%M:%f000+00', 'now'));
  SELECT RAISE(IGNORE);
END""",
    ]
