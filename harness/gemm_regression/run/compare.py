"""Compares two commits, or two compilers: which selected cases differ from those of a base, which of them can
be timed beside it, and every one that has changed beside what it was."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gemm_regression.compiler.nvcc import Binary, Variant, compile_all, refusal
from gemm_regression.compiler.tools import CompileError, Nvcc, arch
from gemm_regression.devices import PairingDevice
from gemm_regression.devices.work import StoredBinary, Work
from gemm_regression.judge import vocabulary
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, Outcome, Paired
from gemm_regression.model import Case
from gemm_regression.model.gpus import GpuLimits, refusals
from gemm_regression.project.commit import Commit
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, fitting, select
from gemm_regression.run.pairing import ComparedCase, Control, Pair, Pairing
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import PairPlan

_NOTHING_TIMED = (vocabulary.SAME_BINARY, vocabulary.NOT_IN_BASE, vocabulary.REMOVED)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing all pairs.

    Attributes:
        rule: error probability and number of looks.
        seed: for the random order of the launches.
        rows: the cases, in the order of the pairs.
        controls: pairs of identical builds that were timed.
        margin: the slowdown that counts where no kernel declares another.
    """

    rule: SequentialTest
    seed: int
    rows: tuple[ComparedCase, ...]
    controls: tuple[Control, ...] = ()
    margin: float = DEFAULT_MARGIN

    @property
    def judged(self) -> int:
        return sum(row.outcome in vocabulary.JUDGED for row in self.rows)

    @property
    def unfit(self) -> bool:
        """Whether nothing that has changed could be judged, because of the machine."""
        changed = [row.outcome for row in self.rows if row.outcome not in _NOTHING_TIMED]
        return bool(changed) and all(outcome == vocabulary.CONTROL_FAILED for outcome in changed)

    @property
    def exit_status(self) -> int:
        """0 everything passed, 1 a case failed or none was judged, 3 nothing that has changed could be
        judged, because controls failed."""
        if self.unfit:
            return 3
        return int(not self.judged or any(row.failed for row in self.rows))


def compare(
    device: PairingDevice,
    pairs: Sequence[Pair | ComparedCase],
    rule: SequentialTest,
    seed: int,
    plan: PairPlan,
    busy: Callable[[], list[str]] = list,
    step: Callable[[str], None] = lambda what: None,
    margin: float = DEFAULT_MARGIN,
) -> Comparison:
    """Times the pairs, and judges them; a row says already what is to be said. ``plan``: everything but the
    order of launches; ``busy``: lists other GPU processes; if there are any at the end, nothing is judged."""
    changed = [pair for pair in pairs if isinstance(pair, Pair)]
    pairing = Pairing(device, rule, len(changed), seed, plan, step)
    timed = {row.case.id: row for row in pairing.all(changed)}
    if others := busy():
        why = f"other processes used the GPU meanwhile: {'; '.join(others)}"
        timed = {
            pair.case.id: _row(pair.case, vocabulary.CONTROL_FAILED, why, pair.label) for pair in changed
        }
    rows = tuple(timed[each.case.id] if isinstance(each, Pair) else each for each in pairs)
    return Comparison(rule, seed, rows, tuple(pairing.controls), margin)


@dataclass(frozen=True)
class Side:
    """What is compared with: the kernels of a ``commit``, compiled with the present ``nvcc`` or another."""

    commit: Commit
    nvcc: Nvcc | None = None

    @property
    def label(self) -> str:
        return self.commit.label + (f" with nvcc {self.nvcc.version}" if self.nvcc else "")


Built = Binary | CompileError


