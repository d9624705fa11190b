"""Tuning a kernel: legal configs, what can be excluded without a GPU, the search, the best measured again."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.baselines.records import machine_of
from gemm_regression.compiler.nvcc import unit_of
from gemm_regression.devices import compile_ahead
from gemm_regression.files import write_whole
from gemm_regression.model import Case, CaseId, Config, DType, Kernel, Problem, Space
from gemm_regression.tune.evaluating import Gpus, Screen, Screened
from gemm_regression.tune.search import Budget, Evaluate, Search
from gemm_regression.tune.stored import OBJECTIVES, Evaluation, Failed, Result, Tuned, TuneError

FINALISTS = 3  # of the best, measured again: the best of many short timings is one that was lucky, too
AHEAD = 1200  # so many configs are compiled before the search, of a larger space those that are asked for

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
        results: of every config that the strategy asked for, the best first.
        screened: what was excluded before.
        cache: its cache file.
        resumed: results that the cache file had.
        stopped: whether Ctrl-C ended the search.
    """

    tuned: Tuned | None
    results: Sequence[Result]
    screened: Screened
    cache: Cache
    resumed: int
    stopped: bool


class Tuning:
    """Tunes a kernel on one problem after another; a config is compiled and screened once for all of them."""

    def __init__(
        self, wanted: Wanted, gpus: Gpus, progress: Progress = lambda *_: nullcontext(lambda what: None)
    ) -> None:
        self._wanted, self._gpus, self._progress = wanted, gpus, progress
        w = wanted
        self._screen = Screen(w.root, w.kernel, w.dtype, w.space, gpus.capability, w.hazards)

    def tune(self, problem: Problem) -> Outcome:
        """Raises TuneError. Ctrl-C ends the search; what was evaluated until then is in the outcome."""
        w, gpus = self._wanted, self._gpus
        configs, refused = self._screen.legal(problem)
        cache = self._cache(problem, configs[0])
        resumed = len(cache.results)
        title = f"{w.kernel.name} {problem.id}"
        evaluate: Evaluate = self._as_asked
        screened = Screened(configs)
        if len(configs) <= AHEAD:
            evaluate = gpus.results
            with self._progress(f"{title}: {len(configs)} configs without a GPU", 2 + w.hazards) as step:
                screened = self._screen.look(configs, step)
                if gpus.machine:
                    cases = [Case(w.kernel, w.dtype, config, problem) for config in screened.passed]
                    compile_ahead(cases, gpus.capability)
                step("compiled for the GPU" if gpus.machine else "done")
        screened.pruned.update(refused)
        if not screened.passed:
            reasons = screened.pruned + Counter(failed.reason for failed in screened.failed)
            why = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common(3))
            raise TuneError(f"{title}: nothing is left to time of {len(configs)} configs: {why}")
        gpus.begin(problem)
        began, stopped = time.monotonic(), False
        most = min(len(screened.passed), w.budget.evaluations or len(screened.passed))
        with self._progress(f"{title}: {w.strategy}", most) as step:

            def heard(result: Result) -> None:
                cache.add(result)
                step(f"{result.config.label}: {_shown(result, w.objective)}")

            search = Search(w.space, screened.passed, w.objective, evaluate, cache.results, heard)
            try:
                search.run(w.strategy, w.budget, w.seed)
            except KeyboardInterrupt:
                stopped = True
        seconds = time.monotonic() - began
        results = list(search.found.values())
        tuned = None
        if gpus.machine and not stopped:
            tuned = self._tuned(problem, results, screened, seconds)
        return Outcome(tuned, _ranked(results, w.objective), screened, cache, resumed, stopped)

    def _as_asked(self, configs: Iterator[Config]) -> Iterator[Result]:
        """Looks at a config only when it is asked for, many at a time if many are."""
        while some := list(islice(configs, 4 * (os.cpu_count() or 1))):
            screened = self._screen.look(some)
            left = {config: Failed(config, "PRUNED", "excluded without a GPU") for config in some}
            left |= {one.config: one for one in screened.failed}
            yield from (left[config] for config in some if config not in screened.passed)
            yield from self._gpus.results(iter(screened.passed))

    def _cache(self, problem: Problem, config: Config) -> Cache:
        w = self._wanted
        name = CaseId(w.kernel.name, w.dtype.name).variant
        file = w.caches
        if file.suffix != ".json":
            file = file / f"{gpu_slug(self._gpus.device_name)}-{name}-{problem.id}.json"
        sources = str(unit_of(w.kernel, config, w.dtype).sources.key)
        head = {
            "kernel": name,
            "GPU": self._gpus.device_name,
            "problem": problem.id,
            "compiler": nvcc_version(),
            "version of the kernel's source": hashlib.sha256(sources.encode()).hexdigest()[:16],
        }
        if w.fresh:
            file.unlink(missing_ok=True)
        return Cache(file, head)

    def _tuned(
        self, problem: Problem, results: Iterable[Result], screened: Screened, seconds: float
    ) -> Tuned:
        w, gpus = self._wanted, self._gpus
        found = {one.config: one for one in results}
        timed = [one for one in _ranked(found.values(), w.objective) if isinstance(one, Evaluation)]
        declared = w.kernel.configs[0]
        within = w.space.including(declared).values(declared) is not None
        again = dict.fromkeys([*(one.config for one in timed[:FINALISTS]), *[declared] * within])
        with self._progress(f"{w.kernel.name} {problem.id}: the best again", 1) as step:
            confirmed, library = gpus.confirmed(list(again))
            found |= {one.config: one for one in confirmed if isinstance(one, Failed) and one.config in found}
            best = tuple(one for one in confirmed if isinstance(one, Evaluation))
            step(f"{len(best)} confirmed")
        return Tuned(
            gpu=gpu_slug(gpus.machine["name"]),
            machine_info=machine_of({"machine_info": gpus.machine}),
            commit_info=w.commit,
            datetime=datetime.now(UTC).isoformat(timespec="seconds"),
            kernel=w.kernel.name,
            dtype=w.dtype.name,
            problem=problem.id,
            flop=w.kernel.operation.flop(problem),
            objective=next(name for name in OBJECTIVES if name == w.objective),
            strategy=w.strategy,
            seconds=seconds,
            axes={name: tuple(values) for name, values in w.space.including(declared).axes.items()},
            defaults=w.space.defaults,
            evaluations=tuple(one for one in found.values() if isinstance(one, Evaluation)),
            confirmed=best,
            failed=(*screened.failed, *(one for one in found.values() if isinstance(one, Failed))),
            pruned=screened.pruned,
            declared=declared if within else None,
            library_gflops=library,
            seed=w.seed,
            budget=str(w.budget),
            workers=gpus.count,
        )


