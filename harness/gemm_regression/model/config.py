"""The compile-time parameters of a kernel, and the space of those to search through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

# Names of a config's macros in a case id; macros with the same stem are joined with an x.
_LABELS = {"TILE_SIZE": "tile", "THREAD_TILE": "thread", "WARP_TILE": "warp", "PADDING": "pad"}


class Config(Mapping[str, int]):
    """The compile-time parameters of a kernel, each passed to nvcc as ``-D NAME=value``."""

    def __init__(self, **parameters: int) -> None:
        self._items = tuple(parameters.items())
        self._map = parameters

    def __getitem__(self, name: str) -> int:
        return self._map[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __hash__(self) -> int:
        return hash(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._items == other._items

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{k}={v}' for k, v in self._items)})"

    @property
    def label(self) -> str:
        """Short and stable: TILE_M=64, TILE_N=64, TILE_K=8, PADDING=1 is ``tile64x64x8-pad1``."""
        parts: dict[str, str] = {}
        for name, value in self._items:
            stem, _, axis = name.rpartition("_")
            stem = stem if axis in ("M", "N", "K", "X", "Y") else name
            word = _LABELS.get(stem, stem.lower().replace("_", ""))
            parts[word] = f"{parts[word]}x{value}" if word in parts else f"{word}{value}"
        return "-".join(parts.values())


Values = Mapping[str, int]


@dataclass(frozen=True)
class Rule:
    """A restriction: ``holds`` for the values of all axes, or else the config is left out for ``reason``."""

    reason: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """Configs to search through.

    ``axes``: every compile-time parameter with its values, in the order of the kernel's configs;
    ``rules``: restrictions besides the legality rules, which hold anyway; ``defaults``: the values of macros
    that the source defines itself and that a config therefore omits. Raises ValueError for an axis without
    values or with one twice, and for a default of no axis.
    """

    axes: Mapping[str, Sequence[int]]
    rules: tuple[Rule, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if not values or len(set(values)) != len(values):
                raise ValueError(
                    f"the axis {name} of a space has {'no value' if not values else 'one twice'}"
                )
        if strange := [name for name in self.defaults if name not in self.axes]:
            raise ValueError(f"the space has a default of {strange[0]}, which is not an axis")

    @property
    def size(self) -> int:
        """The number of combinations, without restrictions; 0 without axes."""
        return prod(map(len, self.axes.values())) if self.axes else 0

    def combinations(self) -> Iterator[dict[str, int]]:
        """All of them, the last axis running fastest."""
        for values in product(*self.axes.values()) if self.axes else ():
            yield dict(zip(self.axes, values, strict=True))

    def broken(self, values: Values) -> str:
        """The reason of the first rule that does not hold; empty if all hold."""
        return next((rule.reason for rule in self.rules if not rule.holds(values)), "")

    def config(self, values: Values) -> Config:
        """As a kernel declares it: an axis at its default is omitted."""
        return Config(**{n: v for n, v in values.items() if n not in self.defaults or self.defaults[n] != v})

    def values(self, config: Config) -> tuple[int, ...] | None:
        """A value for every axis; None for a config outside the space."""
        if not set(config) <= set(self.axes) or not set(self.axes) <= {*config, *self.defaults}:
            return None
        found = tuple(config.get(name, self.defaults.get(name, 0)) for name in self.axes)
        return found if all(v in self.axes[n] for n, v in zip(self.axes, found, strict=True)) else None

    def including(self, config: Config) -> Space:
        """The space with the values of a config outside it; itself if that has other parameters."""
        if not set(config) <= set(self.axes) or not set(self.axes) <= {*config, *self.defaults}:
            return self
        found = {name: config.get(name, self.defaults.get(name, 0)) for name in self.axes}
        axes = {name: sorted({*values, found[name]}) for name, values in self.axes.items()}
        return Space(axes, self.rules, self.defaults)

    def narrowed(self, chosen: Mapping[str, Iterable[int]]) -> Space:
        """With other values for some axes. Raises ValueError for an axis that is not there, or no value."""
        for name in chosen:
            if name not in self.axes:
                raise ValueError(f"no axis {name!r}; there are: {', '.join(self.axes)}")
        axes = {name: tuple(chosen.get(name, values)) for name, values in self.axes.items()}
        return Space(axes, self.rules, self.defaults)
