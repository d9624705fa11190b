"""A problem as data: sizes, scalars and leading dimensions; and the memory layout of an operand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gemm_regression.model import expressions

Array = np.ndarray[Any, np.dtype[Any]]
Operands = Mapping[str, Array]  # by operand, (batch, rows, columns) each
INT_MAX = 2**31 - 1  # as the kernels take sizes and leading dimensions
SPARSE = 2**24  # A matrix with a larger leading dimension is stored without its padding.
SIZE_NAMES = ("m", "n", "k", "batch")


_LAYOUTS = frozenset(a + b + c for a in "NT" for b in "NT" for c in ("", "T"))


def layout_fault(layout: object) -> str:
    if isinstance(layout, str) and layout in _LAYOUTS:
        return ""
    return f"layout {layout!r}: must be a letter N or T for A and for B, optionally T for C"


@dataclass(frozen=True)
class Problem:
    """C = alpha·A·B + beta·C with A (m, k), B (k, n), C (m, n), ``batch`` times.

    ``layout`` has a letter for A, for B and, if it is not N, for C: N for row-major storage, T for the
    transposed one, column-major. ``lda``, ``ldb`` and ``ldc`` are leading dimensions in elements, 0 for tight
    ones; ``gap`` rows of storage lie between the matrices of a batch. ``starts``: how many elements past a
    256-byte boundary A, B and C begin. Raises ValueError for a negative size, a leading dimension shorter
    than its row (or, of a column-major matrix, than its column), a layout of other letters, or a gap without
    a batch.
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
    layout: str = "NN"
    gap: int = 0
    starts: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        what, fault = f"problem {self.m}x{self.n}x{self.k}", ""
        if min(self.m, self.n, self.k) < 0 or self.batch < 1:
            fault = "sizes must be 0 or more, batch 1 or more"
        elif unfit := layout_fault(self.layout):
            fault = unfit
        elif self.gap < 0 or (self.gap and self.batch == 1):
            fault = f"gap {self.gap}: must be 0 or more rows between the matrices of a batch"
        elif len(self.starts) != 3 or min(self.starts) < 0:
            fault = f"starts {self.starts}: must be three numbers of elements, 0 or more"
        if fault:
            raise ValueError(f"{what}: {fault}")
        for name, row in self.rows.items():
            ld = getattr(self, name) or row
            if ld < row:
                raise ValueError(f"{what}: {name} {ld} is less than the row length {row}")
            object.__setattr__(self, name, ld)

    @cached_property
    def rows(self) -> dict[str, int]:
        """The smallest leading dimensions: the lengths of the rows of storage, at least 1."""
        a, b, c = (letter == "T" for letter in self.layout.ljust(3))
        m, n, k = max(1, self.m), max(1, self.n), max(1, self.k)
        return {"lda": m if a else k, "ldb": k if b else n, "ldc": m if c else n}

    def transposed(self, matrix: str) -> bool:
        """Whether ``A``, ``B`` or ``C`` is stored column-major."""
        return self.layout["ABC".index(matrix) :][:1] == "T"

    def start(self, matrix: str) -> int:
        """Elements from a 256-byte boundary to the start of ``A``, ``B`` or ``C``."""
        return self.starts["ABC".index(matrix)]

    @property
    def flops(self) -> int:
        """Floating-point operations, 2·M·N·K·batch."""
        return 2 * self.m * self.n * self.k * self.batch

    def gflops(self, seconds: float) -> float:
        """GFLOPS = 2·M·N·K·batch / seconds / 10⁹."""
        return self.flops / seconds / 1e9

    @property
    def beyond(self) -> dict[str, int]:
        """The padding of each leading dimension, in elements."""
        return {name: getattr(self, name) - row for name, row in self.rows.items()}

    @property
    def tight(self) -> bool:
        return not any(self.beyond.values())

    def stored(self, layout: str) -> Problem:
        """The same problem in another layout, with the same padding of the leading dimensions."""
        if layout == self.layout:
            return self
        tight = replace(self, layout=layout, lda=0, ldb=0, ldc=0)
        return tight.with_leading({n: getattr(tight, n) + more for n, more in self.beyond.items()})

    def with_leading(self, dimensions: Mapping[str, int]) -> Problem:
        """The problem with other leading dimensions, by name (``lda`` …); 0 for the smallest one."""
        return replace(self, **dimensions)  # type: ignore[arg-type]

    @cached_property
    def id(self) -> str:
        parts = {
            f"{self.m}x{self.n}x{self.k}": True,
            self.layout.lower(): self.layout != "NN",
            f"batch{self.batch}": self.batch != 1,
            f"gap{self.gap}": self.gap,
            f"alpha{self.alpha:g}": self.alpha != 1,
            f"beta{self.beta:g}": self.beta != 0,
            f"ld{self.lda}.{self.ldb}.{self.ldc}": not self.tight,
            "at" + ".".join(map(str, self.starts)): any(self.starts),
        }
        return "-".join(part for part, there in parts.items() if there)


