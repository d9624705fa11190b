"""A result in words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ptxsan.api import Empty, Result
from ptxsan.checks.accesses import GlobalAccess, SharedAccess
from ptxsan.checks.hazards import Hazard
from ptxsan.lanes import Array
from ptxsan.machine.counters import Tally

_HEAD = 6  # values shown


def describe(result: Result, arguments: Sequence[Any]) -> str:
    """What a launch did: its arguments afterwards, hazards, notes, counts."""
    return "\n".join(_lines(result, arguments))


def _lines(result: Result, arguments: Sequence[Any]) -> Iterator[str]:
    shape = ", ".join(str(extent) for extent in (result.grid, result.block))
    ending = ", stopped" if result.stopped else ""
    yield f"{result.entry}<<<{shape}>>>: {result.lane_instructions:,} thread instructions{ending}"
    width = max((len(name) for name in result.names), default=0)
    for i, (name, argument) in enumerate(zip(result.names, arguments, strict=True)):
        yield f"  {i} {name:{width}}  {_argument(argument, result.arrays.get(i))}"
    yield f"hazards: {len(result.hazards) or 'none'}"
    yield from _hazards(result.hazards)
    if result.notes:
        yield f"notes, which are no errors: {len(result.notes)}"
        yield from _hazards(result.notes)
    if result.printed:
        yield "printed"
        yield from (f"  {line}" for line in "".join(result.printed).splitlines())
    yield "counts"
    yield from _counts(result.counts)


def _hazards(hazards: Sequence[Hazard]) -> Iterator[str]:
    """The first of each check and line of the .cu file: a loop that is unrolled has several."""
    groups: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for hazard in hazards:
        what, _, where = hazard.message.rpartition(" at ")
        groups.setdefault((hazard.check, where.partition(" (PTX")[0]), []).append((what, where))
    for (check, _), ((what, where), *more) in groups.items():
        yield from textwrap.wrap(f"{check}: {what}", 108, initial_indent="  ", subsequent_indent="    ")
        yield f"    at {where}" + (f", and {len(more)} more of this line" if more else "")


def _argument(given: Any, after: Array | None) -> str:
    if after is None:
        return f"{type(given).__name__} {given}"
    shape = "x".join(str(extent) for extent in after.shape)
    flat = after.ravel()
    head = " ".join(_value(v) for v in flat[:_HEAD]) + (" ..." if flat.size > _HEAD else "")
    before = None if isinstance(given, Empty) else np.ascontiguousarray(given)
    same = before is not None and before.tobytes() == after.tobytes()
    return f"{after.dtype}[{shape}]  {head}{'  (unchanged)' if same else ''}"


def _value(v: Any) -> str:
    return f"{float(v):.6g}" if np.issubdtype(type(v), np.floating) or v.dtype.kind == "V" else str(v)


def _counts(t: Tally) -> Iterator[str]:
    yield f"  warp instructions {t.instructions:,}, divergent branches {t.divergent:,}"
    yield f"  barriers of warps {t.barriers:,}, floating-point operations {t.flop:,}"
    for name, on_global in (("loads", t.loads), ("stores", t.stores), ("async copies", t.copies)):
        if on_global.requests:
            yield _global(f"global {name}", on_global)
    accesses = (("loads", t.shared_loads), ("stores", t.shared_stores), ("async copies", t.shared_copies))
    for name, on_shared in accesses:
        if on_shared.requests:
            yield _shared(f"shared {name}", on_shared)


def _global(name: str, a: GlobalAccess) -> str:
    excess = f", {a.excess:,} more than the bytes need" if a.excess else ""
    counted = f"{a.requests:>9,} requests {a.sectors:>10,} sectors"
    return f"  {name:19}{counted}     ({a.sectors_per_request:.1f} a request{excess})"


def _shared(name: str, a: SharedAccess) -> str:
    counted = f"{a.requests:>9,} requests {a.wavefronts:>10,} wavefronts"
    return f"  {name:19}{counted}  ({a.conflicts:,} bank conflicts)"
