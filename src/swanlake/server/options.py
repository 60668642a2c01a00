"""Session options: catalog, schema, the query timeout, and DuckDB's own settings."""

from __future__ import annotations

from collections.abc import Mapping

from swanlake.errors import SwanLakeError
from swanlake.protocol import Headers, messages
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session
from swanlake.sql.quoting import identifier, literal

_Error = messages.SetSessionOptionsResult.Error
_INVALID_NAME = _Error(value=messages.SetSessionOptionsResult.INVALID_NAME)
_INVALID_VALUE = _Error(value=messages.SetSessionOptionsResult.INVALID_VALUE)

_LOCATION: tuple[str, ...] = ("catalog", "schema")
_TIMEOUT = "query_timeout_seconds"
#: Options that replace a header of every call.
_HEADER_OPTIONS = (Headers.INGEST_ID, Headers.INGEST_SEQUENCE)
OptionValue = str | bool | int | float | list[str] | None


def set_options(
    session: Session, run: Run, request: messages.SetSessionOptionsRequest
) -> messages.SetSessionOptionsResult:
    """Sets the options; the result names those that are invalid."""
    options = {name: _value(option) for name, option in request.session_options.items()}
    errors: dict[str, _Error] = {}
    location = {name: options.pop(name) for name in _LOCATION if name in options}
    if location and not _use(session, run, location):
        errors |= dict.fromkeys(location, _INVALID_VALUE)
    for name, value in options.items():
        if name in _HEADER_OPTIONS:
            error = _set_header_option(session, name, value)
        elif name == _TIMEOUT:
            error = _set_timeout(session, value)
        else:
            error = _set_duckdb_setting(session, run, name, value)
        if error is not None:
            errors[name] = error
    return messages.SetSessionOptionsResult(errors=errors)


def get_options(session: Session, run: Run) -> messages.GetSessionOptionsResult:
    """The options that were set, and the session's catalog and schema."""
    result = messages.GetSessionOptionsResult()
    catalog, schema = session.location(run)
    result.session_options["catalog"].string_value = catalog
    result.session_options["schema"].string_value = schema
    if session.query_timeout is not None:
        result.session_options[_TIMEOUT].double_value = session.query_timeout
    for name, value in session.options.items():
        option = result.session_options[name]
        if isinstance(value, bool):
            option.bool_value = value
        elif isinstance(value, int):
            option.int64_value = value
        elif isinstance(value, float):
            option.double_value = value
        else:
            option.string_value = str(value)
    return result


def _use(session: Session, run: Run, location: Mapping[str, OptionValue]) -> bool:
    catalog, schema = location.get("catalog"), location.get("schema")
    if not all(isinstance(name, str) and name for name in location.values()):
        return False
    if catalog is None:  # a bare name in USE could mean a catalog
        catalog = session.location(run)[0]
    names = [identifier(str(name)) for name in (catalog, schema) if name]
    return _succeeds(session, run, f"USE {'.'.join(names)}")


def _set_timeout(session: Session, value: OptionValue) -> _Error | None:
    if value is None:
        session.query_timeout = None
        return None
    try:
        seconds = float(value) if isinstance(value, str | int | float) else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        return _INVALID_VALUE
    session.query_timeout = seconds
    return None


def _set_header_option(session: Session, name: str, value: OptionValue) -> _Error | None:
    if isinstance(value, list):
        return _INVALID_VALUE
    if value is None:
        session.options.pop(name, None)
    else:
        session.options[name] = value
    return None


def _set_duckdb_setting(session: Session, run: Run, name: str, value: OptionValue) -> _Error | None:
    known = session.query(run, "SELECT 1 FROM duckdb_settings() WHERE name = ?", [name])
    if known.num_rows == 0:
        return _INVALID_NAME
    if value is None:
        session.options.pop(name, None)
        return None if _succeeds(session, run, f"RESET {name}") else _INVALID_VALUE
    text = literal(value) if isinstance(value, str) else str(value).lower()
    sql = f"SET SESSION {identifier(name)} = {text}"
    if isinstance(value, list) or not _succeeds(session, run, sql):
        return _INVALID_VALUE
    session.options[name] = value
    return None


def _succeeds(session: Session, run: Run, sql: str) -> bool:
    try:
        session.execute(run, sql)
    except SwanLakeError:
        return False
    return True


def _value(option: messages.SessionOptionValue) -> OptionValue:
    match option.WhichOneof("option_value"):
        case None:
            return None
        case "string_list_value":
            return list(option.string_list_value.values)
        case kind:
            value: str | bool | int | float = getattr(option, kind)
            return value
