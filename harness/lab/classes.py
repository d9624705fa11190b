"""``nox -s lab -- classes``: writes docs/results/classes.md: what of cuBLAS's speed the ladder's
fastest variants reach, by class of shapes, from the H200's stored baseline.

Exit status: 0; 1 out of date, with ``--check``, or no baseline.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemm_regression.baselines import Baseline, BaselineEntry, current
from gemm_regression.baselines.store import figures_path
from gemm_regression.model import Kernel, Problem
from gemm_regression.project.loader import Project, load
from gemm_regression.project.suites import TIMED_GIBIBYTE
from lab import pages

PROJECT = load(Path(__file__).parents[2])
LADDER = PROJECT.kernels
SLUG = "nvidia-h200"

_HEAD = """# The fastest kernels compared with cuBLAS

For each shape: the fastest variant of the ladder, and its speed relative to cuBLAS. Both were measured in the
same runs on the same data. FP8 with scales, for which cuBLAS was not measured, is compared with FP8 without,
`wgmma_bytes`; products of groups of rows, with cuBLAS's one product of all rows by one B. Where these were
measured on another board, it is named, too: boards of a model differ by some 3 %. For each class: the
geometric mean. Written by `nox -s lab -- classes` from
`{file}`; do not edit. [attempts.md](attempts.md) has the
optimisations that were tried.
"""


@dataclass(frozen=True)
class Class:
    """A class of shapes that limit a kernel in the same way. ``name``: as in the table; ``dtype``: its name;
    ``target``: the speed relative to cuBLAS to reach; ``problems``: the shapes; ``counts``: the kernels that
    are compared; ``beside``: a kernel of the ladder in cuBLAS's place, of an operation that it lacks;
    ``one``: whether cuBLAS's time is that of one product of all rows, where these belong to groups."""

    name: str
    dtype: str
    target: float
    problems: tuple[Problem, ...]
    counts: Callable[[Kernel], bool]
    beside: str = ""
    one: bool = False


def _problems(*sizes: tuple[int, int, int] | int) -> tuple[Problem, ...]:
    return tuple(Problem(s, s, s) if isinstance(s, int) else Problem(*s) for s in sizes)


def splits_fp32(kernel: Kernel) -> bool:
    """Whether the kernel computes FP32 products from narrower ones, on tensor cores."""
    return kernel.name == "tf32x3"


def _scales(kernel: Kernel) -> bool:
    """Whether the kernel multiplies by factors of parts of A and B."""
    return kernel.name == "wgmma_scaled"


def _groups(kernel: Kernel) -> bool:
    """Whether the kernel multiplies groups of rows by matrices of their own."""
    return kernel.name == "wgmma_grouped"


def _direct(kernel: Kernel) -> bool:
    return not splits_fp32(kernel) and not _scales(kernel) and not _groups(kernel)


