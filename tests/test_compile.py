"""Every kernel, config and dtype through nvcc for sm_90a, and each default config for sm_80; no GPU.

Of sm_80 the stored figures tell, where nothing that they follow from has changed: tests/test_static.py holds
them to the compiler. The variants of a run are compiled together, over all cores, before the first of them is
looked at.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import pytest

from gemm_regression.compiler import tools
from gemm_regression.compiler.nvcc import compile_all, compile_cubin
from gemm_regression.compiler.static import StaticEntry, StaticFigures, unchanged
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.model import Config, DType, Kernel, Resources, variant_name
from gemm_regression.model.gpus import GpuLimits, refusals
from tests.ladder import LADDER, PROJECT

pytestmark = [pytest.mark.compile, pytest.mark.turns]

KERNELS = [kernel for kernel in LADDER if kernel.compiled]


class Build(NamedTuple):
    """A variant for a compute capability."""

    kernel: Kernel
    config: Config
    dtype: DType
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        return tools.arch(self.capability)

    @property
    def reasons(self) -> list[str]:
        """Why it cannot run there; empty if it can."""
        return list(refusals(self.kernel, self.config, self.dtype, GpuLimits.of(self.capability)))

    def __str__(self) -> str:
        parts = (self.kernel.name, self.dtype.name, self.config.label, self.arch)
        return "-".join(part for part in parts if part)


BUILDS = [
    Build(kernel, config, dtype, capability)
    for kernel in KERNELS
    for dtype in kernel.dtypes
    for config in kernel.configs
    for capability in ((8, 0), (9, 0))
    if capability == (9, 0) or config == kernel.configs[0]
]
Figures = Resources | StaticFigures
Compiled = dict[Build, Figures | CompileError]


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """What nvcc makes of the variants that this run selects."""
    selected = (getattr(item, "callspec", None) for item in request.session.items)
    builds = {spec.params["build"] for spec in selected if spec and "build" in spec.params}
    made: Compiled = {}
    for capability in sorted({build.capability for build in builds}):
        legal = [b for b in BUILDS if b in builds and b.capability == capability and not b.reasons]
        made |= stored(legal)
        left = [b for b in legal if b not in made]
        results = compile_all([b[:3] for b in left], tools.arch(capability))
        made |= {
            b: r if isinstance(r, CompileError) else r.resources for b, r in zip(left, results, strict=True)
        }
    return made


def stored(builds: list[Build]) -> Compiled:
    """The stored figures of those of which nothing has changed since."""
    try:
        nvcc, _ = tools.pinned_tools()
    except ToolchainError:
        return {}
    entries = {b: StaticEntry(variant_name(b.kernel, b.config, b.dtype), b.arch, b[:3]) for b in builds}
    held = unchanged(entries.values(), PROJECT.static, nvcc)
    return {b: held[e.name, e.arch] for b, e in entries.items() if (e.name, e.arch) in held}


def figures(build: Build, compiled: Compiled) -> Figures:
    if build.reasons:
        pytest.skip(f"illegal on {build.arch}: {'; '.join(build.reasons)}")
    made = compiled[build]
    if isinstance(made, CompileError):
        pytest.fail(str(made), pytrace=False)
    return made


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_compiles(build: Build, compiled: Compiled) -> None:
    """And can be launched: a block's registers, handed out eight a thread, fit the SM's 65 536."""
    threads = prod(build.kernel.shape_of(build.config, build.dtype).threads)
    registers = -(-figures(build, compiled).registers // 8) * 8 * threads
    assert 0 < registers <= 65536


# Bytes per thread. Two sets of sums and of fragments leave ptxas eleven registers short for sm_80.
SPILLED = {("tf32x3", "sm_80"): 48}


@pytest.mark.parametrize("build", [b for b in BUILDS if b.config == b.kernel.configs[0]], ids=str)
def test_the_default_config_keeps_all_in_registers(build: Build, compiled: Compiled) -> None:
    """Local memory is spilled registers or arrays indexed at run time: slow either way."""
    assert figures(build, compiled).local_bytes == SPILLED.get((build.kernel.name, build.arch), 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_config_without_its_macros_does_not_compile(kernel: Kernel) -> None:
    """Else a misspelt parameter would leave the kernel with a default that nobody chose."""
    assert kernel.source
    with pytest.raises(CompileError, match=r"\.cuh?:\d+.*#error"):  # its own, or of a header of several
        compile_cubin(kernel, Config(), kernel.dtypes[0], tools.arch((9, 0)))
