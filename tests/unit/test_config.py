"""Settings: one table, four sources, and error messages for invalid values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from swanlake import config
from swanlake.cli.settings_reference import settings_reference
from swanlake.config import SETTINGS, Setting
from swanlake.errors import ConfigError
from swanlake.jobs.spark.session import SparkOptions

REPOSITORY = Path(__file__).parents[2]
EVERY_SETTING = pytest.mark.parametrize("row", SETTINGS.values(), ids=SETTINGS)


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the developer's own swanlake.toml."""
    monkeypatch.chdir(tmp_path)


def texts(row: Setting) -> list[str]:
    """Three texts that the setting accepts, different unless there are fewer choices."""
    if get_origin(row.type) is Literal:
        choices = [choice for choice in get_args(row.type) if choice != row.default]
        return [choices[i % len(choices)] for i in range(3)]
    if row.type is bool:
        return ["true", "false", "1"]
    if row.maximum == 1:
        return ["0.11", "0.12", "0.13"]
    if row.type in (int, float):
        least = int(row.minimum or 0)
        return [str(least + 11), str(least + 12), str(least + 13)]
    return ["a", "b", "c"]


def toml_value(row: Setting, text: str) -> str:
    return text if row.type in (bool, int, float) else f'"{text}"'


def write_toml(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "other.toml"
    file.write_text(text)
    return file


def error_message(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        config.load(**{"environ": {}} | sources)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@EVERY_SETTING
def test_flag_overrides_environment_overrides_toml_overrides_default(
    row: Setting, tmp_path: Path
) -> None:
    in_file, in_environment, in_flag = texts(row)
    file = write_toml(tmp_path, f"{row.name} = {toml_value(row, in_file)}\n")
    environ = {row.env: in_environment}
    flags = {row.name: in_flag}

    def value_and_source(**sources: Any) -> tuple[Any, str]:
        loaded = config.load(**{"environ": {}} | sources)
        return getattr(loaded.settings, row.name), loaded.sources[row.name]

    def parsed(text: str) -> Any:
        return row.parse(text, "test")

    assert value_and_source() == (row.default, "default")
    assert value_and_source(config_file=file) == (parsed(in_file), str(file))
    assert value_and_source(config_file=file, environ=environ) == (parsed(in_environment), row.env)
    assert value_and_source(config_file=file, environ=environ, flags=flags) == (
        parsed(in_flag),
        row.flag,
    )


@EVERY_SETTING
def test_every_setting_has_a_description(row: Setting) -> None:
    assert row.help.endswith(".")
    assert len(row.help) > 15
    assert row.type_name


@EVERY_SETTING
def test_default_is_a_valid_value(row: Setting) -> None:
    if row.default is not None:
        assert row.parse(str(row.default) if row.type is Path else row.default, "x") == row.default


def test_documented_reference_is_up_to_date() -> None:
    documented = (REPOSITORY / "docs" / "configuration.md").read_text()
    assert documented == settings_reference(), "run `make docs`"


@EVERY_SETTING
def test_reference_names_every_setting_and_variable(row: Setting) -> None:
    line = next(line for line in settings_reference().splitlines() if f"`{row.name}`" in line)
    assert f"`{row.env}`" in line
    assert row.help in line
    assert ("Secret" in line) == row.secret


def test_toml_table_names_are_prefixes_of_keys(tmp_path: Path) -> None:
    file = write_toml(tmp_path, "[duckdb]\nthreads = 4\nmemory_limit = '1GB'\n[tls]\ncert = 'c'\n")
    settings = config.load(environ={}, config_file=file).settings
    assert settings.duckdb_threads == 4
    assert settings.duckdb_memory_limit == "1GB"
    assert settings.tls_cert == Path("c")


def test_key_given_flat_and_in_a_table_is_refused(tmp_path: Path) -> None:
    file = write_toml(tmp_path, "duckdb_threads = 1\n[duckdb]\nthreads = 2\n")
    assert "'duckdb_threads' is set twice" in error_message(config_file=file)


@pytest.mark.parametrize(
    ("variable", "line"),
    [
        ("SWANLAKE_SPARK_CONF_spark_executor_memory", "spark.executor.memory=x"),
        ("SWANLAKE_SPARK_CONF_SPARK_EXECUTOR_MEMORY", "spark.executor.memory=x"),
        ("SWANLAKE_SPARK_CONF_executor_cores", "spark.executor.cores=x"),
        ("SWANLAKE_SPARK_CONF_spark_executorEnv_SWAN__SONG", "spark.executorEnv.SWAN_SONG=x"),
        ("SWANLAKE_SPARK_CONF_spark.sql.shuffle.partitions", "spark.sql.shuffle.partitions=x"),
    ],
)
def test_environment_variable_adds_a_spark_property(variable: str, line: str) -> None:
    environ = {variable: "x", "SWANLAKE_SPARK_CONF": "spark.a=1"}
    assert config.load(environ=environ).settings.spark_conf == f"spark.a=1\n{line}"


def test_toml_table_adds_spark_properties(tmp_path: Path) -> None:
    file = write_toml(tmp_path, "[spark.conf]\n'spark.a' = 1\nui_enabled = true\n")
    settings = config.load(environ={}, config_file=file).settings
    assert settings.spark_conf == "spark.a=1\nspark.ui.enabled=true"


def test_environment_variable_overrides_the_spark_property_of_the_file(tmp_path: Path) -> None:
    file = write_toml(tmp_path, "[spark.conf]\n'spark.a' = 1\n")
    settings = config.load(environ={"SWANLAKE_SPARK_CONF_a": "2"}, config_file=file).settings
    assert SparkOptions.from_settings(settings).conf == {"spark.a": "2"}


def test_toml_in_the_working_directory_is_found() -> None:
    Path("swanlake.toml").write_text("max_sessions = 7")
    loaded = config.load(environ={})
    assert loaded.settings.max_sessions == 7
    assert loaded.sources["max_sessions"] == "swanlake.toml"


def test_config_file_comes_from_variable_unless_flag_is_given(tmp_path: Path) -> None:
    file = write_toml(tmp_path, "max_sessions = 7")
    environ = {"SWANLAKE_CONFIG": str(file)}
    assert config.load(environ=environ).settings.max_sessions == 7
    other = tmp_path / "flag.toml"
    other.write_text("max_sessions = 8")
    assert config.load(environ=environ, config_file=other).settings.max_sessions == 8


def test_missing_config_file_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "nope.toml"
    assert error_message(config_file=missing) == f"The configuration file {missing} does not exist."
    by_variable = error_message(environ={"SWANLAKE_CONFIG": str(missing)})
    assert by_variable == f"The configuration file {missing} does not exist."


def test_config_file_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    assert "cannot be read: Is a directory." in error_message(config_file=tmp_path)


def test_config_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "binary.toml"
    file.write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text." in error_message(config_file=file)


def test_config_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    message = error_message(config_file=write_toml(tmp_path, "port 4214"))
    assert "is not valid TOML" in message
    assert "line 1" in message


@pytest.mark.parametrize(
    ("text", "key", "nearest"),
    [
        ("max_session = 1", "max_session", "max_sessions"),
        ("[duckdb]\nthread = 1", "duckdb_thread", "duckdb_threads"),
        ("[loging]\nlevel = 'info'", "loging_level", "log_level"),
        ("Port = 1", "Port", "port"),
    ],
)
def test_unknown_toml_key_names_the_nearest(
    tmp_path: Path, text: str, key: str, nearest: str
) -> None:
    file = write_toml(tmp_path, text)
    expected = f"{file}: unknown key {key!r}; the nearest valid one is {nearest!r}."
    assert error_message(config_file=file) == expected


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("SWANLAKE_PRT", "SWANLAKE_PORT"),
        ("SWANLAKE_METABASE", "SWANLAKE_METABASE_URL"),
        ("SWANLAKE_MAX_SESSION", "SWANLAKE_MAX_SESSIONS"),
    ],
)
def test_unknown_variable_names_the_nearest(variable: str, nearest: str) -> None:
    message = error_message(environ={variable: "x", "PATH": "/bin"})
    assert message == (
        f"unknown environment variable {variable!r}; the nearest valid one is {nearest!r}."
    )


