"""Kernels of other compilers as declarations of a project: judged as those that nvcc compiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.tools import CompileError
from gemm_regression.compiler.triton import Triton
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import BF16, F16, F32, Case, Config, Kernel, Operand, Operation, Problem
from gemm_regression.oracle import verify

pytest.importorskip("triton")
SOURCE = Path(__file__).with_name("triton_kernels.py")
MATMUL = Triton(
    "matmul",
    types="*{dtype} *{dtype} *{output} i32 i32 i32",
    constants=(("BM", "TILE_M"), ("BN", "TILE_N"), ("BK", "TILE_K")),
    warps="WARPS",
)
KERNEL = Kernel(
    "matmul",
    SOURCE,
    entry="matmul",
    frontend=MATMUL,
    shape=MATMUL.shape(SOURCE, ("TILE_M", "TILE_N")),
    grid=lambda shape, p: (-(-p.m // shape.tile[0]), -(-p.n // shape.tile[1]), 1),
    parameters="A, B, C, int M, int N, int K, void *scratch=0, void *profile=0",
    dtypes=(F16, BF16),
    configs=(
        Config(TILE_M=64, TILE_N=32, TILE_K=32, WARPS=4),
        Config(TILE_M=32, TILE_N=64, TILE_K=16, WARPS=2),
    ),
)
PROBLEMS = (Problem(100, 112, 80), Problem(1, 1, 1), Problem(65, 33, 0), Problem(64, 96, 64))


def findings(kernel: Kernel, config: Config, problem: Problem) -> list[str]:
    with_device = EmulatedDevice()
    return [str(found) for found in verify(with_device, Case(kernel, F16, config, kernel.narrowed(problem)))]


@pytest.mark.parametrize("dtype", KERNEL.dtypes, ids=str)
@pytest.mark.parametrize("config", KERNEL.configs, ids=lambda config: config.label)
def test_a_triton_kernel_is_right(dtype: object, config: Config) -> None:
    device = EmulatedDevice()
    for problem in PROBLEMS:
        case = Case(KERNEL, dtype, config, KERNEL.narrowed(problem))  # type: ignore[arg-type]
        assert verify(device, case) == []


def test_what_triton_multiplies_in_tf32_is_no_fp32_product() -> None:
    """As ``tl.dot`` does by itself."""
    kernel = replace(KERNEL, dtypes=(F32,))
    case = Case(kernel, F32, KERNEL.configs[0], kernel.narrowed(PROBLEMS[0]))
    assert {found.check for found in verify(EmulatedDevice(), case)} == {"bound"}


def test_a_mistake_is_found_at_its_line_of_python(tmp_path: Path) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    at = "tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty), inside)"
    source = tmp_path / "mine.py"
    source.write_text(text.replace(at, at.replace(", inside", "")), encoding="utf-8")
    line = 1 + text[: text.index(at)].count("\n")
    kernel = replace(KERNEL, source=source, shape=MATMUL.shape(source, ("TILE_M", "TILE_N")))
    found = findings(kernel, KERNEL.configs[0], PROBLEMS[0])
    assert any(f"mine.py:{line}" in one and one.startswith("bounds") for one in found), found


FP8 = Operation(
    "fp8_gemm",
    (
        Operand("A", "m", "k", "multiplied", like="A", dtype="float8_e4m3fn"),
        Operand("B", "k", "n", "multiplied", like="B", dtype="float8_e4m3fn"),
        Operand("C", "m", "n", "result", like="C"),
    ),
    product=lambda v: v["A"] @ v["B"],
)


def test_a_product_of_fp8_is_an_operation() -> None:
    frontend = replace(MATMUL, types="*fp8e4nv *fp8e4nv *{output} i32 i32 i32")
    of_fp8 = {"frontend": frontend, "shape": frontend.shape(SOURCE, ("TILE_M", "TILE_N")), "operation": FP8}
    kernel = replace(KERNEL, **of_fp8)  # type: ignore[arg-type]
    for problem in PROBLEMS:
        assert findings(kernel, KERNEL.configs[0], problem) == []
    other = replace(frontend, types="*fp8e4nv *fp8e5 *{output} i32 i32 i32")
    assert findings(replace(kernel, frontend=other), KERNEL.configs[0], PROBLEMS[0])


def test_a_tuned_kernel_is_declared_without_its_tuner(tmp_path: Path) -> None:
    text, at = SOURCE.read_text(encoding="utf-8"), "@triton.jit\ndef matmul("
    assert at in text
    tuner = '@triton.autotune([triton.Config({"BM": 16})], key=["M"])\n'
    source = tmp_path / "tuned.py"
    source.write_text(text.replace(at, tuner + at), encoding="utf-8")
    kernel = replace(KERNEL, source=source, shape=MATMUL.shape(source, ("TILE_M", "TILE_N")))
    assert findings(kernel, KERNEL.configs[0], PROBLEMS[0]) == []


def test_what_is_launched_on_a_gpu_is_made_of_the_same_ptx() -> None:
    made = compile_cubin(KERNEL, KERNEL.configs[0], F16, "sm_90a")
    assert made.symbol == "matmul"
    assert made.resources.registers > 16
    assert "sm_90a" in compile_ptx(KERNEL, KERNEL.configs[0], F16, "sm_90a")


def test_what_triton_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    for change, said in (
        ({"types": "*{dtype}"}, "has 6 parameters (a, b, c, M, N, K), not 1"),
        ({"function": "nothing"}, "has no function nothing"),
        ({"function": "triton"}, "triton_kernels.py: triton is not under @triton.jit"),
        ({"constants": (("BM", 3), ("BN", 16), ("BK", 16))}, "Triton: "),
    ):
        kernel = replace(KERNEL, frontend=replace(MATMUL, **change))
        with pytest.raises(CompileError, match=r".*") as caught:
            compile_ptx(kernel, KERNEL.configs[0], F16, "sm_90a")
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
