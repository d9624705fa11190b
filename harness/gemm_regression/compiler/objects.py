"""What is in compiled code: the sections of a cubin, the function that a declaration names as its entry,
whether that takes the parameters that a launch passes, and its instructions.

A cubin is an ELF64 file (System V ABI, "Object Files"). A launch passes bytes, not types: a kernel of another
signature would run on nonsense, and perhaps be fast. PTX tells the size of a parameter and whether it is a
float: two of one kind exchanged look alike here.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gemm_regression.compiler.tools import (
    CompileError,
    Nvcc,
    ToolchainError,
    cache_entry,
    load_entry,
    said,
    store_entry,
)
from gemm_regression.model import Argument

DAMAGE = (struct.error, IndexError, ValueError)  # what reading half a cubin may raise
_NOBITS, _SYMTAB = 8, 2
_ENTRY = 0x10  # STO_CUDA_ENTRY, in a symbol's st_other


class Section(NamedTuple):
    """A section of a cubin, of a ``kind``, which may ``link`` to another by its number; ``content`` is empty
    where it only reserves its ``size`` in bytes."""

    name: str
    size: int
    content: bytes
    kind: int
    link: int


def sections(cubin: bytes) -> list[Section]:
    """The sections of a cubin."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQI", cubin, table + 64 * i) for i in range(count)]
    found = []
    for name, kind, _, _, offset, size, link in headers:
        content = b"" if kind == _NOBITS else cubin[offset : offset + size]
        found.append(Section(_text(cubin, headers[names][4] + name), size, content, kind, link))
    return found


def _text(content: bytes, start: int) -> str:
    return content[start : content.index(b"\0", start)].decode()


def symbols(cubin: bytes) -> dict[str, int]:
    """The symbols of all ``__global__`` functions of a cubin, with their numbers in its table."""
    found = sections(cubin)
    return {
        _text(found[table.link].content, name): number
        for table in found
        if table.kind == _SYMTAB
        for number, (name, _, other, *_) in enumerate(struct.iter_unpack("<IBBHQQ", table.content))
        if other & 0xF0 == _ENTRY
    }


def code(cubin: bytes, symbol: str) -> bytes:
    """The instructions of a ``__global__`` function, with those of the functions that it calls."""
    return b"".join(s.content for s in sections(cubin) if s.name == f".text.{symbol}")


def constant_bytes(cubin: bytes, symbol: str) -> int:
    """Bytes of all constant banks that a ``__global__`` function sees; bank 0 holds the launch parameters."""
    banks = ((s.name.split(".", 3)[3:], s.size) for s in sections(cubin) if s.name.startswith(".nv.constant"))
    return sum(size for of, size in banks if of in ([], [symbol]))


_UNNAMED = "(anonymous namespace)::"
_SPELT = {"half": "__half", "nv_bfloat16": "__nv_bfloat16", "half2": "__half2", "true": "1", "false": "0"}


def symbol_of(entry: str, symbols: Iterable[str], what: str) -> str:
    """The symbol, out of those of all ``__global__`` functions of a binary, of the one that is called so in
    C++: ``gemm``, ``ns::gemm``, ``gemm<128, 8>``, or ``gemm<..., float>`` of the instances that the source
    makes; functions of an unnamed namespace without that.

    Raises CompileError, one line that names ``what`` was compiled and lists the functions there, where none
    or more than one is called so; ToolchainError where c++filt is needed and missing.
    """
    if entry in symbols:  # extern "C"
        return entry
    names = dict(zip(symbols, demangled(tuple(symbols)), strict=True))
    name, arguments = _split(entry)
    called = {symbol: _split(full)[1] for symbol, full in names.items() if _split(full)[0] == name}
    if len(called) > 1 and arguments:
        fits = _pattern(arguments)
        called = {symbol: others for symbol, others in called.items() if fits.fullmatch(f",{others},")}
    if len(called) > 1 and (taken := _parameters(entry)):
        called = {symbol: others for symbol, others in called.items() if _parameters(names[symbol]) == taken}
    if len(called) == 1:
        return next(iter(called))
    there = ", ".join(sorted(short_name(full) for full in names.values())) or "none"
    fault = "several __global__ functions are named" if called else "there is no __global__ function named"
    hint = f"; choose one: {' or '.join(_apart(name, [names[of] for of in called]))}" if called else ""
    raise CompileError(f"{what}: {fault} {entry}{hint}; compiled functions: {there}")


def _pattern(arguments: str) -> re.Pattern[str]:
    """Template arguments between commas, of which ``...`` stands for any, also for none."""
    each = re.escape(f",{arguments},").replace(r"\.\.\.", "...")
    return re.compile(each.replace(",...,", "(?:,.*)?,").replace("...", ".*"))


