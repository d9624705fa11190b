"""The figures of a variant: what ptxas gave it, what that lets an SM hold, what its SASS is made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.compiler import elf, tools
from harness.compiler.errors import CompileError
from harness.compiler.nvcc import Binary, Variant, compile_all, read_ptxas
from harness.compiler.static import sass
from harness.compiler.tools import Disassembler, Nvcc
from harness.model import Config, DType, Kernel, variant_name
from harness.model.legality import GpuLimits, Occupancy, legal_variants, occupancy

# The architectures whose figures are stored, by nvcc's names.
ARCHES = {tools.arch(capability): capability for capability in ((8, 0), (9, 0), (10, 0), (12, 0))}
Tools = tuple[Nvcc, Disassembler]


@dataclass(frozen=True)
class StaticFigures:
    """Registers, bytes of local memory (the stack) and of spills a thread; bytes of static and dynamic shared
    memory and barriers a block; bytes of constant banks; ``blocks`` that an SM holds, ``occupancy`` the share
    of its warps that these fill (0 to 1), ``limited_by`` what allows no more (``legality.Occupancy``);
    ``census`` how often each kind of SASS instruction stands in the code (``sass.census``)."""

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
    census: Mapping[str, int]

    @property
    def spill_bytes(self) -> int:
        """Bytes of spill stores and loads in the code of a thread."""
        return self.spill_store_bytes + self.spill_load_bytes


def figures(kernel: Kernel, config: Config, dtype: DType, arch: str) -> StaticFigures:
    """The figures of one variant for one architecture of ``ARCHES``, compiled with the pinned compiler.

    Raises CompileError with the compiler's lines, ToolchainError without the pinned compiler and
    disassembler, ValueError for a library kernel or an unknown architecture.
    """
    (made,) = all_figures([(kernel, config, dtype)], arch)
    if isinstance(made, CompileError):
        raise made
    return made


def all_figures(
    variants: Sequence[Variant], arch: str, pinned: Tools | None = None
) -> list[StaticFigures | CompileError]:
    """The figures of many, in their order, compiled over all cores; a CompileError in place of what does not
    compile. Raises as ``figures`` does for the rest."""
    if arch not in ARCHES:
        raise ValueError(f"unknown architecture {arch!r}; known: {', '.join(ARCHES)}")
    nvcc, nvdisasm = pinned or tools.pinned_tools()
    made = compile_all(variants, arch, nvcc=nvcc)
    texts = [elf.code(binary.cubin, binary.symbol) for binary in made if isinstance(binary, Binary)]
    counted = iter(sass.opcodes(texts, arch, nvdisasm))
    return [
        binary if isinstance(binary, CompileError) else _figures(variant, arch, binary, next(counted))
        for variant, binary in zip(variants, made, strict=True)
    ]


def _figures(variant: Variant, arch: str, binary: Binary, counts: Mapping[str, int]) -> StaticFigures:
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
        census=sass.census(counts),
    )


def dynamic_shared(variant: Variant) -> int:
    """Bytes of shared memory that a launch asks for."""
    kernel, config, dtype = variant
    of_block = kernel.shape_of(config, dtype)
    return (of_block.shared_bytes or 0) if of_block.dynamic else 0


def occupancy_of(variant: Variant, binary: Binary, limits: GpuLimits) -> Occupancy:
    """What an SM holds of a compiled variant."""
    kernel, config, dtype = variant
    x, y = kernel.shape_of(config, dtype).threads
    ptxas = read_ptxas(binary.symbol, binary.log)
    shared = ptxas.shared_bytes + dynamic_shared(variant)
    return occupancy(x * y, ptxas.registers, shared, limits, ptxas.barriers)


def variants_of(arch: str, kernels: Iterable[Kernel]) -> dict[str, Variant]:
    """The variants of these kernels that can run on an architecture, by name, in the order of the kernels."""
    limits = GpuLimits.of(ARCHES[arch])
    return {
        variant_name(kernel, config, dtype): (kernel, config, dtype)
        for kernel in kernels
        if not kernel.library
        for config, dtype in legal_variants(kernel, limits)
    }
