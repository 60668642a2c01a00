"""The settings: one table, from which flags, environment, TOML and the documentation follow.

Precedence: command line > environment > TOML file > default. A setting named ``max_sessions`` is
the flag ``--max-sessions``, the variable ``SWANLAKE_MAX_SESSIONS`` and the TOML key
``max_sessions``; a TOML table is a prefix, so ``[duckdb] threads = 4`` is ``duckdb_threads``.
"""
# ruff: noqa: RUF009 - _setting() is dataclasses.field() with the columns of the table

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from swanlake.errors import ConfigError

ENV_PREFIX = "SWANLAKE_"
#: The queue's variables are known without our prefix too.
QUEUE_PREFIX = "DUCKLING_QUEUE_"
CONFIG_ENV = "SWANLAKE_CONFIG"
DEFAULT_CONFIG_FILE = "swanlake.toml"

#: Variables with our prefix that are read elsewhere: the file itself, the client's connection.
OTHER_VARIABLES = frozenset({CONFIG_ENV, "SWANLAKE_URL", "SWANLAKE_TOKEN"})

#: Keys that begin so are Spark properties.
_SPARK_CONF = "spark_conf_"

_SPARK_CONF_VARIABLE = ENV_PREFIX + _SPARK_CONF.upper()

MASK = "********"


