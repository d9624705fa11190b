"""Kernels as people write them, judged by a declaration alone: what they read, assert and print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import (
    F32,
    BlockShape,
    Case,
    Config,
    Constraints,
    Finding,
    Kernel,
    Problem,
    find_dtype,
)
from gemm_regression.oracle.verify import examine, verify

PARAMETERS = "int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C"
PLAIN = """
template <int BLOCK>
__global__ void gemm(PARAMETERS) {
    int row = blockIdx.y * BLOCK + threadIdx.y, column = blockIdx.x * BLOCK + threadIdx.x;
    BEFORE
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = alpha * sum + beta * C[row * N + column];
}
""".replace("PARAMETERS", PARAMETERS)

pytestmark = pytest.mark.compile


def case_of(folder: Path, source: str, takes: Constraints) -> Case:
    file = folder / "gemm.cu"
    file.write_text(source)
    kernel = Kernel(
        "gemm", file, "gemm<8>", BlockShape((8, 8), (8, 8)), parameters=PARAMETERS, constraints=takes
    )
    return Case(kernel, F32, Config(), Problem(13, 11, 9))


def found(folder: Path, source: str, takes: Constraints) -> list[Finding]:
    return verify(EmulatedDevice(), case_of(folder, source, takes))


def test_reading_c_where_beta_is_0_is_found_unless_the_declaration_says_so(tmp_path: Path) -> None:
    source = PLAIN.replace("BEFORE", "")
    assert [finding.check for finding in found(tmp_path, source, Constraints())] == ["uninit", "unwritten"]
    assert found(tmp_path, source, Constraints(finite_c=True)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assert(blockDim.x == BLOCK);", ""),
        (
            "assert(M % BLOCK == 0);",
            "thread (0, 0, 0) of block (0, 0, 0) fails the assertion M % BLOCK == 0 at gemm.cu:6",
        ),
        ('if (row == 3) printf("%d of %d\\n", column, N);', ""),
    ],
)
def test_assertions_and_printf_of_a_kernel(tmp_path: Path, text: str, said: str) -> None:
    source = "#include <cassert>\n#include <cstdio>" + PLAIN.replace("BEFORE", text)
    findings = found(tmp_path, source, Constraints(finite_c=True))
    assert [finding.check for finding in findings] == ["trap"] * bool(said)
    assert all(said in finding.message for finding in findings)


def test_what_a_kernel_prints_is_a_note(tmp_path: Path) -> None:
    line = 'if (row == 3 && column < 2) printf("column %d of %d\\n", column, N);'
    source = "#include <cstdio>" + PLAIN.replace("BEFORE", line)
    seen = examine(EmulatedDevice(), case_of(tmp_path, source, Constraints(finite_c=True)))
    assert list(seen.findings) == []
    told = {note.message for note in seen.notes if note.check == "printf"}
    assert "prints 'column 0 of 11', the first of 2 lines" in told


@pytest.mark.parametrize(("dtype", "checks"), [("f16acc16_f16", []), ("f16_f16", ["exact"])])
def test_sums_in_half_are_found_unless_the_dtype_says_so(
    tmp_path: Path, dtype: str, checks: list[str]
) -> None:
    parameters = "const __half *A, const __half *B, __half *C, int M, int N, int K"
    file = tmp_path / "half.cu"
    file.write_text(
        f"""#include <cuda_fp16.h>
__global__ void gemm({parameters}) {{
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= M || column >= N) return;
    __half sum = 0;
    for (int k = 0; k < K; ++k) sum += A[row * K + k] * B[k * N + column];
    C[row * N + column] = sum;
}}
"""
    )
    shape = BlockShape((8, 8), (8, 8))
    kernel = Kernel("half", file, "gemm", shape, "", (find_dtype(dtype),), parameters=parameters)
    case = Case(kernel, kernel.dtypes[0], Config(), Problem(61, 53, 137))
    assert [finding.check for finding in verify(EmulatedDevice(), case)] == checks


def test_scalars_that_are_half(tmp_path: Path) -> None:
    parameters = PARAMETERS.replace("float", "__half")
    file = tmp_path / "half.cu"
    file.write_text(
        f"""#include <cuda_fp16.h>
__global__ void gemm({parameters}) {{
    int row = blockIdx.y * 8 + threadIdx.y, column = blockIdx.x * 8 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += __half2float(A[row * K + k]) * __half2float(B[k * N + column]);
    float old = __half2float(beta) * __half2float(C[row * N + column]);
    C[row * N + column] = __float2half(__half2float(alpha) * sum + old);
}}
"""
    )
    half = find_dtype("f16_f16")
    takes = Constraints(finite_c=True)
    kernel = Kernel("half", file, "gemm", BlockShape((8, 8), (8, 8)), "", (half,), parameters=parameters)
    case = Case(replace(kernel, constraints=takes), half, Config(), Problem(13, 11, 9, alpha=2, beta=-1))
    assert verify(EmulatedDevice(), case) == []


def test_more_static_shared_memory_than_ptxas_takes_is_an_error(tmp_path: Path) -> None:
    big = "__shared__ float tile[64][SIZE]; tile[threadIdx.y][threadIdx.x] = M; __syncthreads();"
    source = PLAIN.replace("BEFORE", big + "if (tile[threadIdx.y][threadIdx.x] < 0) return;")
    takes = Constraints(finite_c=True)
    assert found(tmp_path, source.replace("SIZE", "192"), takes) == []
    with pytest.raises(DeviceError, match="65536 bytes of static shared memory, 49152 at most"):
        found(tmp_path, source.replace("SIZE", "256"), takes)
