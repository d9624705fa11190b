"""Kernels of a file that differ by macros, by one run of nvcc: nine tenths of a run are headers of CUDA.

Each is in a namespace of its own; its code and its lines are those that a run for it alone gives
(test_hopper_mutants.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ptxsan.nvcc import compile_file, compile_text

Defines = tuple[str, ...]
MOST = 16  # of a run, so that two processes that share the tests compile few of them twice
_KERNEL = re.compile(r'^extern "C" __global__ void(?:\s+__\w+__\(.*\))?\s+(\w+)\(', re.MULTILINE)
_ENTRY = re.compile(r"^\.visible \.entry (\w+)\(.*?(?=^\.visible \.entry |^\t\.file\t|\Z)", re.M | re.S)


def _flat(path: Path, seen: set[Path], system: dict[str, None]) -> Iterator[str]:
    """The lines of a file and of its own headers; those of the toolkit are collected."""
    if path in seen:
        return
    seen.add(path)
    yield f'#line 1 "{path.name}"'
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if own := re.match(r'#include "(.*)"', line):
            yield from _flat((path.parent / own[1]).resolve(), seen, system)
            yield f'#line {number + 1} "{path.name}"'
        elif line.startswith("#include <"):
            system[line] = None
            yield ""
        else:
            yield "" if line == "#pragma once" else line


def source(path: Path, variants: Iterable[Defines]) -> str:
    """CUDA C++ with the entries of each variant: those of number 1 are ``entry_1``, …"""
    system = dict[str, None]()
    text = "\n".join(_flat(path.resolve(), set(), system))
    own = [*_KERNEL.findall(text), *re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE)]
    lines = [*system]
    for number, defines in enumerate(variants):
        given = [(name, value if has else "1") for name, has, value in (d.partition("=") for d in defines)]
        given += [(entry, f"{entry}_{number}") for entry in _KERNEL.findall(text)]
        lines += [f"namespace variant_{number} {{", *(f"#define {name} {value}" for name, value in given)]
        names = dict.fromkeys([*(name for name, _ in given), *own])
        lines += [text, *(f"#undef {name}" for name in names), "}"]
    return "\n".join(lines) + "\n"


@cache
def compiled(path: Path, entry: str, arch: str, variants: tuple[Defines, ...]) -> dict[Defines, str]:
    """The PTX of each, with that entry alone. Raises PtxError as ``compile_text``."""
    ptx, made = compile_text(source(path, variants), arch), {}
    for number, defines in enumerate(variants):
        own = f"{entry}_{number}"
        kept = _ENTRY.sub(lambda found, own=own: found[0] if found[1] == own else "", ptx)  # type: ignore[misc]
        made[defines] = re.sub(rf"\b{own}(?=_param_|\b)", entry, kept)
    return made


# By file, entry and architecture the variants that are going to be needed, in this order.
_expected: dict[tuple[Path, str, str], dict[Defines, None]] = {}


def expect(path: Path, entry: str, arch: str, defines: Defines) -> None:
    """Tells of a variant that is going to be needed."""
    _expected.setdefault((path, entry, arch), {})[defines] = None


def ptx(path: Path, entry: str, arch: str, defines: Defines) -> str:
    """The PTX of a variant; compiled together with its neighbours among those that are expected."""
    variants = [*_expected.get((path, entry, arch), ())]
    if defines not in variants:
        return compile_file(path, arch, defines)
    first = variants.index(defines) // MOST * MOST
    return compiled(path, entry, arch, tuple(variants[first : first + MOST]))[defines]


def needed(request: Any) -> Iterator[dict[str, Any]]:
    """The parameters of the tests of this file that are going to run."""
    items = (item for item in request.session.items if item.path == request.path)
    yield from (item.callspec.params for item in items if hasattr(item, "callspec"))
