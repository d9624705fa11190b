"""Tuning a kernel: legal configs, what can be excluded without a GPU, the search, the best measured again."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.fields import machine_of
from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.compiler.nvcc import unit_of
from gemm_regression.devices import compile_ahead
from gemm_regression.model import Case, CaseId, Config, DType, Kernel, Problem, Space
from gemm_regression.tune.cachefile import CacheFile, head, opened
from gemm_regression.tune.evaluating import Job, Measured, Workers, evaluation
from gemm_regression.tune.screening import NothingLegal, Screen, Screened, legal
from gemm_regression.tune.search import HIGHER, Budget, search
from gemm_regression.tune.stored import OBJECTIVES, Evaluation, Failed, Tuned

FINALISTS = 3  # of the best, measured again: the best of many short timings is one that was lucky, too
AHEAD = 1200  # so many configs are compiled before the search, of a larger space those that are asked for


class Gpus(Workers, Protocol):
    """What evaluates, with what is known of it."""

    device_name: str
    capability: tuple[int, int]
    machine: Mapping[str, Any]  # machine_info; empty where there is no GPU

    def begin(self, problem: Problem) -> None:
        """The jobs that follow are of this problem."""

    def confirmed(self, configs: Sequence[Config]) -> tuple[list[Evaluation], list[Failed], float | None]:
        """See `evaluating.confirmed`."""


Progress = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]


@dataclass(frozen=True)
class Wanted:
    """What to tune, and how.

    Attributes:
        root: the project's folder.
        kernel, dtype: what.
        space: its own, or narrowed.
        objective: of `stored.OBJECTIVES`, or ``instructions`` on the emulated device.
        strategy, budget, seed: of the search.
        hazards: whether configs run on the emulated device first.
        caches: the folder of the cache files, or the one file if its name ends in .json.
        fresh: whether to begin anew.
        commit: of the working tree, as a baseline has it.
    """

    root: Path
    kernel: Kernel
    dtype: DType
    space: Space
    objective: str = "gflops"
    strategy: str = "brute_force"
    budget: Budget = field(default_factory=Budget)
    seed: int | None = None
    hazards: bool = True
    caches: Path = Path(".benchmarks/tune")
    fresh: bool = False
    commit: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What tuning one problem gave.

    Attributes:
        tuned: as stored; None on the emulated device, which has no time.
        measured: every config evaluated, by its score, the best first.
        screened: what was excluded before.
        cache: its cache file.
        resumed: results that the cache file had.
        stopped: whether Ctrl-C ended the search.
    """

    wanted: Wanted
    problem: Problem
    tuned: Tuned | None
    measured: Sequence[tuple[Config, Measured]]
    screened: Screened
    cache: CacheFile
    resumed: int
    stopped: bool = False


def _silent(title: str, steps: int) -> AbstractContextManager[Callable[[str], None]]:
    return nullcontext(lambda what: None)


