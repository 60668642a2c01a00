"""The statistics of a geometry column: the box around its shapes, and their kinds, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Any

_AXES = ("x", "y", "z", "m")
_STEP = Decimal("0.000001")
#: No coordinate of a double has more digits before and after the point, with the step's six.
_DIGITS = 400

_Box = dict[str, Decimal | None]


def extra(stats: Mapping[str, str]) -> str:
    """The ``extra_stats`` of a file, from what COPY … RETURN_STATS says of the column."""
    box: _Box = {}
    for axis in _AXES:
        for end in ("min", "max"):
            given = stats.get(f"bbox_{axis}{end}")
            box[axis + end] = None if given is None else Decimal(given)
    kinds = stats.get("geo_types", "").strip("[]")
    return _text(box, (kind.strip() for kind in kinds.split(",") if kind.strip()))


def merge(known: str | None, new: str | None) -> str | None:
    """The statistics of both together; None if either is unknown."""
    if known is None or new is None:
        return None
    first, second = (json.loads(text, parse_float=Decimal) for text in (known, new))
    box: _Box = {}
    for axis in _AXES:
        for end, choose in (("min", min), ("max", max)):
            ends = [_coordinate(value["bbox"][axis + end]) for value in (first, second)]
            there = [coordinate for coordinate in ends if coordinate is not None]
            box[axis + end] = choose(there) if there else None
    return _text(box, [*first["types"], *second["types"]])


def _coordinate(value: Any) -> Decimal | None:
    return None if value is None else Decimal(value)


def _text(box: _Box, kinds: Iterable[str]) -> str:
    ends = ", ".join(f'"{name}": {_outward(name, value)}' for name, value in box.items())
    names = ", ".join(f'"{kind}"' for kind in sorted(set(kinds)))
    return f'{{"bbox": {{{ends}}}, "types": [{names}]}}'


def _outward(name: str, value: Decimal | None) -> str:
    """Six decimals, as the stock extension writes, but never inside the box."""
    if value is None:
        return "null"
    with localcontext(prec=_DIGITS):
        rounding = ROUND_FLOOR if name.endswith("min") else ROUND_CEILING
        return f"{value.quantize(_STEP, rounding=rounding):f}"