def pairs_of(
    cases: Sequence[Case],
    side: Side,
    capability: tuple[int, int],
    margin: float | None = None,
    compiled: Callable[..., list[Built]] = compile_all,
) -> list[Pair | ComparedCase]:
    """A pair for each case that is compiled from source and has changed, a row for every other one; in the
    same order. Both sides are compiled, by ``compiled`` as by `compile_all`. ``margin``: None: as the base
    declares it.

    Raises ToolchainError without a compiler.
    """
    ours, sm = [case for case in cases if case.kernel.compiled], arch(capability)
    bases = [side.commit.counterpart(case) for case in ours]
    there = list(dict.fromkeys(_variant(base) for base in bases if isinstance(base, Case)))
    here = list(dict.fromkeys(map(_variant, ours)))
    new = dict(zip(here, compiled(here, sm), strict=True))
    old = dict(zip(there, compiled(there, sm, nvcc=side.nvcc), strict=True))

    def matched(case: Case, base: Case | str) -> Pair | ComparedCase:
        """What is to be said of a case and its base without timing, or the pair to time."""
        mine = new[_variant(case)]
        if isinstance(mine, CompileError):
            return _row(case, vocabulary.COMPILE_ERROR, first_line(mine))
        if isinstance(base, str):
            return _row(case, vocabulary.NOT_IN_BASE, base)
        label = side.label if dict(base.config) == dict(case.config) else edited_label(base, side)
        its = old[_variant(base)]
        if isinstance(its, CompileError):
            return _row(case, vocabulary.BASE_UNUSABLE, f"at {side.label}, {first_line(its)}", label)
        new_side = stored(case, mine, case.variant)
        try:
            if reasons := base.refusals:
                said = f"{base.variant} of {side.label} does not accept the problem: {'; '.join(reasons)}"
                return _row(case, vocabulary.NOT_IN_BASE, said)
            theirs = stored(base, its, f"{base.variant} at {side.label}")
            illegal = "; ".join(refusals(base.kernel, base.config, base.dtype, GpuLimits.of(capability)))
        except Exception as error:  # A declaration of another commit may do anything.
            text = f"at {side.label}, its declaration fails ({type(error).__name__}: {error})"
            return _row(case, vocabulary.BASE_UNUSABLE, text, label)
        if new_side.key == theirs.key:
            return _row(case, vocabulary.SAME_BINARY, "same cubin, same launch", label)
        if reason := unlike(base, its, sm, side.nvcc) or illegal:
            return _row(case, vocabulary.BASE_UNUSABLE, f"at {side.label}, {reason}", label)
        if reason := unlike(case, mine, sm):
            return _row(case, vocabulary.SIGNATURE, reason, label)
        # The base's margin: one that is raised in the commit under test does not judge it.
        needed = margin or base.kernel.margin or DEFAULT_MARGIN
        return Pair.on(capability, case, theirs, needed, label, new=new_side)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # the PTX of what differs is compiled, too
        return list(pool.map(matched, ours, bases))


def removed(
    project: Project,
    side: Side,
    choice: Choice,
    capability: tuple[int, int],
    pairs: Sequence[Pair | ComparedCase],
) -> list[ComparedCase]:
    """The cases that the base would time for the same choice, and that the working tree has no more; but for
    those of configs that edited ones are timed beside."""
    beside = {pair.label if isinstance(pair, Pair) else pair.paired.base for pair in pairs}
    here = {pair.case.id for pair in pairs}
    fits, rows = fitting(choice.expression), []
    asked = replace(choice, kernels=(), configs=(), expression="")
    for kernel in side.commit.kernels:
        if not kernel.compiled or (choice.kernels and kernel.name not in choice.kernels):
            continue
        alone = replace(project, kernels=(kernel,), suites={**project.suites, **side.commit.suites})
        timed: Iterable[Case] = ()
        with contextlib.suppress(ValueError):  # it accepts none of these problems
            timed = select(alone, asked, capability).timed
        for case in timed:
            if case.id in here or edited_label(case, side) in beside or not fits(case.id):
                continue
            if not choice.configs or case.config.label in choice.configs:
                detail = f"{side.label} alone has it"
                rows.append(ComparedCase(case, Paired(*vocabulary.REMOVED, detail=detail)))
    return rows


def edited_label(base: Case, side: Side) -> str:
    """What another config of the base is called where a case is timed beside it."""
    return f"{base.variant} of {side.label}"


def stored(case: Case, built: Binary, name: str) -> StoredBinary:
    """What was compiled, ready to be launched."""
    return StoredBinary(name, built.cubin, built.symbol, Work.of(case))


def unlike(case: Case, built: Binary, sm: str, nvcc: Nvcc | None = None) -> str:
    """Why a compiled kernel does not take what its declaration hands over, in one line, or empty."""
    return refusal(_variant(case), sm, case.arguments, nvcc)


def first_line(error: CompileError) -> str:
    """What does not compile, and the first line that contains an error."""
    said = next((line.strip() for line in error.log.splitlines() if "error" in line.lower()), "")
    return f"{error.message}{': ' if said else ''}{said}"


def _variant(case: Case) -> Variant:
    return case.kernel, case.config, case.dtype


def _row(case: Case, outcome: Outcome, detail: str, base: str = "") -> ComparedCase:
    return ComparedCase(case, Paired(*outcome, detail=detail, base=base))
