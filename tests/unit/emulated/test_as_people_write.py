"""Kernels as people write them, judged by a declaration alone: what they read, assert and print."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.devices.emulated.device import EmulatedDevice
from harness.model import F32, BlockShape, Case, Config, Kernel, Problem, Takes
from harness.oracle.verify import Finding, verify

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


def found(folder: Path, source: str, takes: Takes) -> list[Finding]:
    file = folder / "gemm.cu"
    file.write_text(source)
    kernel = Kernel("gemm", file, "gemm<8>", BlockShape((8, 8), (8, 8)), parameters=PARAMETERS, takes=takes)
    return verify(EmulatedDevice(), Case(kernel, F32, Config(), Problem(13, 11, 9)))


def test_reading_c_where_beta_is_0_is_found_unless_the_declaration_says_so(tmp_path: Path) -> None:
    source = PLAIN.replace("BEFORE", "")
    assert [finding.check for finding in found(tmp_path, source, Takes())] == ["uninit", "unwritten"]
    assert found(tmp_path, source, Takes(finite_c=True)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assert(blockDim.x == BLOCK);", ""),
        ("assert(M % BLOCK == 0);", "thread (0, 0, 0) of block (0, 0, 0) fails an assertion at gemm.cu:6 "),
        ('if (row == 3) printf("%d of %d\\n", column, N);', ""),
    ],
)
def test_assertions_and_printf_of_a_kernel(tmp_path: Path, text: str, said: str) -> None:
    source = "#include <cassert>\n#include <cstdio>" + PLAIN.replace("BEFORE", text)
    findings = found(tmp_path, source, Takes(finite_c=True))
    assert [finding.check for finding in findings] == ["trap"] * bool(said)
    assert all(said in finding.message for finding in findings)
