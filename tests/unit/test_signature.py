"""Whether a compiled kernel takes the parameters that a launch hands over."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.objects import mismatch, parameters
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from tests.ladder import LADDER


class Handed(NamedTuple):
    name: str
    kind: str


PTX = """.visible .entry gemm_one(
	.param .u32 gemm_one_param_0,
	.param .u64 .ptr .align 1 gemm_one_param_1,
	.param .align 64 .b8 gemm_one_param_2[128],
	.param .f32 gemm_one_param_3,
	.param .u64 gemm_one_param_4,
	.param .align 2 .b8 gemm_one_param_5[2]
)
{"""
TAKES = (
    Handed("M", "i32"),
    Handed("A", "p64"),
    Handed("map", "bytes[128]"),
    Handed("alpha", "f32"),
    Handed("C", "p64"),
    Handed("scale", "f16"),
)


def exchanged(i: int, j: int) -> tuple[Handed, ...]:
    order = list(TAKES)
    order[i], order[j] = order[j], order[i]
    return tuple(order)


def test_parameters_are_read_from_ptx() -> None:
    assert parameters(PTX, "gemm_one") == ("u32", "ptr", "b8[128]", "f32", "u64", "b8[2]")
    assert parameters(PTX, "gemm") is None
    assert parameters(".entry gemm_one()", "gemm_one") == ()
    assert mismatch(PTX, "gemm_two", ()) == "there is no kernel gemm_two"


def test_what_is_taken_is_no_finding() -> None:
    assert mismatch(PTX, "gemm_one", TAKES) is None
    stride = (*TAKES[:4], Handed("stride", "i64"), TAKES[5])  # as PTX has it, it may be a number
    assert mismatch(PTX, "gemm_one", stride) is None


@pytest.mark.parametrize(
    ("handed", "said"),
    [
        (exchanged(0, 1), "parameter 1 is p64 A, but the kernel takes i32"),
        (exchanged(0, 3), "parameter 1 is f32 alpha, but the kernel takes i32"),
        (exchanged(3, 4), "parameter 4 is p64 C, but the kernel takes f32"),
        (exchanged(4, 5), "parameter 5 is f16 scale, but the kernel takes u64 (a pointer?)"),
        (exchanged(2, 5), "parameter 3 is f16 scale, but the kernel takes bytes[128]"),
        ((TAKES[0], Handed("n", "i64"), *TAKES[2:]), "parameter 2 is i64 n, but the kernel takes a pointer"),
        (TAKES[:5], "the kernel takes 6 parameters, not 5 (M, A, map, alpha, C)"),
        ((*TAKES, TAKES[0]), "the kernel takes 6 parameters, not 7 (M, A, map, alpha, C, scale, M)"),
    ],
)
def test_the_first_that_differs_is_one_line(handed: tuple[Handed, ...], said: str) -> None:
    assert mismatch(PTX, "gemm_one", handed) == said


@pytest.mark.compile
def test_every_kernel_of_the_ladder_takes_what_is_handed_over() -> None:
    for kernel in LADDER:
        if kernel.compiled:
            config, dtype = kernel.configs[0], kernel.dtypes[0]
            ptx = compile_ptx(kernel, config, dtype, "sm_90a")
            handed = Case(kernel, dtype, config, Problem(64, 64, 64)).arguments
            assert mismatch(ptx, entry_symbol(kernel, config, dtype, ptx), handed) is None


@pytest.mark.compile
@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        *(("int", "i32"), ("unsigned", "i32"), ("long long", "i64"), ("size_t", "i64"), ("float", "f32")),
        *(("double", "f64"), ("__half", "f16"), ("__nv_bfloat16", "bf16"), ("const float*", "p64")),
        *(("char", "i8"), ("short", "i16"), ("struct S", "bytes[20]"), ("float4", "bytes[16]")),
    ],
)
def test_each_type_is_its_kind_and_no_other(type_: str, kind: str, tmp_path: Path) -> None:
    source = tmp_path / "k.cu"
    source.write_text(
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nstruct S { int a[5]; };\n"
        f'extern "C" __global__ void gemm_planted(float* c, {type_} x) {{ c[0] = 1.0f; }}\n'
    )
    kernel = Kernel("planted", source, "gemm_planted", BlockShape((32, 1), (1, 32)))
    ptx = compile_ptx(kernel, Config(), F32, "sm_90a")
    kinds = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64", "p64", "bytes[20]", "bytes[16]")
    alike = {"i64": {"p64"}, "p64": {"i64"}, "f16": {"bf16"}, "bf16": {"f16"}}.get(kind, set())
    taken = {k for k in kinds if not mismatch(ptx, "gemm_planted", (Handed("C", "p64"), Handed("x", k)))}
    assert taken == {kind} | alike
