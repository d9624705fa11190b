"""Calls through pointers (PTX ISA §9.7.12.5), and functions that call themselves more than once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan

FILE = Path(__file__).with_name("kernels") / "pointers.cu"
X = np.arange(1, 33, dtype=np.float32)
LANE = np.arange(32)


@cache
def module() -> ptxsan.Module:
    """Compiled and made ready once: no launch changes a variable of it."""
    return ptxsan.load(FILE)


def ran(name: str, *arguments: Any) -> ptxsan.LaunchResult:
    return module().kernel(name)[1, 32](*arguments)


@pytest.mark.parametrize("which", [0, 1])
def test_functions_in_a_table(which: int) -> None:
    result = ran("tables", X, ptxsan.Empty(32), which)
    assert (result.hazards, result.notes) == ((), ())
    adds = ((LANE + which) % 2 == 0) | (LANE == 5)
    assert np.array_equal(result.arrays[1], np.where(adds, X + 3, X * 3))


def test_virtual_functions_that_call_others() -> None:
    result = ran("shapes", X, ptxsan.Empty(32))
    assert (result.hazards, result.notes) == ((), ())
    square = X * X + LANE
    pair = 2 * X * X + 2 * LANE + 1
    want = [square, pair, pair + X * X + LANE + 1]
    assert np.array_equal(result.arrays[1], np.choose(LANE % 3, want))


def test_a_pointer_from_the_host() -> None:
    """As cudaMemcpyFromSymbol brings it."""
    of_mul = module().get("table", np.uint64)[1]
    result = module().kernel("given")[1, 32](X, ptxsan.Empty(32), of_mul)
    assert (result.hazards, result.notes) == ((), ())
    assert np.array_equal(result.arrays[1], 2 * X)


@pytest.mark.parametrize("pointer", [0, 0x1234])
def test_a_pointer_to_no_function(pointer: int) -> None:
    (found,) = ran("given", X, ptxsan.Empty(32), np.uint64(pointer)).hazards
    assert found.check == "bounds"
    assert f"calls through a pointer, 0x{pointer:x}, which is the address of no function" in found.message


def test_a_pointer_to_a_function_of_other_parameters() -> None:
    (found,) = ran("lost", X, ptxsan.Empty(32)).hazards
    assert found.check == "bounds"
    assert "which is the address of no function with these parameters at pointers.cu:2" in found.message


def test_an_undefined_pointer() -> None:
    whole = module().kernel("given").compiled.ptx
    ptx = whole.replace("ld.param.u64 \t%rd3, [given_param_2];", "")
    assert ptx != whole
    found = ptxsan.run(
        ptx, entry="given", grid=1, block=32, arguments=[X, ptxsan.Empty(32), np.uint64(0)]
    ).hazards
    assert found[0].check == "uninit"


@pytest.mark.parametrize(("n", "deep"), [(5, False), (20, True)])
def test_a_function_that_calls_itself_twice(n: int, deep: bool) -> None:
    """Deeper than is supported it is a finding with its line, and no refusal."""
    result = ran("recursion", ptxsan.Empty(32, np.int32), n)
    if not deep:
        assert result.clean
        assert list(result.arrays[0]) == [5] * 32
        return
    (found,) = result.hazards
    assert found.check == "unsupported"
    assert "which calls itself more often than is supported at pointers.cu:" in found.message
