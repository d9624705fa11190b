"""Writes to global memory after another thread's read (checks/readers.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan.checks.readers import read_and_written

FILE = Path(__file__).with_name("kernels") / "inplace.cu"
X = np.arange(128, dtype=np.float32)
RACES: dict[str, tuple[Any, Any, tuple[Any, ...], str]] = {
    "stencil": (2, 64, (X, 128), "writes x[1], which thread 0 of the same block read"),
    "called": (1, 128, (X, 128), "writes x[1], which thread 0 of the same block read"),
    "transpose": (1, (8, 8), (X[:64],), "writes x[8], which thread 8 of the same block read"),
}


@pytest.mark.parametrize("name", RACES)
def test_a_write_after_a_read(name: str) -> None:
    grid, block, arguments, said = RACES[name]
    found = ptxsan.load(FILE).kernel(name)[grid, block](*arguments).hazards
    assert [h.check for h in found] == ["race"]
    assert said in found[0].message


@pytest.mark.parametrize("name", ["called", "transpose"])
def test_a_barrier_between(name: str) -> None:
    grid, block, arguments, _ = RACES[name]
    assert ptxsan.load(FILE, defines=["SYNC"]).kernel(name)[grid, block](*arguments).clean


def test_elements_of_ones_own_and_another_array() -> None:
    module = ptxsan.load(FILE)
    assert module.kernel("own")[1, 32](X, 128).clean
    assert module.kernel("apart")[1, 128](X, ptxsan.Empty(128), 128).clean


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("stencil", {0}), ("called", {0}), ("transpose", {0}), ("own", {0}), ("apart", set())],
)
def test_through_which_parameters_a_kernel_loads_and_stores(name: str, wanted: set[int]) -> None:
    entry = ptxsan.load(FILE).kernel(name).entry
    names = [parameter for parameter, _ in entry.parameters]
    assert read_and_written(entry) == {names[i] for i in wanted}
