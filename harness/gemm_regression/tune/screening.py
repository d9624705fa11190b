"""What of a space need not be timed: illegal, does not compile, spills, same binary, hazards.

Needs no GPU.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from gemm_regression.compiler.nvcc import Binary, compile_all, read_ptxas
from gemm_regression.compiler.static.metrics import occupancy_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.tools import arch as arch_of
from gemm_regression.devices import Device, NoDevice, open_emulated
from gemm_regression.judge.vocabulary import NOT_RED, VerdictKind
from gemm_regression.model import Case, Config, DType, Kernel, Problem, Space
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.legality import refusals
from gemm_regression.project.fitting import fitted
from gemm_regression.project.loader import load
from gemm_regression.run.checked import check
from gemm_regression.tune.stored import Failed

MOST_SPILLED = 64  # bytes of spill stores and loads per thread; a few cost nothing
EMULATED_SECONDS = 30.0  # of a config, after which it hangs
_STATIC_ASSERT = re.compile(r'static assertion failed with "([^"]*)"')


class NothingLegal(ValueError):
    """No config of a space can run; the message says why in one line."""


@dataclass
class Screened:
    """What is known without a GPU, of every config looked at so far.

    Attributes:
        passed: configs to time.
        failed: those that do not compile or have a hazard.
        pruned: the number of those left out, by reason.
        ignored: axes that change nothing: the binaries are the same.
    """

    passed: list[Config] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    pruned: Counter[str] = field(default_factory=Counter)
    ignored: tuple[str, ...] = ()


def legal(
    kernel: Kernel, dtype: DType, space: Space, problem: Problem, capability: tuple[int, int]
) -> tuple[list[Config], Counter[str]]:
    """The configs that may run this problem on such a GPU, and how many may not, by reason. Raises
    NothingLegal for an empty space, and where none may."""
    if not space.size:
        raise NothingLegal(f"{kernel.name}: its search space is empty: no axis, or an axis without a value")
    limits, found, refused = GpuLimits.of(capability), [], Counter[str]()
    for values in space.combinations():
        reason = space.broken(values)
        config = space.config(values)
        if not reason:
            said = (*refusals(kernel, config, dtype, limits), *kernel.refusals(config, problem))
            reason = re.sub(r"\d[\d×.]*", "N", said[0]) if said else ""
        if reason:
            refused[reason] += 1
        else:
            found.append(config)
    if not found:
        reason, count = refused.most_common(1)[0]
        raise NothingLegal(
            f"{kernel.name} {problem.id}: none of the {space.size} configs is legal; of {count}: {reason}"
        )
    return found, refused


class Screen:
    """Looks at configs of a kernel once, over all cores; ``hazards``: also runs each on the emulated device,
    with one small problem. ``root`` is the folder of the project, which the processes load again."""

    def __init__(
        self,
        root: Path,
        kernel: Kernel,
        dtype: DType,
        capability: tuple[int, int],
        hazards: bool = True,
        most_spilled: int = MOST_SPILLED,
        jobs: int | None = None,
    ) -> None:
        self._root, self._kernel, self._dtype, self._jobs = root, kernel, dtype, jobs
        self._capability, self._hazards, self._most_spilled = capability, hazards, most_spilled
        self._fate: dict[Config, Failed | str] = {}  # why not, or an empty string
        self._binaries: dict[Config, str] = {}

    def look(
        self, space: Space, configs: Sequence[Config], step: Callable[[str], None] = lambda what: None
    ) -> Screened:
        """What is known of these configs, which are of this space; calls ``step`` for each stage."""
        fresh = [config for config in configs if config not in self._fate]
        compiled = self._compile(fresh)
        step(f"{len(fresh)} compiled")
        suspects = self._figures(compiled)
        if self._hazards:
            self._emulate(suspects)
            step(f"{len(suspects)} emulated")
        found = Screened(ignored=ignored_axes(space, self._binaries))
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

    def _compile(self, configs: Sequence[Config]) -> dict[Config, Binary]:
        variants = [(self._kernel, config, self._dtype) for config in configs]
        compiled = {}
        for variant, made in zip(variants, compile_all(variants, arch_of(self._capability)), strict=True):
            config = variant[1]
            if isinstance(made, CompileError):
                self._fate[config] = Failed(config, "COMPILE_ERROR", one_line(made))
            else:
                compiled[config] = made
        return compiled

    def _figures(self, compiled: Mapping[Config, Binary]) -> list[Config]:
        limits, suspects = GpuLimits.of(self._capability), []
        for config, binary in compiled.items():
            figures = read_ptxas(binary.symbol, binary.log)
            shape = self._kernel.shape_of(config, self._dtype)
            self._binaries[config] = f"{binary.resources.cubin_sha256} {shape}"
            fate = ""
            if figures.spill_store_bytes + figures.spill_load_bytes > self._most_spilled:
                fate = f"spills more than {self._most_spilled} bytes per thread"
            elif not occupancy_of((self._kernel, config, self._dtype), binary, limits).blocks:
                fate = "no block fits on an SM"
            self._fate[config] = fate
            if not fate:
                suspects.append(config)
        return suspects

    def _emulate(self, configs: Sequence[Config]) -> None:
        """A process that dies has said nothing of its configs: the GPU's own check comes after this one."""
        if not configs:
            return
        names = (str(self._root), self._kernel.name, self._dtype.name, arch_of(self._capability))
        pool = ProcessPoolExecutor(self._jobs, get_context("spawn"))
        try:
            waiting: dict[Config, Future[tuple[str, str] | None]] = {
                config: pool.submit(_hazard, *names, dict(config)) for config in configs
            }
            for config, future in waiting.items():
                if found := future.result():
                    self._fate[config] = Failed(config, *found)
        except BrokenProcessPool:
            return
        finally:
            pool.shutdown(cancel_futures=True)


