"""What is asked of ncu (Nsight Compute's command line), and beside it what the emulated device counts.

Metrics have ncu's own names; `ncu --query-metrics` lists those of a GPU without the last part (``.sum``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from gemm_regression.counters.counts import Counts

SECTOR = 32  # bytes


class Derived(NamedTuple):
    """``title`` and ``unit`` of a figure, the ``metrics`` that it needs, and ``value``, which makes it of
    them; None where it has no meaning."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    value: Callable[..., float | None]


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _one(title: str, unit: str, metric: str, scale: float = 1.0) -> Derived:
    """A metric times ``scale``."""
    return Derived(title, unit, (metric,), lambda value: value * scale)


def _global(what: str, op: str) -> str:
    return f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"


def _shared(what: str, op: str) -> str:
    return f"l1tex__data_{what}_mem_shared_op_{op}.sum"


_WAVES, _CONFLICTS = "pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu"


def _sectors(title: str, op: str) -> Derived:
    """Per request of a warp: 4 for 128 contiguous bytes, 16 for a float4 per lane."""
    return Derived(f"sectors per {title}", "", (_global("sectors", op), _global("requests", op)), _ratio)


def _bytes_used(title: str, op: str) -> Derived:
    """Bytes that lanes asked for in each sector of 32, an address that several ask for once. ncu gives 0
    without an access that it counts, as for cp.async, and more than there are for some of 16 bytes."""
    metric = f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio"
    return Derived(
        f"bytes used per sector, {title}", "B", (metric,), lambda v: v if 0 < v <= SECTOR else None
    )


TIME = "gpu__time_duration.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
L2 = "lts__t_sectors_srcunit_tex.sum"
DATA = "l1tex__data_pipe_lsu_wavefronts.sum"
ISSUED = "smsp__inst_issued.sum"
L1_HITS, L2_HITS = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TRAFFIC = (TIME, *DRAM, L2, DATA, ISSUED)  # what a bound is computed from (counters/traffic.py)
STORED = (*TRAFFIC, L1_HITS, L2_HITS, OCCUPANCY)

STALLS = (
    *("long_scoreboard", "short_scoreboard", "barrier", "wait", "not_selected", "math_pipe_throttle"),
    *("mio_throttle", "lg_throttle", "tex_throttle", "dispatch_stall", "no_instruction", "imc_miss"),
    *("branch_resolving", "membar", "drain", "sleeping", "misc", "gmma"),
)
_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

