"""The exact check at the timed problem, over a made-up GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import GUARD, Work
from gemm_regression.model import BF16, F16, F32, S8, Array, Case, DType, Problem
from tests.gemm_regression.devices.fake_gpu import FakeGpu, made_up_gpu, matrix, product
from tests.gemm_regression.synthetic import case

PROBLEM = Problem(5, 7, 6, alpha=2, ldc=9)
_DOUBLE = np.dtype(np.float64)
F64 = DType("f64", _DOUBLE, _DOUBLE, 2.0**-53, 2.0**-53, 53, 2.0**-53, _DOUBLE)
U8 = DType("u8", np.dtype(np.uint8), np.dtype(np.int32), 0.0, 0.0, 7, 0.0, np.dtype(np.int32))


def of_dtype(dtype: DType, problem: Problem = PROBLEM) -> Case:
    found = case(problem=problem)
    return replace(found, dtype=dtype, kernel=replace(found.kernel, dtypes=(dtype,)))


class Bench:
    """The checks, and the data of a problem."""

    def __init__(self, gpu: FakeGpu, modules: SimpleNamespace) -> None:
        self.gpu, self.modules = gpu, modules
        self.checks = modules.timed_data.Checks(gpu)
        self.arena = modules.timed_data.TimedDataArena(gpu)

    def check(
        self, kernel: Callable[[Array, Array], None], dtype: DType = F32, problem: Problem = PROBLEM
    ) -> None:
        """Of a kernel that is given C and what belongs into it."""
        work = Work.of(of_dtype(dtype, problem))
        data: Any = self.arena.get(work)
        self.data, self.work = data, work

        def enqueue(stream: Any) -> None:
            kernel(matrix(self.gpu, work, data.at, "C"), product(self.gpu, work, data.at))

        self.checks.exact("planted", work, enqueue, None, data)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    with made_up_gpu(monkeypatch) as (gpu, modules):
        yield Bench(gpu, modules)


def right(c: Array, want: Array) -> None:
    c[:] = want


@pytest.mark.parametrize("dtype", [F32, S8, F64, BF16], ids=str)
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_right_output_passes(bench: Bench, dtype: DType, beta: float) -> None:
    bench.check(right, dtype, replace(PROBLEM, beta=beta))


@pytest.mark.parametrize("dtype", [F32, S8, F64], ids=str)
def test_an_element_that_is_off_by_one_is_wrong(bench: Bench, dtype: DType) -> None:
    def kernel(c: Array, want: Array) -> None:
        c[:] = want
        c[3, 2] += 1

    with pytest.raises(DeviceError, match=r"in 1 of 5 rows, first in row 3$") as found:
        bench.check(kernel, dtype)
    assert found.value.code == "WRONG"


def test_fp64_in_the_precision_of_fp32_is_wrong_where_it_is_timed(bench: Bench) -> None:
    """The result of a timed launch is held against another with FP64's tolerance."""

    def kernel(c: Array, want: Array) -> None:
        c[:] = want

    bench.check(kernel, F64)
    c = matrix(bench.gpu, bench.work, bench.data.at, "C")
    beside = bench.gpu.view(bench.data.reference, np.float64, 45).reshape(5, 9)[:, :7]
    beside[:] = c[:] = np.pi
    at = bench.data.at["C"], bench.data.reference
    bench.checks.timed("planted", bench.work, *at)
    c[:] = np.float32(np.pi)
    with pytest.raises(DeviceError, match="the output of a timed launch is wrong in 35 of 35 elements"):
        bench.checks.timed("planted", bench.work, *at)


@pytest.mark.parametrize("dtype", [U8, replace(F16, name="odd", output=np.dtype(np.uint16))], ids=str)
def test_elements_that_no_check_knows_are_named(bench: Bench, dtype: DType) -> None:
    with pytest.raises(
        DeviceError, match=r"elements of uint(8|16) cannot be checked on the GPU; known: "
    ) as found:
        bench.check(right, dtype)
    assert found.value.code == "ELEMENT_TYPE"


def test_output_that_is_written_only_over_nan_is_wrong(bench: Bench) -> None:
    with pytest.raises(DeviceError, match="exact check"):
        bench.check(lambda c, want: np.copyto(c, want.astype(np.float32), where=np.isnan(c)))


def test_c_is_a_number_between_bands_of_nan(bench: Bench) -> None:
    seen: list[Array] = []

    def kernel(c: Array, want: Array) -> None:
        size = bench.data.guard[1] + GUARD - bench.data.guard[0]
        seen.append(bench.gpu.at(bench.data.guard[0], size).view(np.float32).copy())
        c[:] = want

    bench.arena.get(Work.of(of_dtype(F32)))
    bench.data = bench.arena.get(Work.of(of_dtype(F32)))
    bench.check(kernel)
    bands = np.isnan(seen[0])
    assert bands.sum() == seen[0].size - 45  # C with its padding
    assert set(seen[0][~bands]) == {77.0}


@pytest.mark.parametrize("offset", [-1, 4 * 45])
def test_byte_beside_c_is_wrong(bench: Bench, offset: int) -> None:
    def kernel(c: Array, want: Array) -> None:
        c[:] = want
        bench.gpu.at(bench.data.at["C"] + offset, 1)[:] = 0

    bench.data = bench.arena.get(Work.of(of_dtype(F32)))
    with pytest.raises(DeviceError, match=r"wrote (before|past) the end of C"):
        bench.check(kernel)


def test_what_is_expected_is_computed_once_for_all_kernels_of_a_problem(bench: Bench) -> None:
    other = replace(PROBLEM, m=8)
    for problem in (PROBLEM, other, PROBLEM):
        bench.check(right, F32, problem)
    launched: list[str] = []
    was = bench.gpu.get_function
    bench.gpu.get_function = lambda name: launched.append(name) or was(name)  # type: ignore[func-returns-value,method-assign]
    for problem in (other, PROBLEM):
        bench.check(right, F32, problem)
    assert launched.count("matvec") == 2  # C·x of each