def _apart(name: str, functions: Sequence[str]) -> list[str]:
    """An entry for each of these overloads, or instances of a template, of which it names what the others
    have not."""
    each = [_listed(_split(full)[1]) for full in functions]
    if len({len(arguments) for arguments in each}) > 1 or each[0] in each[1:]:
        return [full.replace(_UNNAMED, "").removeprefix("void ") for full in functions]
    at = next(n for n, of in enumerate(zip(*each, strict=True)) if len(set(of)) > 1)
    before, after = "..., " * bool(at), ", ..." * (at < len(each[0]) - 1)
    return [f"{name}<{before}{arguments[at]}{after}>" for arguments in each]


def _parameters(full: str) -> str:
    """What a function takes, in one spelling; empty where it is not said."""
    text = full.replace(_UNNAMED, "")
    taken = re.sub(r"\bconst ([\w:]+)", r"\1 const", text[_end_of_name(text) :])
    return re.sub(r"\w+|\s+", lambda word: _SPELT.get(word[0], word[0].strip()), taken)


def _listed(arguments: str) -> list[str]:
    """Template arguments, taken apart at the commas that are in none."""
    found, depth = [""], 0
    for char in arguments:
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return found


def names_it(entry: str, full: str) -> bool:
    """Whether the C++ name of a function, as shown by a tool, is this entry, or another instance of its
    template: tools differ in how they spell template arguments."""
    return _split(entry)[0] == _split(full)[0]


def instantiation(entry: str) -> str:
    """A line to append to the source that instantiates a template; empty for other functions. One of several
    overloaded templates is told by its parameters: ``gemm<128>(const half*, float*, int)``."""
    if "<" not in entry or "..." in entry:  # that is a choice among those that are there
        return ""
    end = _end_of_name(entry)
    chosen = f"static_cast<void (*){entry[end:]}>(&{entry[:end]})" if entry[end:] else f"&{entry}"
    return f"auto* gemm_regression_entry = {chosen};\n"


def ptx_symbols(ptx: str) -> list[str]:
    """The symbols of all ``__global__`` functions of PTX."""
    return re.findall(r"\.entry\s+([\w$]+)", ptx)


