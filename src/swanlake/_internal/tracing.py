"""Traces of statements and flushes: what happened when, recorded only if it is exported.

A trace is recorded as plain values on the thread that works, and becomes spans when it has ended.
Without a trace, a step costs one read of a thread-local variable.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: https://www.w3.org/TR/trace-context/
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1


@dataclass(frozen=True)
class SpanRef:
    """The ids of a span, of this process or of another one."""

    trace_id: int
    span_id: int


@dataclass(frozen=True)
class Step:
    """A part of a trace; the times are nanoseconds since 1970."""

    name: str
    started: int
    ended: int
    failed: bool = False


@dataclass
class Trace:
    """A statement or a flush, with its steps."""

    ref: SpanRef
    parent: SpanRef | None = None
    #: Spans that caused this one, without being part of its trace.
    links: tuple[SpanRef, ...] = ()
    started: int = field(default_factory=time.time_ns)
    steps: list[Step] = field(default_factory=list)


def begin(traceparent: str = "", links: tuple[SpanRef, ...] = ()) -> Trace | None:
    """A trace that continues that of the header; None if its sender does not record it.

    Without a header, or with a malformed one, it is a new trace.
    """
    found = _TRACEPARENT.fullmatch(traceparent.strip().lower())
    parent = SpanRef(int(found[1], 16), int(found[2], 16)) if found else None
    if found is None or parent is None or not parent.trace_id or not parent.span_id:
        return Trace(SpanRef(secrets.randbits(127) + 1, _new_span_id()), links=links)
    if not int(found[3], 16) & _SAMPLED:
        return None
    return Trace(SpanRef(parent.trace_id, _new_span_id()), parent, links)


def _new_span_id() -> int:
    return secrets.randbits(63) + 1


_local = threading.local()


@contextmanager
def recording(trace: Trace | None) -> Iterator[None]:
    """Steps of this thread belong to the trace during the block."""
    if trace is None:
        yield
        return
    outer = current()
    _local.trace = trace
    try:
        yield
    finally:
        _local.trace = outer


def current() -> Trace | None:
    """The trace that this thread records."""
    return getattr(_local, "trace", None)


@contextmanager
def step(name: str) -> Iterator[None]:
    """The block is a step of the current trace, if there is one."""
    trace = current()
    if trace is None:
        yield
        return
    started, failed = time.time_ns(), True
    try:
        yield
        failed = False
    finally:
        trace.steps.append(Step(name, started, time.time_ns(), failed))
