"""Kernels of the CuTe DSL as declarations of a project: judged as those that nvcc compiles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.cute import Cute
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import (
    BF16,
    F16,
    F32,
    BlockShape,
    Case,
    Config,
    Constraints,
    DType,
    Kernel,
    Problem,
    gemm,
    with_output,
)
from gemm_regression.oracle import verify
from tests.frontends.rig import Without, line_of

pytest.importorskip("cutlass.cute")
SOURCE = Path(__file__).with_name("cute_matmul.py")
MATMUL = Cute(
    "matmul",
    types="A:{dtype}(M,K):(lda,1) B:{dtype}(K,N):(ldb,1) C:{output}(M,N):(ldc,1) alpha:Float32 beta:Float32",
    constants=(("tile", "TILE"),),
)


def by_rows(shape: BlockShape, problem: Problem) -> tuple[int, int, int]:
    return -(-problem.m // shape.tile[0]), -(-problem.n // shape.tile[1]), 1


KERNEL = Kernel(
    "matmul",
    SOURCE,
    entry="matmul",
    frontend=MATMUL,
    shape=MATMUL.shape(SOURCE, ("TILE", "TILE")),
    grid=by_rows,
    parameters=MATMUL.parameters,
    dtypes=(F32, F16, BF16, with_output(F16, F16)),
    configs=(Config(TILE=16), Config(TILE=8)),
)
PROBLEMS = (
    Problem(40, 50, 30, alpha=2, beta=3, lda=33, ldb=51, ldc=60),
    Problem(1, 1, 1),
    Problem(33, 17, 0),
)

# Tensor cores, 64 × 64 of whole tiles, B by rows of K.
TENSORS = SOURCE.with_name("cute_kernels.py")
WARPS = Cute("gemm", "A:{dtype}(M,K):(lda%8,1) B:{dtype}(N,K):(ldb%8,1) C:{output}(M,N):(ldc,1)", align=16)
TENSOR_CORES = Kernel(
    "warps",
    TENSORS,
    entry="gemm",
    frontend=WARPS,
    shape=WARPS.shape(TENSORS, (64, 64)),
    grid=by_rows,
    operation=gemm("NT"),
    parameters=WARPS.parameters,
    dtypes=(F16,),
    constraints=Constraints(
        multiples={"m": 64, "n": 64, "k": 32, "lda": 8, "ldb": 8, "A": 8, "B": 8, "C": 4}
    ),
)
WHOLE = Problem(128, 64, 96, lda=104, ldb=120, ldc=65, layout="NT")
SYNCHRONISATION = r"(?:bar(?:rier)?\.sync|cp\.async\.(?:commit|wait)_group)"


def findings(kernel: Kernel, dtype: DType, problem: Problem) -> list[str]:
    case = Case(kernel, dtype, kernel.configs[0], kernel.narrowed(problem))
    return [str(found) for found in verify(EmulatedDevice(), case)]


@pytest.mark.parametrize("dtype", KERNEL.dtypes, ids=str)
@pytest.mark.parametrize("config", KERNEL.configs, ids=lambda config: config.label)
def test_a_kernel_is_right(dtype: DType, config: Config) -> None:
    device = EmulatedDevice()
    for problem in PROBLEMS:
        assert verify(device, Case(KERNEL, dtype, config, KERNEL.narrowed(problem))) == []


def test_a_kernel_with_tensor_cores_is_right() -> None:
    assert findings(TENSOR_CORES, F16, WHOLE) == []


@pytest.mark.parametrize(
    ("kernel", "dtype", "problem", "there"),
    [(KERNEL, F32, Problem(32, 48, 64), 2), (TENSOR_CORES, F16, WHOLE, 4)],
    ids=["cores", "tensor cores"],
)
def test_each_synchronisation_that_is_missing_is_found_at_a_line_of_python(
    kernel: Kernel, dtype: DType, problem: Problem, there: int
) -> None:
    ptx = compile_ptx(kernel, kernel.configs[0], dtype, "sm_90a")
    assert len(re.findall(SYNCHRONISATION, ptx)) == there
    assert kernel.source
    for which in range(there):
        without = replace(kernel, frontend=Without(kernel.frontend, SYNCHRONISATION, which))
        found = findings(without, dtype, problem)
        assert any(one.startswith("race") and f"{kernel.source.name}:" in one for one in found), (
            which,
            found,
        )


def test_a_mistake_is_found_at_its_line_of_python(tmp_path: Path) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    at = "if row < rows and start + x < depth:"
    source = tmp_path / "mine.py"
    source.write_text(text.replace(at, "if row < rows:"), encoding="utf-8")
    kernel = replace(KERNEL, source=source, shape=MATMUL.shape(source, ("TILE", "TILE")))
    line = 1 + line_of(SOURCE.name, at)
    assert any(f"mine.py:{line}" in one for one in findings(kernel, F32, PROBLEMS[0]))


def test_what_is_launched_on_a_gpu_is_made_of_the_same_ptx() -> None:
    made = compile_cubin(TENSOR_CORES, Config(), F16, "sm_90a")
    assert made.symbol == "gemm"
    assert made.resources.registers > 16
    shape = TENSOR_CORES.shape_of(Config(), F16)
    assert (shape.block, shape.dynamic_bytes) == ((128, 1, 1), 2 * (64 * 40 - 8) * 2)


MORE = """
import cuda.bindings.driver as cuda
import cutlass
from cutlass import cute


