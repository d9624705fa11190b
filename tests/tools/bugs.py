"""The planted bugs of bugs.toml. This module needs NumPy alone: machines with a GPU may have no more."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ARCH = "sm_90a"
VARIANTS = ("bug", "twin")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Bug:
    """A kernel that is wrong if BUG is defined. ``name``: also that of the kernel. ``about``: the bug.
    ``says``: what ptxsan says of it, as bugs.toml explains. ``arguments``: ints, and texts for ``array``.
    ``numba``, ``gluon``: whether it is also written for Numba's simulator, and in Gluon for ConSan."""

    name: str
    file: str
    about: str
    grid: int
    block: int
    shared: int
    arguments: tuple[int | str, ...]
    says: str
    numba: bool
    gluon: bool

    @property
    def path(self) -> Path:
        return HERE / self.file


def array(text: str) -> Array | None:
    """The array of an argument: numbers 1 to 97, wide ones of 20 bits, zeros; None for an empty one."""
    kind, dtype, elements = text.split(":")
    i = np.arange(int(elements))
    if kind == "empty":
        return None
    return {"numbers": 1 + i * 7 % 97, "wide": i << 14, "zeros": 0 * i}[kind].astype(dtype)


def shape_of(text: str) -> tuple[int, np.dtype[Any]]:
    """Elements and dtype of an argument."""
    _, dtype, elements = text.split(":")
    return int(elements), np.dtype(dtype)


def _load() -> tuple[Bug, ...]:
    read = tomllib.loads((HERE / "bugs.toml").read_text(encoding="utf-8"))
    rows = [read["defaults"] | row for row in read["bug"]]
    return tuple(Bug(**row | {"arguments": tuple(row["arguments"])}) for row in rows)


BUGS = _load()
