"""Which compiled kernel the emulated device runs, and which line of its file an instruction comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.compiler.static import variants_of
from gemm_regression.devices import DeviceError, emulated
from gemm_regression.devices.emulated import EmulatedDevice, align
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import make_inputs, verify
from ptxsan import Instruction, parse
from ptxsan.frontend import SourceLocation
from tests.ladder import LADDER, find_kernel

SOURCE = """
extern "C" __global__ void gemm_planted(
    int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
    int ldc)
{
    int i = threadIdx.x;
    if (i < N)
        for (int m = 0; m < M; m++) {
            float sum = 0.0f;
            for (int k = 0; k < K; k++) sum += A[m * lda + k] * B[k * ldb + i];
            C[m * ldc + i] = WRONG + alpha * sum + (beta == 0.0f ? 0.0f : beta * C[m * ldc + i]);
        }
}
"""

# A float4 at a time of a row of 8 of A, where TEST says that it is aligned.
VECTORS = """
extern "C" __global__ void gemm_planted(
    int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb, float beta, float* C,
    int ldc)
{
    int i = threadIdx.x;
    if (i >= N) return;
    for (int m = 0; m < M; m++) {
        float sum = 0.0f;
        const float* a = A + (size_t)m * lda;
        for (int k = 0; k < K; k += 4)
            if (TEST) {
                float4 v = *(const float4*)(a + k);
                sum += v.x * B[k * ldb + i] + v.y * B[(k + 1) * ldb + i] + v.z * B[(k + 2) * ldb + i] +
                       v.w * B[(k + 3) * ldb + i];
            } else
                for (int j = k; j < k + 4; j++) sum += a[j] * B[j * ldb + i];
        float* c = C + (size_t)m * ldc + i;
        *c = alpha * sum + (beta == 0.0f ? 0.0f : beta * *c);
    }
}
"""


def planted(folder: Path, flag: str, source: str = SOURCE) -> Kernel:
    (folder / "planted.cu").write_text(source)
    shape = BlockShape(threads=(32, 1), tile=(64, 64))
    return Kernel("planted", folder / "planted.cu", "gemm_planted", shape, flags=(flag,))


@pytest.mark.compile
def test_what_does_not_compile_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its cases has the error."""
    kernel, calls = planted(tmp_path, "-DWRONG=0", SOURCE.replace("float sum", "loat sum")), []

    def compiled(*given: Any, **how: Any) -> str:
        calls.append(given)
        return compile_ptx(*given, **how)

    monkeypatch.setattr("gemm_regression.devices.emulated.compile_ptx", compiled)
    device = EmulatedDevice(by_source=False)
    for problem in (Problem(3, 4, 5), Problem(2, 2, 2)):
        with pytest.raises(DeviceError, match='error: identifier "loat" is undefined') as caught:
            verify(device, Case(kernel, F32, Config(), problem))
        assert caught.value.code == "COMPILE_ERROR"
    assert len(calls) == 1


@pytest.mark.compile
@pytest.mark.parametrize(
    ("test", "starts", "found"),
    [
        ("lda % 4 == 0", (0, 1, 2), ""),
        ("lda % 4 == 0", (1, 0, 0), "misaligned"),
        ("lda % 4 == 0", (2, 0, 0), "misaligned"),
        ("lda % 4 == 0 && (size_t)A % 16 == 0", (1, 2, 3), ""),
        ("lda % 4 == 0 && (size_t)A % 8 == 0", (2, 0, 0), "misaligned"),
        ("lda % 4 == 0 && (size_t)B % 16 == 0", (1, 1, 1), ""),
        ("lda % 4 == 0 && (size_t)B % 16 == 0", (1, 0, 1), "misaligned"),
    ],
)
@pytest.mark.parametrize("lda", [8, 2**30 + 4, 2**30 + 5])
def test_matrices_start_where_the_problem_says(
    test: str, starts: tuple[int, int, int], found: str, lda: int, tmp_path: Path
) -> None:
    kernel = planted(tmp_path, f"-DTEST={test}", VECTORS)
    problem = Problem(5, 6, 8, beta=1, lda=lda, starts=starts)
    findings = verify(EmulatedDevice("sm_90a", by_source=False), Case(kernel, F32, Config(), problem))
    assert {finding.check for finding in findings} == ({found} - {""} if lda % 4 == 0 else set())
    if findings:
        assert 'if that is not to be taken: constraints=Constraints(multiples={"A": 4' in findings[0].message


