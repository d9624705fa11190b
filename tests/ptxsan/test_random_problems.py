"""Every stage on little problems of any size, leading dimension, alpha and beta."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemm_regression.compiler.static import variants_of
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import verify
from tests.ladder import LADDER

SIZES = st.integers(0, 70)
# With integers up to 3, and halves, the exact check stays exact.
SCALES = st.sampled_from((1.0, 0.0, -1.0, 2.0, -3.0, 0.5, -0.5))
# Tight, vectors of four aligned, and not.
MORE = st.sampled_from((0, 0, 1, 3, 4, 8))


STARTS = st.sampled_from((0, 0, 1, 2, 4))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    if draw(st.booleans()):
        n, k = n // 4 * 4, k // 4 * 4
    lda, ldb, ldc = (max(1, row) + draw(MORE) for row in (k, n, n))
    starts = (draw(STARTS), draw(STARTS), draw(STARTS))
    return Problem(m, n, k, draw(SCALES), draw(SCALES), lda, ldb, ldc, starts=starts)


def smallest_tiles() -> list[str]:
    """Of each stage and dtype the variant with the fewest threads per block, which runs fastest here."""
    chosen: dict[tuple[str, str], tuple[int, str]] = {}
    for name, (kernel, config, dtype) in variants_of("sm_90a", LADDER).items():
        rows, columns = kernel.shape_of(config, dtype).tile
        stage = (kernel.name, dtype.name)
        chosen[stage] = min(chosen.get(stage, (rows * columns, name)), (rows * columns, name))
    return [name for _, name in chosen.values()]


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice(by_source=False)


def test_every_stage_is_here() -> None:
    stages = {variants_of("sm_90a", LADDER)[name][0].name for name in smallest_tiles()}
    assert stages == {kernel.name for kernel in LADDER if kernel.compiled}


@pytest.mark.turns
@pytest.mark.compile
@pytest.mark.parametrize("name", smallest_tiles())
@settings(max_examples=25, deadline=None, derandomize=True)
@given(problem=problems())
def test_a_stage(device: EmulatedDevice, name: str, problem: Problem) -> None:
    kernel, config, dtype = variants_of("sm_90a", LADDER)[name]
    taken = kernel.narrowed(kernel.constraints.near(kernel.narrowed(problem), config))
    if dtype.scalar.kind == "i":  # which cannot be a half
        taken = replace(taken, alpha=float(int(taken.alpha)), beta=float(int(taken.beta)))
    assert verify(device, Case(kernel, dtype, config, taken)) == []
