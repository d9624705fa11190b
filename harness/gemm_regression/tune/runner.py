"""A runner for Kernel Tuner's strategies: evaluates with this suite's devices, and keeps the cache file.

Imports Kernel Tuner, so it is itself imported only for a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kernel_tuner import util
from kernel_tuner.interface import Options
from kernel_tuner.runners.runner import Runner

from gemm_regression.model import Config, Space
from gemm_regression.tune.cachefile import key_of
from gemm_regression.tune.evaluating import Heard, Job, Measured, Workers

Entry = dict[str, Any]
_MOST_REPEATS = 1000


class Repeats:
    """Ends a strategy that only comes back to configs that it knows, which no budget does."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, known: bool) -> bool:
        """Whether a config is new. Raises Kernel Tuner's StopCriterionReached."""
        self._count = self._count + 1 if known else 0
        if self._count > _MOST_REPEATS:
            raise util.StopCriterionReached("only configs that are known")
        return not known


class Replaying:
    """Kernel Tuner's runner for simulations, with an end to repeats."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._seen, self._repeats = inner, set[tuple[Any, ...]](), Repeats()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, parameter_space: Iterable[Sequence[Any]], options: Any) -> Any:
        asked = [tuple(values) for values in parameter_space]
        for values in asked:
            if self._repeats(values in self._seen):
                self._seen.add(values)
        return self._inner.run(asked, options)


class OurRunner(Runner):  # type: ignore[misc]
    """``seen`` is filled with every config that the strategy asks for, and its result."""

    def __init__(
        self, space: Space, workers: Workers, objective: str, seen: dict[Config, Measured], heard: Heard
    ) -> None:
        super().__init__()
        self._space, self._workers, self._objective, self._heard = space, workers, objective, heard
        self.seen = seen
        self._repeats = Repeats()

        self.dev = Options({"name": "", "max_threads": 1 << 30})  # the legality rules know the limits

    def get_device_info(self) -> Any:
        return self.dev

    def get_environment(self, options: Any) -> dict[str, Any]:
        return {}

    def available_parallelism(self) -> int:
        return self._workers.count

    def run(self, parameter_space: Iterable[Sequence[Any]], options: Any) -> list[Entry | None]:
        """The results of these configs, None for those that the budget did not allow."""
        asked = [tuple(map(int, values)) for values in parameter_space]
        places: dict[str, list[int]] = {}
        for place, values in enumerate(asked):
            places.setdefault(key_of(values), []).append(place)
        results: list[Entry | None] = [None] * len(asked)

        def take(key: str, entry: Entry) -> None:
            for place in places[key]:
                results[place] = self._result(entry)

        for place, measured in self._workers.results(self._jobs(asked, places, options, take)):
            key, named = key_of(asked[place]), self._named(asked[place])
            entry = {**named, **measured.as_dict()}
            util.store_cache(key, self._result(entry), options.cachefile, options.cache)
            config = self._space.config(named)
            self.seen[config] = measured
            take(key, entry)
            self._heard(config, measured)
        return results

    def _jobs(
        self, asked: Sequence[Sequence[int]], places: dict[str, list[int]], options: Any, take: Any
    ) -> Iterator[Job]:
        """Those that are not in the cache file, as long as the budget lasts."""
        for key, (place, *_) in places.items():
            if options.budget.is_done():
                return
            config = self._space.config(self._named(asked[place]))
            self._count(config, options.budget)
            if key in options.cache:
                self.seen[config] = Measured.of(options.cache[key])
                take(key, options.cache[key])
            else:
                yield place, config

    def _count(self, config: Config, budget: Any) -> None:
        """Counts a config once. Ends a strategy that only comes back to what it knows."""
        if self._repeats(config in self.seen):
            budget.add_evaluations(1)

    def _named(self, values: Sequence[int]) -> dict[str, int]:
        return dict(zip(self._space.axes, values, strict=True))

    def _result(self, entry: Entry) -> Entry:
        """As strategies want it: a failure is an object of Kernel Tuner's, and has no objective."""
        if self._objective in entry:
            return dict(entry)
        compiler = entry.get("code") == "COMPILE_ERROR"
        return {
            **entry,
            "__error__": util.CompilationFailedConfig() if compiler else util.RuntimeFailedConfig(),
        }