@pytest.mark.compile
def test_kernels_that_differ_in_flags_alone_are_two(tmp_path: Path) -> None:
    """Of one source, entry, config and dtype."""
    right = planted(tmp_path, "-DWRONG=0")
    device = EmulatedDevice("sm_90a")
    for kernel in (right, replace(right, flags=("-DWRONG=1",)), right):
        found = verify(device, Case(kernel, F32, Config(), Problem(8, 16, 4)))
        assert bool(found) == (kernel is not right)


@pytest.mark.compile
def test_what_does_not_end_within_the_time_limit_hangs(tmp_path: Path) -> None:
    case = Case(planted(tmp_path, "-DWRONG=0"), F32, Config(), Problem(64, 32, 512))
    assert verify(EmulatedDevice("sm_90a"), case) == []
    (finding, *_) = verify(EmulatedDevice("sm_90a", time_limit=0.01), case)
    assert finding.check == "hang"
    assert "still runs at the time limit" in finding.message
    assert "planted.cu:" in finding.message


# Lines

# As nvcc writes it with -lineinfo.
TOLD = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry tiny(.param .u32 n)
{
    .reg .b32 %r<4>;
    .loc 1 10 5
    mov.u32 %r1, 1;
    .loc 1 34 5, function_name $L__info_string0, inlined_at 1 11 9
    mov.u32 %r2, 2;
    .loc 2 120 1, function_name $L__info_string1, inlined_at 1 12 9
    mov.u32 %r3, 3;
    .loc 1 0 9
    mov.u32 %r1, 4;
    .loc 3 7 7
    ret;
}
    .file 1 "tiny.cu"
    .file 2 "cuda_fp16.hpp"
    .section .debug_str
    {
$L__info_string0:
.b8 95,90,53
.b8 0
    }
"""


def test_a_line_is_that_of_the_cu_file() -> None:
    """Of a function of the file its own; of a header the line that calls it; else the one before."""
    assert [i.source.line for i in parse(TOLD, "tiny").code] == [10, 34, 12, 12, 12]


# A header's function that calls another one of it; the .cu file is not the first.
IN_HEADER = TOLD.replace('"tiny.cu"', '"tile.cuh"').replace('"cuda_fp16.hpp"', '"tiny.cu"')
IN_HEADER = IN_HEADER.replace(".loc 1 10 5", ".loc 1 10 5, function_name $L__info_string0, inlined_at 2 99 3")
IN_HEADER = IN_HEADER.replace("inlined_at 1 11 9", "inlined_at 1 10 5")


def test_what_a_header_has_is_named_with_the_line_that_calls_it() -> None:
    places = [i.source.text("tiny.cu") for i in parse(IN_HEADER, "tiny", "tiny.cu").code]
    assert places[:3] == ["tiny.cu:99 in tile.cuh:10", "tiny.cu:99 in tile.cuh:34", "tiny.cu:120"]


def test_a_kernel_that_a_header_has_is_not_taken_for_one_of_the_cu_file() -> None:
    first, *_ = parse(TOLD, "tiny", "other.cu").code
    assert first.source.line == 0
    assert first.source.text("other.cu") == "tiny.cu:10, included by other.cu"
    assert first.source.at("other.cu") == ("tiny.cu", 10)


def test_what_a_header_calls_of_the_toolkit_is_named_by_the_place_of_the_call() -> None:
    """A function of the toolkit, inlined in another one of it, which the header calls at its line 34."""
    text = TOLD.replace('"cuda_fp16.hpp"', '"/usr/local/cuda-13.0/include/cub/a.cuh"')
    text = text.replace("inlined_at 1 12 9", "inlined_at 1 34 2")
    text = text.replace(".loc 3 7 7", ".loc 2 60 1, function_name $L__info_string1, inlined_at 2 120 1")
    _, _, inner, _, innermost = parse(text, "tiny", "other.cu").code
    assert [i.source.text("other.cu") for i in (inner, innermost)] == ["tiny.cu:34, included by other.cu"] * 2


def test_headers_of_the_toolkit_are_not_named() -> None:
    toolkit = TOLD.replace('"cuda_fp16.hpp"', '"/usr/local/cuda-13.0/include/cuda_fp16.hpp"')
    assert [i.source.header for i in parse(toolkit, "tiny").code] == [""] * 5


def of_files(folder: Path, **files: str) -> Case:
    """A case of k.cu, which has f(A, B, C) of another file."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    shape = BlockShape((32, 1), (1, 32))
    kernel = Kernel("k", folder / "k.cu", "f", shape, parameters=PARAMETERS)
    return Case(kernel, F32, Config(), Problem(1, 32, 8))


