"""Strategies compared on a stored space: how many evaluations each needs to come near the best."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.model import Space
from gemm_regression.tune.cachefile import CacheFile, head, key_of
from gemm_regression.tune.evaluating import Measured
from gemm_regression.tune.search import Budget, SearchError, simulated
from gemm_regression.tune.stored import Tuned

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
    with tempfile.TemporaryDirectory(prefix="gemm-") as folder:
        cache = _as_cache(tuned, space, Path(folder, "space.json"))
        for strategy in strategies:
            curves = []
            for seed in seeds:
                visited = simulated(space, cache, tuned.objective, strategy, budget, seed)
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


def _as_cache(tuned: Tuned, space: Space, path: Path) -> CacheFile:
    """Kernel Tuner's cache file of a stored space; what could not be timed is in it too, as such."""
    nvcc = str(tuned.machine_info.get("nvcc", ""))
    cache = CacheFile(path, head(tuned.gpu, tuned.kernel, tuned.problem, tuned.axes, nvcc, ""))
    for one in tuned.evaluations:
        values = {
            "time": 1e3 * one.seconds,
            "gflops": one.gflops,
            "cycles": one.cycles,
            "gflops_per_watt": one.score("gflops_per_watt"),
        }
        measured = Measured({name: value for name, value in values.items() if value is not None})
        _add(cache, space.values(one.config), measured)
    for failed in tuned.failed:
        _add(cache, space.values(failed.config), Measured({}, failed.code, failed.reason))
    cache.prepare()
    return cache


def _add(cache: CacheFile, values: Sequence[int] | None, measured: Measured) -> None:
    assert values is not None
    entry = {**dict(zip(cache.head["tune_params_keys"], values, strict=True)), **measured.as_dict()}
    if measured.code:
        entry["__error__"] = "RuntimeFailedConfig"
    cache.entries[key_of(values)] = entry
