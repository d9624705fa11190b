"""What is found out about a config: without a GPU, whether it is legal, compiles, spills, is the same binary
as another one or has a hazard; on a device, whether it is right, and its time by the suite's own protocol.

What fails costs itself alone: CUDA work happens in a worker process, which is replaced after a crash or a
hang.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gemm_regression.baselines.provenance import machine_of
from gemm_regression.compiler.nvcc import Binary, compile_all, read_ptxas
from gemm_regression.compiler.static import occupancy_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.tools import arch as arch_of
from gemm_regression.counters.counts import count
from gemm_regression.devices import Device, DeviceError, NoDevice, open_cuda, open_emulated
from gemm_regression.judge.vocabulary import NOT_RED, VerdictKind
from gemm_regression.model import Case, Config, DType, Kernel, Problem, Space
from gemm_regression.model.gpus import GpuLimits, refusals
from gemm_regression.project.loader import load
from gemm_regression.project.suites import fitted
from gemm_regression.run.checked import check
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.stored import Evaluation, Failed, Result, TuneError

MOST_SPILLED = 64  # bytes of spill stores and loads per thread; a few cost nothing
EMULATED_SECONDS = 30.0  # of a config, after which it hangs
_STATIC_ASSERT = re.compile(r'static assertion failed with "([^"]*)"')


@dataclass
class Screened:
    """What is known without a GPU, of every config looked at so far.

    Attributes:
        passed: configs to time.
        failed: those that do not compile or have a hazard.
        pruned: the number of those left out, by reason.
    """

    passed: list[Config] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    pruned: Counter[str] = field(default_factory=Counter)


@dataclass
class Screen:
    """Looks at configs of a kernel's ``space`` once, over all cores; ``hazards``: also runs each on the
    emulated device, with one small problem. ``root`` is the folder of the project, which the processes load
    again."""

    root: Path
    kernel: Kernel
    dtype: DType
    space: Space
    capability: tuple[int, int]
    hazards: bool

    def __post_init__(self) -> None:
        self._arch, self._limits = arch_of(self.capability), GpuLimits.of(self.capability)
        self._fate: dict[Config, Failed | str] = {}  # why not, or an empty string
        self._binaries: dict[Config, str] = {}

    def legal(self, problem: Problem) -> tuple[list[Config], Counter[str]]:
        """The configs that may run this problem on such a GPU, and how many may not, by reason. Raises
        TuneError for an empty space, and where none may."""
        kernel, space = self.kernel, self.space
        if not space.size:
            raise TuneError(f"{kernel.name}: its search space is empty: no axis, or an axis without a value")
        found, refused = [], Counter[str]()
        for values in space.combinations():
            config, reason = space.config(values), space.broken(values)
            if not reason:
                own = kernel.refusals(config, problem)
                said = (*refusals(kernel, config, self.dtype, self._limits), *own)
                reason = re.sub(r"\d[\d×.]*", "N", said[0]) if said else ""
            if reason:
                refused[reason] += 1
            else:
                found.append(config)
        if not found:
            reason, count = refused.most_common(1)[0]
            raise TuneError(
                f"{kernel.name} {problem.id}: none of the {space.size} configs is legal; of {count}: {reason}"
            )
        return found, refused

    def look(self, configs: Sequence[Config], step: Callable[[str], None] = lambda what: None) -> Screened:
        """What is known of these configs; calls ``step`` for each stage."""
        fresh = [config for config in configs if config not in self._fate]
        variants = [(self.kernel, config, self.dtype) for config in fresh]
        for config, made in zip(fresh, compile_all(variants, self._arch), strict=True):
            if isinstance(made, CompileError):
                self._fate[config] = Failed(config, "COMPILE_ERROR", one_line(made))
            else:
                self._fate[config] = self._compiled(config, made)
        step(f"{len(fresh)} compiled")
        if self.hazards:
            suspects = [config for config in fresh if not self._fate[config]]
            self._emulate(suspects)
            step(f"{len(suspects)} emulated")
        found = Screened()
        first: dict[str, Config] = {}
        for config in configs:
            fate = self._fate[config]
            if isinstance(fate, Failed):
                found.failed.append(fate)
            elif fate:
                found.pruned[fate] += 1
            elif first.setdefault(self._binaries[config], config) != config:
                found.pruned["the same binary and launch as another config"] += 1
            else:
                found.passed.append(config)
        return found

    def _compiled(self, config: Config, binary: Binary) -> str:
        """Why a binary is not worth timing; empty if it is."""
        figures = read_ptxas(binary.symbol, binary.log)
        shape = self.kernel.shape_of(config, self.dtype)
        self._binaries[config] = f"{binary.resources.cubin_sha256} {shape}"
        if figures.spill_store_bytes + figures.spill_load_bytes > MOST_SPILLED:
            return f"spills more than {MOST_SPILLED} bytes per thread"
        blocks = occupancy_of((self.kernel, config, self.dtype), binary, self._limits).blocks
        return "" if blocks else "no block fits on an SM"

    def _emulate(self, configs: Sequence[Config]) -> None:
        """A process that dies has said nothing of its configs: the GPU's own check comes after this one."""
        if not configs:
            return
        names = (str(self.root), self.kernel.name, self.dtype.name, self._arch)
        pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
        try:
            waiting = {config: pool.submit(_hazard, *names, dict(config)) for config in configs}
            for config, future in waiting.items():
                if found := future.result():
                    self._fate[config] = Failed(config, *found)
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(cancel_futures=True)