PARAMETERS = "int M, int N, int K, const float* A, const float* B, float* C"
HEAD = f'extern "C" __global__ void f({PARAMETERS})'


@pytest.mark.compile
@pytest.mark.parametrize(
    ("cu", "cuh", "title", "where"),
    [
        (f"{HEAD} {{\n put(C); }}", "%s", "bounds at k.cu:3", " at k.cu:3 in t.cuh:2 (PTX"),
        (f"{HEAD} {{\n put(C); }}", "__noinline__ %s", "bounds at k.cu:3", " at k.cu:3 in t.cuh:2 (PTX"),
        ("", f"%s\n{HEAD} {{ put(C); }}", "bounds at t.cuh:2", " at t.cuh:2, included by k.cu (PTX"),
    ],
    ids=["inlined", "called", "whole"],
)
def test_a_violation_in_a_header_names_both(
    cu: str, cuh: str, title: str, where: str, tmp_path: Path
) -> None:
    put = "__device__ void put(float* C) {\n C[threadIdx.x + 32] = 1.f; }"
    finding = verify(EmulatedDevice(), of_files(tmp_path, k_cu=f'#include "t.cuh"\n{cu}', t_cuh=cuh % put))[0]
    assert finding.title == title
    assert where in finding.message


@pytest.mark.compile
def test_what_is_not_supported_is_named_with_its_line(tmp_path: Path) -> None:
    text = HEAD + " {\n __brkpt();\n C[0] = A[0]; }"
    with pytest.raises(DeviceError, match=r"brkpt: k\.cu:2 \(PTX line .*breakpoints"):
        EmulatedDevice().lines(of_files(tmp_path, k_cu=text))


def code(*ops: tuple[str, int]) -> list[Instruction]:
    return [
        Instruction(op, (), None, line, SourceLocation(source), op)
        for line, (op, source) in enumerate(ops, 100)
    ]