def _setting(
    default: Any,
    help: str,
    *,
    secret: bool = False,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    columns = {"help": help, "secret": secret, "minimum": minimum, "maximum": maximum}
    return field(default=default, repr=not secret, metadata=columns)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a server can be told. Each field is one row of the table."""

    home: Path = _setting(
        Path("swanlake-home"), "Directory that holds everything the embedded server keeps."
    )
    host: str = _setting("127.0.0.1", "Address the Flight SQL server listens on.")
    port: int = _setting(
        4214, "Port the Flight SQL server listens on; 0 picks a free one.", minimum=0, maximum=65535
    )

    advertised_url: str = _setting(
        "",
        "Where Spark's executors reach this server, as `grpc://host:port` or `grpc+tls://…`, to "
        "fetch what they cannot read from its disk. Empty: the address it listens on.",
    )

    auth: Literal["none", "token"] = _setting(
        "none",
        "`none` trusts every caller by the name it gives; `token` asks for a token that stands in "
        "`<home>/tokens/<name>`.",
    )
    tls_cert: Path | None = _setting(
        None, "PEM file with the server's certificate chain; turns TLS on."
    )
    tls_key: Path | None = _setting(None, "PEM file with the private key of `tls_cert`.")

    metabase_url: str = _setting(
        "",
        "PostgreSQL URL of the lake's metadata. Empty: a SQLite file under `home`.",
        secret=True,
    )
    data_path: str = _setting(
        "",
        "Where lakes keep their Parquet files, each under its name: a directory or s3://… "
        "Empty: `<home>/data`.",
    )
    ducklake_init_sql: str = _setting(
        "",
        "SQL run once when the engine starts, after the lake is attached: secrets, more ATTACHes, "
        "SET GLOBAL.",
        secret=True,
    )

    duckdb_memory_limit: str = _setting(
        "",
        "Memory the engine may use, such as `8GB`. Empty: DuckDB's default, 80 % of the machine.",
    )
    duckdb_threads: int = _setting(0, "Threads of the engine. 0: one per core.", minimum=0)
    duckdb_temp_directory: Path | None = _setting(
        None, "Where the engine and large pending results spill. Empty: `<home>/tmp`."
    )

    max_sessions: int = _setting(100, "Sessions that may be open at once.", minimum=1)
    session_timeout_seconds: float = _setting(
        1800.0, "A session idle for longer is closed. A running statement is activity.", minimum=0
    )
    session_sweep_seconds: float = _setting(
        300.0, "How often idle sessions and unread results are looked for.", minimum=0.05
    )
    session_isolation: Literal["shared", "instance"] = _setting(
        "shared",
        "`shared`: all sessions are connections of one DuckDB instance. `instance`: each session "
        "has an instance of its own.",
    )
    warm_instances: int = _setting(
        2, "Spare instances kept ready when `session_isolation` is `instance`.", minimum=0
    )

    query_timeout_seconds: float = _setting(
        0.0,
        "A statement that runs longer is stopped. 0: no limit. A session option or the header "
        "`x-swanlake-query-timeout-seconds` overrides it.",
        minimum=0,
    )
    commit_lock_timeout_seconds: float = _setting(
        30.0, "How long a write waits for its turn to commit to the lake.", minimum=0
    )
    result_buffer_bytes: int = _setting(
        64 * 1024 * 1024,
        "Memory for the unread rest of a result whose session goes on to another statement; what "
        "is larger spills to disk.",
        minimum=0,
    )
    result_ttl_seconds: float = _setting(
        600.0, "A result nobody fetches is dropped after this time.", minimum=1
    )
    shutdown_grace_seconds: float = _setting(
        30.0, "How long running statements may finish after SIGTERM or SIGINT.", minimum=0
    )

    duckling_queue_root: Path | None = _setting(
        None, "Where the queue keeps rows that are not in the lake yet. Empty: `<home>/queue`."
    )
    duckling_queue_buffer_max_rows: int = _setting(
        50_000, "A table with this many rows in the queue is flushed.", minimum=1
    )
    duckling_queue_rotate_size_bytes: int = _setting(
        100_000_000, "A table with this many bytes in the queue is flushed.", minimum=1
    )
    duckling_queue_rotate_interval_seconds: float = _setting(
        300.0,
        "Rows that have waited for so long are flushed, with all that came to their table since.",
        minimum=0,
    )
    duckling_queue_flush_interval_seconds: float = _setting(
        60.0,
        "How often the queue looks for rows that have waited too long and for what other servers "
        "left behind.",
        minimum=0.05,
    )
    duckling_queue_max_parallel_flushes: int = _setting(
        2, "Tables that are flushed at the same time.", minimum=1
    )
    duckling_queue_max_bytes: int = _setting(
        10_000_000_000,
        "With so much on disk and not in the lake, the queue refuses more until it has flushed.",
        minimum=1,
    )
    duckling_queue_retention_seconds: float = _setting(
        0.0, "How long segments are kept after their flush. 0: not at all.", minimum=0
    )
    duckling_queue_target_catalog: str = _setting(
        "swanlake", "Where queued rows go when the session is not in a catalog of the lake."
    )
    duckling_queue_auto_create_tables: bool = _setting(
        False, "An insert into the queue makes a table that does not exist, from its columns."
    )
    duckling_queue_dlq_target: str = _setting(
        "",
        "Where segments go that can never be flushed: a directory or s3://… "
        "Empty: `dead-letters` in the queue's directory.",
    )
    duckling_queue_in_transaction: Literal["refuse", "immediate"] = _setting(
        "refuse",
        "An insert into the queue inside a transaction is refused, or done at once, whatever "
        "becomes of the transaction.",
    )

    pipeline: Literal["spark", "inline"] = _setting(
        "spark",
        "Where flushes and maintenance run: on Spark, or in the server's own process, for machines "
        "without Java.",
    )
    spark_master: str = _setting(
        "local[*]", "The Spark to use: `local[*]`, `spark://…`, `yarn` or `k8s://…`."
    )
    spark_remote: str = _setting(
        "",
        "A Spark Connect server, `sc://host:port`, to use instead; then no Java is needed here.",
        secret=True,
    )
    spark_memory: str = _setting("1g", "Memory of the JVM that Spark starts here.")
    spark_worker_memory: str = _setting(
        "2GB", "Memory that DuckDB may use in each of Spark's Python workers; more is spilled."
    )
    spark_conf: str = _setting(
        "",
        "Further Spark properties, a line `name=value` each. `SWANLAKE_SPARK_CONF_<name>` adds one "
        "more, with underscores for the dots of its name (two for an underscore): "
        "`SWANLAKE_SPARK_CONF_spark_executor_memory=2g`. In TOML: `[spark.conf]`.",
        secret=True,
    )
    transforms: str = _setting(
        "",
        "Python modules whose `@swanlake.transform` functions change queued rows on their way to "
        "the lake, with commas between.",
    )
    spark_job_timeout_seconds: float = _setting(
        3600.0, "A job on Spark that runs longer is stopped, and tried again later.", minimum=1
    )

    maintenance: Literal["on", "off"] = _setting(
        "on",
        "The server looks after its catalogs by itself: it compacts tables, deletes files that no "
        "snapshot needs, and lets snapshots go if a rule for that is set. `off`: only when asked.",
    )
    maintenance_interval_seconds: float = _setting(
        300.0, "How often the server looks whether there is something to maintain.", minimum=0.05
    )
    maintenance_window: str = _setting(
        "",
        "When maintenance may begin by itself, in UTC: `01:00-05:00`, or `22:00-04:00` across "
        "midnight. Empty: always.",
    )
    maintenance_pause_seconds: float = _setting(
        600.0,
        "The least time between two runs of one job on the same table or catalog. Runs that fail "
        "or find nothing to do double it, up to an hour.",
        minimum=0,
    )
    maintenance_target_file_size_bytes: int = _setting(
        512 * 1024 * 1024,
        "How large files become; what has three quarters of that is not small.",
        minimum=1,
    )
    maintenance_small_files: int = _setting(
        10, "A table with at least so many small files is compacted.", minimum=2
    )
    maintenance_small_file_ratio: float = _setting(
        0.25, "… if at least this part of its files is small.", minimum=0, maximum=1
    )
    maintenance_deleted_ratio: float = _setting(
        0.25,
        "A table is compacted if at least this part of the rows in its files is deleted, and so "
        "is each of its files of which that is true.",
        minimum=0.001,
        maximum=1,
    )
    maintenance_inlined_rows: int = _setting(
        1000, "A table with so many rows in the metadata is compacted.", minimum=1
    )
    maintenance_snapshot_max_age_seconds: float = _setting(
        0.0,
        "Snapshots older than this expire, and time travel to them ends. 0: none do because of "
        "their age.",
        minimum=0,
    )
    maintenance_snapshot_keep_last: int = _setting(
        0,
        "Snapshots expire but for so many, the newest. 0: none do because of their number. With "
        "an age too, a snapshot expires if it is older and not among the newest.",
        minimum=0,
    )
    maintenance_cleanup_age_seconds: float = _setting(
        86_400.0,
        "Files that no snapshot needs are deleted after this time: for longer than any query runs.",
        minimum=0,
    )
    maintenance_orphan_age_seconds: float = _setting(
        172_800.0,
        "Files that no catalog knows are deleted when they are older: for longer than any write "
        "takes until its commit.",
        minimum=3600,
    )

    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "The least severe message that is logged."
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "`text` for people, `json` for one object per line."
    )

    @property
    def data_location(self) -> str:
        """Where Parquet files go, with the default under the home directory filled in."""
        return self.data_path or str(self.home.absolute() / "data")

    @property
    def temp_directory(self) -> Path:
        """Where the engine and large results spill, with the default filled in."""
        return (self.duckdb_temp_directory or self.home / "tmp").absolute()


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    type: Any
    default: Any
    help: str
    secret: bool
    minimum: float | None
    maximum: float | None

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.name.upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """All environment variables that set it."""
        short = self.name.upper()
        return (self.env, short) if short.startswith(QUEUE_PREFIX) else (self.env,)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def type_name(self) -> str:
        """The type as the documentation writes it."""
        if get_origin(self.type) is Literal:
            return " \\| ".join(f"`{choice}`" for choice in get_args(self.type))
        return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(
            self.type, "path"
        )

    def parse(self, raw: object, where: str) -> Any:
        """Reads a value from text (environment, flag) or from a TOML value."""
        try:
            if get_origin(self.type) is Literal:
                value: Any = _parse_choice(raw, get_args(self.type))
            else:
                value = _PARSERS[self.type](raw)
        except ValueError as unreadable:
            shown = MASK if self.secret else repr(raw)
            raise ConfigError(f"{where}: {shown} is not {unreadable}.") from None
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{where}: {raw!r} is below the minimum of {self.minimum:g}.")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{where}: {raw!r} is above the maximum of {self.maximum:g}.")
        return value

    def show(self, value: Any) -> str:
        """The value as it may be shown to anyone: a secret only says that it is set."""
        if value is None or value == "":
            return ""
        return MASK if self.secret else str(value)


def _parse_text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("a text")
    return raw


def _parse_int(raw: object) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | str):
        raise ValueError("a whole number")
    try:
        return int(raw)
    except ValueError:
        raise ValueError("a whole number") from None


def _parse_float(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        raise ValueError("a number")
    try:
        value = float(raw)
    except ValueError:
        raise ValueError("a number") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError("a finite number")
    return value


def _parse_bool(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    try:
        return {"true": True, "1": True, "false": False, "0": False}[str(raw).strip().lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _parse_path(raw: object) -> Path:
    if not isinstance(raw, str) or not raw:
        raise ValueError("a path")
    return Path(raw)


def _parse_optional_path(raw: object) -> Path | None:
    return None if raw == "" else _parse_path(raw)


def _parse_choice(raw: object, choices: tuple[str, ...]) -> str:
    if raw not in choices:
        raise ValueError("one of " + ", ".join(choices))
    return str(raw)


_PARSERS: Mapping[Any, Callable[[object], Any]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: _parse_text,
    Path: _parse_path,
    Path | None: _parse_optional_path,
}


def _table() -> Iterator[Setting]:
    hints = get_type_hints(Settings)
    for row in fields(Settings):
        assert row.default is not MISSING
        yield Setting(row.name, hints[row.name], row.default, **row.metadata)


#: The table, by name, in the order in which it is documented.
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _table()}


@dataclass(frozen=True)
class Configuration:
    """The settings in force, and for each where it came from."""

    settings: Settings
    sources: Mapping[str, str]


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Configuration:
    """Reads all sources and checks every key and value in them.

    Raises ConfigError for the first key that is unknown or value that is unreadable.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    sources = dict.fromkeys(SETTINGS, "default")

    def take(name: str, raw: object, where: str, source: str) -> None:
        values[name] = SETTINGS[name].parse(raw, where)
        sources[name] = source

    path = _config_path(config_file, environ)
    properties: list[str] = []
    for key, raw in _read_toml(path) if path else ():
        if key.startswith(_SPARK_CONF):
            properties.append(_spark_property(key, raw, f"{path}: {key}"))
            continue
        _check_known(key, SETTINGS, f"{path}: unknown key")
        if key in values:
            raise ConfigError(f"{path}: {key!r} is given twice, as a key and in a table.")
        take(key, raw, f"{path}: {key}", str(path))

    variables = {variable: row.name for row in SETTINGS.values() for variable in row.variables}
    for variable, text in sorted(environ.items()):  # the longer name comes last, and wins
        if variable.upper().startswith(_SPARK_CONF_VARIABLE):
            key = _SPARK_CONF + variable[len(_SPARK_CONF_VARIABLE) :]
            properties.append(_spark_property(key, text, variable))
        elif variable.startswith((ENV_PREFIX, QUEUE_PREFIX)) and variable not in OTHER_VARIABLES:
            _check_known(variable, variables, "unknown environment variable")
            take(variables[variable], text, variable, variable)

    for name, raw in (flags or {}).items():
        if raw is not None:
            take(name, raw, SETTINGS[name].flag, SETTINGS[name].flag)

    if properties:
        values["spark_conf"] = "\n".join(filter(None, [values.get("spark_conf"), *properties]))
    return Configuration(Settings(**values), sources)


def _spark_property(key: str, raw: object, where: str) -> str:
    """A line of ``spark_conf``; a name without dots has underscores in their place."""
    name = key.removeprefix(_SPARK_CONF)
    if "." not in name:
        name = "_".join(part.replace("_", ".") for part in name.split("__"))
    if name.isupper():
        name = name.lower()
    if isinstance(raw, bool):
        raw = str(raw).lower()
    if not name or not isinstance(raw, str | int | float) or "\n" in str(raw):
        raise ConfigError(f"{where}: this cannot be the value of a Spark property.")
    return f"{name if name.startswith('spark.') else f'spark.{name}'}={raw}"


def _config_path(config_file: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config_file or (Path(environ[CONFIG_ENV]) if environ.get(CONFIG_ENV) else None)
    if named is None:
        implied = Path(DEFAULT_CONFIG_FILE)
        return implied if implied.is_file() else None
    return named


def _read_toml(path: Path) -> Iterator[tuple[str, object]]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"The configuration file {path} does not exist.") from None
    except OSError as unreadable:
        reason = unreadable.strerror
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"The configuration file {path} is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as malformed:
        raise ConfigError(f"{path} is not valid TOML: {malformed}.") from None
    return _flatten(document)


def _flatten(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}_")
        else:
            yield prefix + key, value


def _check_known(key: str, known: Mapping[str, object], complaint: str) -> None:
    if key not in known:
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        raise ConfigError(f"{complaint} {key!r}; the nearest valid one is {nearest[0]!r}.")


def reference() -> str:
    """The table as Markdown: the whole of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "<!-- Generated by `make docs` from src/swanlake/config.py; edit the table there. -->",
        "",
        "A setting can be given as a flag of `swanlake serve`, as an environment variable or as a",
        "key of `swanlake.toml` (in the working directory, or the file that `--config` or",
        "`SWANLAKE_CONFIG` names). The first of these wins, and then the default. A secret has no",
        "flag, because every process list shows flags. In TOML a table is a prefix: `[duckdb]`",
        "with `threads = 4` is `duckdb_threads = 4`.",
        "`swanlake config show` prints what is in force and where it came from.",
        "",
        "An unknown key or an unreadable value stops the start with exit code 2. The variables of",
        "the queue are known without `SWANLAKE_` too: `DUCKLING_QUEUE_ROOT`.",
        "",
        "| setting | environment variable | type | default | |",
        "|---|---|---|---|---|",
    ]
    for row in SETTINGS.values():
        default = f"`{row.default}`" if row.default not in (None, "") else ""
        secret = " *Secret: never shown.*" if row.secret else ""
        lines.append(
            f"| `{row.name}` | `{row.env}` | {row.type_name} | {default} | {row.help}{secret} |"
        )
    return "\n".join(lines) + "\n"
