"""What is in compiled code: the sections of a cubin, the function that a declaration names as its entry, and
whether that takes the parameters that a launch passes.

A cubin is an ELF64 file (System V ABI, "Object Files"). A launch passes bytes, not types: a kernel of another
signature would run on nonsense, and perhaps be fast. PTX tells the size of a parameter and whether it is a
float: two of one kind exchanged look alike here.
"""

from __future__ import annotations

import functools
import re
import struct
import subprocess
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gemm_regression.compiler.tools import CompileError, ToolchainError

# What reading half a cubin may raise.
DAMAGE = (struct.error, IndexError, ValueError)
_NOBITS, _SYMTAB = 8, 2
_SIZED, _KPARAM_INFO = 4, 0x17  # of the attributes of .nv.info
_ENTRY = 0x10  # STO_CUDA_ENTRY, in a symbol's st_other


class Section(NamedTuple):
    """A section of a cubin; ``content`` is empty where it only reserves its ``size`` in bytes."""

    name: str
    size: int
    content: bytes


def sections(cubin: bytes) -> list[Section]:
    """The sections of a cubin."""
    return [section for _, _, section in _sections(cubin)]


def symbols(cubin: bytes) -> list[str]:
    """The symbols of all ``__global__`` functions of a cubin."""
    found = _sections(cubin)
    names = []
    for kind, link, section in found:
        if kind == _SYMTAB:
            strings = found[link][2].content
            for name, _, other, _, _, _ in struct.iter_unpack("<IBBHQQ", section.content):
                if other & 0xF0 == _ENTRY:
                    names.append(strings[name : strings.index(b"\0", name)].decode())
    return names


def code(cubin: bytes, symbol: str) -> bytes:
    """The instructions of a ``__global__`` function, with those of the functions that it calls."""
    return b"".join(s.content for s in sections(cubin) if s.name == f".text.{symbol}")


def parameter_offsets(cubin: bytes, symbol: str) -> tuple[int, ...]:
    """Where each parameter of a ``__global__`` function lies in the buffer of a launch, in bytes, in their
    order.

    From the KPARAM_INFO attributes of ``.nv.info.<symbol>``. A parameter of large alignment is aligned in the
    constant bank, so its offset is no multiple of its alignment.
    """
    found: dict[int, int] = {}
    for section in sections(cubin):
        at = 0
        while section.name == f".nv.info.{symbol}" and at < len(section.content):
            form, attribute, size = struct.unpack_from("<BBH", section.content, at)
            if (form, attribute) == (_SIZED, _KPARAM_INFO):
                _, ordinal, offset = struct.unpack_from("<IHH", section.content, at + 4)
                found[ordinal] = offset
            at += 4 + (size if form == _SIZED else 0)
    return tuple(found[ordinal] for ordinal in sorted(found))


def constant_bytes(cubin: bytes, symbol: str) -> int:
    """Bytes of all constant banks that a ``__global__`` function sees; bank 0 holds the launch parameters."""
    banks = ((s.name.split(".", 3)[3:], s.size) for s in sections(cubin) if s.name.startswith(".nv.constant"))
    return sum(size for of, size in banks if of in ([], [symbol]))


