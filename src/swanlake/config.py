"""The settings: one table that defines flags, environment variables, TOML keys and their docs.

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
#: The queue's variables may omit SWANLAKE_.
QUEUE_PREFIX = "DUCKLING_QUEUE_"
CONFIG_ENV = "SWANLAKE_CONFIG"
DEFAULT_CONFIG_FILE = "swanlake.toml"

#: Variables with the prefix that are not settings: the file's path, the client's connection.
OTHER_VARIABLES = frozenset({CONFIG_ENV, "SWANLAKE_URL", "SWANLAKE_TOKEN"})

#: Keys with this prefix are Spark properties.
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
    """The settings of a server. Each field is one row of the table."""

    home: Path = _setting(Path("swanlake-home"), "Directory for all data of an embedded server.")
    host: str = _setting("127.0.0.1", "Address the Flight SQL server listens on.")
    port: int = _setting(
        4214, "Port the Flight SQL server listens on; 0 picks a free one.", minimum=0, maximum=65535
    )

    advertised_url: str = _setting(
        "",
        "URL at which Spark executors reach this server to fetch queue segments, as "
        "`grpc://host:port` or `grpc+tls://…`. Empty: the address it listens on.",
    )

    status: Literal["auto", "on", "off"] = _setting(
        "auto",
        "Serves the console, health checks and metrics over HTTP. `auto`: unless another process "
        "uses the port. `on`: the server does not start without it.",
    )
    status_host: str = _setting("127.0.0.1", "Address of the console, health checks and metrics.")
    status_port: int = _setting(
        4215, "Port of the same; 0 picks a free one.", minimum=0, maximum=65535
    )
    status_url: str = _setting(
        "",
        "URL at which browsers reach the console, if a proxy is between them: "
        "`https://swanlake.example.org`. Empty: the address it listens on.",
    )

    otlp_endpoint: str = _setting(
        "",
        "URL of an OpenTelemetry collector that gets traces and metrics over HTTP: "
        "`http://host:4318`. Empty: `OTEL_EXPORTER_OTLP_ENDPOINT`, else none. Needs the extra "
        "`opentelemetry`.",
    )

    insecure: bool = _setting(
        False,
        "Allows other machines to connect without authentication or TLS: behind a proxy, or in a "
        "private network.",
    )

    auth: Literal["none", "token", "any"] = _setting(
        "none",
        "`none` trusts the user name that a caller sends, and every caller is an admin. `token` "
        "requires a token of `swanlake token` or of a file `<home>/tokens/<name>`. `any` also "
        "accepts users of `swanlake user` with their passwords, and JWTs and client certificates "
        "if they are configured.",
    )
    login_seconds: float = _setting(
        28_800.0,
        "How long the token is valid that a client gets for a user's password.",
        minimum=1,
    )
    jwt_keys: str = _setting(
        "",
        "Keys of an identity provider whose JWTs are accepted: a PEM file with a public key, a "
        "JWKS file, or the https:// URL of a JWKS. Changed keys are noticed.",
    )
    jwt_issuer: str = _setting("", "Required issuer (`iss`) of JWTs.")
    jwt_audience: str = _setting("", "Required audience (`aud`) of JWTs.")
    jwt_name_claim: str = _setting(
        "sub", "Claim with the caller's name, which becomes `jwt:<name>`."
    )
    jwt_role_claim: str = _setting(
        "swanlake_role",
        "Claim with the caller's role: `admin`, `writer` or `reader`, or a list that contains one.",
    )
    jwt_grants_claim: str = _setting(
        "swanlake_grants",
        "Claim with a list of grants such as `sales_*=read`. Without the claim, the role holds in "
        "every catalog.",
    )
    tls_cert: Path | None = _setting(
        None,
        "PEM file with the server's certificate chain. Enables TLS. A changed file is noticed.",
    )
    tls_key: Path | None = _setting(None, "PEM file with the private key of `tls_cert`.")
    tls_client_ca: Path | None = _setting(
        None,
        "PEM file with certificate authorities. Clients need a certificate of one of them, besides "
        "their other credentials.",
    )
    tls_client_subjects: Path | None = _setting(
        None,
        "TOML file with a table for each subject of a client certificate: `role`, `name`, "
        "`grants`. These clients need no other credentials.",
    )

    metabase_url: str = _setting(
        "", "PostgreSQL URL of the lake's metadata. Empty: SQLite files under `home`.", secret=True
    )
    data_path: str = _setting(
        "",
        "Directory or s3://… URL for Parquet files, with a subdirectory per catalog. "
        "Empty: `<home>/data`.",
    )
    storage_endpoint: str = _setting(
        "",
        "Address of the object store, such as `host:9000` or `https://storage.example.com`. Empty: "
        "`AWS_ENDPOINT_URL`, else Amazon S3.",
    )
    storage_region: str = _setting(
        "", "Region of the object store. Empty: `AWS_REGION`, else that of the AWS configuration."
    )
    storage_key_id: str = _setting(
        "",
        "Key id for the object store. Empty: `AWS_ACCESS_KEY_ID`, else the credential chain of "
        "AWS (profiles, web identity, instance roles).",
        secret=True,
    )
    storage_secret: str = _setting("", "Secret of `storage_key_id`.", secret=True)
    storage_secret_file: Path | None = _setting(
        None, "File with the secret of `storage_key_id`, instead of `storage_secret`."
    )
    storage_url_style: Literal["auto", "path", "vhost"] = _setting(
        "auto",
        "`path`: `https://host/bucket`. `vhost`: `https://bucket.host`. `auto`: `path` if there is "
        "an endpoint, else `vhost`.",
    )
    storage_tls: bool = _setting(
        True, "Uses TLS for a `storage_endpoint` that does not say `http://` or `https://`."
    )
    storage_timeout_seconds: float = _setting(
        10.0,
        "How long the object store may take to answer a request, which is then repeated once.",
        minimum=1,
        maximum=600,
    )
    ducklake_init_sql: str = _setting(
        "",
        "SQL that runs once when the engine starts, after the lake is attached: secrets, ATTACH, "
        "SET GLOBAL.",
        secret=True,
    )

    file_access: Literal["lake", "directories", "all"] = _setting(
        "lake",
        "Files that statements of readers and writers may name. `lake`: none, they use tables. "
        "`directories`: those in listed directories. `all`: any. Admins may always name any.",
    )
    file_directories: str = _setting(
        "",
        "Absolute directories and URLs, separated by commas, whose files readers and writers may "
        "read and write if `file_access` is `directories`.",
    )

    duckdb_memory_limit: str = _setting(
        "",
        "Memory limit of the engine, such as `8GB`. Empty: DuckDB's default, 80 % of the machine.",
    )
    duckdb_threads: int = _setting(0, "Threads of the engine. 0: one per core.", minimum=0)
    duckdb_temp_directory: Path | None = _setting(
        None, "Directory for spilled data of the engine and of results. Empty: `<home>/tmp`."
    )

    max_sessions: int = _setting(100, "Maximum number of open sessions.", minimum=1)
    max_sessions_per_identity: int = _setting(
        50, "Maximum number of open sessions of one reader or writer.", minimum=1
    )
    reserved_sessions: int = _setting(
        3, "Sessions of `max_sessions` that only admins can open.", minimum=0
    )
    session_timeout_seconds: float = _setting(
        1800.0, "Sessions idle for longer are closed. A running statement is activity.", minimum=0
    )
    session_sweep_seconds: float = _setting(
        300.0, "Interval between checks for idle sessions and expired results.", minimum=0.05
    )
    session_isolation: Literal["shared", "instance"] = _setting(
        "shared",
        "`shared`: all sessions use one DuckDB instance, each on its own connection. `instance`: "
        "each session has its own instance.",
    )
    warm_instances: int = _setting(
        2, "Instances kept ready in advance when `session_isolation` is `instance`.", minimum=0
    )

    query_timeout_seconds: float = _setting(
        0.0,
        "Statements that run longer are cancelled. 0: no limit. A session option or the header "
        "`x-swanlake-query-timeout-seconds` can only shorten it.",
        minimum=0,
    )
    max_statement_bytes: int = _setting(
        16 * 1024 * 1024, "Statements whose text is longer are refused.", minimum=1024
    )
    native_statements: Literal["on", "off"] = _setting(
        "on",
        "Runs statements on lake tables without DuckLake's extension where that is faster. `off`: "
        "the extension runs every statement. Outcomes are the same, but the extension refuses "
        "`INSERT … RETURNING`.",
    )
    commit_lock_timeout_seconds: float = _setting(
        30.0, "How long a write waits for other writers before it can commit.", minimum=0
    )
    writer_lock_seconds: float = _setting(
        20.0,
        "How long a statement may hold a catalog's lock while statements of others wait for it. 0: "
        "no limit.",
        minimum=0,
    )
    result_buffer_bytes: int = _setting(
        64 * 1024 * 1024,
        "Memory for the unread rest of a result when its session runs another statement. Larger "
        "results spill to disk.",
        minimum=0,
    )
    caller_memory_bytes: int = _setting(
        0,
        "Memory for what callers have sent or not read yet: results, parameters, uploads, rows on "
        "their way into the queue. Beyond a caller's share, results and uploads go to disk and "
        "parameters are refused. 0: an eighth of `duckdb_memory_limit`, or a tenth of the "
        "machine's memory.",
        minimum=0,
    )
    snapshot_cache_bytes: int = _setting(
        64 * 1024 * 1024,
        "Memory for what is known of tables: their files, statistics and inlined rows.",
        minimum=0,
    )
    result_ttl_seconds: float = _setting(
        600.0, "Results that are not fetched within this time are dropped.", minimum=1
    )
    watchdog_seconds: float = _setting(
        30.0,
        "With `serve --supervise`, a server that does not respond for this long is ended and "
        "started again. 0: never.",
        minimum=0,
    )
    shutdown_grace_seconds: float = _setting(
        30.0, "Time for running statements to finish after SIGTERM or SIGINT.", minimum=0
    )

    duckling_queue_root: Path | None = _setting(
        None, "Directory for queued rows. Empty: `<home>/queue`."
    )
    duckling_queue_buffer_max_rows: int = _setting(
        50_000, "A table with this many queued rows is flushed.", minimum=1
    )
    duckling_queue_rotate_size_bytes: int = _setting(
        100_000_000, "A table with this many queued bytes is flushed.", minimum=1
    )
    duckling_queue_rotate_interval_seconds: float = _setting(
        300.0, "A table whose oldest queued row is older than this is flushed.", minimum=0
    )
    duckling_queue_flush_interval_seconds: float = _setting(
        60.0,
        "Interval between checks for rows that are due, and for segments that stopped servers left "
        "behind.",
        minimum=0.05,
    )
    duckling_queue_max_parallel_flushes: int = _setting(
        2, "Maximum number of tables that are flushed concurrently.", minimum=1
    )
    duckling_queue_max_bytes: int = _setting(
        10_000_000_000,
        "Maximum size of all queued rows on disk. Beyond it, or beyond the share of a table or a "
        "caller, inserts are refused until a flush frees space.",
        minimum=1,
    )
    duckling_queue_retention_seconds: float = _setting(
        0.0, "How long segments are kept after their flush. 0: deleted at once.", minimum=0
    )
    duckling_queue_target_catalog: str = _setting(
        "swanlake", "Catalog for queued rows of sessions that do not use a catalog of the lake."
    )
    duckling_queue_auto_create_tables: bool = _setting(
        False, "An insert into the queue creates the table if it does not exist."
    )
    duckling_queue_dlq_target: str = _setting(
        "",
        "Directory or s3://… URL for dead letters: segments that can never be flushed. "
        "Empty: `dead-letters` in the queue's directory.",
    )
    duckling_queue_in_transaction: Literal["refuse", "immediate"] = _setting(
        "refuse",
        "`refuse`: an insert into the queue fails inside a transaction. `immediate`: it takes "
        "effect at once, even if the transaction is rolled back.",
    )

    pipeline: Literal["spark", "inline"] = _setting(
        "spark",
        "`spark`: flushes and maintenance run on Spark. `inline`: they run in the server process, "
        "for machines without Java.",
    )
    spark_master: str = _setting(
        "local[*]", "Spark master: `local[*]`, `spark://…`, `yarn` or `k8s://…`."
    )
    spark_remote: str = _setting(
        "",
        "URL of a Spark Connect server, `sc://host:port`, to use instead of `spark_master`. This "
        "machine then needs no Java.",
        secret=True,
    )
    spark_memory: str = _setting("1g", "Memory of the JVM of the Spark driver.")
    spark_worker_memory: str = _setting(
        "2GB", "Memory limit of DuckDB in each Python worker of Spark; beyond it, data spills."
    )
    spark_conf: str = _setting(
        "",
        "Additional Spark properties, one `name=value` per line. `SWANLAKE_SPARK_CONF_<name>` adds "
        "one property, with underscores for the dots of its name (two for an underscore): "
        "`SWANLAKE_SPARK_CONF_spark_executor_memory=2g`. In TOML: `[spark.conf]`.",
        secret=True,
    )
    transforms: str = _setting(
        "",
        "Comma-separated Python modules with `@swanlake.transform` functions, which change queued "
        "rows before they reach the lake.",
    )
    spark_job_timeout_seconds: float = _setting(
        3600.0, "Spark jobs that run longer are cancelled and retried later.", minimum=1
    )

    maintenance: Literal["on", "off"] = _setting(
        "on",
        "`on`: the server compacts tables, expires snapshots if a rule is set, and deletes "
        "unneeded files automatically. `off`: only on request.",
    )
    maintenance_interval_seconds: float = _setting(
        300.0, "Interval between checks whether maintenance is due.", minimum=0.05
    )
    maintenance_window: str = _setting(
        "",
        "Time of day in UTC when automatic maintenance may start: `01:00-05:00`, or `22:00-04:00` "
        "across midnight. Empty: always.",
    )
    maintenance_pause_seconds: float = _setting(
        600.0,
        "Minimum time between two runs of a job on the same table or catalog. It doubles with each "
        "run that fails or finds nothing to do, up to an hour.",
        minimum=0,
    )
    maintenance_target_file_size_bytes: int = _setting(
        512 * 1024 * 1024,
        "Target size of compacted files. Files below three quarters of it are small.",
        minimum=1,
    )
    maintenance_small_files: int = _setting(
        10, "A table with at least this many small files is compacted.", minimum=2
    )
    maintenance_small_file_ratio: float = _setting(
        0.25, "… if they are at least this fraction of its files.", minimum=0, maximum=1
    )
    maintenance_deleted_ratio: float = _setting(
        0.25,
        "A table is compacted if at least this fraction of its rows is deleted. The same fraction "
        "selects the files to rewrite.",
        minimum=0.001,
        maximum=1,
    )
    maintenance_inlined_rows: int = _setting(
        1000, "A table with this many inlined rows is compacted.", minimum=1
    )
    maintenance_snapshot_max_age_seconds: float = _setting(
        0.0,
        "Snapshots older than this expire; time travel to them is no longer possible. 0: no limit.",
        minimum=0,
    )
    maintenance_snapshot_keep_last: int = _setting(
        0,
        "Number of newest snapshots to keep; older ones expire. 0: no limit. If a maximum age is "
        "set too, a snapshot expires only when both rules allow it.",
        minimum=0,
    )
    maintenance_cleanup_age_seconds: float = _setting(
        86_400.0,
        "Files that no snapshot needs are deleted after this time. It must exceed the longest "
        "query.",
        minimum=0,
    )
    maintenance_orphan_age_seconds: float = _setting(
        172_800.0,
        "Files that no catalog references are deleted when they are older. It must exceed the "
        "longest write.",
        minimum=3600,
    )

    audit: Literal["off", "changes", "all"] = _setting(
        "changes",
        "What the audit log `<home>/logs/audit.jsonl` records: `changes` are logins, sessions, "
        "statements that may change something, and denied ones; `all` are all statements.",
    )
    audit_max_bytes: int = _setting(
        64 * 1024**2, "Size of the audit log; the oldest entries go first.", minimum=1024**2
    )
    slow_query_seconds: float = _setting(
        10.0, "Statements that take longer are logged. 0: none is.", minimum=0
    )
    log_statements: Literal["off", "redacted", "full"] = _setting(
        "off",
        "The text in the log lines of failed and slow statements: none, with `?` in place of "
        "values, or as it was sent.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info", "Minimum severity of logged messages."
    )
    log_format: Literal["text", "json"] = _setting(
        "text", "`text`: readable lines. `json`: one object per line."
    )

    @property
    def data_location(self) -> str:
        """The location of Parquet files, with the default filled in."""
        return self.data_path or str(self.home.absolute() / "data")

    @property
    def temp_directory(self) -> Path:
        """The directory for spilled data, with the default filled in."""
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
        """The environment variables that set it."""
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
        """Parses a value from text (environment, flag) or from TOML."""
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
        """The value for display; a secret is masked."""
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


#: The rows of the table by name, in the order of the documentation.
SETTINGS: Mapping[str, Setting] = {row.name: row for row in _table()}


@dataclass(frozen=True)
class Configuration:
    """The effective settings, and the source of each."""

    settings: Settings
    sources: Mapping[str, str]


def load(
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config_file: Path | None = None,
) -> Configuration:
    """Reads all sources; raises ConfigError for an unknown key or an invalid value."""
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
            raise ConfigError(f"{path}: {key!r} is set twice, as a key and in a table.")
        take(key, raw, f"{path}: {key}", str(path))

    variables = {variable: row.name for row in SETTINGS.values() for variable in row.variables}
    for variable, text in sorted(environ.items()):  # SWANLAKE_DUCKLING_… sorts last and wins
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
    """A line of ``spark_conf``; in a name without dots, underscores stand for them."""
    name = key.removeprefix(_SPARK_CONF)
    if "." not in name:
        name = "_".join(part.replace("_", ".") for part in name.split("__"))
    if name.isupper():
        name = name.lower()
    if isinstance(raw, bool):
        raw = str(raw).lower()
    if not name or not isinstance(raw, str | int | float) or "\n" in str(raw):
        raise ConfigError(f"{where}: this is not a valid Spark property.")
    return f"{name if name.startswith('spark.') else f'spark.{name}'}={raw}"


def _config_path(config_file: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = config_file or environ.get(CONFIG_ENV)
    if named:
        return Path(named)
    return Path(DEFAULT_CONFIG_FILE) if Path(DEFAULT_CONFIG_FILE).is_file() else None


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


def child_environment() -> dict[str, str]:
    """The environment for child processes, which get secrets by other means if they need them."""
    secrets = {
        "SWANLAKE_TOKEN",
        "PGPASSWORD",
        *(row.env for row in SETTINGS.values() if row.secret),
    }
    return {
        name: value
        for name, value in os.environ.items()
        if name not in secrets and not name.upper().startswith(_SPARK_CONF_VARIABLE)
    }


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