@functools.lru_cache(256)
def demangled(symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Names as in C++. Raises ToolchainError without c++filt, which is of binutils, as g++ needs them."""
    done = said(["c++filt"], input="\n".join(symbols))
    if done.returncode:
        raise ToolchainError(f"c++filt failed: {done.stderr[:200]}")
    return tuple(done.stdout.splitlines())


def short_name(full: str) -> str:
    """Without the result and the parameters."""
    text = full.replace(_UNNAMED, "").removeprefix("void ")
    return text[: _end_of_name(text)]


def _split(full: str) -> tuple[str, str]:
    """The name and the template arguments of a function, in one spelling."""
    name, _, rest = short_name(full).partition("<")
    arguments = re.sub(r"\([\w:]+\)(?=-?\d)|(?<=\d)[uUlL]+\b", "", rest.removesuffix(">"))  # (E)1, 5u
    words = re.sub(r"\w+", lambda word: _SPELT.get(word[0], word[0]), re.sub(r"\s+", "", arguments))
    return re.sub(r"\s+", "", name).removeprefix("::"), words


def _end_of_name(text: str) -> int:
    """Where the parameters begin: the first parenthesis that is in no template argument."""
    depth = inner = 0
    for position, char in enumerate(text):
        if char == "(" and not depth:
            return position
        inner += (char == "(") - (char == ")")
        depth += ((char == "<") - (char == ">")) * (not inner)
    return len(text)


_SMALL_FLOATS = ("f16", "bf16")  # structs to nvcc
# What a parameter of a type in PTX can be. nvcc writes .u64 for pointers, newer ones .u64 .ptr.
_TAKES = {
    **{f"{sign}{bits}": (f"i{bits}",) for sign in "us" for bits in (8, 16, 32)},
    **dict.fromkeys(("u64", "s64", "b64"), ("i64", "p64")),
    **{"b8": ("i8",), "b16": ("i16", *_SMALL_FLOATS), "b32": ("i32",), "b8[2]": ("bytes[2]", *_SMALL_FLOATS)},
    **{"f32": ("f32",), "f64": ("f64",), "ptr": ("p64",)},
}


def parameters(ptx: str, symbol: str) -> tuple[str, ...] | None:
    """The types of an entry's parameters as PTX has them, ``u32``, ``f32``, ``ptr`` for a pointer that is
    marked as one, ``b8[128]`` for bytes passed by value; None without the entry."""
    found = re.search(rf"\.entry\s+{re.escape(symbol)}\s*\((.*?)\)", ptx, re.DOTALL)
    if found is None:
        return None
    types = []
    for text in filter(None, (part.strip() for part in found[1].split(","))):
        words = re.match(
            r"\.param\s+(?:\.align\s+\d+\s+)?\.(\w+)(\s+\.ptr\b)?.*?(\[\d+\])?$", text, re.DOTALL
        )
        types.append(("ptr" if words[2] else words[1] + (words[3] or "")) if words else text)
    return tuple(types)


def mismatch(ptx: str, symbol: str, expected: Sequence[Argument]) -> str | None:
    """One line on the first parameter that differs from what would be passed, else None."""
    taken = parameters(ptx, symbol)
    if taken is None:
        return f"there is no kernel {symbol}"
    for position, (argument, type_) in enumerate(zip(expected, taken, strict=False), 1):
        kinds = _TAKES.get(type_, (type_.replace("b8[", "bytes["),))
        if argument.kind not in kinds:
            shown = "a pointer" if type_ == "ptr" else f"{type_} (a pointer?)" if "p64" in kinds else kinds[0]
            handed = f"{argument.kind} {argument.name}"
            return f"parameter {position} is {handed}, but the kernel takes {shown}"
    if len(taken) != len(expected):
        names = ", ".join(argument.name for argument in expected)
        return f"the kernel takes {len(taken)} parameters, not {len(expected)} ({names})"
    return None


# Its instructions

INSTRUCTION_BYTES = 16  # from compute capability 7.0 on
_LINE = re.compile(r"^\s*\{?\s*/\*([0-9a-f]+)\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)
# Counted by their first word; tensor-core instructions by the full name, which includes the precision.
_BY_WORD = (
    *("FFMA", "FFMA2", "FADD", "FMUL", "LDSM", "STSM", "UTMALDG", "UTMASTG", "BAR", "BRA", "SHFL"),
    *("ATOM", "ATOMS", "ATOMG", "RED", "LDGDEPBAR", "DEPBAR"),
)
# Counted by width. LD and ST are accesses through generic addresses, LDL and STL to local memory.
_BY_WIDTH = ("LDG", "STG", "LDS", "STS", "LDGSTS", "LD", "ST", "LDL", "STL")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


def opcodes(texts: Sequence[bytes], arch: str, nvdisasm: Nvcc) -> list[Counter[str]]:
    """The number of instructions by opcode, modifiers included, in each kernel's code (``objects.code``), for
    one architecture.

    Code that is not cached is disassembled in one call, since nvdisasm takes longer to start than to read a
    kernel. Raises ToolchainError if nvdisasm fails or does not account for every instruction.
    """
    digests = [hashlib.sha256(text).hexdigest() for text in texts]
    entries = {d: cache_entry(["opcodes", nvdisasm.version, arch, d]) for d in digests}
    counts = {d: Counter(json.loads(kept[0])) for d, entry in entries.items() if (kept := load_entry(entry))}
    if missing := {d: text for d, text in zip(digests, texts, strict=True) if d not in counts}:
        made = _disassemble(list(missing.values()), arch, nvdisasm)
        counts |= dict(zip(missing, made, strict=True))
        for digest in missing:
            store_entry(entries[digest], json.dumps(counts[digest]).encode(), "")
    return [counts[digest] for digest in digests]


def _disassemble(texts: Sequence[bytes], arch: str, nvdisasm: Nvcc) -> list[Counter[str]]:
    with tempfile.NamedTemporaryFile(prefix="gemm-", suffix=".bin") as file:
        file.write(b"".join(texts))
        file.flush()
        # -ndf disables the branch analysis, which needs more than the bare instructions.
        target = arch.upper().replace("SM_", "SM").replace("A", "a")
        done = said([str(nvdisasm.path), "-ndf", "-b", target, file.name])
    if done.returncode:
        raise ToolchainError(f"{nvdisasm.path} failed: {(done.stderr or done.stdout).strip()[:200]}")
    return count_opcodes(done.stdout, [len(text) for text in texts])


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
    names = (opcode for _, opcode in found)
    return [Counter(next(names) for _ in range(size // INSTRUCTION_BYTES)) for size in sizes]


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
        if word in _BY_WIDTH:
            made[f"{word}.{next((_WIDTHS[m] for m in modifiers if m in _WIDTHS), 32)}"] += count
        elif word.endswith("MMA"):
            made[opcode] += count
        elif word in _BY_WORD:
            made[word] += count
    return dict(sorted(made.items()))
