"""What `profile` shows of a launch, by ncu's own metrics.

Sources: the Profiling Guide of Nsight Compute (metrics decoder, hardware model) and the sections that come
with it: SpeedOfLight, Occupancy, MemoryWorkloadAnalysis, WarpStateStats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

SECTOR = 32  # bytes


class Figure(NamedTuple):
    """``title`` and ``unit`` of a figure, the ``metrics`` that it needs, and ``value``, which makes it of
    them; None where it has no meaning."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    value: Callable[..., float | None]


def _same(value: float) -> float:
    return value


def _megabytes(value: float) -> float:
    return value / 1e6


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _one(title: str, unit: str, metric: str, value: Callable[..., float | None] = _same) -> Figure:
    return Figure(title, unit, (metric,), value)


def _global(what: str, op: str) -> str:
    return f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"


def _shared(what: str, op: str) -> str:
    return f"l1tex__data_{what}_mem_shared_op_{op}.sum"


_WAVES, _CONFLICTS = "pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu"


def _sectors(title: str, op: str) -> Figure:
    """Per request of a warp: 4 for 128 contiguous bytes, 16 for a float4 per lane."""
    return Figure(f"sectors per {title}", "", (_global("sectors", op), _global("requests", op)), _ratio)


def _bytes_used(title: str, op: str) -> Figure:
    """Bytes that lanes asked for in each sector of 32, an address that several ask for once. ncu gives 0
    without an access that it counts, as for cp.async, and more than there are for some of 16 bytes."""
    metric = f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio"
    return _one(f"bytes used per sector, {title}", "B", metric, lambda v: v if 0 < v <= SECTOR else None)


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

GROUPS: Mapping[str, Sequence[Figure]] = {
    "speed": (
        _one("time", "µs", TIME, lambda ns: ns / 1000),
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
        _one("L1 from and to L2", "MB", L2, lambda sectors: SECTOR * sectors / 1e6),
        _one("DRAM read", "MB", DRAM[0], _megabytes),
        _one("DRAM written", "MB", DRAM[1], _megabytes),
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


def value(figure: Figure, values: Mapping[str, float]) -> float | None:
    """The figure of a launch; None where one of its metrics was not measured, or it has no meaning."""
    if any(metric not in values for metric in figure.metrics):
        return None
    return figure.value(*(values[metric] for metric in figure.metrics))
