"""What a run says of its machine: health before anything is timed, and how the baseline's own binaries do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from gemm_regression.baselines import BaselineEntry
from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.counters.traffic import Known
from gemm_regression.judge.health import Health
from gemm_regression.judge.machine import MachineVerdict, Shift, judge_machine
from gemm_regression.run.boards import Board
from gemm_regression.run.timed import Result, usable_shift
from gemm_regression.timing.bounds import Level, Roofs, bound, roofs_of, shares
from gemm_regression.timing.plan import TIMING

# What may change how long a binary takes: names in machine_info.
SETTINGS = (
    *("board", "vbios", "driver", "cuda_driver", "cublas", "power_limit_w", "ecc", "mig"),
    *("applications_sm_clock_mhz", "max_sm_clock_mhz", "max_memory_clock_mhz"),
)
_BOUNDS = {Level.DRAM: "dram", Level.L2: "l2"}


def judge_board(
    board: Board,
    results: Iterable[Result],
    known: Known,
) -> MachineVerdict:
    """The verdict on the machine of one GPU by the cases that it timed; ``known``: how much they move."""
    machine = board.machine()
    probes = {name: value for name, value in board.health.items() if isinstance(value, Mapping)}
    now = Health.of({**machine, **board.health, "roofs": probes}, board.visitors)
    before = [Health.of(one.machine_info) for one in board.measured]
    roofs = roofs_of({**machine, "roofs": probes or None})
    shifts = [shift_of(board, result, machine, known, roofs) for result in results if usable_shift(result)]
    return judge_machine(now, before, shifts)


def shift_of(
    board: Board, result: Result, machine: Mapping[str, object], known: Known, roofs: Roofs | None
) -> Shift:
    """How a case whose binary has not changed compares with its stored figure."""
    case, seen = result.case, result.evidence.seen
    entry = board.baseline.entry(case.id) if board.baseline else None
    assert seen is not None
    assert entry is not None
    level = None
    if roofs:
        work = known.work(board.slug, case, seen.cubin_sha256)
        level = bound(shares(work, roofs, case.dtype.name, seen.median))
    return Shift(
        case=case.id,
        kernel=case.kernel.name,
        dtype=case.dtype.name,
        core=core_of(case.kernel, case.config, case.dtype, arch(board.gpu.info.capability)),
        bound=_BOUNDS.get(level[0], "compute") if level else "latency",
        seconds=entry.median_s,
        log_ratio=math.log(seen.median / entry.median_s),
        noise=entry.noise_floor,
        own=_is_own(entry, board.gpu.info.board),
        changed=_changed(entry, machine),
    )


def _is_own(entry: BaselineEntry, board: str | None) -> bool:
    """Whether this board measured it, timed as it is now."""
    return board is not None and entry.board == board and entry.machine.get("timing") == TIMING


def _changed(entry: BaselineEntry, machine: Mapping[str, object]) -> tuple[str, ...]:
    then = entry.machine
    return tuple(n for n in SETTINGS if None not in (then.get(n), machine.get(n)) and then[n] != machine[n])
