"""What a mutant is: a small edit of a real kernel, so that it cannot rot unseen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from harness.model import DTYPES, SPARSE, Case, Kernel, Problem
from harness.project.names import find_config
from harness.project.suites import VERIFIED
from tests.ladder import find_kernel

Edits = tuple[tuple[str, str], ...]
# Little ones first: most mistakes show in a moment.
BY_SIZE = tuple(sorted(VERIFIED, key=lambda p: p.m * p.n * p.k))


@dataclass(frozen=True)
class Mutant:
    """``edits``: (old, new) texts, each old one exactly once in the kernel's file. ``kind`` is the class of
    mistake, ``about`` what was done in one line. ``wrong`` false: the result is right, and only figures,
    counters or time tell. ``by_luck``: why values do not surely show it on a GPU. ``config`` and ``dtype``
    are labels, empty for the first; ``problems`` where it is looked for without a GPU, empty for VERIFIED.
    """

    name: str
    kernel: str
    kind: str
    edits: Edits
    about: str = ""
    wrong: bool = True
    by_luck: str = ""
    config: str = ""
    dtype: str = ""
    problems: tuple[Problem, ...] = ()

    @property
    def sparse(self) -> bool:
        """Whether it shows only on matrices that no GPU holds."""
        return bool(self.problems) and all(max(p.lda, p.ldb, p.ldc) > SPARSE for p in self.problems)


class Rotten(Exception):
    """An edit that no longer matches its kernel exactly once."""


def build(mutant: Mutant, folder: Path) -> Kernel:
    """The declaration of the mutated kernel, whose file is written into ``folder``. Raises Rotten."""
    kernel = find_kernel(mutant.kernel)
    assert kernel.source is not None
    text = kernel.source.read_text(encoding="utf-8")
    for old, new in mutant.edits:
        if text.count(old) != 1:
            raise Rotten(f"{mutant.name}: occurs {text.count(old)} times in {kernel.source.name}: {old!r}")
        text = text.replace(old, new)
    path = folder / f"{mutant.name}.cu"
    path.write_text(text, encoding="utf-8")
    return replace(kernel, source=path)


def cases(mutant: Mutant, kernel: Kernel) -> list[Case]:
    """A kernel, the mutated or the real one, in the mutant's config and dtype on the mutant's problems."""
    config = find_config(kernel, mutant.config) if mutant.config else kernel.configs[0]
    dtype = DTYPES[mutant.dtype] if mutant.dtype else kernel.dtypes[0]
    return [Case(kernel, dtype, config, problem) for problem in mutant.problems or BY_SIZE]
