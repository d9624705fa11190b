"""Kernel Tuner's strategies over a space of this suite, with this suite's devices as what evaluates.

The strategies are called directly, each with a search space of Kernel Tuner's and a runner of ours: its own
devices compile and time in the process of the search, and a crash ends it. `replay` compares strategies on a
stored space: how many evaluations each needs to come near the best.
"""

from __future__ import annotations

import contextlib
import io
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from gemm_regression.model import Config, Space
from gemm_regression.project.selection import unknown
from gemm_regression.tune.cachefile import CacheFile, key_of
from gemm_regression.tune.evaluating import Heard, Job, Measured, Workers
from gemm_regression.tune.stored import Evaluation, Tuned

HIGHER = {"gflops": True, "gflops_per_watt": True, "cycles": False, "instructions": False}
_OF_SEVERAL_OBJECTIVES = ("nsga2", "nsga3")
_MOST_REPEATS = 1000  # of configs that are known, which no budget counts


class SearchError(ValueError):
    """A search that cannot begin; one line with what to do."""


@dataclass(frozen=True)
class Budget:
    """``seconds`` or ``evaluations``, or neither."""

    seconds: float | None = None
    evaluations: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``300s``, or a number of evaluations. Raises SearchError."""
        number = text.removesuffix("s")
        try:
            if number != text and float(number) > 0:
                return cls(seconds=float(number))
            if number == text and int(number) > 0:
                return cls(evaluations=int(number))
        except ValueError:
            pass
        raise SearchError(f"--budget {text}: must be seconds such as 300s, or evaluations such as 200")

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:g} s"
        return "" if self.evaluations is None else f"{self.evaluations} evaluations"


def _kernel_tuner() -> Any:
    """Kernel Tuner, which is large, so that it is imported late. Raises SearchError."""
    try:
        import kernel_tuner.interface
        import kernel_tuner.searchspace
        import kernel_tuner.util
    except ImportError as error:
        raise SearchError(
            f"Kernel Tuner is not usable here ({error}); install it with `pip install --group tune`"
        ) from None
    return kernel_tuner


def strategies() -> tuple[str, ...]:
    """Kernel Tuner's names of those for one objective."""
    known = _kernel_tuner().interface.strategy_map
    return tuple(name for name in known if name not in _OF_SEVERAL_OBJECTIVES)


def check_strategy(name: str) -> None:
    """Raises SearchError for a strategy that does not exist, or needs a package that is not there."""
    if name not in strategies():
        raise SearchError(str(unknown("strategy", name, sorted(strategies()))))
    try:
        _ = _kernel_tuner().interface.strategy_map[name].tune
    except (ImportError, AttributeError) as error:
        raise SearchError(f"the strategy {name} cannot be used here: {error}") from None


def search(
    space: Space,
    configs: Sequence[Config],
    workers: Workers,
    cache: CacheFile | None,
    found: dict[Config, Measured],
    objective: str,
    strategy: str = "brute_force",
    budget: Budget | None = None,
    seed: int | None = None,
    heard: Heard = lambda config, measured: None,
) -> None:
    """Fills ``found`` with what the strategy asks for, in its order, also what the cache file knows. Each
    result is in the file before ``heard`` is told of it: KeyboardInterrupt, which passes through, loses none.

    Raises SearchError for a strategy that cannot be used or that fails.
    """
    check_strategy(strategy)
    began, kernel_tuner = time.perf_counter(), _kernel_tuner()
    limit = budget or Budget()
    if cache:
        cache.prepare()
    known = {values for config in configs if (values := space.values(config)) is not None}
    axes = {name: sorted({values[place] for values in known}) for place, name in enumerate(space.axes)}

    def there(values: Mapping[str, Any]) -> bool:
        return tuple(int(values[name]) for name in axes) in known

    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
    runner = _Runner(space, workers, cache, objective, found, heard)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        searched = kernel_tuner.searchspace.Searchspace(axes, there, runner.dev.max_threads)
        seconds = limit.seconds and limit.seconds - (time.perf_counter() - began)
        if seconds is not None and seconds <= 0:
            raise SearchError(f"the strategy {strategy} has exceeded the time limit before it began")
        options = kernel_tuner.interface.Options(
            tune_params=axes,
            restrictions=there,
            restrictions_unmodified=there,
            objective=[objective],
            objective_higher_is_better=[HIGHER[objective]],
            verbose=False,
            seed=seed,
            strategy=strategy,
            budget=kernel_tuner.util.TuningBudget(
                seconds, min(limit.evaluations or searched.size, searched.size)
            ),
        )
        given = {"max_fevals": limit.evaluations, "time_limit": seconds}
        given = {name: value for name, value in given.items() if value}
        options |= given
        # Brute force refuses them; the runner keeps to the budget for every strategy.
        options["strategy_options"] = kernel_tuner.interface.Options(
            given if strategy != "brute_force" else {}
        )
        try:
            kernel_tuner.interface.strategy_map[strategy].tune(searched, runner, options)
        except Exception as error:  # of whatever library the strategy is made of
            raise SearchError(f"the strategy {strategy} failed: {type(error).__name__}: {error}") from error