@cute.kernel
def store(c: cute.Tensor, value: cutlass.Float32, shared: cutlass.Constexpr):
    if cutlass.const_expr(shared):
        cutlass.memory.SmemAllocator().allocate(shared, 16)
    c[cute.arch.thread_idx()[0]] = value


class Host:
    @cute.jit
    def __call__(
        self, c: cute.Tensor, value: cutlass.Float32, stream: cuda.CUstream, n: cutlass.Constexpr = 1
    ):
        for _ in cutlass.range_constexpr(n):
            store(c, value, 64).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


host = Host()


@cute.jit
def twice(c: cute.Tensor):
    store(c, 1.0, 0).launch(grid=(1, 1, 1), block=(32, 1, 1))
    store(c, 2.0, 64).launch(grid=(1, 1, 1), block=(32, 1, 1))
"""


def test_a_host_function_may_take_a_stream_and_defaults(tmp_path: Path) -> None:
    source = tmp_path / "more.py"
    source.write_text(MORE, encoding="utf-8")
    host = Cute("host", "C:Float32(M):(1) alpha:Float32")
    assert ".entry host(" in host.ptx(source, Config(), F32, "sm_90a")
    assert host.parameters == "{C, int M}, float alpha"
    assert host.shape(source, (32, 1))(Config(), F32).dynamic_bytes == 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"types": "C:Float32(M):(1)", "function": "twice", "constants": ()},
            "twice launches 2 kernels; only one",
        ),
        ({"types": "A:{dtype}"}, "has 5 parameters (a, b, c, alpha, beta), not 1"),
        ({"types": "A:{dtype}(M,K):(1) B C alpha beta"}, "is no tensor or number such as A:"),
        ({"types": "A:Float33 B:Float32 C:Float32 alpha:Float32 beta:Float32"}, "CuTe DSL: no type Float33"),
        ({"function": "nothing"}, "has no function nothing"),
        ({"constants": (("tile", "TILE"), ("tiles", 3))}, "CuTe DSL: "),
    ],
)
def test_what_is_refused_is_told_in_one_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    source = tmp_path / "more.py"
    source.write_text(SOURCE.read_text(encoding="utf-8") + MORE, encoding="utf-8")
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        compile_ptx(
            replace(KERNEL, source=source, frontend=replace(MATMUL, **change)),
            KERNEL.configs[0],
            F32,
            "sm_90a",
        )
    assert "\n" not in str(caught.value)