_NUMBER = r"-?\d*\.?\d+(?:e[-+]?\d+)?"
_PROBLEM = re.compile(
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(-(?P<layout>[nt]{2}t?))?"
    r"(-batch(?P<batch>\d+)(-gap(?P<gap>\d+))?)?"
    rf"(-alpha(?P<alpha>{_NUMBER}))?"
    rf"(-beta(?P<beta>{_NUMBER}))?"
    r"(-ld(?P<lda>\d+)\.(?P<ldb>\d+)\.(?P<ldc>\d+))?"
    r"(-at(?P<starts>\d+\.\d+\.\d+))?"
)


def find_problem(text: str) -> Problem:
    """The problem with this id: ``MxNxK`` and the optional parts of ``Problem.id``. Raises ValueError."""
    match = _PROBLEM.fullmatch(text)
    if not match:
        raise ValueError(f"unknown shape {text!r}: write it as MxNxK, such as 4096x64x4096")
    parts = {name: part for name, part in match.groupdict().items() if part}
    read: dict[str, Any] = {name: float(parts.pop(name)) for name in ("alpha", "beta") if name in parts}
    read["layout"] = parts.pop("layout", "nn").upper()
    read["starts"] = tuple(map(int, parts.pop("starts", "0.0.0").split(".")))
    numbers = {name: int(part) for name, part in parts.items()}
    if max(numbers.values()) > INT_MAX:
        what = "sizes and leading dimensions are 32-bit integers"
        raise ValueError(f"shape {text!r}: {what}, at most {INT_MAX}")
    return Problem(**read | numbers)


def size_of(text: str, problem: Problem) -> int:
    """An expression of m, n, k and batch. Raises ValueError for another name."""
    if text in SIZE_NAMES:
        return int(getattr(problem, text))
    parsed = expressions.parse(text)
    if strange := [name for name in parsed.names if name not in SIZE_NAMES]:
        raise ValueError(f"{text!r}: {strange[0]} is no size")
    return int(parsed.value({name: getattr(problem, name) for name in parsed.names}))


@dataclass(frozen=True)
class Storage:
    """The memory layout of an operand: ``count`` matrices of ``rows`` × ``columns`` elements of ``dtype``,
    rows ``ld`` elements apart, matrices ``rows + gap`` rows apart. ``transposed``: column-major storage, so
    these are the rows of the transposed matrix. ``start``: elements from a 256-byte boundary to the first."""

    dtype: np.dtype[np.generic]
    count: int
    rows: int
    columns: int
    ld: int
    gap: int = 0
    transposed: bool = False
    start: int = 0

    @property
    def stride(self) -> int:
        """Elements from one matrix of a batch to the next."""
        return (self.rows + self.gap) * self.ld

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of its buffer, including padding and gaps."""
        return self.count * (self.rows + self.gap), self.columns if self.ld > SPARSE else self.ld

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.count * self.rows * self.columns * self.dtype.itemsize

    def elements(self, buffer: Array) -> Array:
        """The elements in a buffer of ``shape``, as stored: a view of (count, rows, columns)."""
        matrices = buffer.reshape(self.count, self.rows + self.gap, buffer.shape[1])
        return matrices[:, : self.rows, : self.columns]

    def matrices(self, buffer: Array) -> Array:
        """The matrices in a buffer of ``shape``: a view of (count, m, n), for any layout."""
        elements = self.elements(buffer)
        return elements.swapaxes(1, 2) if self.transposed else elements

    def buffer(self, matrices: Array, fill: float) -> Array:
        """A buffer with these matrices, (count, m, n), and ``fill`` in the padding."""
        out = np.full(self.shape, fill, self.dtype)
        self.matrices(out)[:] = matrices
        return out

    def place(self, row: int, column: int) -> str:
        """The element at a row and column of the buffer, as text: ``(3, 5)``, or ``[2](3, 5)`` in a batch."""
        matrix, row = divmod(row, max(1, self.rows + self.gap))
        return self.element(matrix, *((column, row) if self.transposed else (row, column)))

    def element(self, matrix: int, row: int, column: int) -> str:
        """An element of a matrix of the batch, as text."""
        return (f"[{matrix}]" if self.count > 1 else "") + f"({row}, {column})"
