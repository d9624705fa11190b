"""The compile-time parameters of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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
