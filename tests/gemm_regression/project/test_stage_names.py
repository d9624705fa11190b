"""The packages are for any project's kernels: they know no stage of this one's ladder by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.ladder import LADDER

HARNESS = Path(__file__).parents[3] / "harness"
# Words of the field besides: instructions and features of PTX, what a cubin has, a shape.
WORDS = {"prefetch", "register", "rectangular", "wgmma", "wmma"}
NAMES = {kernel.name for kernel in LADDER if kernel.compiled} - WORDS
# The report calls what its speed-ups are relative to by its name.
LEFT = {"gemm_regression/report/charts.py"}


@pytest.mark.parametrize("package", ["gemm_regression", "ptxsan"])
def test_no_module_names_a_stage_of_the_ladder(package: str) -> None:
    found = {
        f"{path.relative_to(HARNESS)}: {name}"
        for path in (HARNESS / package).rglob("*.py")
        if str(path.relative_to(HARNESS)) not in LEFT
        for name in set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) & NAMES
    }
    assert not found
