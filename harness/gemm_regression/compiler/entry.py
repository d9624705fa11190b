"""Finds the compiled function that a declaration names as its entry."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Sequence

from gemm_regression.compiler.errors import CompileError, ToolchainError

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
