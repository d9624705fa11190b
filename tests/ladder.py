"""The ladder, as the harness loads it: what the suite's own tests judge and try things on."""

from __future__ import annotations

import os
from pathlib import Path

from gemm_regression.model import Case, Kernel
from gemm_regression.project import selection
from gemm_regression.project.loader import load
from gemm_regression.project.selection import Choice, Selection

PROJECT = load(Path(__file__).parents[1])
LADDER = PROJECT.kernels
KERNELS_DIR = PROJECT.declarations.parent
H200 = (9, 0)


def importing(*folders: Path) -> dict[str, str]:
    """The environment of a program that imports from these folders first, then from where this one does."""
    known = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [*map(str, folders), known]))}


def find_kernel(name: str) -> Kernel:
    return selection.find_kernel(LADDER, name)


def find_case(text: str, capability: tuple[int, int] = H200) -> Case:
    return selection.find_case(PROJECT, text, capability)


def select(
    suite: str = "full", kernels: tuple[str, ...] = (), capability: tuple[int, int] = H200
) -> Selection:
    """What a suite holds of the ladder, or of these kernels of it."""
    return selection.select(PROJECT, Choice(suite, kernels), capability)
