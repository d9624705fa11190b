"""Named sets of cases: what is verified, what is timed; and the lookup of what a user names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.model import Case, Config, Kernel, Problem
from harness.model.legality import GpuLimits, legal_variants, refusals
from kernels import LADDER

# Never square, M, N and K all different: a square problem does not see two of them exchanged. Small, for
# the reference is computed on the host; some K over four tiles of 32, for fewer do not see a lost sum.
TALL = Problem(2085, 137, 9, beta=-1)  # more than eight of the highest tiles, a band of warp_tiled
WHOLE = Problem(256, 384, 128)  # whole tiles, aligned: nothing but fast paths
VERIFIED_SMOKE: tuple[Problem, ...] = (
    Problem(1, 1, 1),
    WHOLE,
    Problem(127, 131, 137, alpha=-1, beta=3),  # primes: every edge, nothing aligned
    Problem(37, 29, 0, beta=2),  # nothing to add up: C is scaled
    Problem(264, 132, 77, alpha=2, beta=1, lda=80, ldb=140, ldc=136),  # aligned, but K ends within a vector
    Problem(66, 258, 81, alpha=3, beta=-1, lda=85, ldb=263, ldc=261),  # odd leading dimensions
)
VERIFIED: tuple[Problem, ...] = (
    *VERIFIED_SMOKE,
    Problem(0, 7, 5, beta=1),
    Problem(7, 0, 5),
    Problem(1, 257, 129, alpha=0, beta=-1),  # one row
    Problem(263, 1, 67, beta=1),  # one column
    TALL,
    Problem(5, 397, 83, alpha=2, lda=86, ldb=398, ldc=398),  # flat; aligned for vectors of two alone
    Problem(130, 262, 64, ldb=264, ldc=268),  # aligned, but N ends within a vector
    Problem(3, 2, 199, alpha=-1, beta=1, lda=204, ldc=5),  # long K for a little C
)

# Rows so far apart that a 32-bit index wraps: only a device that holds no more than the rows can run it.
SPARSE = Problem(5, 6, 9, beta=1, lda=2**30 + 4, ldb=2**30 + 8, ldc=2**30 + 12)

SQUARES = (256, 512, 1024, 2048, 4096, 8192, 1000, 4095, 4097)
TIMED: tuple[Problem, ...] = (
    *(Problem(n, n, n) for n in SQUARES),
    Problem(4096, 64, 4096),
    Problem(16, 8192, 8192),
    Problem(8205, 5921, 2949),
)


@dataclass(frozen=True)
class Suite:
    """A named set of cases.

    The default config of every kernel is timed on ``timed``; where ``all_configs``, every legal config
    is verified and the others are timed on ``timed_others``. ``largest_timed``, FLOP by kernel name, is
    the suite's own limit beside the kernel's.
    """

    name: str
    verified: tuple[Problem, ...]
    timed: tuple[Problem, ...]
    all_configs: bool
    timed_others: tuple[Problem, ...] = ()
    largest_timed: Mapping[str, float] = field(default_factory=dict)

    def verify_cases(self, limits: GpuLimits) -> list[Case]:
        """Cases to verify on such a GPU, in ladder order."""
        return [
            Case(kernel, dtype, config, problem)
            for kernel in LADDER
            for config, dtype in legal_variants(kernel, limits)
            if self.all_configs or config == kernel.configs[0]
            for problem in self.verified
        ]

    def timed_cases(self, limits: GpuLimits) -> list[Case]:
        """Cases to time on such a GPU, by problem, dtype and then ladder, so that data can be kept."""
        cases = [
            Case(kernel, dtype, config, problem)
            for kernel in LADDER
            for config, dtype in legal_variants(kernel, limits)
            for problem in (self.timed if config == kernel.configs[0] else self.timed_others)
            if problem.flops <= min(kernel.largest_timed, self.largest_timed.get(kernel.name, float("inf")))
        ]
        problems = list(dict.fromkeys((*self.timed, *self.timed_others)))
        dtypes = list(dict.fromkeys(dtype for kernel in LADDER for dtype in kernel.dtypes))
        return sorted(cases, key=lambda case: (problems.index(case.problem), dtypes.index(case.dtype)))


SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            name="smoke",
            verified=VERIFIED_SMOKE,
            timed=tuple(Problem(n, n, n) for n in (1024, 2048, 4095)),
            all_configs=False,
            largest_timed={"strided": 2.0 * 1024**3},
        ),
        Suite(
            name="full",
            verified=VERIFIED,
            timed=TIMED,
            all_configs=True,
            timed_others=tuple(Problem(n, n, n) for n in (1024, 4096)),
        ),
    )
}


def find_suite(name: str) -> Suite:
    """The suite of this name. Raises ValueError, naming the known ones."""
    return SUITES[_known("suite", name, SUITES)]


def find_kernel(name: str) -> Kernel:
    """The kernel of this name. Raises ValueError, naming the known ones."""
    kernels = {kernel.name: kernel for kernel in LADDER}
    return kernels[_known("kernel", name, kernels)]


def find_config(kernel: Kernel, label: str) -> Config:
    """The declared config of a kernel with this label. Raises ValueError, naming the known ones."""
    configs = {config.label: config for config in kernel.configs}
    return configs[_known(f"config of {kernel.name}", label, configs)]


def illegal(limits: GpuLimits) -> list[tuple[str, tuple[str, ...]]]:
    """The declared variants that such a GPU refuses, each with the reasons, in ladder order."""
    refused = []
    for kernel in LADDER:
        for dtype in kernel.dtypes:
            for config in kernel.configs:
                if reasons := refusals(kernel, config, dtype, limits):
                    refused.append((Case(kernel, dtype, config, Problem(1, 1, 1)).variant, reasons))
    return refused


def _known(what: str, name: str, known: Iterable[str]) -> str:
    """The name, if it is known; else ValueError with the nearest name and all of them."""
    names = list(known)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, 1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"unknown {what} {name!r}{hint}; known: {', '.join(n for n in names if n) or 'none'}")
