"""A declared kernel: its source, its configs, and how a problem becomes a launch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.model.config import Config
from harness.model.dtype import DType
from harness.model.problem import Problem

KERNELS_DIR = Path(__file__).resolve().parents[2] / "kernels"


@dataclass(frozen=True)
class BlockShape:
    """What one block of threads does, as the declaration says and the legality rules check.

    ``threads`` (x, y) of a block; ``tile`` rows and columns of C a block makes; ``thread_tile`` the
    part of it one thread holds (for a warp-wide kernel, its warp's tile over 32 threads does not
    apply: None); ``shared_bytes`` static and dynamic shared memory of a block; ``dynamic`` whether
    that memory is asked for at launch; ``vectors`` (what, row stride in elements, vector width in
    elements) for every vector access into shared memory.
    """

    threads: tuple[int, int]
    tile: tuple[int, int]
    thread_tile: tuple[int, int] | None = None
    shared_bytes: int = 0
    dynamic: bool = False
    vectors: tuple[tuple[str, int, int], ...] = ()


_LAUNCH = re.compile(r"grid (\d+)x(\d+)x(\d+), block (\d+)x(\d+)x(\d+), (\d+) bytes dynamic")


@dataclass(frozen=True)
class Launch:
    """Grid and block dimensions, and the dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared: int

    def __str__(self) -> str:
        grid, block = ("x".join(map(str, size)) for size in (self.grid, self.block))
        return f"grid {grid}, block {block}, {self.dynamic_shared} bytes dynamic"

    @classmethod
    def parse(cls, text: str) -> Launch:
        """The launch that ``str`` wrote so. Raises ValueError."""
        match = _LAUNCH.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is no launch")
        x, y, z, i, j, k, shared = map(int, match.groups())
        return cls((x, y, z), (i, j, k), shared)


@dataclass(frozen=True)
class Kernel:
    """One stage of the ladder. ``source`` None means a library call (cuBLAS), which has no config.

    ``shape(config, dtype)`` gives what a block does; ``configs`` is the whole space to cover, the
    first one being the one timed at every shape; ``threshold`` overrides the slowdown that counts as
    a regression; ``largest_timed`` skips timing problems with more FLOP than that; ``duty`` is the share of
    the time that timing keeps the GPU busy, below 1 for what would otherwise reach its power cap.
    """

    name: str
    idea: str
    source: Path | None
    entry: str
    dtypes: tuple[DType, ...]
    configs: tuple[Config, ...]
    shape: Callable[[Config, DType], BlockShape]
    min_capability: tuple[int, int] = (7, 5)
    flags: tuple[str, ...] = ()
    threshold: float | None = None
    largest_timed: float = float("inf")
    duty: float = 1.0
    # Swaps grid x and y where the launch order matters; (config, problem) -> grid.
    grid: Callable[[BlockShape, Problem], tuple[int, int, int]] | None = None

    @property
    def library(self) -> bool:
        return self.source is None

    def launch(self, config: Config, dtype: DType, problem: Problem) -> Launch:
        """Grid and block for a problem: by default one block a tile, x along the columns of C."""
        shape = self.shape(config, dtype)
        rows, columns = shape.tile
        default = (max(1, -(-problem.n // columns)), max(1, -(-problem.m // rows)), 1)
        grid = self.grid(shape, problem) if self.grid else default
        return Launch(grid, (*shape.threads, 1), shape.shared_bytes if shape.dynamic else 0)


def variant_name(kernel: Kernel, config: Config, dtype: DType) -> str:
    """The name of a compiled thing, such as ``tiled-f32-tile32-pad0``."""
    return "-".join(part for part in (kernel.name, dtype.name, config.label) if part)


@dataclass(frozen=True)
class Resources:
    """What the compiler gave a binary: registers a thread, bytes of shared memory a block and of
    local memory a thread, and the SHA-256 of the cubin."""

    registers: int
    shared_bytes: int
    local_bytes: int
    cubin_sha256: str
