"""What is to be computed: sizes, scalars and leading dimensions; its id, and the problem of an id."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

INT_MAX = 2**31 - 1  # as the kernels take them


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
        sizes = f"problem {self.m}x{self.n}x{self.k}"
        if min(self.m, self.n, self.k) < 0 or self.batch < 1:
            raise ValueError(f"{sizes}: sizes must be 0 or more, batch 1 or more")
        if not re.fullmatch("[NT][NT]T?", self.layout):
            raise ValueError(
                f"{sizes}: layout {self.layout!r}: must be a letter N or T for A and for B, optionally T for "
                "C"
            )
        if self.gap < 0 or (self.gap and self.batch == 1):
            raise ValueError(
                f"{sizes}: gap {self.gap}: must be 0 or more rows between the matrices of a batch"
            )
        if len(self.starts) != 3 or min(self.starts) < 0:
            raise ValueError(f"{sizes}: starts {self.starts}: must be three numbers of elements, 0 or more")
        for name, row in self._rows.items():
            ld = getattr(self, name) or max(1, row)
            if ld < row:
                raise ValueError(f"{sizes}: {name} {ld} is less than the row length {row}")
            object.__setattr__(self, name, ld)

    @property
    def _rows(self) -> dict[str, int]:
        """The smallest leading dimensions: the lengths of the rows of storage."""
        extents = ((self.m, self.k), (self.k, self.n), (self.m, self.n))
        return {
            name: extent[0] if self.transposed(name[2].upper()) else extent[1]
            for name, extent in zip(("lda", "ldb", "ldc"), extents, strict=True)
        }

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

    @property
    def tight(self) -> bool:
        return all(getattr(self, name) == max(1, row) for name, row in self._rows.items())

    def stored(self, layout: str) -> Problem:
        """The same problem in another layout, with the same padding of the leading dimensions."""
        if layout == self.layout:
            return self
        tight = replace(self, layout=layout, lda=0, ldb=0, ldc=0)
        return tight.with_leading({n: getattr(tight, n) + more for n, more in self.beyond.items()})

    def with_leading(self, dimensions: Mapping[str, int]) -> Problem:
        """The problem with other leading dimensions, by name (``lda`` …); 0 for the smallest one."""
        now = {"lda": self.lda, "ldb": self.ldb, "ldc": self.ldc, **dimensions}
        return replace(self, lda=now["lda"], ldb=now["ldb"], ldc=now["ldc"])

    @property
    def beyond(self) -> dict[str, int]:
        """The padding of each leading dimension, in elements."""
        return {name: getattr(self, name) - max(1, row) for name, row in self._rows.items()}

    @property
    def id(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}"]
        if self.layout != "NN":
            parts.append(self.layout.lower())
        if self.batch != 1:
            parts.append(f"batch{self.batch}")
        if self.gap:
            parts.append(f"gap{self.gap}")
        if self.alpha != 1:
            parts.append(f"alpha{self.alpha:g}")
        if self.beta != 0:
            parts.append(f"beta{self.beta:g}")
        if not self.tight:
            parts.append(f"ld{self.lda}.{self.ldb}.{self.ldc}")
        if any(self.starts):
            parts.append("at" + ".".join(map(str, self.starts)))
        return "-".join(parts)

    def gflops(self, seconds: float) -> float:
        """GFLOPS = 2·M·N·K·batch / seconds / 10⁹."""
        return self.flops / seconds / 1e9


_PROBLEM = re.compile(
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(-(?P<layout>[nt]{2}t?))?"
    r"(-batch(?P<batch>\d+)(-gap(?P<gap>\d+))?)?"
    r"(-alpha(?P<alpha>[-+.e\d]+))?"
    r"(-beta(?P<beta>[-+.e\d]+))?"
    r"(-ld(?P<lda>\d+)\.(?P<ldb>\d+)\.(?P<ldc>\d+))?"
    r"(-at(?P<starts>\d+\.\d+\.\d+))?"
)


def find_problem(text: str) -> Problem:
    """The problem with this id: ``MxNxK`` and the optional parts of ``Problem.id``. Raises ValueError."""
    match = _PROBLEM.fullmatch(text)
    if not match:
        raise ValueError(f"unknown shape {text!r}: write it as MxNxK, such as 4096x64x4096")
    parts = {name: part for name, part in match.groupdict().items() if part is not None}
    try:
        scales = {name: float(parts.pop(name)) for name in ("alpha", "beta") if name in parts}
    except ValueError:
        raise ValueError(f"shape {text!r}: alpha and beta must be numbers") from None
    layout = parts.pop("layout", "nn").upper()
    starts = tuple(int(part) for part in parts.pop("starts", "0.0.0").split("."))
    numbers = {name: int(part) for name, part in parts.items()}
    if max(numbers.values()) > INT_MAX:
        raise ValueError(
            f"shape {text!r}: sizes and leading dimensions are 32-bit integers, at most {INT_MAX}"
        )
    return Problem(**numbers, **scales, layout=layout, starts=starts)  # type: ignore[arg-type]
