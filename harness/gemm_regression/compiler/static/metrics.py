"""Compiler metrics of a variant: resources reported by ptxas, occupancy, and the SASS instruction mix."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import Binary, Variant, compile_all, read_ptxas, unit_of
from gemm_regression.compiler.tools import (
    CompileError,
    Disassembler,
    Nvcc,
    ToolchainError,
    cache_entry,
    load_entry,
    store_entry,
)
from gemm_regression.model import Config, DType, Kernel, variant_name
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.legality import Occupancy, legal_variants, occupancy

INSTRUCTION_BYTES = 16  # from compute capability 7.0 on
SECONDS = 120
_LINE = re.compile(r"^\s*\{?\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)

# Counted by their first word; tensor-core instructions by the full name, which includes the precision.
_BY_WORD = (
    *("FFMA", "FFMA2", "FADD", "FMUL", "LDSM", "STSM", "UTMALDG", "UTMASTG", "BAR", "BRA", "SHFL"),
    *("ATOM", "ATOMS", "ATOMG", "RED", "LDGDEPBAR", "DEPBAR"),
)
# Counted by width. LD and ST are accesses through generic addresses, LDL and STL to local memory.
BY_WIDTH = ("LDG", "STG", "LDS", "STS", "LDGSTS", "LD", "ST", "LDL", "STL")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def opcodes(texts: Sequence[bytes], arch: str, nvdisasm: Disassembler) -> list[Counter[str]]:
    """The number of instructions by opcode, modifiers included, in each kernel's code (``elf.code``), for one
    architecture.

    Code that is not cached is disassembled in one call, since nvdisasm takes longer to start than to read a
    kernel. Raises ToolchainError if nvdisasm fails or does not account for every instruction.
    """
    entries = [
        cache_entry(["opcodes", nvdisasm.version, arch, hashlib.sha256(text).hexdigest()]) for text in texts
    ]
    held = [load_entry(entry) for entry in entries]
    counts = [Counter(json.loads(found[0])) if found else None for found in held]
    missing = [i for i, count in enumerate(counts) if count is None]
    made = _disassemble([texts[i] for i in missing], arch, nvdisasm) if missing else []
    for i, count in zip(missing, made, strict=True):
        store_entry(entries[i], json.dumps(count).encode(), "")
        counts[i] = count
    return [count for count in counts if count is not None]


def _disassemble(texts: Sequence[bytes], arch: str, nvdisasm: Disassembler) -> list[Counter[str]]:
    with tempfile.NamedTemporaryFile(prefix="gemm-", suffix=".bin") as file:
        file.write(b"".join(texts))
        file.flush()
        # -ndf disables the branch analysis, which needs more than the bare instructions.
        command = [str(nvdisasm.path), "-ndf", "-b", arch.upper().replace("SM_", "SM").replace("A", "a")]
        try:
            said = subprocess.run([*command, file.name], capture_output=True, text=True, timeout=SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            raise ToolchainError(f"{nvdisasm.path} cannot be run: {error}") from None
    if said.returncode:
        raise ToolchainError(f"{nvdisasm.path} failed: {(said.stderr or said.stdout).strip()[:200]}")
    return count_opcodes(said.stdout, [len(text) for text in texts])


def count_opcodes(listing: str, sizes: Sequence[int]) -> list[Counter[str]]:
    """Counts the opcodes in a listing of consecutive kernels of ``sizes`` bytes each.

    Raises ToolchainError if an instruction of them is missing from the listing.
    """
    found = [(int(offset, 16), opcode) for offset, opcode in _LINE.findall(listing)]
    expected = list(range(0, sum(sizes), INSTRUCTION_BYTES))
    if [offset for offset, _ in found] != expected:
        raise ToolchainError(
            f"nvdisasm listed {len(found)} instructions, but the code has {len(expected)}: "
            "the output of this version cannot be parsed"
        )
    counts, start = [], 0
    for size in sizes:
        end = start + size // INSTRUCTION_BYTES
        counts.append(Counter(opcode for _, opcode in found[start:end]))
        start = end
    return counts


def instruction_mix(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of the opcodes that characterise a kernel, sorted, and ``total``: all but NOPs.

    Loads and stores are named by their width, ``LDS.128`` for 128 bits per thread, without other modifiers.
    """
    made: Counter[str] = Counter()
    for opcode, count in counts.items():
        if opcode == "NOP":
            continue  # Pads the last cache line.
        made["total"] += count
        word, *modifiers = opcode.split(".")
        if word in BY_WIDTH:
            made[f"{word}.{next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 32)}"] += count
        elif word.endswith("MMA"):
            made[opcode] += count
        elif word in _BY_WORD:
            made[word] += count
    return dict(sorted(made.items()))


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
    SASS instructions of each kind (``instruction_mix``). ``made_of``: what they follow from
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
    def tensor_cores(self) -> bool:
        """Whether it multiplies on tensor cores: HMMA, IMMA, QGMMA …"""
        return any(op.partition(".")[0].endswith("MMA") for op in self.instruction_mix)

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
    texts = [objects.code(binary.cubin, binary.symbol) for binary in made if isinstance(binary, Binary)]
    counted = iter(opcodes(texts, arch, nvdisasm))
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
        constant_bytes=objects.constant_bytes(binary.cubin, binary.symbol),
        barriers=ptxas.barriers,
        blocks=held.blocks,
        occupancy=round(held.fraction, 4),
        limited_by=held.limiter,
        instruction_mix=instruction_mix(counts),
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
