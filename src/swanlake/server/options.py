"""Session options: catalog, schema, the query timeout, and DuckDB's own settings."""

from __future__ import annotations

from collections.abc import Mapping

from swanlake.errors import SwanLakeError
from swanlake.protocol import Headers, messages
from swanlake.sessions.runs import Run
from swanlake.sessions.session import Session
from swanlake.sql.quoting import identifier, literal

_Error = messages.SetSessionOptionsResult.Error
_INVALID_NAME = _Error(value=messages.SetSessionOptionsResult.INVALID_NAME)
_INVALID_VALUE = _Error(value=messages.SetSessionOptionsResult.INVALID_VALUE)

_PLACE: tuple[str, ...] = ("catalog", "schema")
_TIMEOUT = "query_timeout_seconds"
#: Options that stand for a header of every call.
_KEPT = (Headers.INGEST_ID, Headers.INGEST_SEQUENCE)
OptionValue = str | bool | int | float | list[str] | None


def set_options(
    session: Session, run: Run, request: messages.SetSessionOptionsRequest
) -> messages.SetSessionOptionsResult:
    """Sets what can be set; the answer names what cannot."""
    wanted = {name: _value(option) for name, option in request.session_options.items()}
    errors: dict[str, messages.SetSessionOptionsResult.Error] = {}
    place = {name: wanted.pop(name) for name in _PLACE if name in wanted}
    if place and not _use(session, run, place):
        errors |= dict.fromkeys(place, _INVALID_VALUE)
    for name, value in wanted.items():
        if name in _KEPT:
            error = _keep(session, name, value)
        elif name == _TIMEOUT:
            error = _set_timeout(session, value)
        else:
            error = _set(session, run, name, value)
        if error is not None:
            errors[name] = error
    return messages.SetSessionOptionsResult(errors=errors)


def get_options(session: Session, run: Run) -> messages.GetSessionOptionsResult:
    """Everything that was set, and where the session is."""
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


def _use(session: Session, run: Run, place: Mapping[str, OptionValue]) -> bool:
    catalog, schema = place.get("catalog"), place.get("schema")
    if not all(isinstance(name, str) and name for name in place.values()):
        return False
    if catalog is None:  # the schema is one of the current catalog, not a catalog of that name
        catalog = session.location(run)[0]
    return _runs(session, run, _use_statement(str(catalog), str(schema) if schema else None))


def _set_timeout(
    session: Session, value: OptionValue
) -> messages.SetSessionOptionsResult.Error | None:
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


def _keep(
    session: Session, name: str, value: OptionValue
) -> messages.SetSessionOptionsResult.Error | None:
    if isinstance(value, list):
        return _INVALID_VALUE
    if value is None:
        session.options.pop(name, None)
    else:
        session.options[name] = value
    return None


def _set(
    session: Session, run: Run, name: str, value: OptionValue
) -> messages.SetSessionOptionsResult.Error | None:
    known = session.query(run, "SELECT 1 FROM duckdb_settings() WHERE name = ?", [name])
    if known.num_rows == 0:
        return _INVALID_NAME
    if value is None:
        session.options.pop(name, None)
        return None if _runs(session, run, f"RESET {name}") else _INVALID_VALUE
    if isinstance(value, list) or not _runs(session, run, _set_statement(name, value)):
        return _INVALID_VALUE
    session.options[name] = value
    return None


def _runs(session: Session, run: Run, sql: str) -> bool:
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


def _use_statement(catalog: str | None, schema: str | None) -> str:
    """USE for a catalog, a schema, or both."""
    return "USE " + ".".join(identifier(part) for part in (catalog, schema) if part)


def _set_statement(name: str, value: object) -> str:
    """SET for a DuckDB setting of this session."""
    text = literal(value) if isinstance(value, str) else str(value).lower()
    return f"SET SESSION {identifier(name)} = {text}"
