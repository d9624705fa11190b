"""What is to be computed: sizes, scalars and leading dimensions; and its id, both ways."""

from __future__ import annotations

import re
from dataclasses import dataclass

INT_MAX = 2**31 - 1  # as the kernels take them


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


_PROBLEM = re.compile(
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)"
    r"(-batch(?P<batch>\d+))?"
    r"(-alpha(?P<alpha>[-+.e\d]+))?"
    r"(-beta(?P<beta>[-+.e\d]+))?"
    r"(-ld(?P<lda>\d+)\.(?P<ldb>\d+)\.(?P<ldc>\d+))?"
)


def find_problem(text: str) -> Problem:
    """The problem of an id: ``MxNxK``, and after it what ``Problem.id`` writes. Raises ValueError."""
    match = _PROBLEM.fullmatch(text)
    if not match:
        raise ValueError(f"unknown shape {text!r}: write it as MxNxK, such as 4096x64x4096")
    parts = {name: part for name, part in match.groupdict().items() if part is not None}
    try:
        scales = {name: float(parts.pop(name)) for name in ("alpha", "beta") if name in parts}
    except ValueError:
        raise ValueError(f"shape {text!r}: alpha and beta must be numbers") from None
    numbers = {name: int(part) for name, part in parts.items()}
    if max(numbers.values()) > INT_MAX:
        raise ValueError(
            f"shape {text!r}: sizes and leading dimensions are 32-bit integers, at most {INT_MAX}"
        )
    return Problem(**numbers, **scales)  # type: ignore[arg-type]