LARGE = (2048, 4096, 8192)
CUT = _problems((3000, 5000, 1000), 4104)
LARGEST = _problems((8192, 4096, 16384))
RAGGED = _problems(1000, (2049, 4097, 1023), 4095, 4097, (8205, 5921, 2949))
SKINNY = _problems((4096, 64, 4096), (16, 8192, 8192), (64, 64, 65536), (256, 256, 65536))
_SQUARES = tuple(Problem(n, n, n, layout="NT") for n in LARGE)
# Layers of language models, by N and K, passed by so many words at once.
_LAYERS = ((4096, 4096), (8192, 8192), (2112, 7168), (7168, 16384), (24576, 1536))
_MANY = tuple(Problem(4096, n, k, layout="NT") for n, k in _LAYERS[1:])
_FEW = tuple(Problem(m, n, k) for m in (1, 8, 16, 64, 128) for n, k in _LAYERS)
# Experts of a mixture: all rows, N, K, and how many groups.
_EXPERTS = tuple(Problem(*of) for of in ((8192, 4096, 4096), (16384, 2048, 2048), (65536, 1024, 1024)))
_GROUPED = tuple(replace(of, batch=groups) for of, groups in zip(_EXPERTS, (8, 64, 256), strict=True))
_SPELT = {"f16": "FP16", "e4m3_bf16": "FP8 to BF16", "e4m3": "FP8 to FP32", "s8": "INT8"}
# Of tensor cores: a kind, the aim, and the shapes that the suite times of each dtype.
_TENSOR_CORES: tuple[tuple[str, float, Mapping[str, tuple[Problem, ...]]], ...] = (
    ("large and aligned", 1.03, dict.fromkeys(("f16", "bf16", "tf32"), (*_problems(*LARGE), *LARGEST))),
    (
        "rows that TMA cannot take",
        2.5,
        {"bf16": _problems(4095), **dict.fromkeys(("f16", "tf32"), RAGGED[1:])},
    ),
    (
        "aligned but uneven",
        1.02,
        {"bf16": CUT, **dict.fromkeys(("f16", "tf32"), (*RAGGED[:1], *CUT))},
    ),
    (
        "small",
        1.0,
        {
            **dict.fromkeys(("f16", "bf16"), _problems(128, 256, 384, 512, 768, 1024)),
            "tf32": _problems(256, 512, 1024),
        },
    ),
    (
        "skinny and decode",
        1.05,
        {
            "f16": (SKINNY[0], *_FEW),
            "tf32": (*SKINNY[:2], *_problems((8, 4096, 4096), (64, 4096, 4096))),
        },
    ),
    (
        "large, B stored as A is",
        1.0,
        {"e4m3_bf16": _SQUARES, "e4m3": _SQUARES[:2], "s8": _SQUARES},
    ),
    ("layers of language models", 1.0, dict.fromkeys(("e4m3_bf16", "s8"), _MANY)),
)
CLASSES = (
    Class("FP32, large and aligned", "f32", 1.05, _problems(*LARGE, (4096, 8192, 2048)), _direct),
    Class("FP32, ragged", "f32", 1.02, RAGGED, _direct),
    Class("FP32, small", "f32", 1.05, _problems(256, 512, 1024), _direct),
    Class("FP32, skinny and long K", "f32", 1.05, SKINNY, _direct),
    Class("FP32, 1 GiB of small matrices", "f32", 1.5, TIMED_GIBIBYTE, _direct),
    Class("FP32 by three products of TF32", "f32", 1.5, _problems(*LARGE[1:]), splits_fp32),
    *(
        Class(f"{_SPELT.get(name, name.upper())}, {kind}", name, target, problems, _direct)
        for kind, target, of in _TENSOR_CORES
        for name, problems in of.items()
    ),
    Class("FP8 to BF16, with scales", "e4m3_bf16", 0.9, (*_SQUARES, *_MANY), _scales, beside="wgmma_bytes"),
    *(
        Class(
            f"{_SPELT.get(name, name.upper())}, groups beside one product",
            name,
            0.9,
            _GROUPED,
            _groups,
            one=True,
        )
        for name in ("e4m3_bf16", "bf16")
    ),
)


@dataclass(frozen=True)
class Best:
    """The fastest variant at a shape. ``share``: its speed relative to cuBLAS or what is in its place;
    ``boards``: on which that was measured, where not beside it."""

    entry: BaselineEntry
    share: float
    boards: frozenset[str] = frozenset()


def fastest(baseline: Baseline, of: Class, problem: Problem) -> Best | None:
    """The fastest variant at a shape, of those beside which cuBLAS, or what is in its place, has a time; None
    if there is none."""
    found = _measured(baseline, of.counts, of.dtype, problem)
    if of.beside or of.one:
        others = _one(baseline, of, problem) if of.one else _beside(baseline, of, problem)
        if not others:
            return None
        seconds, boards = statistics.median(s for _, s in others), frozenset(board for board, _ in others)
        shares = [Best(entry, seconds / entry.median_s, boards - {_board(entry)}) for entry in found]
    else:
        shares = [Best(entry, entry.cublas_ratio) for entry in found if entry.cublas_ratio is not None]
    return min(shares, key=lambda best: best.entry.median_s, default=None)