class Tuning:
    """Tunes a kernel on one problem after another; a config is compiled and screened once for all of them."""

    def __init__(self, wanted: Wanted, gpus: Gpus, progress: Progress = _silent) -> None:
        self._wanted, self._gpus, self._progress = wanted, gpus, progress
        self._screen = Screen(wanted.root, wanted.kernel, wanted.dtype, gpus.capability, wanted.hazards)

    def tune(self, problem: Problem) -> Outcome:
        """Raises NothingLegal, CacheError and SearchError. Ctrl-C ends the search; what was evaluated until
        then is in the outcome."""
        w, gpus = self._wanted, self._gpus
        configs, refused = legal(w.kernel, w.dtype, w.space, problem, gpus.capability)
        cache = self._cache(problem, configs[0])
        resumed = len(cache.entries)
        title = f"{w.kernel.name} {problem.id}"
        ahead = len(configs) <= AHEAD
        screened = Screened(list(configs))
        if ahead:
            with self._progress(f"{title}: {len(configs)} configs without a GPU", 2 + w.hazards) as step:
                screened = self._screen.look(w.space, configs, step)
                if gpus.machine:
                    cases = [Case(w.kernel, w.dtype, config, problem) for config in screened.passed]
                    compile_ahead(cases, gpus.capability)
                step("compiled for the GPU" if gpus.machine else "done")
        screened.pruned.update(refused)
        if not screened.passed:
            raise NothingLegal(
                f"{title}: nothing is left to time of {len(configs)} configs: {_why(screened)}"
            )
        gpus.begin(problem)
        workers = gpus if ahead else _Screening(self._screen, w.space, gpus)
        found: dict[Config, Measured] = {}
        began, stopped = time.monotonic(), False
        most = min(len(screened.passed), w.budget.evaluations or len(screened.passed))
        with self._progress(f"{title}: {w.strategy}", most) as step:

            def heard(config: Config, measured: Measured) -> None:
                step(f"{config.label}: {measured.code or _shown(measured, w.objective)}")

            try:
                search(
                    w.space,
                    screened.passed,
                    workers,
                    cache,
                    found,
                    w.objective,
                    w.strategy,
                    w.budget,
                    w.seed,
                    heard,
                )
            except KeyboardInterrupt:
                stopped = True
        seconds = time.monotonic() - began
        ranked = sorted(found.items(), key=lambda item: _rank(item[1], w.objective))
        if gpus.machine and not stopped:
            tuned = self._tuned(problem, ranked, found, screened, seconds)
            return Outcome(w, problem, tuned, ranked, screened, cache, resumed)
        return Outcome(w, problem, None, ranked, screened, cache, resumed, stopped)

    def _cache(self, problem: Problem, config: Config) -> CacheFile:
        w = self._wanted
        name = CaseId(w.kernel.name, w.dtype.name).variant
        file = w.caches
        if file.suffix != ".json":
            file = file / f"{gpu_slug(self._gpus.device_name)}-{name}-{problem.id}.json"
        sources = hashlib.sha256(str(unit_of(w.kernel, config, w.dtype).sources.key).encode()).hexdigest()[
            :16
        ]
        if w.fresh:
            file.unlink(missing_ok=True)
        return opened(
            file, head(self._gpus.device_name, name, problem.id, w.space.axes, nvcc_version(), sources)
        )

    def _tuned(
        self,
        problem: Problem,
        ranked: Sequence[tuple[Config, Measured]],
        found: Mapping[Config, Measured],
        screened: Screened,
        seconds: float,
    ) -> Tuned:
        w, gpus = self._wanted, self._gpus
        timed = [config for config, measured in ranked if not measured.code]
        space = w.space.including(w.kernel.configs[0])
        declared = w.kernel.configs[0] if space.values(w.kernel.configs[0]) else None
        again = timed[:FINALISTS]
        if declared is not None and declared not in again:
            again.append(declared)
        with self._progress(f"{w.kernel.name} {problem.id}: the best again", 1) as step:
            confirmed, gone, library = gpus.confirmed(again)
            step(f"{len(confirmed)} confirmed")
        failed = {c: Failed(c, m.code, m.reason) for c, m in found.items() if m.code}
        failed |= {one.config: one for one in gone if one.config in found}
        machine = gpus.machine
        objective = next(name for name in OBJECTIVES if name == w.objective)
        return Tuned(
            gpu=gpu_slug(machine["name"]),
            machine_info=machine_of({"machine_info": machine}),
            commit_info=w.commit,
            datetime=datetime.now(UTC).isoformat(timespec="seconds"),
            kernel=w.kernel.name,
            dtype=w.dtype.name,
            problem=problem.id,
            flop=w.kernel.operation.flop(problem),
            objective=objective,
            strategy=w.strategy,
            seconds=seconds,
            axes={name: tuple(values) for name, values in space.axes.items()},
            defaults=space.defaults,
            evaluations=tuple(evaluation(c, found[c].values) for c in found if c not in failed),
            confirmed=tuple(confirmed),
            failed=(*screened.failed, *failed.values()),
            pruned=dict(screened.pruned),
            declared=declared,
            library_gflops=library,
            seed=w.seed,
            budget=str(w.budget),
            workers=gpus.count,
        )


@dataclass
class _Screening:
    """Workers that look at a config only when it is asked for, many at a time if many are."""

    screen: Screen
    space: Space
    inner: Workers

    @property
    def count(self) -> int:
        return self.inner.count

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        while some := list(islice(jobs, 4 * (os.cpu_count() or 1))):
            screened = self.screen.look(self.space, [config for _, config in some])
            failed = {one.config: one for one in screened.failed}
            passed = set(screened.passed)
            for place, config in some:
                if config not in passed:
                    why = failed.get(config)
                    reason = why.reason if why else "excluded without a GPU"
                    yield place, Measured({}, why.code if why else "PRUNED", reason)
            yield from self.inner.results((place, config) for place, config in some if config in passed)


def _rank(measured: Measured, objective: str) -> float:
    value = measured.values.get(objective)
    if value is None:
        return float("inf")
    return -value if HIGHER[objective] else value


def _shown(measured: Measured, objective: str) -> str:
    value = measured.values.get(objective)
    return "unknown" if value is None else f"{value:,.6g} {objective}"


def _why(screened: Screened) -> str:
    reasons = Counter(screened.pruned)
    reasons.update(failed.reason for failed in screened.failed)
    return "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
