"""A device of the tests' own that answers with recorded H200 samples, faster, slower or broken at will."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness.devices import DeviceError, Inputs, Outputs
from harness.devices.cuda.environment import GpuInfo
from harness.model import Case, Resources
from harness.timing.measurement import Measurement
from tests.unit.fakes import NumpyDevice

RECORDED = Path(__file__).with_name("h200_samples.json")


def recorded() -> dict[str, Any]:
    """{"gpu": GpuInfo fields, "runs": [{case id: samples and what was seen with them}, ...]}."""
    data: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return data


class ReplayDevice:
    """Replays run number ``run`` of the recording; ``change(case, measurement, attempt)`` may tamper with it.

    ``attempt`` counts how often the case was timed, so that a suspicion can vanish on the second look.
    """

    name = "cuda"

    def __init__(
        self,
        run: int = 0,
        change: Callable[[Case, Measurement, int], Measurement] | None = None,
        gpu: str | None = None,
        busy: tuple[str, ...] = (),
    ) -> None:
        data = recorded()
        facts = dict(data["gpu"])
        facts["capability"] = tuple(int(part) for part in facts["capability"].split("."))
        self.info = GpuInfo(**facts | ({"name": gpu} if gpu else {}))
        self._runs = data["runs"]
        self._run = run % len(self._runs)
        self._change = change
        self._busy = list(busy)
        self.attempts: dict[str, int] = {}
        self.restarts = 0

    def prepare(self, cases: Iterable[Case], step: Any = None) -> dict[str, str]:
        return {}

    def facts(self) -> dict[str, Any]:
        return {}

    def roofs(self) -> dict[str, Any]:
        return {"f32": {"gflops": 66000.0, "mhz": 1980.0}}

    def busy(self) -> list[str]:
        return self._busy

    def ahead(self) -> None:
        pass

    def draw(self, cases: Iterable[Case]) -> None:
        pass

    def restart(self) -> None:
        self.restarts += 1

    def close(self) -> None:
        pass

    def abandon(self) -> None:
        pass

    def time(self, case: Case, plan: Any) -> Measurement:
        if case.id not in self._runs[self._run]:
            raise DeviceError("NOT_RECORDED", f"{case.id} is not in the recording")
        seen = self._runs[self._run][case.id]
        resources = Resources(**seen["resources"]) if seen["resources"] else None
        fields = {
            **seen,
            "seconds": tuple(seen["seconds"]),
            "reference_seconds": tuple(seen["reference_seconds"]),
        }
        measurement = Measurement(**{**fields, "resources": resources})
        self.attempts[case.id] = self.attempts.get(case.id, 0) + 1
        return self._change(case, measurement, self.attempts[case.id]) if self._change else measurement


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


def slowed(factor: float, only: str = "") -> Callable[[Case, Measurement, int], Measurement]:
    """Every sample ``factor`` times as long, in the cases whose id contains ``only``."""

    def change(case: Case, m: Measurement, attempt: int) -> Measurement:
        if only not in case.id:
            return m
        resources = m.resources and dataclasses.replace(m.resources, cubin_sha256="0" * 64)
        return dataclasses.replace(m, seconds=tuple(s * factor for s in m.seconds), resources=resources)

    return change
