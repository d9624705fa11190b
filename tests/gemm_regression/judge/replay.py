"""A device of the tests' own that answers with recorded H200 samples, faster, slower or broken at will."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.devices.work import StoredBinary
from gemm_regression.model import Case, Resources
from gemm_regression.timing.plan import Measurement
from gemm_regression.timing.samples import PairedSamples
from tests.gemm_regression.fakes import NumpyDevice
from tests.gemm_regression.simulated import SimulatedDevice, recorded

__all__ = ["ReplayDevice", "Slowed", "VerifiedDevice", "recorded", "slowed"]

Change = Callable[[Case, Measurement, int], Measurement]


@dataclass(frozen=True)
class Slowed:
    """Cases whose id contains ``only`` take ``factor`` times as long; ``edited``: because their binary is
    another one."""

    factor: float
    only: str = ""
    edited: bool = True

    def applies(self, case: Case) -> bool:
        return self.only in case.id and not (self.edited and case.kernel.library)

    def __call__(self, case: Case, m: Measurement, attempt: int) -> Measurement:
        if not self.applies(case):
            return m
        return dataclasses.replace(m, seconds=tuple(s * self.factor for s in m.seconds))


def slowed(factor: float, only: str = "", edited: bool = True) -> Slowed:
    return Slowed(factor, only, edited)


class ReplayDevice(SimulatedDevice):
    """Replays run number ``run`` of the recording; ``change(case, measurement, attempt)`` may tamper with it.

    ``attempt`` counts how often the case was timed. Pairs are simulated, from the recorded medians.
    ``info``: other facts of NVML's.
    """

    name = "cuda"

    def __init__(
        self, run: int = 0, change: Change | None = None, busy: tuple[str, ...] = (), **info: Any
    ) -> None:
        super().__init__(self._side, self._cubin, others=list(busy))
        data = recorded()
        self.info = replace(self.info, **info)
        self._runs = data["runs"]
        self._run = run % len(self._runs)
        self._change = change
        self.attempts: dict[str, int] = {}

    def health(self) -> dict[str, Any]:
        return {"f32": {"gflops": 66000.0, "mhz": 1980.0}}

    def _edited(self, case: Case) -> bool:
        return isinstance(self._change, Slowed) and self._change.edited and self._change.applies(case)

    def _cubin(self, case: Case) -> bytes:
        return (case.variant + " edited" * self._edited(case)).encode()

    def _side(self, side: Case | StoredBinary) -> float:
        if isinstance(side, StoredBinary):
            return self._base
        return self._base * (self._change.factor if isinstance(self._change, Slowed) else 1.0)

    def pair(self, base: Any, case: Any, plan: Any) -> PairedSamples:
        if isinstance(case, Case):
            self._base = median(self._seen(case)["seconds"])
        return super().pair(base, case, plan)

    _base = 1e-3

    def _seen(self, case: Case) -> dict[str, Any]:
        if case.id not in self._runs[self._run]:
            raise DeviceError("NOT_RECORDED", f"{case.id} is not in the recording")
        seen: dict[str, Any] = self._runs[self._run][case.id]
        return seen

    def resources(self, case: Case) -> Resources:
        made = self.binary(case)
        sha256 = made.sha256 if made else None
        return Resources(**{**self._seen(case)["resources"], "cubin_sha256": sha256})

    def time(self, case: Case, plan: Any) -> Measurement:
        seen = self._seen(case)
        fields = {
            **seen,
            "seconds": tuple(seen["seconds"]),
            "reference_seconds": tuple(seen["reference_seconds"]),
            "resources": self.resources(case) if seen["resources"] else None,
        }
        measurement = Measurement(**fields)
        self.attempts[case.id] = self.attempts.get(case.id, 0) + 1
        return self._change(case, measurement, self.attempts[case.id]) if self._change else measurement

    def prepare(self, cases: Iterable[Case], step: Any = None) -> dict[str, str]:
        return {}

    def roofs(self) -> dict[str, Any]:
        return self.health()


class VerifiedDevice(ReplayDevice):
    """Also runs cases, by NumPy: wrong where the id contains ``wrong``."""

    def __init__(self, wrong: str = "no such case") -> None:
        super().__init__(3)
        self._wrong = wrong

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        outputs = NumpyDevice().run(case, inputs)
        if self._wrong in case.id:
            outputs.result[:] = 0
        return outputs
