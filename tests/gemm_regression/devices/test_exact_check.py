"""The exact check at the timed problem, over a made-up GPU; its device code, probe.cu, on the interpreter."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.compiler.objects import symbols
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda import client
from gemm_regression.devices.work import GUARD, Work
from gemm_regression.model import BF16, F16, F32, S8, Array, Case, DType, Problem
from ptxsan import Buffer, GlobalMemory, PreparedKernel, parse
from ptxsan.nvcc import compile_file
from tests.gemm_regression.devices.fake_gpu import (
    ROW,
    FakeGpu,
    made_up,
    made_up_gpu,
    matrix,
    product,
    pycuda_compile,
)
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
        self.checks = modules.checks.Checks(gpu)
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
    bench.check(right, F64)
    c = matrix(bench.gpu, bench.work, bench.data.at, "C")
    beside = bench.gpu.view(bench.data.reference, np.float64, 45).reshape(5, 9)[:, :7]
    beside[:] = c[:] = np.pi
    at = bench.data.at["C"], bench.data.reference
    bench.checks.timed("planted", bench.work, bench.work.result, *at)
    c[:] = np.float32(np.pi)
    with pytest.raises(DeviceError, match="the output of a timed launch is wrong in 35 of 35 elements"):
        bench.checks.timed("planted", bench.work, bench.work.result, *at)


@pytest.mark.parametrize("dtype", [U8, replace(F16, name="odd", output=np.dtype(np.uint16))], ids=str)
def test_elements_that_no_check_knows_are_named(bench: Bench, dtype: DType) -> None:
    said = r"elements of uint(8|16) cannot be checked on the GPU; known: "
    with pytest.raises(DeviceError, match=said) as found:
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


# probe.cu

PROBE = Path(client.__file__).with_name("probe.cu")


def buffers(*given: Array, written: int) -> list[Buffer]:
    return [
        Buffer(f"p{number}", number, [array.reshape(1, -1)], writable=number < written, output=False)
        for number, array in enumerate(given)
    ]


def launch(entry: str, grid: int, block: int, parameters: list[Any], memory: list[Buffer]) -> None:
    ptx = compile_file(PROBE, "sm_90a", (), ())
    machine = PreparedKernel(parse(ptx, entry, PROBE.name), PROBE.name)
    report = machine.run((grid, 1, 1), (block, 1, 1), 0, [parameters], GlobalMemory(memory), 100_000)
    assert not report.hazards


@pytest.mark.compile
def test_fill_repeats_a_pool_from_where_it_is_told() -> None:
    """In elements of any size, more of them than threads, and fewer; those of 4 bytes as in each launch."""
    sizes = (1, 2, 4, 8)
    filled = [np.zeros(37 if size == 2 else 5, f"u{size}") for size in sizes]
    pools = [np.arange(11, dtype=f"u{size}") + 100 for size in sizes]
    pools[3] = pools[3][:1]
    start = (3, 10, 0, 0)
    memory = buffers(*filled, *pools, written=4)
    at = [buffer.address(0) for buffer in memory]
    rows = [
        (at[i], at[4 + i], filled[i].size, start[i], pools[i].size, size, size == 4)
        for i, size in enumerate(sizes)
    ]
    table = np.array(rows, ROW).view(np.uint32).reshape(1, -1)
    memory.append(Buffer("table", 8, [table]))
    launch("fill", 2, 8, [np.int64(memory[8].address(0)), np.int32(4), np.int32(4)], memory)
    for i in range(4):
        shift = 0 if sizes[i] == 4 else 4
        want = pools[i][(np.arange(filled[i].size) + start[i] + shift) % pools[i].size]
        assert memory[i].values(0)[0].tolist() == want.tolist()


@pytest.mark.compile
@pytest.mark.parametrize(("kind", "dtype"), [(0, "f4"), (3, "i1"), (4, "i4"), (5, "i2"), (6, "f8")])
def test_a_product_with_a_vector_is_of_any_element(kind: int, dtype: str) -> None:
    random = np.random.default_rng(0)
    x, v = random.integers(-9, 9, (6, 7)).astype(dtype), random.integers(-9, 9, 7).astype(np.float64)
    if dtype == "f8":
        x[2, 3] = 1 + 2.0**-40  # which no FP32 holds
    memory = buffers(np.zeros(6), x, v, written=1)
    y, matrix, vector = (buffer.address(0) for buffer in memory)
    sizes: list[Any] = [np.int32(kind), np.int32(6), np.int32(7), np.int64(7), np.int64(1), np.int64(0)]
    launch("matvec", 6, 256, [np.int64(matrix), *sizes, np.int64(vector), np.int64(y)], memory)
    assert memory[0].values(0)[0].tolist() == (x.astype(np.float64) @ v).tolist()


@pytest.mark.compile
def test_device_code_has_the_functions_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def source_module(source: str, **given: Any) -> Collection[str]:
        return symbols(pycuda_compile(source, **given))

    errors = {"CompileError": RuntimeError, "Error": RuntimeError}
    with made_up(monkeypatch, "timing", "source_module", "modules", **errors) as (*_, modules):
        vars(sys.modules["pycuda.compiler"]).update(SourceModule=source_module, compile=pycuda_compile)
        assert {"gate", "stamp", "empty", "spin", "busy"} <= set(modules.load_probe("sm_90a"))
        assert {"chain", "tensor_f16"} <= set(modules.load_probe("sm_90a", "roofs.cu", "fma_f32"))
