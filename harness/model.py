"""The words of the suite as frozen data: dtype, problem, config, kernel, case, measurement.

Nothing here touches CUDA, a file or a clock; every other module speaks in these types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

KERNELS_DIR = Path(__file__).resolve().parent.parent / "kernels"


@dataclass(frozen=True)
class DType:
    """What a kernel multiplies and how exactly.

    ``unit_roundoff`` is that of the multiplicands, ``accumulate_roundoff`` that of one addition
    (2^-23 for tensor cores, whose adder truncates), ``integer_bits`` the widest integer a
    multiplicand holds exactly.
    """

    name: str
    storage: np.dtype[Any]
    output: np.dtype[Any]
    unit_roundoff: float
    accumulate_roundoff: float
    integer_bits: int

    @property
    def macro(self) -> str:
        """The macro that tells the ``.cu`` file which dtype it is compiled for."""
        return f"DTYPE_{self.name.upper()}"

    def __str__(self) -> str:
        return self.name


_F32 = np.dtype(np.float32)
F32 = DType("f32", _F32, _F32, 2.0**-24, 2.0**-24, 24)
F16 = DType("f16", np.dtype(np.float16), _F32, 2.0**-11, 2.0**-23, 11)
BF16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), _F32, 2.0**-8, 2.0**-23, 8)
TF32 = DType("tf32", _F32, _F32, 2.0**-11, 2.0**-23, 11)
DTYPES = {d.name: d for d in (F32, F16, BF16, TF32)}


@dataclass(frozen=True)
class Problem:
    """Row-major C = alpha·A·B + beta·C with A (m, k), B (k, n), C (m, n).

    A leading dimension of 0 means a tight one. Raises ValueError for a negative size or a leading
    dimension shorter than its row.
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 0.0
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    batch: int = 1

    def __post_init__(self) -> None:
        if min(self.m, self.n, self.k) < 0 or self.batch < 1:
            raise ValueError(f"problem {self.m}x{self.n}x{self.k}: sizes must be 0 or more, batch 1 or more")
        for name, row in (("lda", self.k), ("ldb", self.n), ("ldc", self.n)):
            ld = getattr(self, name) or max(1, row)
            if ld < row:
                raise ValueError(
                    f"problem {self.m}x{self.n}x{self.k}: {name} {ld} is shorter than the row of {row}"
                )
            object.__setattr__(self, name, ld)

    @property
    def flops(self) -> int:
        """Floating-point operations, 2·M·N·K·batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def tight(self) -> bool:
        return (self.lda, self.ldb, self.ldc) == (max(1, self.k), max(1, self.n), max(1, self.n))

    @property
    def id(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}"]
        if self.batch != 1:
            parts.append(f"batch{self.batch}")
        if self.alpha != 1:
            parts.append(f"alpha{self.alpha:g}")
        if self.beta != 0:
            parts.append(f"beta{self.beta:g}")
        if not self.tight:
            parts.append(f"ld{self.lda}.{self.ldb}.{self.ldc}")
        return "-".join(parts)

    def gflops(self, seconds: float) -> float:
        """GFLOPS = 2·M·N·K·batch / seconds / 10⁹."""
        return self.flops / seconds / 1e9


# How the macros of a config read in a case id; macros of one stem join with an x.
_LABELS = {"TILE_SIZE": "tile", "THREAD_TILE": "thread", "WARP_TILE": "warp", "PADDING": "pad"}


class Config(Mapping[str, int]):
    """The compile-time parameters of a kernel, each handed to nvcc as ``-D NAME=value``."""

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
        """Short and stable: TILE_M=64, TILE_N=64, TILE_K=8, PADDING=1 reads ``tile64x64x8-pad1``."""
        parts: dict[str, str] = {}
        for name, value in self._items:
            stem, _, axis = name.rpartition("_")
            stem = stem if axis in ("M", "N", "K", "X", "Y") else name
            word = _LABELS.get(stem, stem.lower().replace("_", ""))
            parts[word] = f"{parts[word]}x{value}" if word in parts else f"{word}{value}"
        return "-".join(parts.values())


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
class Case:
    """kernel × dtype × config × problem. Its id is the test id, the baseline key and the report row."""

    kernel: Kernel
    dtype: DType
    config: Config
    problem: Problem

    @property
    def variant(self) -> str:
        """The compiled thing: kernel, dtype and config, without the problem."""
        return variant_name(self.kernel, self.config, self.dtype)

    @property
    def id(self) -> str:
        return f"{self.variant}-{self.problem.id}"

    @property
    def launch(self) -> Launch:
        return self.kernel.launch(self.config, self.dtype, self.problem)

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class Resources:
    """What the compiler gave a binary: registers a thread, bytes of shared memory a block and of
    local memory a thread, and the SHA-256 of the cubin."""

    registers: int
    shared_bytes: int
    local_bytes: int
    cubin_sha256: str


# NVML's clock-event reasons (nvmlClocksEventReasons in its API reference): why the clock is not higher.
_CLOCK_EVENT_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}


@dataclass(frozen=True)
class Measurement:
    """Device seconds of each round of a case in one process, and what was seen around them.

    ``reference_seconds`` are cuBLAS's on the same problem, interleaved; ``mhz`` the SM clock during each
    round, where it was seen, and ``sm_clock_mhz`` their median; ``clock_event_reasons`` NVML's bits or-ed
    over them; ``discarded`` rounds thrown away for a throttled clock; ``throttled`` true where retries did
    not give enough clean ones; ``duty`` the share of the time that the GPU was kept busy, at most.
    """

    seconds: tuple[float, ...]
    reference_seconds: tuple[float, ...]
    resources: Resources | None
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    clock_event_reasons: int
    discarded: int
    throttled: bool
    l2: str = "cold"
    duty: float = 1.0
    mhz: tuple[float, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """Median seconds. Raises ValueError where no sample survived."""
        if not self.seconds:
            raise ValueError("no samples")
        return float(np.median(self.seconds))

    @property
    def spread(self) -> float:
        """Interquartile range over the median, dimensionless."""
        q1, q3 = np.percentile(self.seconds, (25, 75))
        return float((q3 - q1) / self.median)

    @property
    def cublas_ratio(self) -> float | None:
        """Speed as a share of cuBLAS's in the same run; 1.0 is as fast."""
        if not self.reference_seconds:
            return None
        return float(np.median(self.reference_seconds)) / self.median

    @property
    def slowed_by(self) -> str:
        """The clock-event reasons in words, or ``none``."""
        bits = self.clock_event_reasons
        words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
        if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
            words.append(f"{unknown:#x}")
        return ", ".join(words) or "none"