@cache
def _kernels(root: str) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in load(Path(root)).kernels}


def _hazard(root: str, name: str, dtype: str, arch: str, values: Mapping[str, int]) -> tuple[str, str] | None:
    """What the emulated device and the oracle find with one small problem, in a process of its own."""
    kernel = _kernels(root)[name]
    of = next(each for each in kernel.dtypes if each.name == dtype)
    try:
        # The PTX that is compiled for its signature anyway, without lines of the source.
        device = open_emulated(arch, time_limit=EMULATED_SECONDS, by_source=False)
    except NoDevice:
        return None
    cases = small_cases(kernel, Config(**values), of)[:1]
    return wrong(device, cases[0]) if cases else None


def small_cases(kernel: Kernel, config: Config, dtype: DType) -> list[Case]:
    """Problems with an edge everywhere, for the emulated device the first and for a GPU all: little more than
    a tile with several steps along K, and one of odd sizes and leading dimensions."""
    rows, columns = kernel.shape_of(config, dtype).tile
    asked = (
        Problem(rows + 1, columns + 3, 37),
        Problem(137, 131, 45, alpha=-1, beta=3, lda=256, ldb=140, ldc=144, starts=(4, 1, 0)),
    )
    return [each.case for each in fitted(kernel, config, dtype, asked, near=True) if each.runs]


def wrong(device: Device, case: Case) -> tuple[str, str] | None:
    """Code and reason, in one line, if a case is not correct on a device; what the interpreter does not know
    is left to a GPU."""
    checked = check(device, case)
    kind, reason = checked.outcome
    if kind in NOT_RED:
        return None
    said = [*map(str, checked.findings), *checked.reasons, reason]
    return kind.value if kind is VerdictKind.WRONG else reason, one_line(said[0])


def one_line(error: object) -> str:
    """The reason in an error of several lines: a static_assert's words, or the first line with an error."""
    text = str(error)
    if found := _STATIC_ASSERT.search(text):
        return f"static_assert: {found[1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line and "does not compile" not in line), lines[0])
    return said[:300]


# On a device

SHORT = Plan(target_seconds=0.03, min_rounds=7, max_rounds=60, reference=False)
LONG = Plan()  # as a timed case: for the best, measured again
_POWER_SECONDS = 0.4  # NVML's power is an average over some tenths of a second

Confirmed = tuple[list[Result], float | None]


