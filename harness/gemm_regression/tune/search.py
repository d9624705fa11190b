"""Kernel Tuner's strategies over a space of this suite, with this suite's devices as what evaluates.

The strategies are called directly, each with a search space of Kernel Tuner's and a runner of ours: its own
devices compile and time in the process of the search, and a crash ends it. `replay` compares strategies on a
stored space: how many evaluations each needs to come near the best.
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from gemm_regression.hints import install
from gemm_regression.model import Config, Space
from gemm_regression.project.selection import unknown
from gemm_regression.tune.stored import Result, Tuned, TuneError

_OF_SEVERAL_OBJECTIVES = ("nsga2", "nsga3")
_MOST_REPEATS = 1000  # of configs that are known, which no budget counts
_BUDGET = re.compile(r"(\d*\.?\d+)s|(\d+)")  # seconds, or evaluations

Evaluate = Callable[[Iterator[Config]], Iterable[Result]]  # takes a config only when a device is free


@dataclass(frozen=True)
class Budget:
    """``seconds`` or ``evaluations``, or neither."""

    seconds: float | None = None
    evaluations: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``300s``, or a number of evaluations. Raises TuneError."""
        if found := _BUDGET.fullmatch(text):
            budget = cls(float(found[1] or 0) or None, int(found[2] or 0) or None)
            if budget != cls():
                return budget
        raise TuneError(f"--budget {text}: must be seconds such as 300s, or evaluations such as 200")

    def __str__(self) -> str:
        if self.seconds is not None:
            return f"{self.seconds:g} s"
        return "" if self.evaluations is None else f"{self.evaluations} evaluations"


def _kernel_tuner() -> Any:
    """Kernel Tuner, which is large, so that it is imported late. Raises TuneError."""
    try:
        import kernel_tuner.interface  # which imports what else is called here
    except ImportError as error:
        raise TuneError(
            f"Kernel Tuner is not usable here ({error}); install it with `{install('tune')}`"
        ) from None
    return kernel_tuner


def strategies() -> tuple[str, ...]:
    """Kernel Tuner's names of those for one objective."""
    known = _kernel_tuner().interface.strategy_map
    return tuple(name for name in known if name not in _OF_SEVERAL_OBJECTIVES)


def check_strategy(name: str) -> None:
    """Raises TuneError for a strategy that does not exist, or needs a package that is not there."""
    if name not in strategies():
        raise TuneError(str(unknown("strategy", name, sorted(strategies()))))
    try:
        _ = _kernel_tuner().interface.strategy_map[name].tune
    except (ImportError, AttributeError) as error:
        raise TuneError(f"the strategy {name} cannot be used here: {error}") from None


@dataclass
class Search:
    """A strategy that looks for the highest score among these configs of a space.

    Attributes:
        evaluate: the results of configs, in the order in which they end.
        known: results from before, which cost no evaluation.
        heard: called with each result of ``evaluate`` before anything else is done with it.
        found: what the strategy asked for, in its order, also what was known; filled by ``run``.
    """

    space: Space
    configs: Sequence[Config]
    objective: str
    evaluate: Evaluate
    known: Mapping[Config, Result]
    heard: Callable[[Result], None] = lambda result: None
    found: dict[Config, Result] = field(default_factory=dict)
    _repeats: int = 0

    def run(self, strategy: str = "brute_force", budget: Budget | None = None, seed: int | None = 1) -> None:
        """Raises TuneError for a strategy that cannot be used or that fails. KeyboardInterrupt passes."""
        check_strategy(strategy)
        began, kernel_tuner, limit = time.perf_counter(), _kernel_tuner(), budget or Budget()
        there = {values for config in self.configs if (values := self.space.values(config)) is not None}
        axes = {name: sorted({values[i] for values in there}) for i, name in enumerate(self.space.axes)}

        def legal(values: Mapping[str, Any]) -> bool:
            return tuple(int(values[name]) for name in axes) in there

        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
        runner = SimpleNamespace(
            run=self._results,
            add_strategy_time=lambda seconds: None,
            dev=SimpleNamespace(max_threads=1 << 30),  # the legality rules know the limits
        )
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            space = kernel_tuner.searchspace.Searchspace(axes, legal, runner.dev.max_threads)
            seconds = limit.seconds and limit.seconds - (time.perf_counter() - began)
            if seconds is not None and seconds <= 0:
                raise TuneError(f"the strategy {strategy} has exceeded the time limit before it began")
            most = min(limit.evaluations or space.size, space.size)
            given = {"max_fevals": limit.evaluations, "time_limit": seconds}
            given = {name: value for name, value in given.items() if value}
            options = kernel_tuner.interface.Options(
                tune_params=axes,
                restrictions=legal,
                restrictions_unmodified=legal,
                objective=["score"],
                objective_higher_is_better=[True],
                verbose=False,
                seed=seed,
                strategy=strategy,
                budget=kernel_tuner.util.TuningBudget(seconds, most),
                # Brute force refuses them; the runner keeps to the budget for every strategy.
                strategy_options=kernel_tuner.interface.Options(given if strategy != "brute_force" else {}),
                **given,
            )
            try:
                kernel_tuner.interface.strategy_map[strategy].tune(space, runner, options)
            except Exception as error:  # of whatever library the strategy is made of
                raise TuneError(f"the strategy {strategy} failed: {type(error).__name__}: {error}") from error

    def _results(self, asked: Iterable[Sequence[Any]], options: Any) -> list[dict[str, Any] | None]:
        """As strategies want them; None for those that the budget did not allow."""
        named = [dict(zip(self.space.axes, map(int, values), strict=True)) for values in asked]
        configs = [self.space.config(values) for values in named]
        for result in self.evaluate(self._unknown(configs, options.budget)):
            self.heard(result)
            self.found[result.config] = result
        return [
            values | self._told(self.found[config]) if config in self.found else None
            for values, config in zip(named, configs, strict=True)
        ]

    def _unknown(self, configs: Iterable[Config], budget: Any) -> Iterator[Config]:
        """Those to evaluate, as long as the budget lasts. Ends a strategy that only comes back to configs
        that it knows, which no budget does."""
        for config in dict.fromkeys(configs):
            if budget.is_done():
                return
            self._repeats = self._repeats + 1 if config in self.found else 0
            if self._repeats > _MOST_REPEATS:
                raise _kernel_tuner().util.StopCriterionReached("only configs that are known")
            if config not in self.found:
                budget.add_evaluations(1)
                if config in self.known:
                    self.found[config] = self.known[config]
                else:
                    yield config

    def _told(self, result: Result) -> dict[str, Any]:
        score = result.score(self.objective)
        if score is None:
            return {"__error__": _kernel_tuner().util.RuntimeFailedConfig()}
        return {"score": score}


