"""What evaluates configs: a GPU, with the suite's own protocol, the emulated device, or the GPUs of this host
or of others through Ray, one actor for each GPU.

What fails costs itself alone: CUDA work happens in a worker process, which is replaced after a crash or a
hang. An actor that is lost in the middle costs its evaluation, which another repeats; the others go on.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from gemm_regression.baselines.provenance import machine_of
from gemm_regression.compiler.tools import arch as arch_of
from gemm_regression.counters.counts import count
from gemm_regression.devices import Device, DeviceError, open_cuda, open_emulated
from gemm_regression.judge.vocabulary import NOT_RED, VerdictKind
from gemm_regression.model import Case, Config, Problem
from gemm_regression.project.loader import load
from gemm_regression.project.suites import fitted
from gemm_regression.run.checked import check
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.stored import Evaluation, FailedConfig, Result, TuneError

_STATIC_ASSERT = re.compile(r'static assertion failed with "([^"]*)"')
SHORT = Plan(target_seconds=0.03, min_rounds=7, max_rounds=60, reference=False)
LONG = Plan()  # as a timed case: for the best, measured again
_POWER_SECONDS = 0.4  # NVML's power is an average over some tenths of a second

Confirmed = tuple[list[Result], float | None]


class Runner:
    """What evaluates configs of one kernel and dtype: here one device; a `Cluster` has several.

    Attributes:
        device_name, capability: of the device.
        machine: its ``machine_info``; empty where there is no GPU.
        count: how many devices.
    """

    device_name: str
    capability: tuple[int, int]
    machine: Mapping[str, Any] = {}
    count = 1

    def results(self, problem: Problem, configs: Iterator[Config]) -> Iterable[Result]:
        """The results in the order in which they end; takes a config only when a device is free."""
        return map(partial(self.evaluate, problem), configs)

    def evaluate(self, problem: Problem, config: Config) -> Result:
        raise NotImplementedError

    def confirmed(self, problem: Problem, configs: Sequence[Config]) -> Confirmed:
        """These configs once more, as long as a timed case and beside the library; and the library's GFLOPS,
        None without one."""
        raise NotImplementedError

    def facts(self) -> tuple[str, tuple[int, int], Mapping[str, Any]]:
        return self.device_name, self.capability, self.machine

    def close(self) -> None:
        """Gives the device back."""


class _OneDevice(Runner):
    """Of a kernel and dtype by their names, in the project in ``root``; each config is checked with the first
    ``small`` problems before anything else."""

    device: Device
    small = 1

    def __init__(self, root: Path, kernel: str, dtype: str) -> None:
        self.kernel = next(each for each in load(root).kernels if each.name == kernel)
        self.dtype = next(each for each in self.kernel.dtypes if each.name == dtype)

    def wrong(self, config: Config) -> FailedConfig | None:
        """Why a config is not correct; what the interpreter does not know is left to a GPU. The problems have
        an edge everywhere: little more than a tile with several steps along K, then odd sizes and leading
        dimensions."""
        rows, columns = self.kernel.shape_of(config, self.dtype).tile
        asked = (
            Problem(rows + 1, columns + 3, 37),
            Problem(137, 131, 45, alpha=-1, beta=3, lda=256, ldb=140, ldc=144, starts=(4, 1, 0)),
        )
        cases = [e.case for e in fitted(self.kernel, config, self.dtype, asked, near=True) if e.runs]
        for case in cases[: self.small]:
            checked = check(self.device, case)
            kind, reason = checked.outcome
            if kind not in NOT_RED:
                said = [*map(str, checked.findings), *checked.reasons, reason]
                code = kind.value if kind is VerdictKind.WRONG else reason
                return FailedConfig(config, code, one_line(said[0]))
        return None

    def close(self) -> None:
        self.device.close()


class OneGpu(_OneDevice):
    """The first visible GPU. Raises NoDevice."""

    small = 2

    def __init__(self, root: Path, kernel: str, dtype: str, objective: str, time_limit: float) -> None:
        super().__init__(root, kernel, dtype)
        self.device = self.gpu = open_cuda(time_limit)
        self.device_name, self.capability = self.gpu.info.name, self.gpu.info.capability
        self.machine, self._short = machine_of(self.gpu), SHORT
        if objective == "gflops_per_watt":
            self._short = replace(SHORT, target_seconds=_POWER_SECONDS)

    def evaluate(self, problem: Problem, config: Config) -> Result:
        """First small problems with every check of the oracle; the timed one is checked as it is timed."""
        return self.wrong(config) or self._timed(problem, config, self._short)[0]

    def confirmed(self, problem: Problem, configs: Sequence[Config]) -> Confirmed:
        timed = [self._timed(problem, config, LONG) for config in configs]
        library = max((gflops for _, gflops in timed if gflops), default=None)
        return [result for result, _ in timed], library

    def _timed(self, problem: Problem, config: Config, plan: Plan) -> tuple[Result, float | None]:
        """And the library's GFLOPS, if it was timed too. Too few rounds at full clock are a failure."""
        case = Case(self.kernel, self.dtype, config, problem)
        try:
            m = self.gpu.time(case, plan)
            if m.throttled or len(m.seconds) < plan.least_rounds:
                raise DeviceError("THROTTLED", f"{case.id}: too few rounds at full clock")
        except DeviceError as error:
            return FailedConfig(config, error.code, one_line(error)), None
        gflops, cycles = case.gflops(m.median), m.median * m.sm_clock_mhz * 1e6 if m.sm_clock_mhz else None
        watts = m.power_w if m.power_w > 0 else None
        found = Evaluation(config, m.median, gflops, cycles, watts, m.spread)
        return found, gflops / m.cublas_ratio if m.cublas_ratio else None


