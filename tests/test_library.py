"""NVIDIA's libraries compute the operations as the oracle has them: what is beside a kernel is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemm_regression.devices import Device
from gemm_regression.model import (
    GEMM_BIAS_GELU,
    GEMM_BIAS_RELU,
    BlockShape,
    Case,
    Config,
    Kernel,
    Problem,
    find_dtype,
    gemm,
    gemm_bias,
)
from gemm_regression.oracle import verify

# Leading dimensions and sizes are multiples of 4, as cuBLAS asks of INT8.
PROBLEM = Problem(132, 68, 264, lda=272, ldb=76, ldc=84)
OF = {
    **{gemm(layout): ("f32", "f16", "bf16", "tf32", "f16_f16", "bf16_bf16") for layout in ("NN", "TT")},
    **{gemm(layout): ("f32", "s8") for layout in ("NT", "TN", "NNT", "TNT")},
    gemm("NN", batched=True): ("f32", "f16", "s8"),
    gemm("TN", batched=True): ("f32", "bf16_bf16"),
    # Into FP16 and BF16 cublasLt rounds more than once, seen on an H200: no exact reference.
    gemm_bias(): ("f32", "f16"),
    GEMM_BIAS_RELU: ("f32", "f16", "bf16"),
    GEMM_BIAS_GELU: ("f32", "f16"),
}


def _cases() -> Iterator[Case]:
    for operation, dtypes in OF.items():
        kernel = Kernel("library", None, "", BlockShape((1, 1), (1, 1)), operation=operation)
        problem = Problem(132, 68, 264, batch=3, gap=4) if operation.batched else PROBLEM
        for name in dtypes:
            yield Case(kernel, find_dtype(name), Config(), problem.stored(operation.layout))


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*_cases()], ids=lambda c: f"{c.kernel.operation.name}-{c.dtype}")
def test_the_library_is_right(case: Case, device: Device) -> None:
    assert verify(device, case) == []
