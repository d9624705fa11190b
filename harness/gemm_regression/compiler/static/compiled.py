"""Compiler metrics of a variant: resources reported by ptxas, occupancy, and the SASS instruction mix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gemm_regression.compiler import elf, tools
from gemm_regression.compiler.errors import CompileError
from gemm_regression.compiler.nvcc import Binary, Variant, compile_all, read_ptxas, unit_of
from gemm_regression.compiler.static import sass
from gemm_regression.compiler.tools import Disassembler, Nvcc
from gemm_regression.model import Config, DType, Kernel, variant_name
from gemm_regression.model.legality import GpuLimits, Occupancy, legal_variants, occupancy

# The architectures with stored metrics, by nvcc's names: those that each check compiles for, and those that
# it compiles for only what has changed since its metrics were stored.
ARCHES = {
    tools.arch(capability): capability
    for capability in ((8, 0), (9, 0), (10, 0), (12, 0), (7, 5), (8, 6), (8, 9))
}
ALWAYS = {tools.arch((9, 0))}  # which is emulated, so that the check needs it anyway
CHANGED_ONLY = ARCHES.keys() - ALWAYS
Tools = tuple[Nvcc, Disassembler]


@dataclass(frozen=True)
class StaticFigures:
    """Compiler metrics of a variant.

    Per thread: ``registers``, ``local_bytes`` of local memory (the stack), ``spill_store_bytes`` and
    ``spill_load_bytes``. Per block: ``shared_bytes``, static and dynamic, and ``barriers``. Per kernel:
    ``constant_bytes``. Per SM: resident ``blocks``, ``occupancy`` as a fraction of its warps (0 to 1), and
    ``limited_by``, the resource that limits it (``legality.Occupancy``). ``instruction_mix``: the number of
    SASS instructions of each kind (``sass.instruction_mix``). ``made_of``: what they follow from
    (``made_of``), for the architectures of CHANGED_ONLY.
    """

    registers: int
    shared_bytes: int
    local_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    constant_bytes: int
    barriers: int
    blocks: int
    occupancy: float
    limited_by: str
    instruction_mix: Mapping[str, int]
    made_of: str = field(default="", compare=False)

    @property
    def spill_bytes(self) -> int:
        """Bytes of spill stores and loads per thread."""
        return self.spill_store_bytes + self.spill_load_bytes


def figures(kernel: Kernel, config: Config, dtype: DType, arch: str) -> StaticFigures:
    """The metrics of one variant for one architecture of ``ARCHES``, compiled with the pinned compiler.

    Raises CompileError with the compiler's messages, ToolchainError without the pinned compiler and
    disassembler, ValueError for a library kernel or an unknown architecture.
    """
    (made,) = all_figures([(kernel, config, dtype)], arch)
    if isinstance(made, CompileError):
        raise made
    return made


def all_figures(
    variants: Sequence[Variant],
    arch: str,
    pinned: Tools | None = None,
    step: Callable[[str], None] = lambda what: None,
) -> list[StaticFigures | CompileError]:
    """The metrics of many variants, in the same order, compiled on all cores; a CompileError in place of
    those that do not compile. ``step`` is called for each that is done. Otherwise raises as ``figures``
    does."""
    if arch not in ARCHES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHES)}")
    nvcc, nvdisasm = pinned or tools.pinned_tools()
    made = compile_all(variants, arch, nvcc=nvcc, step=step)
    texts = [elf.code(binary.cubin, binary.symbol) for binary in made if isinstance(binary, Binary)]
    counted = iter(sass.opcodes(texts, arch, nvdisasm))
    return [
        binary if isinstance(binary, CompileError) else _figures(variant, arch, binary, next(counted), nvcc)
        for variant, binary in zip(variants, made, strict=True)
    ]


def _figures(
    variant: Variant, arch: str, binary: Binary, counts: Mapping[str, int], nvcc: Nvcc
) -> StaticFigures:
    ptxas = read_ptxas(binary.symbol, binary.log)
    shared = ptxas.shared_bytes + dynamic_shared(variant)
    held = occupancy_of(variant, binary, GpuLimits.of(ARCHES[arch]))
    return StaticFigures(
        registers=ptxas.registers,
        shared_bytes=shared,
        local_bytes=ptxas.stack_bytes,
        spill_store_bytes=ptxas.spill_store_bytes,
        spill_load_bytes=ptxas.spill_load_bytes,
        constant_bytes=elf.constant_bytes(binary.cubin, binary.symbol),
        barriers=ptxas.barriers,
        blocks=held.blocks,
        occupancy=round(held.fraction, 4),
        limited_by=held.limiter,
        instruction_mix=sass.instruction_mix(counts),
        made_of=made_of(variant, arch, nvcc) if arch in CHANGED_ONLY else "",
    )


def made_of(variant: Variant, arch: str, nvcc: Nvcc) -> str:
    """A digest of all that the metrics of a variant follow from: compiler, options, sources, the block, and
    what the architecture allows. Raises CompileError for sources that cannot be read."""
    kernel, config, dtype = variant
    shape = kernel.shape_of(config, dtype)
    block = shape.threads, shape.dynamic_bytes, str(GpuLimits.of(ARCHES[arch]))
    made = json.dumps([arch, unit_of(*variant).identity(nvcc), block])
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def dynamic_shared(variant: Variant) -> int:
    """Bytes of dynamic shared memory of a launch."""
    kernel, config, dtype = variant
    return kernel.shape_of(config, dtype).dynamic_bytes


def occupancy_of(variant: Variant, binary: Binary, limits: GpuLimits) -> Occupancy:
    """The occupancy of a compiled variant."""
    kernel, config, dtype = variant
    threads = prod(kernel.shape_of(config, dtype).threads)
    ptxas = read_ptxas(binary.symbol, binary.log)
    shared = ptxas.shared_bytes + dynamic_shared(variant)
    return occupancy(threads, ptxas.registers, shared, limits, ptxas.barriers)


def variants_of(arch: str, kernels: Iterable[Kernel]) -> dict[str, Variant]:
    """The variants of these kernels that can run on an architecture, by name, in the order of the kernels."""
    limits = GpuLimits.of(ARCHES[arch])
    return {
        variant_name(kernel, config, dtype): (kernel, config, dtype)
        for kernel in kernels
        if kernel.compiled
        for config, dtype in legal_variants(kernel, limits)
    }
