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
from dataclasses import dataclass, replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gemm_regression.baselines.provenance import machine_of
from gemm_regression.compiler.nvcc import Binary, compile_all, read_ptxas
from gemm_regression.compiler.static import occupancy_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.tools import arch as arch_of
from gemm_regression.counters.counts import count
from gemm_regression.devices import Device, DeviceError, open_cuda, open_emulated
from gemm_regression.judge.vocabulary import NOT_RED, VerdictKind
from gemm_regression.model import Case, Config, DType, Kernel, Problem, Space
from gemm_regression.model.gpus import GpuLimits, refusals
from gemm_regression.project.loader import load
from gemm_regression.project.suites import fitted
from gemm_regression.run.checked import check
from gemm_regression.timing.plan import Plan
from gemm_regression.tune.stored import PRUNED, Evaluation, Failed, Result, TuneError

MOST_SPILLED = 64  # bytes of spill stores and loads per thread; a few cost nothing
EMULATED_SECONDS = 30.0  # of a config, after which it hangs
_STATIC_ASSERT = re.compile(r'static assertion failed with "([^"]*)"')


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
        self._fate: dict[
            Config, Failed | str
        ] = {}  # why not, or what tells its binary and launch from others

    def legal(self, problem: Problem) -> tuple[list[Config], Counter[str]]:
        """The configs that may run this problem on such a GPU, and how many may not, by reason. Raises
        TuneError for an empty space, and where none may."""
        kernel, space = self.kernel, self.space
        if not space.size:
            raise TuneError(f"{kernel.name}: its search space is empty: no axis, or an axis without a value")
        found, refused = list[Config](), Counter[str]()
        for values in space.combinations():
            config, reason = space.config(values), space.broken(values)
            if not reason:
                own = kernel.refusals(config, problem)
                said = (*refusals(kernel, config, self.dtype, self._limits), *own, "")
                reason = re.sub(r"\d[\d×.]*", "N", said[0])
            if reason:
                refused[reason] += 1
            else:
                found.append(config)
        if not found:
            reason, number = refused.most_common(1)[0]
            raise TuneError(
                f"{kernel.name} {problem.id}: none of the {space.size} configs is legal; "
                f"of {number}: {reason}"
            )
        return found, refused

    def look(
        self, configs: Sequence[Config], step: Callable[[str], None] = lambda what: None
    ) -> dict[Config, Failed | None]:
        """Why each config is not worth timing, None if it is; calls ``step`` for each stage."""
        fresh = [config for config in configs if config not in self._fate]
        variants = [(self.kernel, config, self.dtype) for config in fresh]
        for config, made in zip(fresh, compile_all(variants, self._arch), strict=True):
            self._fate[config] = self._compiled(config, made)
        step(f"{len(fresh)} compiled")
        if self.hazards:
            suspects = [config for config in fresh if isinstance(self._fate[config], str)]
            self._emulate(suspects)
            step(f"{len(suspects)} emulated")
        found, first = dict[Config, Failed | None](), dict[str, Config]()
        for config in configs:
            fate = self._fate[config]
            if isinstance(fate, Failed):
                found[config] = fate
            elif first.setdefault(fate, config) == config:
                found[config] = None
            else:
                found[config] = Failed(config, PRUNED, "the same binary and launch as another config")
        return found

    def _compiled(self, config: Config, made: Binary | CompileError) -> Failed | str:
        if isinstance(made, CompileError):
            return Failed(config, "COMPILE_ERROR", one_line(made))
        figures = read_ptxas(made.symbol, made.log)
        if figures.spill_store_bytes + figures.spill_load_bytes > MOST_SPILLED:
            return Failed(config, PRUNED, f"spills more than {MOST_SPILLED} bytes per thread")
        if not occupancy_of((self.kernel, config, self.dtype), made, self._limits).blocks:
            return Failed(config, PRUNED, "no block fits on an SM")
        return f"{made.resources.cubin_sha256} {self.kernel.shape_of(config, self.dtype)}"

    def _emulate(self, configs: Sequence[Config]) -> None:
        """A process that dies has said nothing of its configs: the GPU's own check comes after this one."""
        of = partial(_hazard, self.root, self.kernel.name, self.dtype.name, self.capability)
        pool = ProcessPoolExecutor(mp_context=get_context("spawn"))
        try:
            for failed in pool.map(of, configs):
                if failed:
                    self._fate[failed.config] = failed
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(cancel_futures=True)


def _hazard(
    root: Path, kernel: str, dtype: str, capability: tuple[int, int], config: Config
) -> Failed | None:
    """What the emulated device and the oracle find with one small problem, in a process of its own."""
    return _emulated(root, kernel, dtype, capability).wrong(config)


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


class Runner:
    """What evaluates configs of one kernel and dtype: here one device; `cluster.Cluster` has several.

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

    def wrong(self, config: Config) -> Failed | None:
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
                return Failed(config, code, one_line(said[0]))
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
            return Failed(config, error.code, one_line(error)), None
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
        self.device = self._emulated = open_emulated(
            arch_of(capability), time_limit=time_limit, by_source=False
        )

    def evaluate(self, problem: Problem, config: Config) -> Result:
        if failed := self.wrong(config):
            return failed
        case = Case(self.kernel, self.dtype, config, problem)
        try:
            counted = count(case, device=self._emulated, by_source=False)
        except DeviceError as error:
            return Failed(config, error.code, one_line(error))
        return Evaluation(config, instructions=sum(counted.mix.values()))


@cache
def _emulated(root: Path, kernel: str, dtype: str, capability: tuple[int, int]) -> OneEmulated:
    return OneEmulated(root, kernel, dtype, capability, EMULATED_SECONDS)
