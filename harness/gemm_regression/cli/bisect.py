"""``gemm-regression bisect CASE [GOOD [BAD]]``: the first commit that made a case slower.

GOOD is the commit of the stored baseline, BAD the working tree, unless named. The binaries of all commits
between them are compiled ahead, those that are equal are one, and the rest is bisected by pairs with GOOD's.

Exit status: 0 found; 1 BAD is not slower; 2 a wrong command line, no such case or commit, no GPU, or only
commits are left that cannot be judged; 3 BAD cannot be judged. With ``--run``, for `git bisect run`: 0 the
working tree is good, 1 bad, 125 cannot be judged, 128 anything else.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.baselines import BaselineEntry, BaselineError, binary, current, gpu_slug
from gemm_regression.cli.common import about, busy_text, end_on_sigterm, margin_of, project_of
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import ToolchainError, arch
from gemm_regression.devices import DeviceError, Gpu, NoDevice, open_cuda
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.judge.paired import Paired
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN
from gemm_regression.model import Case
from gemm_regression.project.commit import CommitError, between, described, find, subject
from gemm_regression.project.loader import Project, ProjectError
from gemm_regression.report.figures import percent_text
from gemm_regression.run.bisect import (
    History,
    Revision,
    State,
    Test,
    Tested,
    beside,
    first_bad,
    grouped,
    steps,
)
from gemm_regression.run.compare import seconds_of

FOUND, NOT_SLOWER, WRONG, UNJUDGED = range(4)
SKIP, ABORT = 125, 128  # of `git bisect run`
HERE = "the working tree"
_STATUS = {State.GOOD: 0, State.BAD: 1, State.SKIP: SKIP}
_ERRORS = (BaselineError, CommitError, DeviceError, NoDevice, ToolchainError, ValueError)


def main(
    arguments: Sequence[str] | None = None,
    open_device: Callable[[float], Gpu] = open_cuda,
) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    failed = ABORT if "--run" in words else WRONG
    try:
        given = _parser().parse_args(words)
    except SystemExit as ended:
        raise SystemExit(failed if ended.code else 0) from None
    try:
        project = project_of(given)
    except ProjectError as error:
        print(f"error: {error}", file=sys.stderr)
        return SKIP if given.run else WRONG  # the declarations of this commit
    try:
        with tempfile.TemporaryDirectory(prefix="gemm-bisect-") as folder:
            return _run(given, project, Path(folder), open_device)
    except _ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemm-regression bisect", description=about(__doc__, 2))
    add = parser.add_argument
    add("case", metavar="CASE", help="its id, such as tiled-f32-tile32-pad0-1024x1024x1024")
    add("good", metavar="GOOD", nargs="?", help="a commit where it was fast (default: the baseline's)")
    add("bad", metavar="BAD", nargs="?", help="a later commit (default: the working tree)")
    add("--run", action="store_true", help="only judge the working tree, as `git bisect run` asks")
    add("--project", type=Path, metavar="PATH", help="the project's folder; default: the nearest one above")
    add(
        "--margin",
        metavar="PCT",
        help="the slowdown that counts, such as 1%% (default 0.5%%, or what GOOD declares; at most 2%%)",
    )
    add("--seed", type=int, default=None, help="for the random order of the launches (default: a new one)")
    add("-q", "--quiet", action="store_true", help="do not show how far it is")
    add("--allow-busy", action="store_true", help="time even while other processes use the GPU")
    add("--time-limit", type=float, default=60.0, metavar="S", help="seconds until a kernel counts as hung")
    return parser


@dataclass(frozen=True)
class _Good:
    """The good commit, its case and its binary; ``note``: what is to be said where nothing is slower."""

    sha: str
    case: Case
    binary: StoredBinary
    margin: float
    files: tuple[str, ...]
    note: str = ""


def _run(
    given: argparse.Namespace, project: Project, folder: Path, open_device: Callable[[float], Gpu]
) -> int:
    if given.run and given.bad:
        raise ValueError(f"--run judges the working tree: leave {given.bad} out")
    margin = given.margin and margin_of(given.margin)
    good_sha, bad_sha = (name and find(name, project.root) for name in (given.good, given.bad))
    device = open_device(given.time_limit)
    try:
        if not given.allow_busy and (others := device.busy()):
            raise ValueError(busy_text(device.info.name, others))
        history = History(project, given.case, device.info.capability, folder)
        entry = None if good_sha else _entry(project, given.case, device)
        good = _good(history, good_sha, entry, margin)
        if given.run:
            return _STATUS[_judged(given, history, good, device)]
        return _bisected(given, history, good, bad_sha, device)
    finally:
        device.close()


def _entry(project: Project, case: str, device: Gpu) -> BaselineEntry:
    slug = gpu_slug(device.info.name)
    baseline = current(project.baselines, slug, device.info.board)
    entry = baseline.entry(case) if baseline else None
    if entry is None or entry.commit == "unknown":
        raise ValueError(f"the baseline of {slug} does not say when {case} was good: name a commit, GOOD")
    return entry


def _good(history: History, sha: str | None, entry: BaselineEntry | None, margin: float | None) -> _Good:
    """GOOD, or the commit of a baseline's entry, whose binary is taken where it does not compile here. Raises
    ValueError, BaselineError and CommitError."""
    root = history.project.root
    sha = sha or find(entry.commit if entry else "HEAD", root)
    at = history.at(sha)
    kept = at.revision.binary
    if at.case is None or (kept is None and entry is None):
        raise ValueError(f"GOOD, {sha[:12]}, cannot be judged: {at.revision.why}")
    note = ""
    if entry and kept and kept.sha256 != entry.cubin_sha256:
        note = (
            f"what {sha[:12]} is compiled to here is not the binary of the baseline: "
            "`compare --nvcc PATH` compares two compilers"
        )
    if kept is None:
        assert entry is not None
        kept = binary(history.project.baselines, entry)
    margin = margin or (entry and entry.margin) or at.case.kernel.margin or DEFAULT_MARGIN
    return _Good(sha, at.case, kept, margin, at.files, note)


def _judged(given: argparse.Namespace, history: History, good: _Good, device: Gpu) -> State:
    """The working tree alone."""
    here = history.here(HERE).revision
    if here.binary is None:
        print(f"skip: {here.why}")
        return State.SKIP
    state, paired = State.GOOD, None
    if here.binary.key != good.binary.key:
        state, paired = _test(given, good, device, pairs=1)(here.binary)
    print(f"{state.value}: {_change(paired) if paired else 'the same binary as GOOD'}")
    return state


def _bisected(given: argparse.Namespace, history: History, good: _Good, bad: str | None, device: Gpu) -> int:
    root, name = history.project.root, given.bad or HERE
    last = history.at(bad) if bad else history.here(HERE)
    if last.revision.binary is None:
        raise ValueError(f"BAD, {name}, cannot be judged: {last.revision.why}")
    paths = list(dict.fromkeys((*good.files, *last.files)))
    shas = between(root, good.sha, bad or find("HEAD", root), paths)
    with progress("compile", len(shas), given.quiet) as step:
        made = history.at_all(shas, paths, step)
    groups = grouped([*made, last.revision])
    binaries = {revision.binary.key for revision in made if revision.binary}
    print(
        f"{len(shas)} commits from {good.sha[:12]} to {name} touch what {given.case} is compiled from: "
        f"{len(binaries)} binaries, {sum(r.binary is None for r in made)} commits without one"
    )
    if last.revision.binary.key == good.binary.key:
        return _not_slower(f"{name} is not slower than {good.sha[:12]}: it is the same binary", good)
    test = _test(given, good, device, steps(len(groups)))
    state, paired = test(last.revision.binary)
    assert paired is not None
    if state is State.GOOD:
        return _not_slower(f"{name} is not slower than {good.sha[:12]}: {_change(paired)}", good)
    if state is State.SKIP:
        print(f"{name} cannot be judged beside {good.sha[:12]}: {_change(paired)}")
        return UNJUDGED
    print(f"bad   {name}: {_change(paired)}", flush=True)
    return _told(root, groups, good, test)


def _not_slower(said: str, good: _Good) -> int:
    print("\n".join(filter(None, (said, good.note))))
    return NOT_SLOWER


def _test(given: argparse.Namespace, good: _Good, device: Gpu, pairs: int) -> Test:
    case = good.case
    core = core_of(case.kernel, case.config, case.dtype, arch(device.info.capability))
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    return beside(device, case, good.binary, pairs, good.margin, core, seconds_of(case, core), seed)


def _told(root: Path, groups: Sequence[tuple[Revision, ...]], good: _Good, test: Test) -> int:
    """Bisects, and says it in git's words."""

    def said(tested: Tested, left: int) -> None:
        name = tested.revisions[0].name
        what = _change(tested.paired) if tested.paired else tested.why or "the same binary as GOOD"
        named = name if name == HERE else f"{name[:12]} {subject(root, name)}"
        print(f"{tested.state.value:5} {named}: {what}; {left} left", flush=True)

    found = first_bad(groups, good.binary, test, said)
    name = found.first[0].name
    if found.skipped:
        print("There are only 'skip'ped commits left to test.\nThe first bad commit could be any of:")
        print("\n".join((*(r.name for r in found.skipped), name)))
        print("We cannot bisect more!")
        return WRONG
    if name == HERE:
        print("the uncommitted changes of the working tree are the first bad commit")
    else:
        print(f"{name} is the first bad commit\n{described(root, name)}")
    return FOUND


def _change(paired: Paired) -> str:
    if paired.interval is None:
        return f"{paired.outcome}: {paired.detail}"
    low, high = (percent_text(end, 2) for end in paired.interval)
    return f"{percent_text(paired.change, 2)} ({low} … {high})"


if __name__ == "__main__":
    end_on_sigterm()
    sys.exit(main())
