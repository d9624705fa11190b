"""A whole run of the gate on a simulated GPU: cases, a baseline with binaries, a board, what has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gemm_regression.baselines import Baseline, BaselineEntry
from gemm_regression.counters.traffic import TrafficData
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.machine import Health, MachineVerdict, judge_machine
from gemm_regression.judge.vocabulary import Policy
from gemm_regression.model import Case, Problem
from gemm_regression.run.pairing import Pairing
from gemm_regression.run.timed import Board, TimedCase, shift_of, usable_shift
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import TIMING, Plan
from tests.gemm_regression import synthetic
from tests.gemm_regression.simulated import SimulatedDevice

SECONDS = 2e-4
OWN, OTHER = "4173df1b", "0cf0cdcd"
WHEN = "2026-11-01T10:00:00+00:00"


def cases_of(kernels: Sequence[str], sizes: Sequence[int]) -> list[Case]:
    return [synthetic.case(name, problem=Problem(n, n, n)) for name in kernels for n in sizes]


def is_new(side: Any) -> bool:
    return isinstance(side, Case)


@dataclass
class World:
    """``slower(case)``: by how much the new build of a case is slower than the stored one;
    ``machine(kernel)``: by how much all that runs of it takes longer than when the baseline was measured;
    ``edited(case)``: whether its binary has changed; ``board``: that of the run; the baseline is that of OWN,
    measured by ``timing``."""

    cases: list[Case]
    slower: Callable[[Case], float] = lambda case: 0.0
    machine: Callable[[str], float] = lambda kernel: 0.0
    edited: Callable[[Case], bool] = lambda case: False
    board: str = OWN
    timing: int = TIMING
    margins: Mapping[str, float] = field(default_factory=dict)
    device: SimulatedDevice = field(default_factory=SimulatedDevice)
    policy: Policy = field(default_factory=Policy)

    def __post_init__(self) -> None:
        self.device.seconds = self._seconds
        self.device.cubin = lambda case: (case.variant + " edited" * self.edited(case)).encode()

    def _seconds(self, side: Any) -> float:
        kernel = side.kernel.name if is_new(side) else side.name.partition("-")[0]
        code = 1 + self.slower(side) if is_new(side) else 1.0
        return SECONDS * code * (1 + self.machine(kernel))

    def stored(self, case: Case) -> StoredBinary:
        made = SimulatedDevice().binary(case)
        assert made is not None
        return made

    def entry(self, case: Case) -> BaselineEntry:
        binary = self.stored(case)
        return replace(
            synthetic.entry(case, SECONDS, noise=0.0004, cubin=binary.sha256),
            machine={"board": OWN, "timing": self.timing},
            commit_info={"id": "1a2b3c4d5e6f", "dirty": False},
            datetime=WHEN,
            launch=str(case.launch),
            launch_id=binary.launch_id,
            margin=self.margins.get(case.kernel.name),
        )

    @property
    def baseline(self) -> Baseline:
        entries = {case.id: self.entry(case) for case in self.cases}
        return Baseline("nvidia-h200", {"name": "NVIDIA H200", "board": OWN}, {}, WHEN, entries)

    def run(self) -> tuple[dict[str, TimedCase], MachineVerdict]:
        """The results by case, and the verdict on the machine."""
        baseline = self.baseline
        of = {case.id: self.stored(case) for case in self.cases}
        board = Board(0, self.device, baseline, binary=lambda root, entry: of[entry.case_id])
        board.timed = {case.id: case for case in self.cases}
        board.pairing = Pairing(self.device, SequentialTest(), len(board.changed(board.timed)), seed=1)
        found = list[TimedCase]()
        board.judge(self.cases, found.append, self.policy, Plan(target_seconds=0.01))
        self.device.info = replace(self.device.info, board=self.board)
        shifts = [shift_of(board, r, {}, TrafficData(), None) for r in found if usable_shift(r)]
        return {r.case.id: r for r in found}, judge_machine(Health(self.board), [], shifts)


def reasons(found: Mapping[str, TimedCase]) -> dict[str, int]:
    counted: dict[str, int] = {}
    for result in found.values():
        counted[result.verdict.reason] = counted.get(result.verdict.reason, 0) + 1
    return counted


def red(found: Mapping[str, TimedCase]) -> list[str]:
    return [case for case, result in found.items() if result.verdict.failed(result.policy)]
