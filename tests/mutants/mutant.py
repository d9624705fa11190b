"""What a mutant is: a small edit of a real kernel, so that it cannot rot unseen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gemm_regression.compiler.sources import closure
from gemm_regression.model import DTYPES, Case, Config, DType, Kernel, Problem
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.model.problem import SPARSE
from gemm_regression.project.loader import load
from gemm_regression.project.selection import find_config
from gemm_regression.project.suites import VERIFIED
from tests.ladder import H200, LADDER, PROJECT

OPERATIONS = load(Path(__file__).parents[1] / "operations").kernels
_REAL = {kernel.name: kernel for kernel in (*LADDER, *OPERATIONS)}
LIMITS = GpuLimits.of(H200)
Edits = tuple[tuple[str, str], ...]
# Little ones first: most mistakes show in a moment.
BY_SIZE = tuple(sorted(VERIFIED, key=lambda p: p.m * p.n * p.k))


@dataclass(frozen=True)
class Mutant:
    """``edits``: (old, new) texts, each old one exactly once in the kernel's file and what it includes.
    ``kind`` is the class of mistake, ``about`` what was done in one line. ``wrong`` false: the result is
    right, and only figures, counters or time tell. ``by_luck``: why values do not surely show it on a GPU.
    ``config`` and ``dtype`` are labels, empty for the first; ``problems`` where the kill matrix looks for it,
    empty for VERIFIED.
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


def real(mutant: Mutant) -> Kernel:
    """The kernel that is edited, of the ladder or of the tests' own."""
    return _REAL[mutant.kernel]


def edited(name: str, texts: Mapping[str, str], edits: Edits, what: str = "mutant") -> dict[str, str]:
    """Texts by the name of their file, with the edits of ``what`` has the name. Raises Rotten."""
    made = dict(texts)
    for old, new in edits:
        found = [file for file, text in made.items() for _ in range(text.count(old))]
        if len(found) != 1:
            said = f"{name}: occurs {len(found)} times in {', '.join(made)}: {old!r}"
            raise Rotten(f"{said}; the kernel has changed, and its {what} has to be adapted")
        made[found[0]] = made[found[0]].replace(old, new)
    return made


def build(mutant: Mutant, folder: Path) -> Kernel:
    """The declaration of the mutated kernel, whose own files are written into ``folder``. Raises Rotten."""
    kernel = real(mutant)
    texts = {path.name: path.read_text(encoding="utf-8") for path in closure(kernel)}
    source = next(iter(texts))
    for name, text in edited(mutant.name, texts, mutant.edits).items():
        path = folder / (f"{mutant.name}.cu" if name == source else name)
        path.write_text(text, encoding="utf-8")
    return replace(kernel, source=folder / f"{mutant.name}.cu")


def checked(kernel: Kernel, config: Config, dtype: DType) -> list[Case]:
    """The cases of the check without a GPU of a variant, the cheapest first."""
    fitted = PROJECT.suites["full"].verify([kernel], LIMITS, emulated=True)
    found = [f.case for f in fitted if f.runs and (f.case.config, f.case.dtype) == (config, dtype)]
    return sorted(found, key=lambda case: case.problem.flops)


def cases(mutant: Mutant, kernel: Kernel, problems: Iterable[Problem] = ()) -> list[Case]:
    """A kernel, the mutated or the real one, in the mutant's config and dtype on the mutant's problems or
    others, brought into what the kernel takes."""
    config = find_config(kernel, mutant.config) if mutant.config else kernel.configs[0]
    dtype = DTYPES[mutant.dtype] if mutant.dtype else kernel.dtypes[0]
    asked = problems or mutant.problems or BY_SIZE
    taken = dict.fromkeys(kernel.constraints.near(kernel.narrowed(problem), config) for problem in asked)
    return [Case(kernel, dtype, config, problem) for problem in taken]
