"""The binary of one case at many commits, compiled ahead."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.sources import closure
from gemm_regression.compiler.tools import CompileError, ToolchainError, arch
from gemm_regression.model import Case
from gemm_regression.project.commit import CommitError, place, taken, touched, whole
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import find_case
from gemm_regression.run.bisect import Revision
from gemm_regression.run.pairs import first_line, stored, unlike


@dataclass(frozen=True)
class At:
    """A case as a revision has it; None where it has none. ``files``: the folders of what it is compiled
    from, as paths in the repository."""

    revision: Revision
    case: Case | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class History:
    """A case by its id, ``text``, in the history of a project, compiled for a GPU of this ``capability``.
    Commits are put into new folders below ``folder``."""

    project: Project
    text: str
    capability: tuple[int, int]
    folder: Path

    def here(self, name: str) -> At:
        """In the working tree, which is called so."""
        return self._built(name, self._case(self.project), place(self.project.root).top)

    def at(self, sha: str) -> At:
        """At one commit, with all files of the project."""
        return self._built(sha, *self._taken(sha, whole(self.project)))

    def at_all(
        self, shas: Sequence[str], paths: Sequence[str], step: Callable[[str], None] = lambda what: None
    ) -> list[Revision]:
        """At many commits, in their order, with these paths alone; with all files where that is not enough.
        They compile at once, and equal sources once."""
        found = self._many(shas, paths, step)
        lost = [sha for sha, revision in found.items() if revision.binary is None]
        found |= self._many(lost, whole(self.project))
        return list(found.values())

    def _many(
        self,
        shas: Sequence[str],
        paths: Sequence[str],
        step: Callable[[str], None] = lambda what: None,
    ) -> dict[str, Revision]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            # Declarations are loaded one after another: they are modules of this process for a moment.
            made = {sha: pool.submit(self._built, sha, *self._taken(sha, paths)) for sha in shas}
            found = {}
            for sha, built in made.items():
                found[sha] = built.result().revision
                step(sha[:12])
        return found

    def _taken(self, sha: str, paths: Sequence[str]) -> tuple[Case | str, Path]:
        """The case at a commit, or why there is none; and the folder with the commit's files."""
        folder = Path(tempfile.mkdtemp(dir=self.folder), sha[:12])
        try:
            commit = taken(sha[:12], sha, self.project, folder, paths)
        except CommitError as error:
            return str(error), folder
        return self._case(replace(self.project, kernels=commit.kernels)), folder

    def _case(self, project: Project) -> Case | str:
        try:
            case = find_case(project, self.text, self.capability)
        except ValueError as error:
            return str(error)
        return case if case.kernel.compiled else f"{self.text} is compiled from no source of ours"

    def _built(self, name: str, case: Case | str, top: Path) -> At:
        if isinstance(case, str):
            return At(Revision(name, why=case))
        sm = arch(self.capability)
        try:
            built = compile_cubin(case.kernel, case.config, case.dtype, sm)
            if why := unlike(case, built, sm):
                return At(Revision(name, why=why), case)
            binary = stored(case, built, f"{case.variant} at {name[:12]}")
            files = touched(self.project, closure(case.kernel), top)
        except CompileError as error:
            return At(Revision(name, why=first_line(error)), case)
        except ToolchainError:
            raise
        except Exception as error:  # A declaration of another commit may do anything.
            return At(Revision(name, why=f"its declaration fails ({type(error).__name__}: {error})"), case)
        return At(Revision(name, binary), case, tuple(files))
