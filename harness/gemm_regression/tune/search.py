"""Kernel Tuner's strategies over a space of this suite, with this suite's devices as what evaluates.

`kernel_tuner.tune_kernel` is the one entry. Its backends cannot be replaced: `DeviceInterface` chooses among
those it knows by language, compiles and times in the process of the search, and a crash ends it. But a
strategy may be an object of the caller's, which is handed the space, the runner and the options: ours calls
the named strategy with a runner of ours (`runner.py`). Since the call says ``simulation_mode``, no device is
opened before.

Its parallel runner is not used: with kernel_tuner 1.5.0 `tune_kernel` gives it one worker whatever the
strategy (it looks for a module among names), it fails at the first result (a list as a key), and a lost
worker ends the run.
"""

from __future__ import annotations

import contextlib
import io
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm_regression.model import Config, Space
from gemm_regression.project.selection import unknown
from gemm_regression.tune.cachefile import CacheFile
from gemm_regression.tune.evaluating import Heard, Measured, Workers

HIGHER = {"gflops": True, "gflops_per_watt": True, "cycles": False, "instructions": False}


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


_OF_SEVERAL_OBJECTIVES = ("nsga2", "nsga3")


def strategies() -> tuple[str, ...]:
    """Kernel Tuner's names of those for one objective."""
    return tuple(
        name for name in _kernel_tuner().interface.strategy_map if name not in _OF_SEVERAL_OBJECTIVES
    )


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
    cache: CacheFile,
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
    cache.prepare()
    _kernel_tuner()
    from gemm_regression.tune.runner import OurRunner

    runner = OurRunner(space, workers, objective, found, heard)
    _tune(space, configs, cache, objective, _Strategy(strategy, runner), budget or Budget(), seed)


def simulated(
    space: Space,
    cache: CacheFile,
    objective: str,
    strategy: str,
    budget: Budget,
    seed: int,
) -> list[Config]:
    """Kernel Tuner's simulation: the configs that a strategy evaluates, in its order and each once, with the
    results of a cache file, which holds all of the space. Raises SearchError."""
    check_strategy(strategy)
    configs = [space.config({name: entry[name] for name in space.axes}) for entry in cache.entries.values()]
    visited = _tune(space, configs, cache, objective, _Strategy(strategy, None), budget, seed)
    return list(dict.fromkeys(space.config({n: int(one[n]) for n in space.axes}) for one in visited))


class _Strategy:
    """Kernel Tuner's strategy of this name as an object, which `tune_kernel` takes for one of the caller's;
    with ``runner`` in the place of Kernel Tuner's, unless it is None."""

    def __init__(self, name: str, runner: Any) -> None:
        self.name, self._runner = name, runner

    def tune(self, searchspace: Any, runner: Any, options: Any) -> Any:
        interface = _kernel_tuner().interface
        from gemm_regression.tune.runner import Replaying

        if self.name == "brute_force":  # refuses options that the budget has been made of already
            options.strategy_options = interface.Options({})
        found = interface.strategy_map[self.name].tune(
            searchspace, self._runner or Replaying(runner), options
        )
        return [result for result in found if result]  # None for what the budget did not allow


def _kernel_tuner() -> Any:
    try:
        import kernel_tuner.interface
        import kernel_tuner.util
    except ImportError as error:
        raise SearchError(
            f"Kernel Tuner is not usable here ({error}); install it with `pip install --group tune`"
        ) from None
    return kernel_tuner


def _tune(
    space: Space,
    configs: Sequence[Config],
    cache: CacheFile,
    objective: str,
    strategy: _Strategy,
    budget: Budget,
    seed: int | None,
) -> list[Mapping[str, Any]]:
    known = {values for config in configs if (values := space.values(config)) is not None}
    axes = {n: sorted({values[place] for values in known}) for place, n in enumerate(space.axes)}

    def there(values: Mapping[str, Any]) -> bool:
        return tuple(int(values[name]) for name in axes) in known

    options: dict[str, Any] = {"max_fevals": budget.evaluations} if budget.evaluations else {}
    if budget.seconds:
        options["time_limit"] = budget.seconds
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
    name = cache.head["kernel_name"]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            found, _ = _kernel_tuner().tune_kernel(
                name,
                name,
                cache.head["problem_size"],
                [],
                axes,
                restrictions=there,
                lang="CUDA",
                strategy=strategy,
                strategy_options=options,
                cache=str(cache.path),
                simulation_mode=True,
                objective=objective,
                objective_higher_is_better=HIGHER[objective],
                quiet=True,
                seed=seed,
            )
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            ImportError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            raise SearchError(
                f"the strategy {strategy.name} failed: {type(error).__name__}: {error}"
            ) from error
    return list(found)