class _Runner:
    """What strategies call to evaluate configs. ``found`` is filled with every config that is asked for, and
    its result. Ends a strategy that only comes back to configs that it knows, which no budget does."""

    dev = SimpleNamespace(max_threads=1 << 30)  # the legality rules know the limits

    def __init__(
        self,
        space: Space,
        workers: Workers,
        cache: CacheFile | None,
        objective: str,
        found: dict[Config, Measured],
        heard: Heard,
    ) -> None:
        self._space, self._workers, self._cache, self._objective = space, workers, cache, objective
        self._found, self._heard, self._repeats = found, heard, 0

    def add_strategy_time(self, seconds: float) -> None:
        """Called by strategies; nothing is made of it."""

    def run(self, parameter_space: Iterable[Sequence[Any]], options: Any) -> list[dict[str, Any] | None]:
        """The results of these configs, None for those that the budget did not allow."""
        asked = [tuple(map(int, values)) for values in parameter_space]
        results: dict[tuple[int, ...], dict[str, Any]] = {}
        for place, measured in self._workers.results(self._jobs(asked, results, options.budget)):
            values = asked[place]
            config = self._space.config(self._named(values))
            if self._cache:
                self._cache.add(values, measured)
            self._found[config] = measured
            results[values] = self._result(values, measured)
            self._heard(config, measured)
        return [dict(results[values]) if values in results else None for values in asked]

    def _jobs(
        self, asked: Sequence[tuple[int, ...]], results: dict[tuple[int, ...], dict[str, Any]], budget: Any
    ) -> Iterator[Job]:
        """Those whose result is not known, as long as the budget lasts."""
        for values in dict.fromkeys(asked):
            if budget.is_done():
                return
            config = self._space.config(self._named(values))
            self._repeats = self._repeats + 1 if config in self._found else 0
            if self._repeats > _MOST_REPEATS:
                raise _kernel_tuner().util.StopCriterionReached("only configs that are known")
            if config not in self._found:
                budget.add_evaluations(1)
            entry = self._cache.entries.get(key_of(values)) if self._cache else None
            known = Measured.of(entry) if entry else self._found.get(config)
            if known:
                self._found[config] = known
                results[values] = self._result(values, known)
            else:
                yield asked.index(values), config

    def _named(self, values: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._space.axes, values, strict=True))

    def _result(self, values: Sequence[int], measured: Measured) -> dict[str, Any]:
        """As strategies want it: a failure is an object of Kernel Tuner's, and has no objective."""
        entry = {**self._named(values), **measured.as_dict()}
        if self._objective in entry:
            return entry
        util = _kernel_tuner().util
        compiler = measured.code == "COMPILE_ERROR"
        return {
            **entry,
            "__error__": util.CompilationFailedConfig() if compiler else util.RuntimeFailedConfig(),
        }


# Replaying

NEAR = (0.95, 0.99)
BUDGET = Budget(evaluations=200)
# Those that need nothing but Kernel Tuner's own dependencies, and end in seconds.
COMPARED = (
    "random_sample",
    "greedy_ils",
    "greedy_mls",
    "genetic_algorithm",
    "diff_evo",
    "pso",
    "simulated_annealing",
    "bayes_opt",
    "adaptive_tabu_greywolf",
)


@dataclass(frozen=True)
class Replayed:
    """A strategy over several seeds.

    Attributes:
        strategy: its name.
        reached: for each share of `NEAR`, the evaluations of each seed; None where its budget was too small.
        ends: the share of the best that each seed ended at.
    """

    strategy: str
    reached: tuple[tuple[int | None, ...], ...]
    ends: tuple[float, ...]

    def median(self, near: int) -> float | None:
        """Median evaluations to a share of `NEAR`; None if fewer than half of the seeds reached it."""
        found = sorted(n if n is not None else float("inf") for n in self.reached[near])
        middle = statistics.median_low(found)
        return None if middle == float("inf") else middle


def replay(
    tuned: Tuned,
    strategies: Sequence[str],
    seeds: Sequence[int],
    budget: Budget,
    step: Callable[[str], None] = lambda what: None,
) -> list[Replayed]:
    """What each strategy would have found in a stored space. Raises SearchError for a strategy that cannot be
    used, and for a space without evaluations."""
    if tuned.best is None:
        raise SearchError(f"{tuned.name}: no config was timed, so there is nothing to replay")
    space = Space(tuned.axes, (), tuned.defaults or {})
    scores = {one.config: _speed(one.score(tuned.objective)) for one in tuned.evaluations}
    best = max(scores.values())
    budget = Budget(None, min(budget.evaluations or len(scores), len(scores) + len(tuned.failed)))
    found = []
    stored = _Stored(tuned)
    for strategy in strategies:
        curves = []
        for seed in seeds:
            visited: dict[Config, Measured] = {}
            search(space, list(stored.known), stored, None, visited, tuned.objective, strategy, budget, seed)
            curves.append([scores.get(config, 0.0) / best for config in visited])
            step(f"{strategy}, seed {seed}")
        reached = tuple(tuple(_first(curve, near) for curve in curves) for near in NEAR)
        found.append(Replayed(strategy, reached, tuple(max(curve, default=0.0) for curve in curves)))
    return sorted(found, key=lambda one: [one.median(i) or float("inf") for i in reversed(range(len(NEAR)))])


def _speed(score: float | None) -> float:
    """A score as a speed: cycles, which score below zero, by their inverse."""
    if score is None:
        return 0.0
    return score if score > 0 else -1 / score


def _first(curve: Sequence[float], near: float) -> int | None:
    return next((count for count, share in enumerate(curve, 1) if share >= near), None)


class _Stored:
    """A worker that gives what is stored of a space; what could not be timed is in it too, as such."""

    count = 1

    def __init__(self, tuned: Tuned) -> None:
        self.known = {one.config: Measured(_values(one)) for one in tuned.evaluations}
        self.known |= {one.config: Measured({}, one.code, one.reason) for one in tuned.failed}

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        for place, config in jobs:
            yield place, self.known[config]


def _values(one: Evaluation) -> dict[str, float]:
    values = {
        "time": 1e3 * one.seconds,
        "gflops": one.gflops,
        "cycles": one.cycles,
        "gflops_per_watt": one.score("gflops_per_watt"),
    }
    return {name: value for name, value in values.items() if value is not None}
