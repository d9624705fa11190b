"""A struct by value as a parameter: where a C compiler has its members, as text, and on both devices."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler.cubin import parameters
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.devices.work import Work, launch_document, read_launch
from gemm_regression.model import F32, GEMM, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.model.parameters import parse_parameters
from gemm_regression.oracle import verify
from tests.gemm_regression.devices.fake_gpu import made_up

SOURCE = """
struct View { const float* data; int rows, columns; long long ld; };
struct Result { short flags; float* data; char last; };

extern "C" __global__ void gemm(int K, View a, View b, Result c, float beta, int ldc) {
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= a.rows || column >= b.columns || c.flags != 3 || c.last != 7) return;
    float sum = 0;
    for (int k = 0; k < K; k++) sum += a.data[row * a.ld + k] * b.data[k * b.ld + column];
    float* at = c.data + (size_t)row * ldc + column;
    *at = sum + (beta == 0 ? 0 : beta * *at);
}
"""
VIEWS = "{A, int M, int K, long long lda}, {float *B, int K, int N, long long ldb}"
PARAMETERS = f"K, {VIEWS}, {{short flags=3, C, char last=7}}, float beta, ldc"
KERNEL = Kernel("gemm", Path(), "gemm", BlockShape((8, 8), (8, 8)), parameters=PARAMETERS)
PROBLEM = Problem(20, 30, 40, beta=2, lda=44, ldb=33, ldc=35)
AT = {"A": 1 << 40, "B": 2 << 40, "C": 3 << 40}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    source = tmp_path / "gemm.cu"
    source.write_text(SOURCE, encoding="utf-8")
    return Case(replace(KERNEL, source=source), F32, Config(), PROBLEM)


@pytest.mark.compile
def test_a_kernel_gets_the_members_where_it_looks_for_them(case: Case) -> None:
    assert verify(EmulatedDevice(), case) == []


@pytest.mark.compile
def test_they_are_packed_for_a_gpu_where_the_binary_has_them(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin = compile_cubin(case.kernel, Config(), F32, "sm_90a").cubin
    offsets = tuple(place.offset for place in parameters(cubin, "gemm"))
    with made_up(monkeypatch, "timing", "source_module", "modules") as (*_, modules):
        formats, values = modules.pack(Work.of(case), AT, lambda: offsets)
    packed = struct.pack("".join(formats), *values)
    of_views = struct.pack("PiiqPiiq", AT["A"], 20, 40, 44, AT["B"], 40, 30, 33)
    wanted = {1: of_views, 3: struct.pack("hPb", 3, AT["C"], 7), 4: struct.pack("fi", 2, 35)}
    assert offsets == (0, 8, 32, 56, 80, 84)
    assert {i: packed[offsets[i] : offsets[i] + len(part)] for i, part in wanted.items()} == wanted


@pytest.mark.compile
def test_a_struct_of_another_size_is_refused(case: Case) -> None:
    short = replace(case.kernel, parameters=PARAMETERS.replace("int M, int K, ", ""))
    said = "parameter 2 is bytes[16] {A, lda}, but the kernel takes bytes[24]"
    with pytest.raises(DeviceError, match=re.escape(said)):
        verify(EmulatedDevice(), replace(case, kernel=short))


def test_a_launch_with_a_struct_is_read_back_exactly(case: Case) -> None:
    work = Work.of(case)
    assert [argument.kind for argument in work.arguments[1:4]] == ["bytes[24]"] * 3
    assert read_launch(launch_document("gemm", work)) == ("gemm", work)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{A, alpha}, B, C", "state the type of alpha"),
        ("{A, mapB}, C", "a tensor map is no member of a struct"),
        ("{A, {B}}, C", "cannot be parsed: write it as in C"),
        ("{A, B, C", "cannot be parsed"),
        ("{A, M}, {B, A}, C", "A occurs twice"),
    ],
)
def test_what_is_no_struct_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_parameters(text, GEMM)
    assert "\n" not in str(caught.value)