def _board(entry: BaselineEntry) -> str:
    return entry.board or "unknown"


def _beside(baseline: Baseline, of: Class, problem: Problem) -> list[tuple[str, float]]:
    """The board and the seconds of the kernel in cuBLAS's place."""
    others = _measured(baseline, lambda kernel: kernel.name == of.beside, of.dtype, problem)
    return sorted(((_board(entry), entry.median_s) for entry in others), key=lambda pair: pair[1])[:1]


def _one(baseline: Baseline, of: Class, problem: Problem) -> list[tuple[str, float]]:
    """The boards and the seconds of cuBLAS's one product in any layout, itself or beside a kernel."""
    one = replace(problem, batch=1)
    shapes = tuple(f"-{each.id}" for each in (one, replace(one, layout="NT")))
    return [
        (_board(entry), entry.median_s * entry.cublas_ratio)
        for name, entry in baseline.entries.items()
        if entry.cublas_ratio is not None and f"-{of.dtype}-" in name and name.endswith(shapes)
    ]


def _measured(
    baseline: Baseline, counts: Callable[[Kernel], bool], dtype: str, problem: Problem
) -> list[BaselineEntry]:
    begins = tuple(f"{kernel.name}-{dtype}-" for kernel in LADDER if kernel.compiled and counts(kernel))
    return [
        entry
        for entry in baseline.entries.values()
        if entry.case_id.startswith(begins) and entry.case_id == f"{entry.variant}-{problem.id}"
    ]


ByClass = Mapping[Class, Mapping[Problem, Best | None]]


def render(baseline: Baseline, file: str) -> str:
    """The page."""
    best = {of: {p: fastest(baseline, of, p) for p in of.problems} for of in CLASSES}
    summary = ("class", "share of cuBLAS", "aim", "reached", "slowest shape")
    shapes = ("class", "shape", "GFLOPS", "share of cuBLAS", "variant", "board, commit")
    tables = (pages.table(summary, _summary(best), "lrrll"), pages.table(shapes, _shapes(best), "llrrll"))
    return _HEAD.format(file=file) + "\n" + "\n\n".join(tables) + "\n"


def _summary(best: ByClass) -> Iterator[Sequence[str]]:
    for of, by_shape in best.items():
        shares = {p.id: found.share for p, found in by_shape.items() if found}
        if len(shares) < len(by_shape):
            lacking = ", ".join(p.id for p in by_shape if p.id not in shares)
            yield of.name, "–", f"{of.target:.2f}", "–", f"not measured: {lacking}"
            continue
        mean, worst = statistics.geometric_mean(shares.values()), min(shares, key=shares.__getitem__)
        reached = "yes" if mean >= of.target else "no"
        yield of.name, f"{mean:.3f}", f"{of.target:.2f}", reached, f"{worst}, {shares[worst]:.3f}"


def _shapes(best: ByClass) -> Iterator[Sequence[str]]:
    for of, by_shape in best.items():
        for problem, found in by_shape.items():
            figures = ["–", "–", "not measured", "–"]
            if found:
                entry = found.entry
                variant, share = f"`{entry.variant}`", f"{found.share:.3f}"
                board = f"{_board(entry)}, {entry.commit[:8]}"
                board += f"; beside {', '.join(sorted(found.boards))}" if found.boards else ""
                figures = [f"{entry.gflops:,.0f}", share, variant, board]
            yield of.name, problem.id, *figures


def main(arguments: Sequence[str] | None = None) -> int:
    return pages.write(pages.parser("classes", __doc__).parse_args(arguments), "classes", _page)


def _page(project: Project) -> str:
    stored = current(project.baselines, SLUG)
    if stored is None:
        raise ValueError(f"no baseline of {SLUG}: measure it with `nox -s baseline`")
    return render(stored, figures_path(project.baselines, SLUG).relative_to(project.root).as_posix())
