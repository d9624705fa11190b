"""Every kernel, config and dtype compiles for each architecture into what can be launched: by the stored
metrics, which tests/test_static.py compares with those of the compiler.
"""

from __future__ import annotations

from math import prod

import pytest

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.static import ARCHES, StaticFigures, store, variants_of
from gemm_regression.compiler.tools import CompileError
from gemm_regression.model import Config, Kernel, variant_name
from tests.ladder import LADDER, PROJECT

KERNELS = [kernel for kernel in LADDER if kernel.compiled]
# Bytes per thread of default configs. Of tf32x3, two sets of sums and of fragments leave ptxas eleven
# registers short for sm_80; those for sm_120a were tuned for others.
SPILLED = {
    "sm_80": {"tf32x3-f32-tile128x64x32-warp64x32-stages4-promote8": 48},
    "sm_120a": {
        "stream_k-f32-tile128x256x8-warp64x64-thread16x8-stages3-slices1-blocks132": 24,
        "wmma-tf32-tile128x128x32-warp64x32": 8,
    },
}


@pytest.fixture(params=ARCHES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored(arch: str) -> dict[str, StaticFigures]:
    return store.load(arch, *tools.pins(), PROJECT.static)


def test_every_variant_can_be_launched(arch: str, stored: dict[str, StaticFigures]) -> None:
    """A block's registers, handed out eight a thread, fit the SM's 65 536."""
    variants = variants_of(arch, LADDER)
    assert stored.keys() == variants.keys()
    for name, (kernel, config, dtype) in variants.items():
        threads = prod(kernel.shape_of(config, dtype).threads)
        assert 0 < -(-stored[name].registers // 8) * 8 * threads <= 65536, name


def test_the_default_configs_keep_all_in_registers(arch: str, stored: dict[str, StaticFigures]) -> None:
    """Local memory is spilled registers or arrays indexed at run time: slow either way."""
    default = {
        variant_name(kernel, kernel.configs[0], dtype) for kernel in KERNELS for dtype in kernel.dtypes
    }
    spilled = {name: stored[name].local_bytes for name in default & stored.keys()}
    assert {name: held for name, held in spilled.items() if held} == SPILLED.get(arch, {})


@pytest.mark.compile
@pytest.mark.turns
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_config_without_its_macros_does_not_compile(kernel: Kernel) -> None:
    """Else a misspelt parameter would leave the kernel with a default that nobody chose."""
    assert kernel.source
    with pytest.raises(CompileError, match=r"\.cuh?:\d+.*#error"):  # its own, or of a header of several
        compile_cubin(kernel, Config(), kernel.dtypes[0], tools.arch((9, 0)))
