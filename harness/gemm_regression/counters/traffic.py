"""How much a launch moves at each level, by counts that are stored: those of ncu, of this very case and
binary, else those of the emulated device, of a small problem."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemm_regression.compiler import tools
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.store import Groups, StoreError
from gemm_regression.counters import check
from gemm_regression.counters.counts import expected_bytes
from gemm_regression.counters.profiler import DATA, DRAM, ISSUED, L2, SECTOR
from gemm_regression.hints import typed
from gemm_regression.model import Case, Problem, find_problem
from gemm_regression.timing.bounds import SHARED_BYTES, Workload

COUNTED = "counters.json"
STORE = typed("profile", "--store")
_SEEN_HEAD = {"schema": 1, "counters": "ncu"}
_SEEN_REMEDY = f"restore it from git, or count again with `{STORE}`"


@dataclass(frozen=True)
class NcuCounts:
    """The metrics of one launch, ``values`` by ncu's names; the SHA-256 of the ``cubin`` that was launched;
    and ``made``: GPU, board, driver, nvcc, ncu, commit."""

    cubin: str
    values: Mapping[str, float]
    made: Mapping[str, str]


def load_seen(folder: Path) -> dict[str, NcuCounts]:
    """What is stored of a GPU model in its folder, by case id; empty if nothing is. Raises StoreError."""
    return store.read_records(folder / COUNTED, _SEEN_HEAD, _seen, _SEEN_REMEDY)


def write_seen(folder: Path, found: Mapping[str, NcuCounts]) -> Path:
    """Adds launches to those that are stored; a case that is there already is replaced. Raises StoreError."""
    every = {**load_seen(folder), **found}
    records = {
        case: {"cubin": one.cubin, "made": dict(one.made), "values": _short(one.values)}
        for case, one in every.items()
    }
    return store.write_records(folder / COUNTED, _SEEN_HEAD, records)


def _seen(groups: Groups) -> NcuCounts:
    values = {str(name): float(value) for name, value in groups["values"].items()}
    return NcuCounts(str(groups["cubin"]), values, dict(groups["made"]))


def _short(values: Mapping[str, float]) -> dict[str, float]:
    """Counts as integers, the rest with six digits."""
    return {name: int(v) if v == int(v) else float(f"{v:.6g}") for name, v in values.items()}


_LINE = 4  # sectors that a wavefront of global memory takes at most


@dataclass(frozen=True)
class TrafficData:
    """``seen``: what ncu counted, by the folder of the GPU and case id; ``emulated``: counters by variant and
    problem."""

    seen: Mapping[str, Mapping[str, NcuCounts]] = field(default_factory=dict)
    emulated: Mapping[str, check.ByProblem] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> TrafficData:
        """What is stored in a folder of baselines; of emulated counters only what today's compiler made.
        Raises StoreError."""
        folders = [path.parent for path in sorted(root.glob(f"*/{COUNTED}")) if path.parent.name != "static"]
        counted = {path.name: found for path in folders if (found := load_seen(path))}
        emulated: Mapping[str, check.ByProblem] = {}
        with contextlib.suppress(StoreError):  # `check` judges these
            emulated = check.load_counters(tools.pins()[0], root / "static")
        return cls(counted, emulated)

    def counted(self, gpu: str, case: str, cubin: str | None) -> NcuCounts | None:
        """What ncu counted of a case on a GPU (the name of its folder), if it was this binary."""
        one = self.seen.get(gpu, {}).get(case)
        return one if one and one.cubin == cubin else None

    def work(self, gpu: str, case: Case, cubin: str | None = None) -> Workload:
        """What a launch does of the case, or of what was chosen for it; ``cubin``: SHA-256 of the binary."""
        compulsory = case.kernel.operation.compulsory_bytes(case.problem, case.dtype)
        if one := self.counted(gpu, str(case.parts), cubin):
            return of_ncu(one.values, case.flop)
        if counts := self.emulated.get(case.variant):
            return scaled(case, counts, compulsory)
        return Workload(case.flop, compulsory, estimated=True)


def of_ncu(values: Mapping[str, float], flop: float) -> Workload:
    """DRAM: bytes read and written. L2: sectors that L1 asks for or writes. Shared: 128 bytes per wavefront
    of L1's data stage, which shared and global memory pass."""
    return Workload(
        flop,
        sum(values[name] for name in DRAM),
        SECTOR * values[L2],
        SHARED_BYTES * values[DATA],
        values[ISSUED],
    )


def scaled(case: Case, counts: check.ByProblem, compulsory: float) -> Workload:
    """From the largest problem that was counted. What passes shared memory grows with the number of tiles and
    K; sectors with the bytes that blocks request (`expected_bytes`). What L1 serves is not known of kernels
    without shared memory, nor how ptxas turns PTX into instructions: no L2 and no issue there. Since ptxas
    merges loads from shared memory, fewer may pass it. DRAM: each operand once. Of blocks that share a tile,
    and of operations other than products, only that and the FLOP are known."""
    shape = case.kernel.shape_of(case.config, case.dtype)
    if shape.split > 1 or case.kernel.operation.own:
        return Workload(case.flop, compulsory, estimated=True)
    one, other = _largest(case, counts)
    grown = _steps(case, case.problem) / _steps(case, other.problem)
    waves: float = sum(one[f"{name}_wavefronts"] for name in check.SHARED)
    read = one["a_read"] + one["b_read"] + one["c_read"]
    requests = one["loads_requests"] + one["copies_requests"]
    waves += _wavefronts(one, "loads", read * one["loads_requests"] / max(1, requests))
    waves += _wavefronts(one, "stores", one["c_written"])
    of_shared = bool(shape.shared_bytes)
    return Workload(
        case.flop,
        compulsory,
        requested(case, counts) if of_shared and case.kernel.operation.plain_product else None,
        SHARED_BYTES * waves * grown,
        estimated=True,
    )


def _wavefronts(one: check.Figures, name: str, size: float) -> float:
    """Of global memory, for so many bytes: a line of four sectors each, and one for each sector that a dense
    access would not touch."""
    dense, sectors = size / SECTOR, one[f"{name}_sectors"]
    return max(one[f"{name}_requests"], min(dense, sectors) / _LINE + max(0, sectors - dense))


def requested(case: Case, counts: check.ByProblem) -> float:
    """Bytes of the sectors that a launch of a plain product asks for: those counted of the largest problem,
    scaled by what blocks request of A and B, and of C."""
    one, other = _largest(case, counts)
    asked, then = expected_bytes(case), expected_bytes(other)
    reads = sum(asked["A"]) + sum(asked["B"]) + asked["C"].read
    read_then = sum(then["A"]) + sum(then["B"]) + then["C"].read
    loads = (one["loads_sectors"] + one["copies_sectors"]) * reads / read_then
    stores = one["stores_sectors"] * asked["C"].written / then["C"].written
    return SECTOR * (loads + stores) * case.problem.batch / other.problem.batch


def _largest(case: Case, counts: check.ByProblem) -> tuple[check.Figures, Case]:
    """The counts of the largest problem that was counted, and the case of that."""
    name = max(counts, key=lambda name: counts[name]["flop"])
    return counts[name], replace(case, problem=find_problem(name), chosen_for=None)


def _steps(case: Case, problem: Problem) -> float:
    """Tiles of C, times K."""
    shape = case.kernel.shape_of(case.config, case.dtype)
    rows, columns = shape.tile
    return -(-problem.m // rows) * -(-problem.n // columns) * -(-problem.batch // shape.batch) * problem.k