_loaded: dict[str, dict[str, Kernel]] = {}


def _hazard(root: str, name: str, dtype: str, arch: str, values: Mapping[str, int]) -> tuple[str, str] | None:
    """What the emulated device and the oracle find with one small problem, in a process of its own."""
    if root not in _loaded:
        _loaded[root] = {kernel.name: kernel for kernel in load(Path(root)).kernels}
    kernel, config = _loaded[root][name], Config(**values)
    of = next(each for each in kernel.dtypes if each.name == dtype)
    try:
        # The PTX that is compiled for its signature anyway, without lines of the source.
        device = open_emulated(arch, time_limit=EMULATED_SECONDS, by_source=False)
    except NoDevice:
        return None
    cases = small_cases(kernel, config, of)[:1]
    return next((found for case in cases if (found := wrong(device, case))), None)


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
    if checked.outcome.kind in NOT_RED:
        return None
    said = [str(finding) for finding in checked.findings] or list(checked.reasons)
    kind, reason = checked.outcome
    code = kind.value if kind is VerdictKind.WRONG else reason
    return code, one_line(said[0] if said else reason)


def one_line(error: object) -> str:
    """The reason in an error of several lines: a static_assert's words, or the first line with an error."""
    text = str(error)
    if found := _STATIC_ASSERT.search(text):
        return f"static_assert: {found[1]}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line and "does not compile" not in line), lines[0])
    return said[:300]


def ignored_axes(space: Space, binaries: Mapping[Config, str]) -> tuple[str, ...]:
    """The axes of a space that a kernel ignores: wherever configs differ in one alone, the binary and what a
    block computes are the same, and there are such configs."""
    names = list(space.axes)
    rows = {v: binary for config, binary in binaries.items() if (v := space.values(config)) is not None}
    found = []
    for place, name in enumerate(names):
        alike: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for values, binary in rows.items():
            alike[values[:place] + values[place + 1 :]].append(binary)
        several = [group for group in alike.values() if len(group) > 1]
        if several and all(len(set(group)) == 1 for group in several):
            found.append(name)
    return tuple(found)


def ignored_text(ignored: Iterable[str]) -> str:
    """What to say of axes that a kernel ignores; empty for none."""
    names = ", ".join(ignored)
    return f"{names}: every value gives the same binary, so the kernel ignores it" if names else ""