def _ranked(results: Iterable[Result], objective: str) -> list[Result]:
    """The best first, what failed last."""

    def score(result: Result) -> float:
        found = result.score(objective) if isinstance(result, Evaluation) else None
        return float("-inf") if found is None else found

    return sorted(results, key=score, reverse=True)


def _shown(result: Result, objective: str) -> str:
    if isinstance(result, Failed):
        return result.code
    score = result.score(objective)
    return "unknown" if score is None else f"{abs(score):,.6g} {objective}"


class Cache:
    """The results of a search, a line of JSON each: every one is on disk before the next begins, and a search
    that was stopped goes on from them. The first line is the ``head``, what they belong to.

    Raises TuneError for a file of another kernel, GPU, problem, compiler or source, and for a damaged one;
    the file stays as it is. A last line that is ``torn`` is dropped.
    """

    def __init__(self, path: Path, head: Mapping[str, str]) -> None:
        self.path, self.torn = path, False
        self.results: dict[Config, Result] = {}
        remedy = "remove it, or begin anew with --fresh"
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, json.dumps(head) + "\n")
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "not UTF-8"
            raise TuneError(f"{path}: cannot be read or written ({why}); {remedy}") from None
        theirs = _parsed(lines[0]) if lines else None
        if theirs is None or set(theirs) != set(head):
            raise TuneError(f"{path}: no cache file of this suite, or its first line is damaged; {remedy}")
        for what, ours in head.items():
            if theirs[what] != ours:
                raise TuneError(
                    f"{path}: the cache of another {what}: {theirs[what]}, not {ours}; "
                    "name another with --cache, or begin anew with --fresh"
                )
        for number, line in enumerate(lines[1:], 2):
            try:
                record = _parsed(line) or {}
                config = Config(**record.pop("config"))
                kind = Failed if "code" in record else Evaluation
                self.results[config] = kind(config, **record)
            except (KeyError, TypeError):
                if number < len(lines):
                    why = f"line {number} is damaged; remove that line, or {remedy}"
                    raise TuneError(f"{path}: {why}") from None
                self.torn = True
                write_whole(path, "".join(lines[:-1]))

    def add(self, result: Result) -> None:
        """One more line, written at once."""
        self.results[result.config] = result
        record = asdict(result) | {"config": dict(result.config)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _parsed(line: str) -> dict[str, Any] | None:
    """The object in a line; None if it is damaged."""
    try:
        found = json.loads(line) if line.endswith("\n") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
