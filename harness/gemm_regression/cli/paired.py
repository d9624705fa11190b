"""``compare`` and ``bisect``: kernels of the working tree side by side with those of other commits."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemm_regression.baselines import binary, current, gpu_slug, provenance
from gemm_regression.cli import common
from gemm_regression.cli.common import command, fail, option, project_of
from gemm_regression.cli.options import SELECTION
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.nvcc import Variant, compile_all
from gemm_regression.compiler.tools import Nvcc, find_nvcc, nvcc_at
from gemm_regression.devices import Gpu, open_cuda
from gemm_regression.devices.work import StoredBinary
from gemm_regression.files import write_whole
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, Paired
from gemm_regression.model import Case
from gemm_regression.project import commit as commits
from gemm_regression.project import selection as cases
from gemm_regression.project.loader import Project, ProjectError
from gemm_regression.report import comparison as report
from gemm_regression.report.figures import percent_text, room
from gemm_regression.run import bisect as search
from gemm_regression.run import compare as running
from gemm_regression.run.bisect import BisectState, History
from gemm_regression.run.pairing import ComparedCase, Pair
from gemm_regression.run.replay import document
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import PairPlan

Opens = Callable[[float], Gpu]
_TIMED = ("--margin", "--seed", "--quiet", "--allow-busy", "--time-limit")


def _seed(given: argparse.Namespace) -> int:
    return secrets.randbelow(2**32) if given.seed is None else int(given.seed)


@command(
    "compare",
    option(
        "base",
        metavar="BASE",
        nargs="?",
        help="a commit (main, v1.2; HEAD to judge uncommitted changes), a folder (../old) or a wheel; "
        "optional with --nvcc",
    ),
    option(
        "head", metavar="NEW", nargs="?", help="what is judged, named likewise (default: the working tree)"
    ),
    option("--nvcc", type=Path, metavar="PATH", help="compile the base with this nvcc"),
    *SELECTION,
    option("--error", default="1%", metavar="PCT", help="probability of any false verdict (default 1%%)"),
    "--json",
    "--markdown",
    *_TIMED,
)
def compare(given: argparse.Namespace, open_device: Opens = open_cuda) -> int:
    """Times the kernels of the working tree, or of NEW, beside those of BASE or, with ``--nvcc``, of another
    compiler.

    Exit status: 0 nothing is slower; 1 a case is slower, ambiguous, wrong or could not be judged; 2 a wrong
    command line, no such commit, no GPU; 3 no changed case could be judged, because controls failed.
    """
    common.end_on_sigterm()
    rule, margin = (
        SequentialTest(error=common.share("--error", given.error, "1%")),
        common.margin_of(given.margin),
    )
    common.can_be_written("--json", given.json)
    common.can_be_written("--markdown", given.markdown)
    project = project_of(given)
    nvcc = _other(given)
    base, head = (
        commits.checked_out(name, project) if name else nullcontext(commits.here(project))
        for name in (given.base, given.head)
    )
    with base as commit, head as new, closing(open_device(given.time_limit)) as device:
        project = replace(project, kernels=new.kernels, suites=new.suites)
        tree = commits.Tree(new.sha, False, new.label) if given.head else _tree(given.base, project)
        side = running.Side(commit, nvcc)
        result = _compared(given, project, side, rule, margin, device)
        machine = provenance.machine_info(device.info)
    print("\n".join(report.heading(result, side, tree)))
    print(report.table(result, side, sys.stdout.isatty(), room()))
    if given.markdown:
        write_whole(given.markdown, report.markdown(result, side, tree))
    if given.json:
        record = document(result, side, tree, machine, datetime.now(UTC).isoformat(timespec="seconds"))
        write_whole(given.json, json.dumps(record, indent=1, allow_nan=False) + "\n")
    return result.exit_status


def _other(given: argparse.Namespace) -> Nvcc | None:
    """The other compiler, if one is named. Raises ToolchainError, and ValueError for the present one."""
    if given.nvcc is None:
        if given.base is None:
            raise ValueError("nothing to compare with: name a commit, such as main, or another --nvcc")
        return None
    nvcc = nvcc_at(given.nvcc)
    if nvcc.version == find_nvcc().version:
        raise ValueError(f"--nvcc {given.nvcc}: it is nvcc {nvcc.version}, as the present one; leave it out")
    return nvcc


def _tree(base: str | None, project: Project) -> commits.Tree:
    try:
        return commits.working_tree(project.root)
    except commits.CommitError:
        if base and commits.folder_of(base, project) is None:
            raise
        return commits.Tree("", True)


def _compared(
    given: argparse.Namespace,
    project: Project,
    side: running.Side,
    rule: SequentialTest,
    margin: float | None,
    device: Gpu,
) -> running.Comparison:
    common.refuse_busy(device, given.allow_busy)
    choice, capability = cases.Choice.of(given), device.info.capability
    selection = cases.select(project, choice, capability)
    if selection.refused_text:
        print(f"refused: {selection.refused_text}")

    def compiled(variants: list[Variant], sm: str, nvcc: Nvcc | None = None) -> list[running.Built]:
        title = f"compile with nvcc {nvcc.version}" if nvcc else "compile"
        with progress(title, len(variants), given.quiet) as step:
            return compile_all(variants, sm, nvcc=nvcc, step=step)

    pairs = running.pairs_of(selection.timed, side, capability, margin, compiled)
    gone: list[Pair | ComparedCase] = [*running.removed(project, side, choice, capability, pairs)]
    busy = list if given.allow_busy else device.busy
    changed = {pair.case.id for pair in pairs if isinstance(pair, Pair)}
    with progress("compare", len(changed), given.quiet) as shown:

        def step(what: str) -> None:
            (shown if what in changed else shown.now)(what)

        default = margin or DEFAULT_MARGIN
        return running.compare(device, [*pairs, *gone], rule, _seed(given), PairPlan(()), busy, step, default)


# The first commit that made a case slower

FOUND, NOT_SLOWER, WRONG, UNJUDGED = range(4)
SKIP, ABORT = 125, 128  # of `git bisect run`
HERE = "the working tree"
_STATUS = {BisectState.GOOD: 0, BisectState.BAD: 1, BisectState.SKIP: SKIP}


@command(
    "bisect",
    option("case", metavar="CASE", help="id of a case, such as gemm-f32-tile32-1024x1024x1024"),
    option("good", metavar="GOOD", nargs="?", help="a commit where it was fast (default: the baseline's)"),
    option("bad", metavar="BAD", nargs="?", help="a later commit (default: the working tree)"),
    option("--run", action="store_true", help="judge only the working tree, for `git bisect run`"),
    "--project",
    *_TIMED,
)
def _bisect(given: argparse.Namespace, open_device: Opens = open_cuda) -> int:
    """Finds the first commit that made a case slower.

    First compiles the binaries of all commits between GOOD and BAD; equal binaries count as one. Then
    bisects: each binary is timed beside GOOD's.

    Exit status: 0 found; 1 BAD is not slower; 2 a wrong command line, no such case or commit, no GPU, or all
    remaining commits cannot be judged; 3 BAD cannot be judged. With ``--run``, for `git bisect run`: 0 the
    working tree is good, 1 it is bad, 125 it cannot be judged, 128 any other error.
    """
    common.end_on_sigterm()
    try:
        project = project_of(given)
    except ProjectError as error:
        return fail(error, SKIP if given.run else WRONG)  # the declarations of this commit
    if given.run and given.bad:
        raise ValueError(f"--run judges the working tree: leave {given.bad} out")
    margin = common.margin_of(given.margin)
    good_sha, bad_sha = (name and commits.find(name, project.root) for name in (given.good, given.bad))
    with (
        tempfile.TemporaryDirectory(prefix="gemm-bisect-") as folder,
        closing(open_device(given.time_limit)) as device,
    ):
        common.refuse_busy(device, given.allow_busy)
        history = History(project, given.case, device.info.capability, Path(folder))
        good = _good(history, good_sha, margin, device)
        if given.run:
            return _STATUS[_judged(given, history, good, device)]
        return _bisected(given, history, good, bad_sha, device)


class _Bisect(common.Command):
    """With --run, whatever goes wrong ends `git bisect run`."""

    def __call__(self, words: Sequence[str] | None = None, *more: Any) -> int:
        if "--run" not in (words or ()):
            return super().__call__(words, *more)
        try:
            return replace(_bisect, failed=ABORT)(words, *more)
        except SystemExit as ended:
            raise SystemExit(ABORT if ended.code else 0) from None


bisect = _Bisect(**vars(_bisect))


@dataclass(frozen=True)
class _Good:
    """The good commit, its case and its binary; ``note``: what is to be said where nothing is slower."""

    sha: str
    case: Case
    binary: StoredBinary
    margin: float
    files: tuple[str, ...]
    note: str = ""

    def no_slower(self, name: str, why: str) -> int:
        """What is said, and the status, where BAD is as fast."""
        said = f"{name} is not slower than {self.sha[:12]}: {why}"
        print("\n".join(filter(None, (said, self.note))))
        return NOT_SLOWER


def _good(history: History, sha: str | None, margin: float | None, device: Gpu) -> _Good:
    """GOOD; without one, the commit of the baseline's entry, whose binary is taken where it does not compile
    here. Raises ValueError, BaselineError and CommitError."""
    project, entry = history.project, None
    if sha is None:
        slug = gpu_slug(device.info.name)
        baseline = current(project.baselines, slug, device.info.board)
        entry = baseline.entry(history.text) if baseline else None
        if entry is None or entry.commit == "unknown":
            said = f"the baseline of {slug} does not say when {history.text} was good: name a commit, GOOD"
            raise ValueError(said)
        sha = commits.find(entry.commit, project.root)
    at = history.at(sha)
    kept, note = at.binary, ""
    if at.case is None or (kept is None and entry is None):
        raise ValueError(f"GOOD, {sha[:12]}, cannot be judged: {at.why}")
    if entry and kept is None:
        kept = binary(project.baselines, entry)
    elif entry and kept and kept.sha256 != entry.cubin_sha256:
        note = (
            f"what {sha[:12]} is compiled to here is not the binary of the baseline: "
            "`compare --nvcc PATH` compares two compilers"
        )
    assert kept is not None
    margin = margin or (entry and entry.margin) or at.case.kernel.margin or DEFAULT_MARGIN
    return _Good(sha, at.case, kept, margin, at.files, note)


def _judged(given: argparse.Namespace, history: History, good: _Good, device: Gpu) -> BisectState:
    """The working tree alone."""
    here = history.here(HERE)
    if here.binary is None:
        print(f"skip: {here.why}")
        return BisectState.SKIP
    state, paired = BisectState.GOOD, None
    if here.binary.key != good.binary.key:
        state, paired = _test(given, good, device, pairs=1)(here.binary)
    print(f"{state.value}: {_change(paired)}")
    return state


def _bisected(given: argparse.Namespace, history: History, good: _Good, bad: str | None, device: Gpu) -> int:
    root, name = history.project.root, given.bad or HERE
    last = history.at(bad) if bad else history.here(HERE)
    if last.binary is None:
        raise ValueError(f"BAD, {name}, cannot be judged: {last.why}")
    paths = list(dict.fromkeys((*good.files, *last.files)))
    shas = commits.between(root, good.sha, bad or commits.find("HEAD", root), paths)
    with progress("compile", len(shas), given.quiet) as step:
        made = history.at_all(shas, paths, step)
    groups = search.grouped([*made, last])
    binaries = {revision.binary.key for revision in made if revision.binary}
    print(
        f"{len(shas)} commits from {good.sha[:12]} to {name} touch what {given.case} is compiled from: "
        f"{len(binaries)} binaries, {sum(r.binary is None for r in made)} commits without one"
    )
    if last.binary.key == good.binary.key:
        return good.no_slower(name, "it is the same binary")
    test = _test(given, good, device, search.steps(len(groups)))
    state, paired = test(last.binary)
    if state is BisectState.GOOD:
        return good.no_slower(name, _change(paired))
    if state is BisectState.SKIP:
        print(f"{name} cannot be judged beside {good.sha[:12]}: {_change(paired)}")
        return UNJUDGED
    print(f"bad   {name}: {_change(paired)}", flush=True)
    return _told(root, groups, good, test)


def _test(given: argparse.Namespace, good: _Good, device: Gpu, pairs: int) -> search.Test:
    return search.beside(device, good.case, good.binary, pairs, good.margin, _seed(given))


def _told(root: Path, groups: Sequence[tuple[search.Revision, ...]], good: _Good, test: search.Test) -> int:
    """Bisects, and says it in git's words."""

    def said(
        revisions: Sequence[search.Revision], state: BisectState, paired: Paired | None, left: int
    ) -> None:
        name = revisions[0].name
        what = _change(paired) if paired else revisions[0].why or "the same binary as GOOD"
        named = name if name == HERE else f"{name[:12]} {commits.subject(root, name)}"
        print(f"{state.value:5} {named}: {what}; {left} left", flush=True)

    found = search.first_bad(groups, good.binary, test, said)
    name = found.first[0].name
    if found.skipped:
        print("There are only 'skip'ped commits left to test.\nThe first bad commit could be any of:")
        print("\n".join((*(r.name for r in found.skipped), name)))
        print("We cannot bisect more!")
        return WRONG
    if name == HERE:
        print("the uncommitted changes of the working tree are the first bad commit")
    else:
        print(f"{name} is the first bad commit\n{commits.described(root, name)}")
    return FOUND


def _change(paired: Paired | None) -> str:
    if paired is None:
        return "the same binary as GOOD"
    if paired.interval is None:
        return f"{paired.outcome}: {paired.detail}"
    low, high = (percent_text(end, 2) for end in paired.interval)
    return f"{percent_text(paired.change, 2)} ({low} … {high})"
