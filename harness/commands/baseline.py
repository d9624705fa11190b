"""``gemm-regression baseline``: measures this GPU's baseline in five runs and writes it, if every case is
correct (``--gpus``: of each of several GPUs); or merges runs, removes cases that no longer exist, shows what
is stored and how it changed over time, compares two runs.

Exit status: 0 done, 1 refused or declined and nothing written, or runs that disagree, 2 a wrong command line.
Changes over time are shown, but never a failure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from harness.baselines import (
    Baseline,
    BaselineEntry,
    BaselineError,
    gpu_slug,
    load_run,
    merge_runs,
    prune,
    store,
    stored,
    write,
)
from harness.baselines.agree import agreement, boards, summary
from harness.baselines.boards import spreads
from harness.baselines.history import lost, moves, of_boards
from harness.commands.common import about, project_of
from harness.commands.measuring import measure
from harness.compiler.static.files import shown
from harness.model import Case
from harness.project import selection as cases
from harness.project.loader import Project
from harness.reports.figures import gflops_text, noise_text, percent_text, share_text
from harness.reports.page.roofs import dram_share
from harness.timing.bounds import roofs_of
from harness.verdicts.vocabulary import Policy, detectable

_HELP = ("-h", "--help")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gemm-regression baseline", description=about(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("measure", help="measure and write the baseline; the default")
    merging = commands.add_parser("merge", help="make a baseline of several runs; shows old and new first")
    merging.add_argument("runs", nargs="+", type=Path, metavar="RUN.json", help="written by --benchmark-json")
    merging.add_argument("--yes", action="store_true", help="write without asking")
    pruning = commands.add_parser("prune", help="remove cases that the suite no longer has")
    showing = commands.add_parser("show", help="print what is stored")
    history = commands.add_parser("history", help="which cases changed over the numbered baselines, and when")
    history.add_argument("--gpu", metavar="SLUG", help="only this GPU, such as nvidia-h200")
    history.add_argument(
        "-k", default="", metavar="EXPRESSION", help='only cases whose id matches, such as "tiled and 4096"'
    )
    for command in (merging, pruning, showing, history):
        command.add_argument("--root", type=Path, help="folder with baselines; default: the project's")
        command.add_argument("--project", type=Path, metavar="PATH", help="default: the nearest project")
    agreeing = commands.add_parser("agree", help="do two runs or baselines of the same binaries agree?")
    agreeing.add_argument("files", nargs=2, type=Path, metavar="FILE.json")
    first = arguments[0] if arguments else "measure"
    if first == "measure" or (first.startswith("-") and first not in _HELP):
        return measure(arguments[first == "measure" and bool(arguments) :], _merged)
    given = parser.parse_args(arguments)
    try:
        if given.command == "agree":
            return _agree(*given.files)
        project = project_of(given)
        root = given.root or Path(shown(project.baselines))
        if given.command == "merge":
            return _merge(given.runs, root, given.yes)
        if given.command == "history":
            return _history(root, given.gpu, given.k)
        return _prune(root, project) if given.command == "prune" else _show(root, project)
    except (BaselineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _merged(runs: Sequence[str], project: Project) -> int:
    return main(["merge", *runs, "--yes", "--project", str(project.root)])


def _merge(files: Sequence[Path], root: Path, yes: bool) -> int:
    runs = [load_run(file) for file in files]
    machine = runs[0].machine_info
    previous = store.kept(root, gpu_slug(machine["name"]), machine.get("board"))
    merged = merge_runs(runs, previous)
    print("\n".join(comparison(previous, merged)))
    sys.stdout.flush()
    if not yes and not _confirmed(f"write this to {root / merged.slug}? [y/N] "):
        print("error: nothing written; pass --yes to write without being asked", file=sys.stderr)
        return 1
    print(f"wrote {write(merged, root / merged.slug)}")
    return 0


def _confirmed(question: str) -> bool:
    return sys.stdin.isatty() and input(question).strip().lower() in ("y", "yes")


def comparison(old: Baseline | None, new: Baseline) -> list[str]:
    """Old and new values, one line per measured case."""
    fresh = [e for case, e in new.entries.items() if old is None or old.entry(case) is not e]
    rows = [("case", "old GFLOPS", "new GFLOPS", "change", "old noise", "new noise")]
    for entry in fresh:
        was = old.entry(entry.case_id) if old else None
        rows.append(
            (
                entry.case_id,
                gflops_text(was.gflops if was else None),
                gflops_text(entry.gflops),
                percent_text(entry.gflops / was.gflops - 1 if was else None),
                noise_text(was.noise_floor if was else None),
                noise_text(entry.noise_floor),
            )
        )
    lines = _aligned(rows)
    if old and (untouched := len(new.entries) - len(fresh)):
        strange = sum(e.board not in (None, new.board) for e in new.entries.values())
        lines.append(
            f"{untouched} other cases are unchanged" + f", {strange} of another board" * bool(strange)
        )
    return lines


def _prune(root: Path, project: Project) -> int:
    for newest in _some(root):
        written = False
        for files in of_boards(store.history(root, newest.slug)).values():
            written |= _pruned(files[-1], root, project, written)
    return 0


def _pruned(baseline: Baseline, root: Path, project: Project, in_any_case: bool) -> bool:
    """Whether it was written: without what the suite no longer has, or ``in_any_case``, since a file of
    another board written before it would be newer."""
    major, minor = map(int, baseline.machine_info["capability"].split("."))
    live = {case.id for case in cases.select(project, cases.Choice(), (major, minor)).timed}
    gone = [case for case in baseline.case_ids if case not in live]
    if not gone and not in_any_case:
        print(f"{baseline.path}: nothing to remove")
        return False
    if len(gone) == len(baseline.case_ids):
        raise BaselineError(
            f"{baseline.path}: none of its cases is in the suite; delete the file if that is intended"
        )
    for case in gone:
        print(f"removing {case}")
    print(f"wrote {write(prune(baseline, live), root / baseline.slug)}")
    return True


def _show(root: Path, project: Project) -> int:
    for baseline in _some(root):
        machine, commit = baseline.machine_info, baseline.commit_info["id"][:12]
        board = f", board {baseline.board}" if baseline.board else ""
        print(
            f"{baseline.path}: {machine['name']}{board}, driver {machine['driver']}, "
            f"CUDA {machine['cuda_driver']}, nvcc {machine['nvcc']}, commit {commit}, "
            f"{baseline.runs} runs, {baseline.datetime[:10]}"
        )
        known = spreads(baseline, store.history(root, baseline.slug))
        rows = [("case", "GFLOPS", "% of cuBLAS", "% of DRAM", "noise", "MDE", "boards", "between boards")]
        for e in baseline.entries.values():
            of = _find(project, baseline, e)
            shares = share_text(e.cublas_ratio), share_text(_dram(of, baseline, e) if of else None)
            mde = noise_text(_detectable(of, e) if of else None)
            spread = known.get(e.case_id)
            between = (str(spread.boards), noise_text(spread.relative)) if spread else ("1", noise_text(None))
            rows.append((e.case_id, gflops_text(e.gflops), *shares, noise_text(e.noise_floor), mde, *between))
        print("\n".join(_aligned(rows)))
    return 0


def _find(project: Project, baseline: Baseline, entry: BaselineEntry) -> Case | None:
    """The case of an entry; None if it is not in the suite."""
    major, minor = map(int, baseline.machine_info["capability"].split("."))
    try:
        return cases.find_case(project, entry.case_id, (major, minor))
    except ValueError:
        return None


def _dram(case: Case, baseline: Baseline, entry: BaselineEntry) -> float | None:
    """The share of the bandwidth of DRAM that was measured in the same run."""
    same = (entry.board, entry.info.get("commit")) == (baseline.board, baseline.commit_info["id"])
    roofs = roofs_of(baseline.machine_info) if same and baseline.machine_info.get("roofs") else None
    return dram_share(roofs, case, entry.gflops) if roofs else None


def _detectable(case: Case, entry: BaselineEntry) -> float:
    """The minimum detectable effect with the default policy."""
    floors = (entry.noise_floor, entry.cycle_noise_floor)
    floor = min(floor for floor in floors if floor is not None)  # which decides
    return detectable(Policy().of_kernel(case.kernel.threshold).threshold(floor), floor)


def _history(root: Path, gpu: str | None, expression: str) -> int:
    fits = cases.fitting(expression)
    slugs = [baseline.slug for baseline in _some(root)]
    if gpu and gpu not in slugs:
        raise BaselineError(f"{root}: no baseline for {gpu!r}; there are: {', '.join(slugs)}")
    for slug in [gpu] if gpu else slugs:
        every = store.history(root, slug)
        if not any(map(fits, every[-1].case_ids)):
            raise BaselineError(f"{every[-1].path}: no case matches -k {expression!r}")
        for board, files in of_boards(every).items():
            if len(files) < 2:
                only = f"the only baseline of board {board}" if board else "the only baseline"
                print(f"{files[-1].path}: {only}; changes need at least two")
                continue
            chosen = [case for case in files[-1].case_ids if fits(case)]
            print("\n".join(_moved(files, chosen)))
    return 0


def _moved(files: Sequence[Baseline], cases: Collection[str]) -> list[str]:
    try:
        found = moves(files, cases)
    except ImportError as error:
        raise BaselineError(f"{error}: install it with `pip install --group test`") from None
    rows = [("case", "changed at", "commit", "GFLOPS before", "after", "change")]
    for move in found:
        before, after = map(gflops_text, move.gflops)
        rows.append((move.case, move.file, move.commit, before, after, percent_text(move.change, 2)))
    moved, slower = {move.case for move in found}, lost(found)
    names = [file.path.name for file in files if file.path]
    lines = _aligned(rows) if found else []
    board = f" on board {files[-1].board}" if files[-1].board else ""
    lines.append(f"{len(moved)} of {len(cases)} cases changed between {names[0]} and {names[-1]}{board}")
    lines += [
        f"slower than before: {case}, {percent_text(change, 2)} relative to its best level"
        for case, change in sorted(slower.items(), key=lambda item: item[1])
    ]
    return lines


def _agree(first: Path, second: Path) -> int:
    found = agreement(first, second)
    rows = [("case", "first µs", "second µs", "change")]
    rows += [
        (a.case, *(f"{1e6 * s:.2f}" for s in a.seconds), percent_text(a.change, 2))  # type: ignore[misc]
        for a in found
        if not a.agrees
    ]
    if len(rows) > 1:
        print("\n".join(_aligned(rows)))
    print("\n".join([*summary(found), boards(first, second)]))
    return int(len(rows) > 1)


def _some(root: Path) -> list[Baseline]:
    found = stored(root)
    if not found:
        raise BaselineError(f"{root} contains no baseline; measure one with `nox -s baseline`")
    return found


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Aligned columns, the first left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join((row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
