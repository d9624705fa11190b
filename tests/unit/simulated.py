"""A GPU of the tests' own: durations that the test gives, with a GPU's noise, through the real block code."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from harness.devices import DeviceError
from harness.devices.cuda.environment import GpuInfo, Telemetry
from harness.devices.cuda.pairing import time_pair
from harness.devices.stored import StoredBinary
from harness.model import Case, Resources
from harness.timing.measurement import Measurement
from harness.timing.plan import PairPlan, Plan
from harness.timing.samples import PairedSamples
from tests.unit.replay import recorded

MHZ = 1980.0


@dataclass
class Run:
    seconds: list[float]
    mhz: list[float]
    looks: list[Telemetry]
    span: float


@dataclass(eq=False)
class SimulatedDevice:
    """``seconds(case)`` is a build's true duration; ``bias`` slows whatever is arm B, as an unfit machine
    does; ``spread`` is the noise of a launch, ``tick`` that of an event pair in seconds, ``process`` that
    of a whole process; ``mhz(arm)`` the clock of a launch; ``fail(base, case)`` may raise."""

    seconds: Callable[[Case], float] = lambda case: 1e-3
    bias: float = 0.0
    spread: float = 0.001
    tick: float = 0.0
    process: float = 0.0
    seed: int = 0
    mhz: Callable[[str], float] = lambda arm: MHZ
    fail: Callable[[Case, Case], None] = lambda base, case: None
    others: list[str] = field(default_factory=list)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    restarts: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        facts = dict(recorded()["gpu"])
        facts["capability"] = tuple(int(part) for part in facts["capability"].split("."))
        self.info = GpuInfo(**facts)
        self.restart()

    def restart(self) -> None:
        self.restarts += 1
        self._layout: dict[str, float] = {}

    def ahead(self) -> None:
        pass

    def draw(self, cases: Iterable[Case]) -> None:
        pass

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def busy(self) -> list[str]:
        return self.others

    def prepare(self, cases: Any, step: Any = None) -> dict[str, str]:
        return {}

    def prepare_pairs(self, cases: Any, step: Any = None) -> None:
        pass

    def binary(self, case: Case) -> StoredBinary | None:
        return None

    def facts(self) -> dict[str, Any]:
        return {}

    def roofs(self) -> dict[str, Any]:
        return {}

    def health(self) -> dict[str, Any]:
        return {}

    def ready(self) -> None:
        pass

    # What the block code asks of a stopwatch; an arm is (letter, true seconds).

    def sequence(self, work: Any, l2: str) -> Run:
        seconds = [
            true * (1 + self._random.gauss(0, self.spread)) + self._random.gauss(0, self.tick)
            for _, true in work
        ]
        mhz = [self.mhz(arm) for arm, _ in work]
        return Run(seconds, mhz, [Telemetry(MHZ, 300.0, 50.0, 0)], sum(seconds) + 5e-5 * len(work))

    def _true(self, case: Case, spin: int) -> float:
        layout = self._layout.setdefault(case.id, 1 + self._random.gauss(0, self.process))
        return self.seconds(case) * layout + spin / (MHZ * 1e6)

    def pair(self, base: Any, case: Any, plan: PairPlan) -> PairedSamples:
        self.asked.append((case.id, plan.orders))
        self.fail(base, case)
        spin = plan.spin or (0, 0)
        arms = {
            "A": ("A", self._true(base, spin[0])),
            "B": ("B", self._true(case, spin[1]) * (1 + self.bias)),
        }
        samples = time_pair(self, arms, plan)
        spun = (float(spin[0]), float(spin[1])) if plan.spin else None
        return replace(samples, spun=spun, gpu_seconds=sum(sum(b.a) + sum(b.b) for b in samples.blocks))

    def time(self, case: Case, plan: Plan) -> Measurement:
        self.fail(case, case)
        true = self._true(case, plan.spin or 0)
        rounds = max(plan.min_rounds, min(plan.max_rounds, int(plan.target_seconds / true)))
        run = self.sequence([("B", true)] * rounds, plan.l2)
        return Measurement(
            seconds=tuple(run.seconds),
            reference_seconds=(1e-3,),
            resources=Resources(32, 0, 0, "a" * 64),
            sm_clock_mhz=MHZ,
            power_w=300.0,
            temperature_c=50.0,
            clock_event_reasons=0,
            discarded=0,
            throttled=False,
            mhz=tuple(run.mhz),
            extra={"gpu_seconds": sum(run.seconds)},
        )


def crash(base: Case, case: Case) -> None:
    raise DeviceError("WORKER_DIED", f"{case.variant}: the worker process died (exit code -9)")