def test_code_that_differs_is_lined_up() -> None:
    plain = code(("ld", 0), ("mov", 0), ("fma", 0), ("st", 0))
    told = code(("ld", 1), ("fma", 2), ("add", 3), ("st", 4))
    lines = [(line, place.line) for line, place in align(plain, told)]
    assert lines == [(100, 1), (101, 1), (102, 2), (103, 4)]


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "op", "text"),
    [
        # The one variant whose code is another with -lineinfo.
        ("warp_tiled-f32-tile64x64x16-warp32x32-thread8x4-stages3", "fma", "sum["),
        ("wmma-f16-tile64x64x32-warp32x32", "wmma.mma", "mma_sync"),
    ],
)
def test_instructions_of_a_variant_are_where_the_file_has_them(name: str, op: str, text: str) -> None:
    kernel, config, dtype = variants_of("sm_90a", LADDER)[name]
    lines = EmulatedDevice().lines(Case(kernel, dtype, config, Problem(1, 1, 1)))
    assert kernel.source
    source = kernel.source.read_text().splitlines()
    known = [place.line for place in lines.values()]
    assert 0 < min(known) <= max(known) <= len(source)
    code = parse(compile_ptx(kernel, config, dtype, "sm_90a"), kernel.entry).code
    found = [source[lines[i.line].line - 1] for i in code if i.op.startswith(op)]
    assert sum(text in line for line in found) > 0.9 * len(found) > 0


def test_a_file_of_ptx_is_judged_as_it_is(tmp_path: Path) -> None:
    """With its own lines; and what ptxas refuses does not compile."""
    ptx, source = compile_ptx(planted(tmp_path, "-DWRONG=0"), Config(), F32, "sm_90a"), tmp_path / "mine.ptx"
    kernel = Kernel("mine", source, "gemm_planted", BlockShape((32, 1), (256, 32)))
    case = Case(kernel, F32, Config(), Problem(5, 7, 9))
    source.write_text(ptx)
    assert verify(EmulatedDevice(), case) == []
    source.write_text(ptx.replace("st.global.f32", "// st.global.f32"))
    assert "unwritten" in {found.check for found in verify(EmulatedDevice(), case)}
    for text, why in (
        (ptx.replace("ld.param", "ld.parm", 1), "mine"),
        ("\n", r"mine\.ptx: the PTX is empty"),
    ):
        source.write_text(text)
        with pytest.raises(DeviceError, match=why) as refused:
            verify(EmulatedDevice(), case)
        assert refused.value.code == "COMPILE_ERROR"


# Memory


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[int]]]:
    """Of each grid that runs the launches, and which of them run last to first."""
    found: list[tuple[int, list[int]]] = []
    launch = EmulatedDevice._launch

    def spy(self: EmulatedDevice, *given: Any) -> Any:
        found.append((len(given[1]), list(given[5])))
        return launch(self, *given)

    monkeypatch.setattr(EmulatedDevice, "_launch", spy)
    return found


@pytest.mark.compile
def test_launches_that_take_much_memory_run_a_few_at_a_time(
    launched: list[tuple[int, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = find_kernel("split_k")
    case = Case(kernel, F32, kernel.configs[0], Problem(33, 12, 264, beta=1.0))
    cases = [replace(case, problem=replace(case.problem, alpha=alpha)) for alpha in (1.0, 2.0, -1.0)]
    inputs = [make_inputs(kernel.operation, case.problem, F32, "exact")] * len(cases)
    device = EmulatedDevice()
    together = device.run_all(cases, inputs)
    monkeypatch.setattr(emulated, "_ROOM", 1)
    apart = device.run_all(cases, inputs)
    assert launched == [(3, [1]), (1, []), (1, [0]), (1, [])]  # every second one runs last to first, as ever
    assert [each.result.tobytes() for each in apart] == [each.result.tobytes() for each in together]
    assert len({each.result.tobytes() for each in apart}) == len(cases)


@pytest.mark.compile
def test_after_one_that_was_stopped_no_other_runs(
    launched: list[tuple[int, list[int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(planted(tmp_path, "-DWRONG=0"), F32, Config(), Problem(64, 32, 512))
    inputs = [make_inputs(case.kernel.operation, case.problem, F32, "exact")] * 3
    monkeypatch.setattr(emulated, "_ROOM", 1)
    outputs = EmulatedDevice("sm_90a", time_limit=0.01).run_all([case] * 3, inputs)
    assert [each.complete for each in outputs] == [False] * 3
    assert launched == [(1, [])]
