"""The cases that are studied, of the project of the working directory, and the classes they are told by."""

from __future__ import annotations

import functools
from pathlib import Path

from gemm_regression.model import Case, CaseId
from gemm_regression.project.loader import Project, find, load
from gemm_regression.project.selection import Choice, find_case, select

KINDS = ("wgmma", "wgmma_tf32", "mma_tma", "mma_sync", "tf32x3", "stream_k", "lean_loop")  # told one by one
LONG = 100e-6  # seconds
SHORT_CASES, LONG_CASES = (f"CUDA cores, {which} {1e6 * LONG:.0f} µs" for which in ("at most", "over"))
_OTHERS = ("prefetch", "double_buffered", "async_copy", "warp_tiled", "split_k")
_SHAPES = ("1000x1000x1000", "1024x1024x1024")
_SHAPES_OF_KINDS = ("512x512x512", *_SHAPES, "2048x2048x2048")


@functools.cache
def project() -> Project:
    """Raises ProjectError if there is none."""
    return load(find(Path.cwd()))


def case_of(text: str, capability: tuple[int, int]) -> Case:
    """The case with this id. Raises ValueError."""
    return find_case(project(), text, capability)


def studied(capability: tuple[int, int]) -> list[str]:
    """Ids of the timed cases of KINDS and of as many others on CUDA cores, all below 1 ms on an H200, and on
    random numbers of few depths, which a process makes once."""
    timed = select(project(), Choice(suite="full"), capability).timed
    shapes = dict.fromkeys(_OTHERS, _SHAPES) | dict.fromkeys(KINDS, _SHAPES_OF_KINDS)
    return [case.id for case in timed if case.problem.id in shapes.get(case.kernel.name, ())]


def class_of(case: str, seconds: float) -> str:
    """The class of a case of this id that takes so many seconds."""
    kernel = CaseId.parse(case).kernel
    if kernel in KINDS or kernel == "wmma":
        return kernel
    return LONG_CASES if seconds > LONG else SHORT_CASES


CLASSES = (*KINDS, "wmma", SHORT_CASES, LONG_CASES)
