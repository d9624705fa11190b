"""A declared kernel: its source, its configs, and how a problem becomes a launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from harness.model.config import Config
from harness.model.dtype import F32, DType
from harness.model.operation import GEMM, Operation
from harness.model.parameters import Parameter, TensorMap, parse_parameters, usual_parameters
from harness.model.problem import Problem
from harness.model.takes import ANY, Takes, narrow, signature_refusals


@dataclass(frozen=True)
class BlockShape:
    """What one block of threads does, as the declaration says and the legality rules check.

    ``threads`` (x, y) of a block; ``tile`` rows and columns of C a block makes; ``thread_tile`` the
    part of it one thread holds (for a warp-wide kernel, its warp's tile over 32 threads does not
    apply: None); ``shared_bytes`` static and dynamic shared memory of a block; ``dynamic`` whether
    that memory is asked for at launch, None where it is not declared; ``vectors`` (what, row stride in
    elements, vector width in elements) for every vector access into shared memory; ``batch`` matrices of a
    batch a block makes; ``split`` blocks that share the K of a tile.
    """

    threads: tuple[int, int]
    tile: tuple[int, int]
    thread_tile: tuple[int, int] | None = None
    shared_bytes: int | None = None
    dynamic: bool = False
    vectors: tuple[tuple[str, int, int], ...] = ()
    batch: int = 1
    split: int = 1


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
class Workspace:
    """Memory that a kernel may use between its blocks: ``bytes`` of it, of which a launch finds the first
    ``zeroed`` bytes zero, and leaves them so for the next one; the others hold anything."""

    bytes: Callable[[Config, Problem], int]
    zeroed: Callable[[Config, Problem], int] = lambda config, problem: 0


@dataclass(frozen=True)
class Kernel:
    """A kernel under test. ``source`` None means a library call (cuBLAS), which has no config.

    ``source`` is the ``.cu`` file, relative to the declaration, ``include`` further folders that it includes
    from. ``entry`` names the ``__global__`` function: by its plain name, in its namespace (``ns::gemm``), or
    as an instance of a template, in which ``{TILE_M}`` stands for a parameter of the config. ``operation`` is
    what it computes; ``parameters`` its own parameters as C++ declares them (``parse_parameters``), empty for
    the usual ones; ``takes`` the problems it is meant for. ``shape`` gives what a block does, of a config and
    dtype or once for all; ``configs`` is the whole space to cover, the first one being the one timed at every
    shape; ``grid`` the blocks of a launch where they are not one a tile, x along the columns of C.
    ``maps`` are the tensor maps of a config, by operand, for parameters of type ``CUtensorMap``.
    ``features`` are those of the hardware that no emulation is expected of, such as ``wgmma`` and ``tma``.
    ``threshold`` overrides the slowdown that counts as a regression; ``largest_timed`` skips timing problems
    with more FLOP than that; ``duty`` is the share of the time that timing keeps the GPU busy, below 1 for
    what would otherwise reach its power cap.
    """

    name: str
    source: Path | None
    entry: str
    shape: BlockShape | Callable[[Config, DType], BlockShape]
    idea: str = ""
    dtypes: tuple[DType, ...] = (F32,)
    configs: tuple[Config, ...] = (Config(),)
    operation: Operation = GEMM
    parameters: str = ""
    takes: Takes = ANY
    workspace: Workspace | None = None
    min_capability: tuple[int, int] = (7, 5)
    flags: tuple[str, ...] = ()
    include: tuple[Path | str, ...] = ()
    features: tuple[str, ...] = ()
    maps: Callable[[Config], Mapping[str, TensorMap]] | None = None
    threshold: float | None = None
    largest_timed: float = float("inf")
    duty: float = 1.0
    grid: Callable[[BlockShape, Problem], tuple[int, int, int]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.source, str):
            object.__setattr__(self, "source", Path(self.source))
        activation = self.operation.activation
        for dtype in self.dtypes:
            if dtype.integer and activation and not activation.exact:
                raise ValueError(
                    f"{self.name}: {activation.name} makes no integers, and {dtype} has an integer output"
                )

    @property
    def library(self) -> bool:
        return self.source is None

    @cached_property
    def signature(self) -> tuple[Parameter, ...]:
        """What it is launched with, in its own order. Raises ValueError for what cannot be read."""
        text = self.parameters or usual_parameters(self.operation, self.workspace is not None)
        return parse_parameters(text, self.operation)

    def entry_of(self, config: Config, dtype: DType) -> str:
        """The name of the function, as C++ has it. Raises ValueError for a field that is no parameter."""
        try:
            return self.entry.format(**config)
        except (KeyError, IndexError) as error:
            raise ValueError(f"{self.name}: entry {self.entry!r}: the config has no {error}") from None

    def shape_of(self, config: Config, dtype: DType) -> BlockShape:
        """What a block does."""
        return self.shape if isinstance(self.shape, BlockShape) else self.shape(config, dtype)

    def launch(self, config: Config, dtype: DType, problem: Problem) -> Launch:
        """Grid and block for a problem: by default one block a tile (or as many as share it), x along the
        columns of C."""
        shape = self.shape_of(config, dtype)
        rows, columns = shape.tile
        batches = -(-problem.batch // shape.batch)
        tiles = (-(-problem.n // columns), -(-problem.m // rows), batches * shape.split)
        # CUDA refuses a grid of no blocks: of a problem without elements one block is launched.
        x, y, z = (max(1, count) for count in (self.grid(shape, problem) if self.grid else tiles))
        return Launch((x, y, z), (*shape.threads, 1), (shape.shared_bytes or 0) if shape.dynamic else 0)

    def refusals(self, config: Config, problem: Problem) -> tuple[str, ...]:
        """Why it does not take a problem, a line a reason; empty if it does."""
        said = signature_refusals(self.signature, self.operation, problem)
        return (*said, *self.takes.refusals(problem, config))

    def narrowed(self, problem: Problem) -> Problem:
        """The problem as far as the parameters can say it."""
        return problem if self.library else narrow(self.signature, self.operation, problem)


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
