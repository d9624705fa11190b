"""Finds the first commit that made a case slower, by pairs with the binary of a good one; the binaries of the
case at many commits are compiled ahead.

Commits whose binaries and launches are equal are one. Those that cannot be judged are skipped, as by
``git bisect skip``."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from math import ceil, log2
from pathlib import Path

from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.sources import closure
from gemm_regression.compiler.tools import CompileError, ToolchainError, arch
from gemm_regression.devices import Gpu
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import FASTER, NOT_SLOWER, SLOWER, Paired
from gemm_regression.model import Case
from gemm_regression.project.commit import CommitError, place, taken, touched, whole
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import find_case
from gemm_regression.run.compare import first_line, stored, unlike
from gemm_regression.run.pairing import Pair, Pairing
from gemm_regression.timing.looks import SequentialTest


class BisectState(Enum):
    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


@dataclass(frozen=True)
class Revision:
    """A case at a commit: the commit's ``name``, the ``binary``, or None and ``why`` there is none; the
    ``case``, None if it has none; ``files``: the folders of what it is compiled from, as paths in the
    repository."""

    name: str
    binary: StoredBinary | None = None
    why: str = ""
    case: Case | None = None
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstBad:
    """``first``: the revisions of the first bad binary, the oldest of which made it; ``skipped``: those
    before it that could not be judged, and may be it."""

    first: tuple[Revision, ...]
    skipped: tuple[Revision, ...] = ()


Test = Callable[[StoredBinary], tuple[BisectState, Paired | None]]
# Is told the revisions of one binary, what was found of them, in which pair, and how many groups are left.
Told = Callable[[Sequence[Revision], BisectState, Paired | None, int], None]


def grouped(revisions: Sequence[Revision]) -> list[tuple[Revision, ...]]:
    """Neighbours of one binary and launch together; one without a binary stands alone."""
    same = itertools.groupby(revisions, lambda one: one.binary.key if one.binary else id(one))
    return [tuple(group) for _, group in same]


def first_bad(
    groups: Sequence[tuple[Revision, ...]],
    good: StoredBinary,
    test: Test,
    told: Told = lambda revisions, state, paired, left: None,
) -> FirstBad:
    """Where the case becomes slower, of groups after ``good``, oldest first, of which the last one is bad.
    ``test`` is asked once of each binary."""
    known: dict[tuple[str, str], tuple[BisectState, Paired | None]] = {good.key: (BisectState.GOOD, None)}
    low, high = -1, len(groups) - 1
    skipped: set[int] = set()
    while open_ := [i for i in range(low + 1, high) if i not in skipped]:
        middle = min(open_, key=lambda i: (abs(i - (low + high) / 2), i))
        binary = groups[middle][0].binary
        if binary is None:
            state, paired = BisectState.SKIP, None
        else:
            if (key := binary.key) not in known:
                known[key] = test(binary)
            state, paired = known[key]
        if state is BisectState.SKIP:
            skipped.add(middle)
        elif state is BisectState.GOOD:
            low = middle
        else:
            high = middle
        told(groups[middle], state, paired, sum(i not in skipped for i in range(low + 1, high)))
    among = [revision for group in groups[low + 1 : high] for revision in group]
    return FirstBad(groups[high], tuple(among))


def steps(groups: int) -> int:
    """How many pairs that takes, at most, with the one of the last group, unless some are skipped."""
    return 1 + ceil(log2(max(1, groups)))


def beside(device: Gpu, case: Case, good: StoredBinary, pairs: int, margin: float, seed: int) -> Test:
    """Times a binary of a case beside the good one, with a control of its own. ``pairs``: how many there will
    be, which share the probability of an error."""
    seeds = itertools.count(seed + 1000, 1000)

    def test(binary: StoredBinary) -> tuple[BisectState, Paired | None]:
        pairing = Pairing(device, SequentialTest(), pairs, next(seeds))
        pair = Pair.on(device.info.capability, case, good, margin, good.name, new=binary)
        (timed,) = pairing.all([pair])
        states = {SLOWER: BisectState.BAD, NOT_SLOWER: BisectState.GOOD, FASTER: BisectState.GOOD}
        return states.get(timed.outcome, BisectState.SKIP), timed.paired

    return test


@dataclass(frozen=True)
class History:
    """A case by its id, ``text``, in the history of a project, compiled for a GPU of this ``capability``.
    Commits are put into new folders below ``folder``."""

    project: Project
    text: str
    capability: tuple[int, int]
    folder: Path

    def here(self, name: str) -> Revision:
        """In the working tree, which is called so."""
        return self._built(name, self._case(self.project), place(self.project.root).top)

    def at(self, sha: str) -> Revision:
        """At one commit, with all files of the project."""
        return self._built(sha, *self._taken(sha, whole(self.project)))

    def at_all(
        self, shas: Sequence[str], paths: Sequence[str], step: Callable[[str], None] = lambda what: None
    ) -> list[Revision]:
        """At many commits, in their order, with these paths alone; with all files where that is not enough.
        They compile at once, and equal sources once."""
        found: dict[str, Revision] = {}
        for some in (paths, whole(self.project)):
            left = [sha for sha in shas if sha not in found or found[sha].binary is None]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                # Declarations are loaded one after another: they are modules of this process for a moment.
                made = {sha: pool.submit(self._built, sha, *self._taken(sha, some)) for sha in left}
                for sha, built in made.items():
                    if sha not in found:
                        step(sha[:12])
                    found[sha] = built.result()
        return [found[sha] for sha in shas]

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

    def _built(self, name: str, case: Case | str, top: Path) -> Revision:
        if isinstance(case, str):
            return Revision(name, why=case)
        sm, of = arch(self.capability), partial(Revision, name, case=case)
        try:
            built = compile_cubin(case.kernel, case.config, case.dtype, sm)
            if why := unlike(case, built, sm):
                return of(why=why)
            binary = stored(case, built, f"{case.variant} at {name[:12]}")
            return of(binary, files=tuple(touched(self.project, closure(case.kernel), top)))
        except CompileError as error:
            return of(why=first_line(error))
        except ToolchainError:
            raise
        except Exception as error:  # A declaration of another commit may do anything.
            return of(why=f"its declaration fails ({type(error).__name__}: {error})")
