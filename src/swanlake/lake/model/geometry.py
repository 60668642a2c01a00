"""The statistics of a geometry column: its bounding box and geometry types, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

_AXES = ("x", "y", "z", "m")
_STEP = Decimal("0.000001")
#: Enough digits for any double with six decimals.
_DIGITS = 400

_Box = dict[str, Decimal | None]


def encode(stats: Mapping[str, str]) -> str:
    """The ``extra_stats`` of a file, from the column's COPY … RETURN_STATS."""
    box: _Box = {}
    for axis in _AXES:
        for end in ("min", "max"):
            bound = stats.get(f"bbox_{axis}{end}")
            box[axis + end] = None if bound is None else Decimal(bound)
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
            ends = (value["bbox"][axis + end] for value in (first, second))
            box[axis + end] = choose(
                (Decimal(each) for each in ends if each is not None), default=None
            )
    return _text(box, [*first["types"], *second["types"]])


def _text(box: _Box, kinds: Iterable[str]) -> str:
    ends = ", ".join(f'"{name}": {_outward(name, value)}' for name, value in box.items())
    names = ", ".join(f'"{kind}"' for kind in sorted(set(kinds)))
    return f'{{"bbox": {{{ends}}}, "types": [{names}]}}'


def _outward(name: str, value: Decimal | None) -> str:
    """Six decimals, as the stock extension writes them, rounded away from the box."""
    if value is None:
        return "null"
    with localcontext(prec=_DIGITS):
        rounding = ROUND_FLOOR if name.endswith("min") else ROUND_CEILING
        return f"{value.quantize(_STEP, rounding=rounding):f}"