def _sections(cubin: bytes) -> list[tuple[int, int, Section]]:
    """(kind, linked section, section) of each."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQI", cubin, table + 64 * i) for i in range(count)]
    strings = headers[names][4]
    return [
        (
            kind,
            link,
            Section(
                cubin[strings + name : cubin.index(b"\0", strings + name)].decode(),
                size,
                b"" if kind == _NOBITS else cubin[offset : offset + size],
            ),
        )
        for name, kind, _, _, offset, size, link in headers
    ]


_UNNAMED = "(anonymous namespace)::"
_SPELT = {"half": "__half", "nv_bfloat16": "__nv_bfloat16", "half2": "__half2", "true": "1", "false": "0"}


def symbol_of(entry: str, symbols: Sequence[str], what: str) -> str:
    """The symbol, out of those of all ``__global__`` functions of a binary, of the one that is called so in
    C++: ``gemm``, ``ns::gemm``, ``gemm<128, 8>``; functions of an unnamed namespace without that.

    Raises CompileError, one line that names ``what`` was compiled and lists the functions there, where none
    or more than one is called so; ToolchainError where c++filt is needed and missing.
    """
    if entry in symbols:  # extern "C"
        return entry
    names = dict(zip(symbols, demangled(tuple(symbols)), strict=True))
    name, arguments = _split(entry)
    called = {symbol: _split(full) for symbol, full in names.items() if _split(full)[0] == name}
    if len(called) > 1 and arguments:
        called = {symbol: parts for symbol, parts in called.items() if parts[1] == arguments}
    if len(called) == 1:
        return next(iter(called))
    there = ", ".join(sorted(_short(full) for full in names.values())) or "none"
    said = "several __global__ functions are named" if called else "there is no __global__ function named"
    raise CompileError(f"{what}: {said} {entry}; compiled functions: {there}")


def names_it(entry: str, full: str) -> bool:
    """Whether the C++ name of a function, as shown by a tool, is this entry, or another instance of its
    template: tools differ in how they spell template arguments."""
    return _split(entry)[0] == _split(full)[0]


def instantiation(entry: str) -> str:
    """A line to append to the source that instantiates a template; empty for other functions. One of several
    overloaded templates is told by its parameters: ``gemm<128>(const half*, float*, int)``."""
    if "<" not in entry:
        return ""
    end = _end_of_name(entry)
    chosen = f"static_cast<void (*){entry[end:]}>(&{entry[:end]})" if entry[end:] else f"&{entry}"
    return f"auto* gemm_regression_entry = {chosen};\n"


def ptx_symbols(ptx: str) -> list[str]:
    """The symbols of all ``__global__`` functions of PTX."""
    return re.findall(r"\.entry\s+([\w$]+)", ptx)


@functools.lru_cache(256)
def demangled(symbols: tuple[str, ...]) -> tuple[str, ...]:
    """Names as in C++. Raises ToolchainError without c++filt."""
    try:
        said = subprocess.run(
            ["c++filt"], input="\n".join(symbols), capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(
            f"c++filt cannot be run ({error}): install binutils, which g++ needs, too"
        ) from None
    return tuple(said.stdout.splitlines())


def _short(full: str) -> str:
    """Without the result and the parameters."""
    text = full.replace(_UNNAMED, "").removeprefix("void ")
    return text[: _end_of_name(text)]


def _split(full: str) -> tuple[str, str]:
    """The name and the template arguments of a function, in one spelling."""
    name, _, rest = _short(full).partition("<")
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


class Expected(Protocol):
    """A parameter that is handed over; ``kind`` is i8, i16, i32 or i64, signed or not, f16, bf16, f32, f64,
    p64 for a pointer, or bytes[n] for a struct of n bytes by value."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...


_SMALL_FLOATS = ("f16", "bf16")  # structs to nvcc
# What a parameter of a type in PTX can be. nvcc writes .u64 for pointers, newer ones .u64 .ptr.
_TAKES = {
    **{f"{sign}{bits}": (f"i{bits}",) for sign in "us" for bits in (8, 16, 32)},
    "b8": ("i8",),
    "b16": ("i16", *_SMALL_FLOATS),
    "b32": ("i32",),
    **dict.fromkeys(("u64", "s64", "b64"), ("i64", "p64")),
    "f32": ("f32",),
    "f64": ("f64",),
    "ptr": ("p64",),
    "b8[2]": ("bytes[2]", *_SMALL_FLOATS),
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


def mismatch(ptx: str, symbol: str, expected: Sequence[Expected]) -> str | None:
    """One line on the first parameter that differs from what would be passed, else None."""
    taken = parameters(ptx, symbol)
    if taken is None:
        return f"there is no kernel {symbol}"
    for position, (parameter, type_) in enumerate(zip(expected, taken, strict=False), 1):
        if parameter.kind not in _kinds(type_):
            handed = f"{parameter.kind} {parameter.name}"
            return f"parameter {position} is {handed}, but the kernel takes {_shown(type_)}"
    if len(taken) != len(expected):
        names = ", ".join(parameter.name for parameter in expected)
        return f"the kernel takes {len(taken)} parameters, not {len(expected)} ({names})"
    return None


def _kinds(type_: str) -> tuple[str, ...]:
    return _TAKES.get(type_, (type_.replace("b8[", "bytes["),))


def _shown(type_: str) -> str:
    kinds = _kinds(type_)
    if kinds == ("i64", "p64"):
        return f"{type_} (a pointer?)"
    return "a pointer" if kinds == ("p64",) else kinds[0]
