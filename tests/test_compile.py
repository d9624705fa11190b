"""Every kernel, config and dtype through nvcc for sm_90a, and each default config for sm_80; no GPU.

tests/test_static.py does so for all architectures, for what has changed.

The variants of a run are compiled together, over all cores, before the first of them is looked at.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import pytest

from harness.compiler import tools
from harness.compiler.errors import CompileError
from harness.compiler.nvcc import Binary, compile_all, compile_cubin, compile_ptx
from harness.model import Config, DType, Kernel
from harness.model.legality import GpuLimits, refusals
from harness.ptx import Machine, parse
from tests.ladder import LADDER

pytestmark = pytest.mark.compile

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
Compiled = dict[Build, Binary | CompileError]


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> Compiled:
    """What nvcc makes of the variants that this run selects."""
    selected = (getattr(item, "callspec", None) for item in request.session.items)
    builds = {spec.params["build"] for spec in selected if spec and "build" in spec.params}
    made: Compiled = {}
    for capability in sorted({build.capability for build in builds}):
        legal = [b for b in BUILDS if b in builds and b.capability == capability and not b.reasons]
        results = compile_all([b[:3] for b in legal], tools.arch(capability))
        made |= zip(legal, results, strict=True)
    return made


def binary(build: Build, compiled: Compiled) -> Binary:
    if build.reasons:
        pytest.skip(f"illegal on {build.arch}: {'; '.join(build.reasons)}")
    made = compiled[build]
    if isinstance(made, CompileError):
        pytest.fail(str(made), pytrace=False)
    return made


@pytest.mark.parametrize("build", BUILDS, ids=str)
def test_compiles(build: Build, compiled: Compiled) -> None:
    """And can be launched: a block's registers, handed out eight a thread, fit the SM's 65 536."""
    made = binary(build, compiled)
    threads = prod(build.kernel.shape_of(build.config, build.dtype).threads)
    registers = -(-made.resources.registers // 8) * 8 * threads
    assert made.cubin[:4] == b"\x7fELF"
    assert registers <= 65536


# Bytes per thread. Two sets of sums and of fragments leave ptxas four registers short for sm_80.
SPILLED = {("tf32x3", "sm_80"): 16}


@pytest.mark.parametrize("build", [b for b in BUILDS if b.config == b.kernel.configs[0]], ids=str)
def test_the_default_config_keeps_all_in_registers(build: Build, compiled: Compiled) -> None:
    """Local memory is spilled registers or arrays indexed at run time: slow either way."""
    resources = binary(build, compiled).resources
    assert resources.local_bytes == SPILLED.get((build.kernel.name, build.arch), 0)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_config_without_its_macros_does_not_compile(kernel: Kernel) -> None:
    """Else a misspelt parameter would leave the kernel with a default that nobody chose."""
    assert kernel.source
    with pytest.raises(CompileError, match=r"\.cuh?:\d+.*#error"):  # its own, or of a header of several
        compile_cubin(kernel, Config(), kernel.dtypes[0], tools.arch((9, 0)))


@pytest.mark.parametrize("build", [b for b in BUILDS if not b.reasons and b.capability == (8, 0)], ids=str)
def test_the_emulated_device_knows_every_instruction(build: Build) -> None:
    """For sm_90a the check runs them all; that for sm_80 is made ready, which finds an unknown one."""
    text = compile_ptx(build.kernel, build.config, build.dtype, build.arch, cubin_too=True)
    machine = Machine(parse(text, build.kernel.entry), "")
    assert len(machine.entry.code) > 20