class Gpus:
    """What evaluates configs of one kernel and dtype, with what is known of it: GPUs of a model, here one, or
    the emulated device."""

    device_name: str
    capability: tuple[int, int]
    machine: Mapping[str, Any]  # machine_info; empty where there is no GPU
    count = 1
    problem: Problem

    def begin(self, problem: Problem) -> None:
        """The configs that follow are for this problem."""
        self.problem = problem

    def results(self, configs: Iterator[Config]) -> Iterable[Result]:
        """The results in the order in which they end; takes a config only when a device is free."""
        return map(self.evaluate, configs)

    def evaluate(self, config: Config) -> Result:
        raise NotImplementedError

    def confirmed(self, configs: Sequence[Config]) -> Confirmed:
        """These configs once more, as long as a timed case and beside the library; and the library's GFLOPS,
        None without one."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives the device back."""


class OneGpu(Gpus):
    """The first visible GPU. Raises NoDevice."""

    def __init__(self, kernel: Kernel, dtype: DType, objective: str, time_limit: float) -> None:
        self.device = open_cuda(time_limit)
        self.device_name, self.capability = self.device.info.name, self.device.info.capability
        self.machine = machine_of(self.device)
        self._kernel, self._dtype, self._short = kernel, dtype, SHORT
        if objective == "gflops_per_watt":
            self._short = replace(SHORT, target_seconds=_POWER_SECONDS)

    def evaluate(self, config: Config) -> Result:
        """First small problems with every check of the oracle; the timed one is checked as it is timed."""
        for case in small_cases(self._kernel, config, self._dtype):
            if found := wrong(self.device, case):
                return Failed(config, *found)
        return self._timed(config, self._short)[0]

    def confirmed(self, configs: Sequence[Config]) -> Confirmed:
        timed = [self._timed(config, LONG) for config in configs]
        library = max((gflops for _, gflops in timed if gflops), default=None)
        return [result for result, _ in timed], library

    def _timed(self, config: Config, plan: Plan) -> tuple[Result, float | None]:
        """And the library's GFLOPS, if it was timed too. Too few rounds at full clock are a failure."""
        case = Case(self._kernel, self._dtype, config, self.problem)
        try:
            m = self.device.time(case, plan)
            if m.throttled or len(m.seconds) < plan.least_rounds:
                raise DeviceError("THROTTLED", f"{case.id}: too few rounds at full clock")
        except DeviceError as error:
            return Failed(config, error.code, one_line(error)), None
        gflops, cycles = case.gflops(m.median), m.median * m.sm_clock_mhz * 1e6 if m.sm_clock_mhz else None
        watts = m.power_w if m.power_w > 0 else None
        found = Evaluation(config, m.median, gflops, cycles, watts, m.spread)
        return found, gflops / m.cublas_ratio if m.cublas_ratio else None

    def close(self) -> None:
        self.device.close()


class OneEmulated(Gpus):
    """The emulated device, for a GPU of this compute capability: verifies configs and counts the warp
    instructions of a launch, which is no time: it tells how much work a config makes of a problem. Raises
    NoDevice without a compiler."""

    machine: Mapping[str, Any] = {}

    def __init__(self, kernel: Kernel, dtype: DType, capability: tuple[int, int], time_limit: float) -> None:
        self.capability, self.device_name = capability, f"emulated {arch_of(capability)}"
        self._device = open_emulated(arch_of(capability), time_limit=time_limit, by_source=False)
        self._kernel, self._dtype = kernel, dtype

    def evaluate(self, config: Config) -> Result:
        try:
            if found := wrong(self._device, small_cases(self._kernel, config, self._dtype)[0]):
                return Failed(config, *found)
            case = Case(self._kernel, self._dtype, config, self.problem)
            counted = count(case, device=self._device, by_source=False)
        except DeviceError as error:
            return Failed(config, error.code, one_line(error))
        return Evaluation(config, instructions=sum(counted.mix.values()))

    def close(self) -> None:
        self._device.close()
