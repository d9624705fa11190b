"""What a planted slowdown is: an edit of a real kernel, for one of its variants, that costs little time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gemm_regression.model import DTYPES, Case, Kernel, Problem
from gemm_regression.project.selection import find_config
from tests.ladder import LADDER
from tests.mutants.mutant import Edits, edited

_KERNELS = {kernel.name: kernel for kernel in LADDER}
_DTYPE = "DTYPE_{}"  # the macro of a dtype, in kernels that have several
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


@dataclass(frozen=True)
class Slowdown:
    """``edits``: (old, new) texts, each old one exactly once in the kernel's file and its own headers, of
    which the planted kernel has a copy. ``about`` says in one line what was done. ``config`` and ``dtype``
    are labels, ``problem`` the one it is timed on."""

    name: str
    kernel: str
    about: str
    config: str
    problem: Problem
    edits: Edits
    dtype: str = "f32"

    @property
    def real(self) -> Case:
        """The case, of the kernel as it is."""
        kernel = _KERNELS[self.kernel]
        return Case(kernel, DTYPES[self.dtype], find_config(kernel, self.config), self.problem)

    @property
    def source(self) -> Path:
        source = self.real.kernel.source
        assert source is not None
        return source

    @property
    def condition(self) -> str:
        """Of the preprocessor: true where this variant is compiled, and no other of the kernel."""
        case = self.real
        known = [f"{name} == {value}" for name, value in case.config.items()]
        if len(case.kernel.dtypes) > 1:
            known.append(f"defined({_DTYPE.format(self.dtype.upper())})")
        return " && ".join(known)

    def unedited(self) -> str:
        """The kernel's file, with its own headers in it, each where it is included first."""
        there: set[str] = set()

        def included(line: re.Match[str]) -> str:
            header = line[1]
            if header in there:
                return ""
            there.add(header)
            text = (self.source.parent / header).read_text(encoding="utf-8")
            return _INCLUDE.sub(included, text.replace("#pragma once\n", ""))

        return _INCLUDE.sub(included, self.source.read_text(encoding="utf-8"))

    def edited(self) -> str:
        """The kernel's file with the edits. Raises Rotten."""
        source = self.source.name
        return edited(self.name, {source: self.unedited()}, self.edits, "planted slowdown")[source]

    def alone(self, folder: Path) -> Case:
        """The case of a kernel of its own, ``kernel+name``, which is written into ``folder``."""
        case = self.real
        path = folder / f"{self.name}.cu"
        path.write_text(self.edited(), encoding="utf-8")
        include = (*case.kernel.include, str(self.source.parent))
        kernel: Kernel = replace(case.kernel, name=f"{self.kernel}+{self.name}", source=path, include=include)
        return replace(case, kernel=kernel)


def small(case: Case) -> Case:
    """The same on nine tiles of K and two of rows, for a device without a GPU."""
    sizes = dict(case.config.items())
    deep = sizes.get("TILE_K", 128 // case.dtype.storage.itemsize)  # that of a row of a TMA's box
    return replace(case, problem=Problem(2 * sizes["TILE_M"], sizes["TILE_N"], 9 * deep))


def firsts(slowdowns: Sequence[Slowdown]) -> list[Slowdown]:
    """The first of each variant, for a variant can have one at a time."""
    found: dict[str, Slowdown] = {}
    for slowdown in slowdowns:
        found.setdefault(slowdown.real.variant, slowdown)
    return list(found.values())


def together(slowdowns: Sequence[Slowdown]) -> dict[Path, str]:
    """The text of each kernel's file with all its planted slowdowns, each for its variant alone: what no
    slowdown is planted in compiles to the same binary as before. Raises Rotten, and ValueError for two in one
    variant."""
    found: dict[Path, str] = {}
    variants: dict[str, str] = {}
    for slowdown in slowdowns:
        variant = slowdown.real.variant
        if variant in variants:
            raise ValueError(f"{variants[variant]} and {slowdown.name} are both planted in {variant}")
        variants[variant] = slowdown.name
    for source in dict.fromkeys(slowdown.source for slowdown in slowdowns):
        parts = [
            f"#{'elif' if number else 'if'} {each.condition}\n{each.edited()}"
            for number, each in enumerate(s for s in slowdowns if s.source == source)
        ]
        found[source] = "".join(parts) + f"#else\n{source.read_text(encoding='utf-8')}#endif\n"
    return found