class OneEmulated(_OneDevice):
    """The emulated device, for a GPU of this compute capability: verifies configs and counts the warp
    instructions of a launch, which is no time: it tells how much work a config makes of a problem. Raises
    NoDevice without a compiler."""

    def __init__(
        self, root: Path, kernel: str, dtype: str, capability: tuple[int, int], time_limit: float
    ) -> None:
        super().__init__(root, kernel, dtype)
        self.capability, self.device_name = capability, f"emulated {arch_of(capability)}"
        # The PTX that is compiled for its signature anyway, without lines of the source.
        self.device = self._emulated = open_emulated(arch_of(capability), False, time_limit, by_source=False)

    def evaluate(self, problem: Problem, config: Config) -> Result:
        if failed := self.wrong(config):
            return failed
        case = Case(self.kernel, self.dtype, config, problem)
        try:
            counted = count(case, device=self._emulated, by_source=False)
        except DeviceError as error:
            return FailedConfig(config, error.code, one_line(error))
        return Evaluation(config, instructions=sum(counted.mix.values()))


def one_line(error: object) -> str:
    """The reason in an error of several lines: a static_assert's words, or the first line with an error."""
    text = str(error)
    if found := _STATIC_ASSERT.search(text):
        return f"static_assert: {found[1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line and "does not compile" not in line), lines[0])
    return said[:300]


# Through Ray

_START_SECONDS = 180.0
_CONNECT_SECONDS = 10.0
_GO_ON = "all Ray workers are lost; the same command goes on from the cache file"


class Cluster(Runner):
    """An actor for each GPU, a ``runner`` of the ``given``. ``address`` of a Ray cluster, ``auto``
    for the one that runs on this host; None for a new one of this host alone. ``wanted`` GPUs, or all. Raises
    TuneError."""

    def __init__(
        self,
        runner: type[Runner],
        given: Sequence[Any],
        address: str | None = None,
        wanted: int | None = None,
    ) -> None:
        self._ray, self._workers = _ray(), list[Any]()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address)
        with contextlib.ExitStack() as unfit:
            unfit.callback(self.close)
            there = int(self._ray.cluster_resources().get("GPU", 0))
            if not there or (wanted or 1) > there:
                asked = f", not {wanted}" if wanted else ""
                raise TuneError(
                    f"the Ray cluster has {there or 'no'} GPUs{asked}; `ray status` shows what it has"
                )
            actor = self._ray.remote(num_gpus=1, num_cpus=0)(runner)
            self._workers = [actor.remote(*given) for _ in range(wanted or there)]
            facts = [worker.facts.remote() for worker in self._workers]
            try:
                found = self._ray.get(facts, timeout=_START_SECONDS)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                raise TuneError(f"a Ray worker did not start: {_last_line(error)}") from None
            if len(names := sorted({name for name, _, _ in found})) > 1:
                raise TuneError(
                    f"the Ray cluster has different GPUs ({', '.join(names)}), which do not compare"
                )
            unfit.pop_all()
        self.device_name, self.capability, self.machine = found[0]
        self.count = len(self._workers)

    def results(self, problem: Problem, configs: Iterator[Config]) -> Iterator[Result]:
        ray, idle = self._ray, list(self._workers)
        running: dict[Any, tuple[Any, Config]] = {}
        again: list[Config] = []  # whose worker was lost
        tried: set[Config] = set()
        while True:
            while idle and (config := again.pop() if again else next(configs, None)) is not None:
                worker = idle.pop()
                running[worker.evaluate.remote(problem, config)] = worker, config
            if not running:
                break
            (done,), _ = ray.wait(list(running), num_returns=1)
            worker, config = running.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                result = FailedConfig(config, "HARNESS_ERROR", _last_line(error))
            except ray.exceptions.RayError:
                self._workers.remove(worker)
                if self._workers and config not in tried:
                    tried.add(config)
                    again.append(config)
                else:
                    yield FailedConfig(config, "WORKER_LOST", "the workers that had it were lost")
                continue
            idle.append(worker)
            yield result
        if not self._workers:
            raise TuneError(_GO_ON)

    def confirmed(self, problem: Problem, configs: Sequence[Config]) -> Confirmed:
        """On one GPU, since boards of a model differ."""
        for worker in self._workers:
            try:
                found: Confirmed = self._ray.get(worker.confirmed.remote(problem, list(configs)))
            except self._ray.exceptions.RayError:
                continue
            return found
        raise TuneError(_GO_ON)

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._ours:
            self._ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise TuneError(f"Ray is not usable here ({error}); install it with `pip install ray`") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    # Workers find the harness and the project where this process does; other hosts share the file system.
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
    # Without an address Ray would take one that another program began here, or wait for one that is gone.
    where = {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address:
            _answers(address)
        ray.init(runtime_env=environment, log_to_driver=False, logging_level="ERROR", **where)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as error:
        said = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
        token = "; if it asks for a token, set RAY_AUTH_TOKEN" if address else ""
        raise TuneError(f"{said}: {_last_line(error)}{token}") from None


def _answers(address: str) -> None:
    """Raises OSError at once where nothing listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
