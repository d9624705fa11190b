"""The SASS instructions of a kernel, counted with nvdisasm."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence

from gemm_regression.compiler.cache import cache_entry, load_entry, store_entry
from gemm_regression.compiler.errors import ToolchainError
from gemm_regression.compiler.tools import Disassembler

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
