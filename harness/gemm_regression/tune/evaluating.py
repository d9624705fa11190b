"""One config on a device: compiled, verified, timed by the suite's own protocol.

What fails costs itself alone: CUDA work happens in a worker process, which is replaced after a crash or a
hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from gemm_regression.baselines.provenance import machine_of
from gemm_regression.compiler.tools import arch
from gemm_regression.counters.counts import count
from gemm_regression.devices import Device, DeviceError, TimingDevice, open_cuda, open_emulated
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Config, DType, Kernel, Problem
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.screening import one_line, small_cases, wrong
from gemm_regression.tune.stored import Evaluation, Failed

SHORT = Plan(target_seconds=0.03, min_rounds=7, max_rounds=60, reference=False)
LONG = Plan()  # as a timed case: for the best, measured again
_POWER_SECONDS = 0.4  # NVML's power is an average over some tenths of a second


@dataclass(frozen=True)
class Measured:
    """What evaluating a a config: ``values`` by objective and more, or ``code`` and ``reason`` of a failure;
    and the milliseconds of compiling, verifying and timing, as Kernel Tuner keeps them."""

    values: dict[str, float]
    code: str = ""
    reason: str = ""
    compile_time: float = 0.0
    verification_time: float = 0.0
    benchmark_time: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        times = {name: round(value, 3) for name, value in asdict(self).items() if name.endswith("_time")}
        return {**self.values, **times, **({"code": self.code, "reason": self.reason} if self.code else {})}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Measured:
        """The inverse."""
        names = ("code", "reason", "compile_time", "verification_time", "benchmark_time")
        values = {n: float(v) for n, v in record.items() if n in VALUES and v is not None}
        return cls(values, **{name: record[name] for name in names if name in record})


VALUES = ("time", "gflops", "cycles", "watts", "gflops_per_watt", "noise", "instructions")


class Evaluator(Protocol):
    """Evaluates configs of one kernel and problem."""

    def evaluate(self, config: Config) -> Measured: ...


Job = tuple[int, Config]
Heard = Callable[[Config, Measured], None]


class Workers(Protocol):
    """What evaluates: one device, or ``count`` at once."""

    @property
    def count(self) -> int: ...

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        """The results of jobs, in the order in which they end; takes a job only when a worker is free."""


class Verifies(Device, TimingDevice, Protocol):
    """A device that runs cases and times them."""


@dataclass
class OnGpu:
    """Verifies and times configs on a GPU."""

    device: Verifies
    kernel: Kernel
    dtype: DType
    problem: Problem
    objective: str = "gflops"

    def evaluate(self, config: Config) -> Measured:
        """First small problems with every check of the oracle; the timed one is checked as it is timed."""
        case = Case(self.kernel, self.dtype, config, self.problem)
        began = time.perf_counter()
        found = next(
            (f for c in small_cases(self.kernel, config, self.dtype) if (f := wrong(self.device, c))), None
        )
        verified = time.perf_counter()
        spent = 1e3 * (verified - began)
        if found:
            return Measured({}, *found, verification_time=spent)
        plan = SHORT if self.objective != "gflops_per_watt" else replace(SHORT, target_seconds=_POWER_SECONDS)
        try:
            values = self.timed(case, plan)
        except DeviceError as error:
            return Measured({}, error.code, one_line(error), verification_time=spent)
        took = 1e3 * (time.perf_counter() - verified)
        return Measured(values, verification_time=spent, benchmark_time=took)

    def timed(self, case: Case, plan: Plan) -> dict[str, float]:
        """What the timing gives, by name; ``time`` in ms. Raises DeviceError: THROTTLED if too few rounds
        were at full clock."""
        m = self.device.time(case, plan)
        if m.throttled or len(m.seconds) < plan.least_rounds:
            raise DeviceError("THROTTLED", f"{case.id}: too few rounds at full clock")
        gflops = case.gflops(m.median)
        values = {"time": 1e3 * m.median, "gflops": gflops, "noise": m.spread}
        if m.sm_clock_mhz:
            values["cycles"] = m.median * m.sm_clock_mhz * 1e6
        if m.power_w > 0:
            values |= {"watts": m.power_w, "gflops_per_watt": gflops / m.power_w}
        if m.cublas_ratio:
            values["library_gflops"] = gflops / m.cublas_ratio
        return values


@dataclass
class Emulated:
    """Verifies configs on the emulated device and counts the warp instructions of a launch, which is no time:
    it tells how much work a config makes of a problem."""

    device: EmulatedDevice
    kernel: Kernel
    dtype: DType
    problem: Problem

    def evaluate(self, config: Config) -> Measured:
        began = time.perf_counter()
        try:
            found = wrong(self.device, small_cases(self.kernel, config, self.dtype)[0])
            counted = (
                None
                if found
                else count(
                    Case(self.kernel, self.dtype, config, self.problem), device=self.device, by_source=False
                )
            )
        except DeviceError as error:
            found, counted = (error.code, one_line(error)), None
        took = 1e3 * (time.perf_counter() - began)
        if counted is None:
            return Measured({}, *(found or ("", "")), verification_time=took)
        return Measured({"instructions": float(sum(counted.mix.values()))}, verification_time=took)


def evaluation(config: Config, values: dict[str, float]) -> Evaluation:
    """As stored."""
    return Evaluation(
        config,
        values["time"] / 1e3,
        values["gflops"],
        values.get("cycles"),
        values.get("watts"),
        values["noise"],
    )


def confirmed(on: OnGpu, configs: Sequence[Config]) -> tuple[list[Evaluation], list[Failed], float | None]:
    """These configs once more, as long as a timed case and beside the library; what failed; the library's
    GFLOPS, None without one."""
    found, failed, library = [], [], None
    for config in configs:
        try:
            values = on.timed(Case(on.kernel, on.dtype, config, on.problem), LONG)
        except DeviceError as error:
            failed.append(Failed(config, error.code, one_line(error)))
            continue
        library = max(filter(None, (library, values.get("library_gflops"))), default=None)
        found.append(evaluation(config, values))
    return found, failed, library


class OneDevice:
    """See `tune.Gpus`."""

    count = 1
    device_name: str
    capability: tuple[int, int]
    machine: Mapping[str, Any]

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None

    def evaluator(self, problem: Problem) -> Evaluator:
        raise NotImplementedError

    def begin(self, problem: Problem) -> None:
        self._evaluator = self.evaluator(problem)

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        assert self._evaluator is not None
        for place, config in jobs:
            yield place, self._evaluator.evaluate(config)

    def confirmed(self, configs: Sequence[Config]) -> tuple[list[Evaluation], list[Failed], float | None]:
        assert isinstance(self._evaluator, OnGpu)
        return confirmed(self._evaluator, configs)


class OneGpu(OneDevice):
    """The first visible GPU. Raises NoDevice."""

    def __init__(self, kernel: Kernel, dtype: DType, objective: str, time_limit: float) -> None:
        super().__init__()
        self.device = open_cuda(time_limit)
        self.device_name, self.capability = self.device.info.name, self.device.info.capability
        self.machine = machine_of(self.device)
        self._kernel, self._dtype, self._objective = kernel, dtype, objective

    def evaluator(self, problem: Problem) -> OnGpu:
        return OnGpu(self.device, self._kernel, self._dtype, problem, self._objective)

    def close(self) -> None:
        self.device.close()


class OneEmulated(OneDevice):
    """The emulated device, for a GPU of this compute capability. Raises NoDevice without a compiler."""

    machine: Mapping[str, Any] = {}

    def __init__(self, kernel: Kernel, dtype: DType, capability: tuple[int, int], time_limit: float) -> None:
        super().__init__()
        self.capability, self.device_name = capability, f"emulated {arch(capability)}"
        self._device = open_emulated(arch(capability), time_limit=time_limit, by_source=False)
        self._kernel, self._dtype = kernel, dtype

    def evaluator(self, problem: Problem) -> Emulated:
        return Emulated(self._device, self._kernel, self._dtype, problem)

    def close(self) -> None:
        self._device.close()
