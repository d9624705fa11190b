"""Tuning a kernel: legal configs, what can be excluded without a GPU, the search, the best measured again."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.merge import machine_of
from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.compiler.nvcc import Binary, compile_all
from gemm_regression.compiler.sources import sources
from gemm_regression.compiler.static import occupancy_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.tools import arch as arch_of
from gemm_regression.devices import compile_ahead
from gemm_regression.model import Case, CaseId, Config, DType, Kernel, Problem, Space
from gemm_regression.model.gpus import GpuLimits, refusals
from gemm_regression.tune.runners import OneEmulated, Runner, one_line
from gemm_regression.tune.search import Budget, Search
from gemm_regression.tune.stored import (
    OBJECTIVES,
    PRUNED,
    Cache,
    Evaluation,
    FailedConfig,
    Result,
    Tuned,
    TuneError,
    ranked,
)

MOST_SPILLED = 64  # bytes of spill stores and loads per thread; a few cost nothing
EMULATED_SECONDS = 30.0  # of a config, after which it hangs
FINALISTS = 3  # of the best, measured again: the best of many short timings is one that was lucky, too
# So many configs are compiled before the search; of a larger space, or where the budget is a small part of
# it, those that are asked for.
AHEAD = 1200

Progress = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]


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
        self._limits = GpuLimits.of(self.capability)
        # Of each config that was looked at: why not, or what tells its binary and launch from others.
        self._fate: dict[Config, FailedConfig | str] = {}

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
    ) -> dict[Config, FailedConfig | None]:
        """Why each config is not worth timing, None if it is; calls ``step`` for each stage."""
        fresh = [config for config in configs if config not in self._fate]
        variants = [(self.kernel, config, self.dtype) for config in fresh]
        for config, made in zip(fresh, compile_all(variants, arch_of(self.capability)), strict=True):
            self._fate[config] = self._compiled(config, made)
        step(f"{len(fresh)} compiled")
        if self.hazards:
            suspects = [config for config in fresh if isinstance(self._fate[config], str)]
            self._emulate(suspects)
            step(f"{len(suspects)} emulated")
        found, first = dict[Config, FailedConfig | None](), dict[str, Config]()
        for config in configs:
            fate = self._fate[config]
            if isinstance(fate, FailedConfig):
                found[config] = fate
            elif first.setdefault(fate, config) == config:
                found[config] = None
            else:
                found[config] = FailedConfig(config, PRUNED, "the same binary and launch as another config")
        return found

    def _compiled(self, config: Config, made: Binary | CompileError) -> FailedConfig | str:
        if isinstance(made, CompileError):
            return FailedConfig(config, "COMPILE_ERROR", one_line(made))
        figures = made.figures
        if figures.spill_store_bytes + figures.spill_load_bytes > MOST_SPILLED:
            return FailedConfig(config, PRUNED, f"spills more than {MOST_SPILLED} bytes per thread")
        if not occupancy_of((self.kernel, config, self.dtype), made, self._limits).blocks:
            return FailedConfig(config, PRUNED, "no block fits on an SM")
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
) -> FailedConfig | None:
    """What the emulated device and the oracle find with one small problem, in a process of its own."""
    return _emulated(root, kernel, dtype, capability).wrong(config)


@cache
def _emulated(root: Path, kernel: str, dtype: str, capability: tuple[int, int]) -> OneEmulated:
    return OneEmulated(root, kernel, dtype, capability, EMULATED_SECONDS)


@dataclass(frozen=True)
class TuningResult:
    """What tuning one problem gave.

    Attributes:
        tuned: as stored; None on the emulated device, which has no time, and if the search was stopped.
        results: of every config that the strategy asked for, the best first.
        failed, pruned: what could not be timed, and the number of those not worth it, by reason.
        cache: its cache file.
        resumed: results that the cache file had.
        stopped: whether Ctrl-C ended the search.
    """

    tuned: Tuned | None
    results: Sequence[Result]
    failed: Sequence[FailedConfig]
    pruned: Mapping[str, int]
    cache: Cache
    resumed: int
    stopped: bool


@dataclass
class Tuning:
    """Tunes a kernel on one problem after another; a config is compiled and screened once for all of them.

    Attributes:
        screen: what is tuned, and what is found out without a GPU.
        runner: what evaluates configs.
        objective: of `stored.OBJECTIVES`, or ``instructions`` on the emulated device.
        strategy, budget, seed: of the search.
        caches: the folder of the cache files, or the one file if its name ends in .json.
        fresh: whether to begin anew.
        commit: of the working tree, as a baseline has it.
        progress: shows a title and how many of a number of steps are done.
    """

    screen: Screen
    runner: Runner
    objective: str
    strategy: str
    budget: Budget
    seed: int
    caches: Path
    fresh: bool
    commit: Mapping[str, Any]
    progress: Progress

    def tune(self, problem: Problem) -> TuningResult:
        """Raises TuneError. Ctrl-C ends the search; what was evaluated until then is in the outcome."""
        kernel, space = self.screen.kernel, self.screen.space
        widened = space.including(kernel.configs[0])
        declared = [config for config in kernel.configs[:1] if widened.values(config) is not None]
        title = f"{kernel.name} {problem.id}"
        configs, pruned = self.screen.legal(problem)
        cache = self._cache(problem, configs[0])
        evaluate: Callable[[Problem, Iterator[Config]], Iterable[Result]] = self._as_asked
        resumed, excluded = len(cache.results), list[FailedConfig]()
        few = self.budget.evaluations and 4 * self.budget.evaluations < len(configs)
        if len(configs) <= AHEAD and not few:
            evaluate = self.runner.results
            number = len(configs)
            with self.progress(f"{title}: {number} configs without a GPU", 2 + self.screen.hazards) as step:
                configs, excluded = self._ahead(problem, configs, step)
            if not configs:
                reasons = pruned + Counter(one.reason for one in excluded)
                why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
                raise TuneError(f"{title}: nothing is left to time of {number} configs: {why}")
        most = min(len(configs), self.budget.evaluations or len(configs))
        began, stopped = time.monotonic(), False
        with self.progress(f"{title}: {self.strategy}", most) as step:

            def heard(result: Result) -> None:
                cache.add(result)
                step(f"{result.config.label}: {_shown(result, self.objective)}")

            ask = partial(evaluate, problem)
            search = Search(space, configs, self.objective, ask, cache.results, heard)
            try:
                search.run(self.strategy, self.budget, self.seed)
            except KeyboardInterrupt:
                stopped = True
        seconds, found = time.monotonic() - began, search.found
        best, again, library = ranked(found.values(), self.objective), list[Result](), None
        timed = bool(self.runner.machine) and not stopped
        if timed:
            with self.progress(f"{title}: the best again", 1) as step:
                finalists = [one.config for one in best if isinstance(one, Evaluation)][:FINALISTS]
                finalists = list(dict.fromkeys([*finalists, *declared]))
                again, library = self.runner.confirmed(problem, finalists)
                step(f"{sum(isinstance(one, Evaluation) for one in again)} confirmed")
            found |= {
                one.config: one for one in again if isinstance(one, FailedConfig) and one.config in found
            }
        every = [*excluded, *(one for one in found.values() if isinstance(one, FailedConfig))]
        failed = tuple(one for one in every if one.code != PRUNED)
        pruned += Counter(one.reason for one in every if one.code == PRUNED)
        outcome = TuningResult(None, best, failed, pruned, cache, resumed, stopped)
        if not timed:
            return outcome
        tuned = Tuned(
            gpu=gpu_slug(self.runner.device_name),
            machine_info=machine_of({"machine_info": self.runner.machine}),
            commit_info=self.commit,
            datetime=datetime.now(UTC).isoformat(timespec="seconds"),
            kernel=kernel.name,
            dtype=self.screen.dtype.name,
            problem=problem.id,
            flop=Case(kernel, self.screen.dtype, kernel.configs[0], problem).work,
            objective=next(name for name in OBJECTIVES if name == self.objective),
            strategy=self.strategy,
            seconds=seconds,
            axes={name: tuple(values) for name, values in widened.axes.items()},
            defaults=widened.defaults,
            evaluations=tuple(one for one in found.values() if isinstance(one, Evaluation)),
            confirmed=tuple(one for one in again if isinstance(one, Evaluation)),
            failed=failed,
            pruned=pruned,
            declared=next(iter(declared), None),
            library_gflops=library,
            seed=self.seed,
            budget=str(self.budget),
            workers=self.runner.count,
        )
        return replace(outcome, tuned=tuned)

    def _ahead(
        self, problem: Problem, configs: Sequence[Config], step: Callable[[str], None]
    ) -> tuple[list[Config], list[FailedConfig]]:
        """All that is known without a GPU: the configs that are left, and why the others are not."""
        fates = self.screen.look(configs, step)
        left = [config for config in configs if not fates[config]]
        if self.runner.machine:
            cases = [Case(self.screen.kernel, self.screen.dtype, config, problem) for config in left]
            compile_ahead(cases, self.runner.capability)
        step("compiled for the GPU" if self.runner.machine else "done")
        return left, [failed for failed in fates.values() if failed]

    def _as_asked(self, problem: Problem, configs: Iterator[Config]) -> Iterator[Result]:
        """Looks at a config only when it is asked for, many at a time if many are."""
        most = self.budget.evaluations or 4 * (os.cpu_count() or 1)
        while some := list(islice(configs, min(most, 4 * (os.cpu_count() or 1)))):
            fates = self.screen.look(some)
            yield from filter(None, fates.values())
            yield from self.runner.results(problem, (config for config in some if not fates[config]))

    def _cache(self, problem: Problem, config: Config) -> Cache:
        kernel, dtype = self.screen.kernel, self.screen.dtype
        name, file = CaseId(kernel.name, dtype.name).variant, self.caches
        if file.suffix != ".json":
            file = file / f"{gpu_slug(self.runner.device_name)}-{name}-{problem.id}.json"
        sources_key = str(sources(kernel).key)
        head = {
            "kernel": name,
            "GPU": self.runner.device_name,
            "problem": problem.id,
            "compiler": nvcc_version(),
            "version of the kernel's source": hashlib.sha256(sources_key.encode()).hexdigest()[:16],
        }
        if self.fresh:
            file.unlink(missing_ok=True)
        return Cache(file, head)


def _shown(result: Result, objective: str) -> str:
    if isinstance(result, FailedConfig):
        return result.code
    score = result.score(objective)
    return "unknown" if score is None else f"{abs(score):,.6g} {objective}"
