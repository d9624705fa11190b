"""Which compiled kernel the emulated device runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import verify

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
    source = tmp_path / "planted.cu"
    source.write_text(VECTORS)
    shape = BlockShape(threads=(32, 1), tile=(64, 64))
    kernel = Kernel("planted", source, "gemm_planted", shape, flags=(f"-DTEST={test}",))
    problem = Problem(5, 6, 8, beta=1, lda=lda, starts=starts)
    findings = verify(EmulatedDevice("sm_90a", by_source=False), Case(kernel, F32, Config(), problem))
    assert {finding.check for finding in findings} == ({found} - {""} if lda % 4 == 0 else set())
    if findings:
        assert 'if that is not to be taken: constraints=Constraints(multiples={"A": 4' in findings[0].message


@pytest.mark.compile
def test_kernels_that_differ_in_flags_alone_are_two(tmp_path: Path) -> None:
    """Of one source, entry, config and dtype."""
    source = tmp_path / "planted.cu"
    source.write_text(SOURCE)
    shape = BlockShape(threads=(32, 1), tile=(64, 64))
    right = Kernel("planted", source, "gemm_planted", shape, flags=("-DWRONG=0",))
    device = EmulatedDevice("sm_90a")
    for kernel in (right, replace(right, flags=("-DWRONG=1",)), right):
        found = verify(device, Case(kernel, F32, Config(), Problem(8, 16, 4)))
        assert bool(found) == (kernel is not right)


@pytest.mark.compile
def test_what_does_not_end_within_the_time_limit_hangs(tmp_path: Path) -> None:
    source = tmp_path / "planted.cu"
    source.write_text(SOURCE)
    kernel = Kernel("planted", source, "gemm_planted", BlockShape(threads=(32, 1), tile=(64, 64)))
    case = Case(replace(kernel, flags=("-DWRONG=0",)), F32, Config(), Problem(64, 32, 512))
    assert verify(EmulatedDevice("sm_90a"), case) == []
    (finding, *_) = verify(EmulatedDevice("sm_90a", time_limit=0.01), case)
    assert finding.check == "hang"
    assert "still runs at the time limit" in finding.message
    assert "planted.cu:" in finding.message
