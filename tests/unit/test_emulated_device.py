"""Which compiled kernel the emulated device runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.devices.emulated.device import EmulatedDevice
from harness.model import F32, BlockShape, Case, Config, Kernel, Problem
from harness.oracle import verify

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
