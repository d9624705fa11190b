"""A GPU of the tests' own: durations that the test gives, with a GPU's noise, through the real block code."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.environment import GpuInfo
from gemm_regression.devices.work import StoredBinary, Work
from gemm_regression.model import Case, Resources
from gemm_regression.timing.plan import Measurement, PairPlan, Plan, time_pair
from gemm_regression.timing.samples import Launched, PairedSamples, Telemetry

MHZ = 1980.0
BOARD = "4173df1b"
RECORDED = Path(__file__).with_name("h200_samples.json")


def recorded() -> dict[str, Any]:
    """{"gpu": GpuInfo fields, "runs": [{case id: samples and what was seen with them}, ...]}."""
    data: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return data


@dataclass(eq=False)
class Arm:
    """A side of a pair; ``placed(count)`` the durations of so many copies, relative to its ``seconds``."""

    letter: str
    seconds: float
    placed: Callable[[int], list[float]] = lambda count: [1.0] * count

    def __post_init__(self) -> None:
        self.copies(1)

    def copies(self, count: int) -> None:
        self._next = itertools.cycle(self.placed(count))

    def __next__(self) -> float:
        return self.seconds * next(self._next)


@dataclass(eq=False)
class SimulatedDevice:
    """``seconds(side)`` is the duration of a build, a case's or a stored one; ``cubin(case)`` its binary;
    ``bias`` slows whatever is arm B, as an unfit machine does; ``spread`` is the noise of a launch, ``tick``
    that of an event pair in seconds, ``process`` that of a whole process, ``place`` that of a copy of a
    binary; ``mhz(arm)`` the clock of a launch; ``fail(base, case)`` may raise."""

    seconds: Callable[[Any], float] = lambda side: 1e-3
    cubin: Callable[[Case], bytes] = lambda case: case.variant.encode()
    bias: float = 0.0
    spread: float = 0.001
    tick: float = 0.0
    process: float = 0.0
    place: float = 0.0
    seed: int = 0
    mhz: Callable[[str], float] = lambda arm: MHZ
    fail: Callable[[Any, Any], None] = lambda base, case: None
    others: list[str] = field(default_factory=list)
    asked: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    restarts: int = 0
    aheads: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        facts = dict(recorded()["gpu"])
        facts["capability"] = tuple(int(part) for part in facts["capability"].split("."))
        self.info = GpuInfo(**{"board": BOARD, **{k: v for k, v in facts.items() if v is not None}})
        self.restart()

    def ahead(self) -> None:
        self.aheads += 1

    def prepare_inputs(self, cases: Iterable[Case]) -> None:
        pass

    def restart(self) -> None:
        self.restarts += 1
        self._layout: dict[str, float] = {}

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def busy(self) -> list[str]:
        return self.others

    def start(self) -> None:
        pass

    def prepare(self, cases: Any, step: Any = None) -> dict[str, str]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {}

    def roofs(self) -> dict[str, Any]:
        return {}

    def health(self) -> dict[str, Any]:
        return {}

    def binary(self, case: Case) -> StoredBinary | None:
        if case.kernel.library:
            return None
        return StoredBinary(case.variant, self.cubin(case), case.kernel.entry, Work.of(case))

    def resources(self, case: Case) -> Resources:
        return Resources(32, 0, 0, "a" * 64)

    def ready(self) -> None:
        pass

    # What the block code asks of a stopwatch.

    def sequence(self, work: Any, l2: str) -> Launched:
        seconds = [
            next(arm) * (1 + self._random.gauss(0, self.spread)) + self._random.gauss(0, self.tick)
            for arm in work
        ]
        mhz = [self.mhz(arm.letter) for arm in work]
        return Launched(seconds, mhz, [Telemetry(MHZ, 300.0, 50.0, 0)], sum(seconds) + 5e-5 * len(work))

    def _true(self, side: Case | StoredBinary, spin: int) -> float:
        layout = self._layout.setdefault(_name(side), 1 + self._random.gauss(0, self.process))
        return self.seconds(side) * layout + spin / (MHZ * 1e6)

    def _placed(self, count: int) -> list[float]:
        return [1 + self._random.gauss(0, self.place) for _ in range(count)]

    def pair(self, base: Case | StoredBinary, case: Case | StoredBinary, plan: PairPlan) -> PairedSamples:
        self.asked.append((_name(case), plan.orders))
        self.fail(base, case)
        spin = plan.spin or (0, 0)
        arms = {
            "A": Arm("A", self._true(base, spin[0]), self._placed),
            "B": Arm("B", self._true(case, spin[1]) * (1 + self.bias), self._placed),
        }
        samples = time_pair(self, arms, plan)
        spun = (float(spin[0]), float(spin[1])) if plan.spin else None
        return replace(samples, spun=spun, gpu_seconds=sum(sum(b.a) + sum(b.b) for b in samples.blocks))

    def time(self, case: Case, plan: Plan) -> Measurement:
        self.fail(case, case)
        true = self._true(case, plan.spin or 0)
        rounds = max(plan.min_rounds, min(plan.max_rounds, int(plan.target_seconds / true)))
        run = self.sequence([Arm("B", true)] * rounds, plan.l2)
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


def _name(side: Case | StoredBinary) -> str:
    return side.id if isinstance(side, Case) else f"{side.name} stored"


def crash(base: Any, case: Any) -> None:
    raise DeviceError("WORKER_DIED", f"{_name(case)}: the worker process died (exit code -9)")
