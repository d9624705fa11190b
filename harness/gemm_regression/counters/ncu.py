"""The emulated device's counts compared with Nsight Compute's on a GPU.

Nsight Compute counts LDGSTS, which cp.async compiles to, as a global load, and also in metrics of its own,
separately for copies through L1 (cp.async.ca: cache_access) and past it (cp.async.cg: cache_bypass).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from gemm_regression.counters.counts import Counts

EXACT = "global memory: must be equal"
MERGED = "PTX count; ptxas merges loads"
OTHER = "PTX count; ptxas optimises further"


class Quantity(NamedTuple):
    """What is compared: the ``group`` it is shown in, its ``name``, the ncu ``metrics`` to add up (one named
    twice counts twice), as alternatives of which the first that the GPU offers is used; and ``emulated``, the
    same quantity from the emulated device."""

    group: str
    name: str
    metrics: tuple[tuple[str, ...], ...]
    path: str

    def emulated(self, counts: Counts) -> int:
        """The same quantity from the emulated device."""
        return int(attrgetter(self.path)(counts.total))


def _lsu(what: str) -> tuple[tuple[str, ...], ...]:
    return ((f"l1tex__{what}.sum",),)


def _ldgsts(what: str) -> tuple[tuple[str, ...], ...]:
    """From SASS, or if that is not available from the cache's own counter."""
    ways = ("cache_access", "cache_bypass")
    return tuple(
        tuple(f"{unit}{what}_pipe_lsu_mem_global_op_ldgsts_{way}.sum" for way in ways)
        for unit in ("sm__sass_l1tex_", "l1tex__")
    )


def _inst(what: str) -> tuple[tuple[str, ...], ...]:
    return ((f"smsp__inst_executed_{what}.sum",), (f"smsp__sass_inst_executed_{what}.sum",))


def _lanes(op: str) -> str:
    return f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum"


QUANTITIES = (
    Quantity(EXACT, "load requests", _lsu("t_requests_pipe_lsu_mem_global_op_ld"), "reads.requests"),
    Quantity(EXACT, "load sectors", _lsu("t_sectors_pipe_lsu_mem_global_op_ld"), "reads.sectors"),
    Quantity(EXACT, "store requests", _lsu("t_requests_pipe_lsu_mem_global_op_st"), "stores.requests"),
    Quantity(EXACT, "store sectors", _lsu("t_sectors_pipe_lsu_mem_global_op_st"), "stores.sectors"),
    Quantity(EXACT, "cp.async requests", _ldgsts("t_requests"), "copies.requests"),
    Quantity(EXACT, "cp.async sectors", _ldgsts("t_sectors"), "copies.sectors"),
    Quantity(MERGED, "shared load instructions", _inst("op_shared_ld"), "shared_loads.requests"),
    Quantity(
        MERGED,
        "shared load wavefronts",
        _lsu("data_pipe_lsu_wavefronts_mem_shared_op_ld"),
        "shared_loads.wavefronts",
    ),
    Quantity(
        MERGED,
        "shared load conflicts",
        _lsu("data_bank_conflicts_pipe_lsu_mem_shared_op_ld"),
        "shared_loads.conflicts",
    ),
    Quantity(MERGED, "shared store instructions", _inst("op_shared_st"), "shared_stores.requests"),
    Quantity(
        MERGED,
        "shared store wavefronts",
        _lsu("data_pipe_lsu_wavefronts_mem_shared_op_st"),
        "shared_stores.wavefronts",
    ),
    Quantity(
        MERGED,
        "shared store conflicts",
        _lsu("data_bank_conflicts_pipe_lsu_mem_shared_op_st"),
        "shared_stores.conflicts",
    ),
    Quantity(
        MERGED,
        "cp.async shared wavefronts",
        (
            ("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",),
            *_lsu("data_pipe_lsu_wavefronts_mem_shared_op_ldgsts"),
        ),
        "shared_copies.wavefronts",
    ),
    Quantity(OTHER, "FP32 FLOP", ((_lanes("ffma"), _lanes("ffma"), _lanes("fmul"), _lanes("fadd")),), "flop"),
)


@dataclass(frozen=True)
class Comparison:
    """A ``quantity`` of a ``case``: ``emulated``, and ``ncu``, None if the GPU does not offer the metric."""

    case: str
    quantity: Quantity
    emulated: int
    ncu: int | None

    @property
    def equal(self) -> bool:
        return self.emulated == self.ncu

    @property
    def difference(self) -> str:
        """As a number, and in percent of the GPU's count."""
        if self.ncu is None:
            return "not measured"
        if self.equal:
            return "0"
        by = self.emulated - self.ncu
        return f"{by:+,}" + (f" ({by / self.ncu:+.1%})" if self.ncu else "")