GROUPS: Mapping[str, Sequence[Derived]] = {
    "speed": (
        _one("time", "µs", TIME, 1e-3),
        _one("compute throughput", "%", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("memory throughput", "%", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("DRAM throughput", "%", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("issue slots busy", "%", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    ),
    "occupancy": (
        _one("achieved", "%", OCCUPANCY),
        _one("possible", "%", "sm__maximum_warps_per_active_cycle_pct"),
    ),
    "caches and DRAM": (
        _one("L1 hit rate", "%", L1_HITS),
        _one("L2 hit rate", "%", L2_HITS),
        _one("L1 from and to L2", "MB", L2, SECTOR / 1e6),
        _one("DRAM read", "MB", DRAM[0], 1e-6),
        _one("DRAM written", "MB", DRAM[1], 1e-6),
    ),
    "global memory": (
        _sectors("load", "ld"),
        _sectors("store", "st"),
        _bytes_used("load", "ld"),
        _bytes_used("store", "st"),
    ),
    "shared memory": (
        _one("wavefronts, all of L1's data", "", DATA),
        _one("load wavefronts", "", _shared(_WAVES, "ld")),
        _one("load conflicts", "", _shared(_CONFLICTS, "ld")),
        _one("store wavefronts", "", _shared(_WAVES, "st")),
        _one("store conflicts", "", _shared(_CONFLICTS, "st")),
    ),
    "instructions": (
        _one("warp instructions", "", "smsp__inst_executed.sum"),
        _one("issued", "", ISSUED),
        _one("FFMA of threads", "", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"),
    ),
    "warps stalled per instruction": tuple(
        _one(name.replace("_", " "), "", _STALLED.format(name)) for name in STALLS
    ),
}
FIGURES = tuple(figure for group in GROUPS.values() for figure in group)
METRICS = tuple(dict.fromkeys((*(m for figure in FIGURES for m in figure.metrics), *TRAFFIC)))


def value(figure: Derived, values: Mapping[str, float]) -> float | None:
    """The figure of a launch; None where one of its metrics was not measured, or it has no meaning."""
    if any(metric not in values for metric in figure.metrics):
        return None
    return figure.value(*(values[metric] for metric in figure.metrics))


# The emulated device's counts beside ncu's. ncu counts LDGSTS, which cp.async compiles to, as a global load,
# and also in metrics of its own, separately for copies through L1 (cache_access) and past it (cache_bypass).

EXACT = "global memory: must be equal"
MERGED = "PTX count; ptxas merges loads"
OTHER = "PTX count; ptxas optimises further"


class Quantity(NamedTuple):
    """What is compared: the ``group`` it is shown in, the ``path`` in the emulated device's Tally, and the
    ncu ``metrics`` to add up (one named twice counts twice)."""

    group: str
    path: str
    metrics: tuple[str, ...]


def _copied(what: str) -> tuple[str, ...]:
    metric = f"sm__sass_l1tex_t_{what}_pipe_lsu_mem_global_op_ldgsts_cache"
    return f"{metric}_access.sum", f"{metric}_bypass.sum"


_LANES = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
QUANTITIES = {
    "load requests": Quantity(EXACT, "reads.requests", (_global("requests", "ld"),)),
    "load sectors": Quantity(EXACT, "reads.sectors", (_global("sectors", "ld"),)),
    "store requests": Quantity(EXACT, "stores.requests", (_global("requests", "st"),)),
    "store sectors": Quantity(EXACT, "stores.sectors", (_global("sectors", "st"),)),
    "cp.async requests": Quantity(EXACT, "copies.requests", _copied("requests")),
    "cp.async sectors": Quantity(EXACT, "copies.sectors", _copied("sectors")),
    **{
        f"shared {name} {what}": Quantity(MERGED, f"shared_{name}s.{path}", (metric,))
        for name, op in (("load", "ld"), ("store", "st"))
        for what, path, metric in (
            ("instructions", "requests", f"smsp__inst_executed_op_shared_{op}.sum"),
            ("wavefronts", "wavefronts", _shared(_WAVES, op)),
            ("conflicts", "conflicts", _shared(_CONFLICTS, op)),
        )
    },
    "cp.async shared wavefronts": Quantity(
        MERGED,
        "shared_copies.wavefronts",
        ("smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ldgsts.sum",),
    ),
    "FP32 FLOP": Quantity(OTHER, "flop", tuple(map(_LANES.format, ("ffma", "ffma", "fmul", "fadd")))),
}


class CounterPair(NamedTuple):
    """A quantity of a ``case``: ``emulated``, and ``ncu``, None if the GPU does not offer the metric."""

    group: str
    case: str
    name: str
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
        by = self.emulated - self.ncu
        return f"{by:+,} ({by / self.ncu:+.1%})" if by and self.ncu else f"{by:+,}" if by else "0"


def compare(found: Sequence[Counts], measured: Sequence[Mapping[str, float]]) -> list[CounterPair]:
    """Each quantity of each case that is nonzero on either side; ``measured``: metrics of the same cases."""
    made = []
    for counts, row in zip(found, measured, strict=True):
        for name, quantity in QUANTITIES.items():
            there = all(metric in row for metric in quantity.metrics)
            seen = round(sum(row[metric] for metric in quantity.metrics)) if there else None
            emulated = int(attrgetter(quantity.path)(counts.total))
            if emulated or seen:
                made.append(CounterPair(quantity.group, counts.case.id, name, emulated, seen))
    return made


def agrees(rows: Sequence[CounterPair]) -> bool:
    """Whether every global-memory count was measured and is equal; False if there are none."""
    exact = [row for row in rows if row.group == EXACT]
    return bool(exact) and all(row.equal for row in exact)


def markdown(rows: Sequence[CounterPair], versions: str) -> str:
    """The comparison as a document."""
    exact = [row for row in rows if row.group == EXACT]
    missing = sum(row.ncu is None for row in exact)
    lines = [
        *("# Memory counters: emulated and ncu", "", versions, ""),
        f"{sum(row.equal for row in exact)} of {len(exact)} global-memory counts of "
        f"{len({row.case for row in rows})} cases are equal"
        + (f"; {missing} were not measured." if missing else "."),
    ]
    for group in dict.fromkeys(row.group for row in rows):
        title, _, rest = group.partition(": ")
        lines += ["", f"## {title[0].upper()}{title[1:]}", ""] + (
            [f"{rest.capitalize()}.", ""] if rest else []
        )
        lines += ["| case | count | emulated | ncu | difference |", "| --- | --- | ---: | ---: | ---: |"]
        for row in (row for row in rows if row.group == group):
            seen = "–" if row.ncu is None else f"{row.ncu:,}"
            lines.append(f"| {row.case} | {row.name} | {row.emulated:,} | {seen} | {row.difference} |")
    return "\n".join([*lines, ""])
