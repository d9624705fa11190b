"""What nvcc emits for other architectures runs, too: each kernel of the ladder for sm_80 and two others.

Together they are all kernels, types and architectures; sm_90a is that of the other tests. Each is made ready
to run, so that every instruction is known; of each architecture two kernels run, and must be right.
"""

from __future__ import annotations

import pytest

from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.devices import open_emulated
from gemm_regression.model import DType, Kernel
from gemm_regression.oracle import verify
from gemm_regression.project.selection import Choice, select
from ptxsan import PreparedKernel, parse
from tests.ladder import LADDER, PROJECT

pytestmark = [pytest.mark.compile, pytest.mark.turns]
ALWAYS = "sm_80"
ARCHES = {"sm_75": (7, 5), ALWAYS: (8, 0), "sm_86": (8, 6)}
ARCHES |= {"sm_89": (8, 9), "sm_100a": (10, 0), "sm_120a": (12, 0)}
EACH = 2  # of the other architectures a kernel and type
HOPPER = (9, 0)  # of the other tests
VARIANTS = [
    (kernel, dtype)
    for kernel in LADDER
    for dtype in kernel.dtypes
    if kernel.source and not kernel.min_capability == kernel.max_capability == HOPPER
]
RUN = [(name, arch) for name in ("tiled", "wmma") for arch in ARCHES]


def _pairs() -> list[tuple[Kernel, DType, str]]:
    """Of the architectures that a kernel and type is for, the others by turns."""
    found = []
    for i, (kernel, dtype) in enumerate(VARIANTS):
        least = max(kernel.min_capability, dtype.min_capability)
        fit = [arch for arch, of in ARCHES.items() if least <= of <= kernel.max_capability]
        others = [arch for arch in fit if arch != ALWAYS]
        chosen = [others[(EACH * i + j) % len(others)] for j in range(min(EACH, len(others)))]
        found += [(kernel, dtype, arch) for arch in (*chosen, *({ALWAYS} & {*fit}))]
    return found


PAIRS = _pairs()


@pytest.mark.parametrize(
    ("kernel", "dtype", "arch"), PAIRS, ids=[f"{k.name}-{d.name}-{arch}" for k, d, arch in PAIRS]
)
def test_every_instruction_is_known(kernel: Kernel, dtype: DType, arch: str) -> None:
    config = kernel.configs[0]
    ptx = compile_ptx(kernel, config, dtype, arch)
    machine = PreparedKernel(parse(ptx, entry_symbol(kernel, config, dtype, ptx)), "kernel.cu")
    assert len(machine.entry.code) > 50


def test_every_architecture_and_kernel_has_its_turn() -> None:
    assert {arch for _, _, arch in PAIRS} == set(ARCHES)
    assert {(kernel, dtype) for kernel, dtype, _ in PAIRS} == set(VARIANTS)


@pytest.mark.parametrize(("name", "arch"), RUN)
def test_a_kernel_of_it_is_right(name: str, arch: str) -> None:
    cases = select(PROJECT, Choice("full", (name,)), ARCHES[arch], emulated=True).verify
    case = min((c for c in cases if min(c.problem.m, c.problem.n) > 32), key=lambda c: c.problem.flops)
    device = open_emulated(arch)
    try:
        assert verify(device, case) == []
    finally:
        device.close()