def metrics(offered: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """The metrics of each quantity, empty for a quantity that the GPU does not offer. ``offered`` names the
    metrics it has, without .sum; if that is unknown, the first alternative of each is used."""
    return {
        q.name: next((ways for ways in q.metrics if not offered or _bases(ways) <= {*offered}), ())
        for q in QUANTITIES
    }


def _bases(ways: Iterable[str]) -> set[str]:
    return {metric.removesuffix(".sum") for metric in ways}


def compare(
    found: Sequence[Counts], measured: Sequence[Mapping[str, float]], chosen: Mapping[str, Sequence[str]]
) -> list[Comparison]:
    """Each quantity of each case that is nonzero on either side; ``measured``: metrics of the same cases."""
    made = []
    for counts, row in zip(found, measured, strict=True):
        for quantity in QUANTITIES:
            ways = chosen[quantity.name]
            there = bool(ways) and all(metric in row for metric in ways)
            value = round(sum(row[metric] for metric in ways)) if there else None
            one = Comparison(counts.case.id, quantity, quantity.emulated(counts), value)
            if one.emulated or one.ncu:
                made.append(one)
    return made


def table(rows: Sequence[Comparison]) -> Table:
    """One row per quantity and case, by group."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    made.add_column("case", no_wrap=True)
    made.add_column("count", no_wrap=True)
    for head in ("emulated", "ncu", "difference"):
        made.add_column(head, justify="right")
    for group, of_group in grouped(rows):
        made.add_section()
        made.add_row(Text(group, style="bold"))
        for row in of_group:
            exact = group == EXACT and not row.equal
            made.add_row(row.case, *cells(row), style="red" if exact else "")
    return made


def grouped(rows: Sequence[Comparison]) -> list[tuple[str, list[Comparison]]]:
    groups = dict.fromkeys(row.quantity.group for row in rows)
    return [(group, [row for row in rows if row.quantity.group == group]) for group in groups]


def cells(row: Comparison) -> tuple[str, str, str, str]:
    measured = "–" if row.ncu is None else f"{row.ncu:,}"
    return row.quantity.name, f"{row.emulated:,}", measured, row.difference


def summary(rows: Sequence[Comparison]) -> str:
    """How many of the counts that must be equal are equal."""
    exact = [row for row in rows if row.quantity.group == EXACT]
    equal = sum(row.equal for row in exact)
    missing = sum(row.ncu is None for row in exact)
    cases = len({row.case for row in rows})
    said = f"{equal} of {len(exact)} global-memory counts of {cases} cases are equal"
    return said + (f"; {missing} were not measured" if missing else "")


def reason(row: Comparison, copies: bool) -> str:
    """Why a count differs, with ``copies`` for a case with cp.async; empty if the reason is not known."""
    if row.ncu is None:
        return "this GPU does not offer the metric"
    if row.quantity.group == MERGED and "load" in row.quantity.name:
        return _DUMMIES if copies else _VECTORS
    if row.quantity.name == "shared store instructions":
        return _PREDICATED
    if row.quantity.group == OTHER and row.emulated > row.ncu:
        return _TENSOR
    return _BUSY_BANKS if copies and row.quantity.name.startswith("shared store") else ""


_VECTORS = "ptxas merges adjacent narrow loads into one wide load"
_DUMMIES = (
    "ptxas inserts three LDS without active lanes before an LDGSTS that may follow a store: no wavefronts"
)
_PREDICATED = "ptxas replaced a branch by a predicate: warps without an active lane execute the store as well"
_TENSOR = "products of tensor cores, which ncu has no FP32 count of"
_BUSY_BANKS = "stores waiting for banks that LDGSTS writes are counted as conflicts: varies from run to run"


def agrees(rows: Sequence[Comparison]) -> bool:
    """Whether every global-memory count was measured and is equal; False if there are none."""
    exact = [row for row in rows if row.quantity.group == EXACT]
    return bool(exact) and all(row.equal for row in exact)


def markdown(rows: Sequence[Comparison], versions: str) -> str:
    """The comparison as a document."""
    copying = {row.case for row in rows if row.quantity.name.startswith("cp.async")}
    lines = ["# Memory counters: emulated and ncu", "", versions, "", f"{summary(rows)}.", ""]
    for group, of_group in grouped(rows):
        title, _, rest = group.partition(": ")
        lines += [f"## {title[0].upper()}{title[1:]}", ""] + (
            [rest[0].upper() + rest[1:] + ".", ""] if rest else []
        )
        lines += ["| case | count | emulated | ncu | difference | why |"]
        lines += ["| --- | --- | ---: | ---: | ---: | --- |"]
        for row in of_group:
            why = "" if row.equal else reason(row, row.case in copying) or "unknown"
            lines.append(f"| {' | '.join((row.case, *cells(row), why))} |")
        lines.append("")
    return "\n".join(lines)


def document(rows: Sequence[Comparison], versions: str) -> dict[str, object]:
    """The comparison as json can write it."""
    return {
        "versions": versions,
        "agrees": agrees(rows),
        "summary": summary(rows),
        "rows": [
            {
                "case": row.case,
                "count": row.quantity.name,
                "group": row.quantity.group,
                "emulated": row.emulated,
                "ncu": row.ncu,
            }
            for row in rows
        ],
    }