# Replaying

NEAR = (0.95, 0.99)
BUDGET = Budget(evaluations=200)
# Those that need nothing but Kernel Tuner's own dependencies, and end in seconds.
COMPARED = (
    *("random_sample", "greedy_ils", "greedy_mls", "genetic_algorithm", "diff_evo", "pso"),
    *("simulated_annealing", "bayes_opt", "adaptive_tabu_greywolf"),
)


@dataclass(frozen=True)
class Replayed:
    """A strategy over several seeds.

    Attributes:
        strategy: its name.
        reached: for each share of `NEAR`, the evaluations of each seed; None where its budget was too small.
        ends: the share of the best that each seed ended at.
        failures: why the strategy itself failed, of each seed with which it did; it is judged by what it had
            found before.
    """

    strategy: str
    reached: tuple[tuple[int | None, ...], ...]
    ends: tuple[float, ...]
    failures: tuple[str, ...] = ()

    def median(self, near: int) -> float | None:
        """Median evaluations to a share of `NEAR`; None if fewer than half of the seeds reached it."""
        middle = statistics.median_low(n if n is not None else float("inf") for n in self.reached[near])
        return None if middle == float("inf") else middle


def replay(
    tuned: Tuned,
    strategies: Sequence[str],
    seeds: Sequence[int],
    budget: Budget,
    step: Callable[[str], None] = lambda what: None,
) -> list[Replayed]:
    """What each strategy would have found in a stored space. Raises TuneError for a strategy that cannot be
    used, and for a space without evaluations."""
    if tuned.best is None:
        raise TuneError(f"{tuned.name}: no config was timed, so there is nothing to replay")
    every: tuple[Result, ...] = (*tuned.evaluations, *tuned.failed)
    known = {one.config: one for one in every}
    speeds = {config: _speed(one.score(tuned.objective)) for config, one in known.items()}
    best = max(speeds.values())
    budget = Budget(None, min(budget.evaluations or len(tuned.evaluations), len(known)))
    found = []
    for strategy in strategies:
        check_strategy(strategy)
        curves, failures = [], []
        for seed in seeds:
            search = Search(tuned.space, list(known), tuned.objective, partial(map, known.__getitem__), {})
            try:
                search.run(strategy, budget, seed)
            except TuneError as error:
                failures.append(str(error))
            curves.append([speeds[config] / best for config in search.found])
            step(f"{strategy}, seed {seed}")
        reached = tuple(tuple(_first(curve, near) for curve in curves) for near in NEAR)
        ends = tuple(max(curve, default=0.0) for curve in curves)
        found.append(Replayed(strategy, reached, ends, tuple(failures)))
    return sorted(found, key=lambda one: [one.median(i) or float("inf") for i in reversed(range(len(NEAR)))])


def _speed(score: float | None) -> float:
    """A score as a speed: cycles, which score below zero, by their inverse."""
    if score is None:
        return 0.0
    return score if score > 0 else -1 / score


def _first(curve: Sequence[float], near: float) -> int | None:
    return next((count for count, share in enumerate(curve, 1) if share >= near), None)