@pytest.mark.parametrize("variable", ["DUCKLING_QUEUE_ROOT", "SWANLAKE_DUCKLING_QUEUE_ROOT"])
def test_queue_variables_have_two_names(variable: str) -> None:
    loaded = config.load(environ={variable: "/rows"})
    assert loaded.settings.duckling_queue_root == Path("/rows")
    assert loaded.sources["duckling_queue_root"] == variable


def test_longer_name_of_a_variable_wins() -> None:
    environ = {"SWANLAKE_DUCKLING_QUEUE_ROOT": "/long", "DUCKLING_QUEUE_ROOT": "/short"}
    assert config.load(environ=environ).settings.duckling_queue_root == Path("/long")


def test_unknown_queue_variable_is_refused() -> None:
    assert error_message(environ={"DUCKLING_QUEUE_ROOTS": "/rows"}) == (
        "unknown environment variable 'DUCKLING_QUEUE_ROOTS'; "
        "the nearest valid one is 'DUCKLING_QUEUE_ROOT'."
    )


def test_client_variables_are_not_server_settings() -> None:
    config.load(environ={"SWANLAKE_URL": "grpc://x:1", "SWANLAKE_TOKEN": "t"})


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("port", "abc", "SWANLAKE_PORT: 'abc' is not a whole number."),
        ("port", "-1", "SWANLAKE_PORT: '-1' is below the minimum of 0."),
        ("port", "65536", "SWANLAKE_PORT: '65536' is above the maximum of 65535."),
        ("max_sessions", "0", "SWANLAKE_MAX_SESSIONS: '0' is below the minimum of 1."),
        ("max_sessions", "", "SWANLAKE_MAX_SESSIONS: '' is not a whole number."),
        ("shutdown_grace_seconds", "soon", "'soon' is not a number."),
        ("shutdown_grace_seconds", "inf", "'inf' is not a finite number."),
        ("shutdown_grace_seconds", "nan", "'nan' is not a finite number."),
        ("auth", "maybe", "SWANLAKE_AUTH: 'maybe' is not one of none, token, any."),
        ("log_level", "INFO", "'INFO' is not one of debug, info, warning, error."),
        ("home", "", "SWANLAKE_HOME: '' is not a path."),
        ("duckling_queue_auto_create_tables", "maybe", "'maybe' is not true or false."),
    ],
)
def test_invalid_value_in_the_environment_is_refused(name: str, text: str, sentence: str) -> None:
    assert sentence in error_message(environ={SETTINGS[name].env: text})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("port = true", "port: True is not a whole number."),
        ("port = 1.5", "port: 1.5 is not a whole number."),
        ("host = 1", "host: 1 is not a text."),
        ("auth = 1", "auth: 1 is not one of none, token, any."),
        ("home = [1]", "home: [1] is not a path."),
        ("query_timeout_seconds = false", "query_timeout_seconds: False is not a number."),
        ("metabase_url = ['hunter2']", "metabase_url: ******** is not a text."),
    ],
)
def test_value_of_the_wrong_type_in_toml_is_refused(
    tmp_path: Path, text: str, sentence: str
) -> None:
    assert sentence in error_message(config_file=write_toml(tmp_path, text))


def test_empty_text_unsets_an_optional_path() -> None:
    assert config.load(environ={"SWANLAKE_TLS_CERT": ""}).settings.tls_cert is None


def test_secrets_are_never_printed() -> None:
    environ = {
        "SWANLAKE_METABASE_URL": "postgresql://u:hunter2@h/d",
        "SWANLAKE_DUCKLAKE_INIT_SQL": "CREATE SECRET hunter2",
    }
    loaded = config.load(environ=environ)
    assert "hunter2" not in repr(loaded)
    for name in ("metabase_url", "ducklake_init_sql"):
        assert SETTINGS[name].secret
        assert SETTINGS[name].show(getattr(loaded.settings, name)) == config.MASK
    assert SETTINGS["metabase_url"].show("") == ""
