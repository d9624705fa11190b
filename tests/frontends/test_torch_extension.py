"""The source of a torch extension, host code and binding included, where torch is installed: it is large."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import verify

extension = pytest.importorskip("torch.utils.cpp_extension")
SOURCE = """#include <torch/extension.h>

__global__ void product(int M, int N, int K, float alpha, const float* A, int lda, const float* B, int ldb,
                        float beta, float* C, int ldc)
{
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    if (row >= M || column >= N) return;
    float sum = 0;
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + column];
    float& c = C[(size_t)row * ldc + column];
    c = beta == 0 ? alpha * sum : alpha * sum + beta * c;
}

torch::Tensor launch(torch::Tensor a, torch::Tensor b)
{
    const int m = a.size(0), n = b.size(1), k = a.size(1);
    auto c = torch::empty({m, n}, a.options());
    product<<<dim3((n + 15) / 16, (m + 15) / 16), dim3(16, 16)>>>(
        m, n, k, 1, a.data_ptr<float>(), k, b.data_ptr<float>(), n, 0, c.data_ptr<float>(), n);
    return c;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }
"""


def test_the_kernel_of_an_extension_is_judged_from_its_own_file(tmp_path: Path) -> None:
    """By the folders that torch's own build includes. Its headers take nvcc half a minute."""
    (tmp_path / "extension.cu").write_text(SOURCE)
    kernel = Kernel(
        name="extension",
        source=tmp_path / "extension.cu",
        entry="product",
        parameters="M, N, K, alpha, A, lda, B, ldb, beta, C, ldc",
        dtypes=(F32,),
        configs=(Config(),),
        shape=lambda config, dtype: BlockShape(threads=(16, 16), tile=(16, 16)),
        include=(*extension.include_paths(), sysconfig.get_path("include")),
    )
    device = EmulatedDevice()
    for problem in (Problem(17, 40, 5, alpha=2, beta=1), Problem(3, 5, 7, ldb=9)):
        assert verify(device, Case(kernel, F32, Config(), problem)) == []
    # One row of blocks too few.
    flat = replace(kernel, grid=lambda shape, problem: (-(-problem.n // 16), 1, 1))
    found = verify(device, Case(flat, F32, Config(), Problem(17, 40, 5)))
    assert {one.check for one in found} >= {"unwritten"}
