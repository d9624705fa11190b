"""The tests' own project: a kernel of every operation, layout, dtype and order of parameters; no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, DType, Kernel, Problem
from gemm_regression.oracle import verify
from gemm_regression.project.loader import load
from gemm_regression.run.checked import CORRECT, NOT_EMULATED, check
from gemm_regression.timing.plan import Plan

KERNELS = load(Path(__file__).with_name("operations")).kernels
BY_NAME = {kernel.name: kernel for kernel in KERNELS}
# Edges of every kind in a few tiles, leading dimensions and gaps beyond the rows; no sums; one element.
PROBLEMS = (
    Problem(19, 37, 21, alpha=2, beta=3, lda=40, ldb=41, ldc=44),
    Problem(18, 5, 0, beta=2),
    Problem(0, 7, 5),
    Problem(1, 1, 1, alpha=-1),
    Problem(16, 32, 48),
)
BATCHES = (
    Problem(9, 7, 5, alpha=2, beta=3, lda=6, ldb=9, ldc=8, batch=5, gap=2),
    Problem(17, 18, 3, batch=3),
)
VARIANTS = [(kernel, dtype) for kernel in KERNELS for dtype in kernel.dtypes]


def problems(kernel: Kernel) -> list[Problem]:
    """Those that the kernel takes, the others brought into what it takes."""
    asked = (*PROBLEMS, *(BATCHES if kernel.operation.batched else ()))
    config = kernel.configs[0]
    return list(dict.fromkeys(kernel.constraints.near(kernel.narrowed(problem), config) for problem in asked))


@pytest.mark.parametrize(
    ("kernel", "dtype"), VARIANTS, ids=[f"{kernel.name}-{dtype}" for kernel, dtype in VARIANTS]
)
def test_a_kernel_is_right(kernel: Kernel, dtype: DType, emulated: EmulatedDevice) -> None:
    wanted = NOT_EMULATED if kernel.features else CORRECT
    for problem in problems(kernel):
        checked = check(emulated, Case(kernel, dtype, kernel.configs[0], problem))
        assert checked.outcome == wanted, checked


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("kernel", "dtype"), VARIANTS, ids=[f"{kernel.name}-{dtype}" for kernel, dtype in VARIANTS]
)
def test_a_kernel_is_right_on_a_gpu_and_timed(kernel: Kernel, dtype: DType, device: Any) -> None:
    for problem in problems(kernel):
        assert verify(device, Case(kernel, dtype, kernel.configs[0], problem)) == []
    asked = Problem(260, 132, 516, batch=7, gap=4) if kernel.operation.batched else Problem(260, 132, 516)
    problem = kernel.constraints.near(kernel.narrowed(asked), kernel.configs[0])
    measured = device.time(Case(kernel, dtype, kernel.configs[0], problem), Plan(target_seconds=0.01))
    assert measured.median > 0
    beside = kernel.operation.library is not None and dtype.name not in ("f32_f16", "f32_bf16", "s16")
    assert bool(measured.reference_seconds) is beside


def _refused(name: str, problem: Problem) -> tuple[str, ...]:
    kernel = BY_NAME[name]
    return kernel.refusals(kernel.configs[0], problem)


def test_what_a_kernel_does_not_take_is_refused_with_the_reasons() -> None:
    assert _refused("matrix_mul", Problem(16, 32, 48)) == ()
    assert _refused("matrix_mul", Problem(19, 32, 48)) == ("m 19 is not a multiple of 16",)
    (reason,) = _refused("layout_nt", Problem(4, 5, 6))
    assert "layout NT, not NN" in reason
    (reason,) = _refused("sgemm", Problem(4, 5, 6, lda=8))
    assert "leading dimension" in reason
    (reason,) = _refused("residual", Problem(4, 5, 6, batch=2))
    assert "batch" in reason
    assert len(_refused("split", Problem(4, 5, 6, alpha=2, beta=1))) == 2


def test_what_is_refused_is_not_run(emulated: EmulatedDevice) -> None:
    kernel = BY_NAME["matrix_mul"]
    case = Case(kernel, kernel.dtypes[0], kernel.configs[0], Problem(19, 32, 48))
    with pytest.raises(ValueError, match="m 19 is not a multiple of 16"):
        verify(emulated, case)


def test_an_operation_and_a_dtype_are_new_to_the_suite_in_the_declaration_alone() -> None:
    """What a launch hands over, the buffers and the reference are made from them, in no other file."""
    residual, int16 = BY_NAME["residual"], BY_NAME["int16"]
    assert [parameter.means for parameter in residual.signature] == (
        ["M", "N", "K", "alpha", "A", "ldA", "B", "ldB", "D", "ldD", "beta", "C", "ldC"]
    )
    case = Case(residual, residual.dtypes[0], residual.configs[0], Problem(4, 5, 6, ldc=8))
    assert case.storages["D"].shape == case.storages["C"].shape == (4, 8)
    sixteen = Case(int16, int16.dtypes[0], int16.configs[0], Problem(4, 5, 6, alpha=2))
    assert [a.kind for a in sixteen.arguments if a.name in ("alpha", "beta")] == ["i32", "i32"]
