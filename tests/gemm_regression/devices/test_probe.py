"""The harness's own device code, probe.cu, on the interpreter."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_regression.compiler.objects import symbols
from gemm_regression.devices.cuda import client
from gemm_regression.model import Array
from ptxsan import Buffer, GlobalMemory, PreparedKernel, parse
from ptxsan.api import compile_file
from tests.gemm_regression.devices.fake_gpu import ROW, made_up, pycuda_compile

PROBE = Path(client.__file__).with_name("probe.cu")

pytestmark = pytest.mark.compile


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


def test_fill_repeats_a_pool_from_where_it_is_told() -> None:
    """In elements of any size, more of them than threads, and fewer."""
    sizes = (1, 2, 4, 8)
    filled = [np.zeros(37 if size == 2 else 5, f"u{size}") for size in sizes]
    pools = [np.arange(11, dtype=f"u{size}") + 100 for size in sizes]
    pools[3] = pools[3][:1]
    start = (3, 10, 0, 0)
    memory = buffers(*filled, *pools, written=4)
    at = [buffer.address(0) for buffer in memory]
    rows = [
        (at[i], at[4 + i], filled[i].size, start[i], pools[i].size, size, 0) for i, size in enumerate(sizes)
    ]
    table = np.array(rows, ROW).view(np.uint32).reshape(1, -1)
    memory.append(Buffer("table", 8, [table]))
    launch("fill", 2, 8, [np.int64(memory[8].address(0)), np.int32(4), np.int32(4)], memory)
    for i in range(4):
        want = pools[i][(np.arange(filled[i].size) + start[i] + 4) % pools[i].size]
        assert memory[i].values(0)[0].tolist() == want.tolist()


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


def test_device_code_has_the_functions_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def source_module(source: str, **given: Any) -> list[str]:
        return symbols(pycuda_compile(source, **{**given, "cache_dir": False}))

    errors = {"CompileError": RuntimeError, "Error": RuntimeError}
    with made_up(monkeypatch, "timing", "source_module", "modules", **errors) as (*_, modules):
        vars(sys.modules["pycuda.compiler"]).update(SourceModule=source_module)
        assert {"gate", "stamp", "empty", "spin", "busy"} <= set(modules.load_probe("sm_90a"))
        assert {"chain", "tensor_f16"} <= set(modules.load_probe("sm_90a", "roofs.cu", "fma_f32"))
