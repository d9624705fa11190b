"""The project of the unit tests' own (sample/), as the harness loads it."""

from __future__ import annotations

from pathlib import Path

from gemm_regression.model import Case, Kernel
from gemm_regression.project import selection
from gemm_regression.project.loader import load
from gemm_regression.project.selection import Choice, Selection

PROJECT = load(Path(__file__).with_name("sample"))
KERNELS = PROJECT.kernels
H200 = (9, 0)


def find_kernel(name: str) -> Kernel:
    return selection.find_kernel(KERNELS, name)


def find_case(text: str, capability: tuple[int, int] = H200) -> Case:
    return selection.find_case(PROJECT, text, capability)


def select(
    suite: str = "full", kernels: tuple[str, ...] = (), capability: tuple[int, int] = H200
) -> Selection:
    """What a suite has of these kernels, or of all."""
    return selection.select(PROJECT, Choice(suite, kernels), capability)
