"""docs/results/detection.md and its plot, from the stored samples alone."""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gemm_regression.files import write_whole
from gemm_regression.report import charts
from lab.pages import table
from lab.study import frozen, trials
from lab.study.analysis import CONFIDENCE, RED, REGRESSED, Cell, Rate, Study, load, mean
from lab.study.raw import StudyError
from lab.study.trials import CLASSES, LONG

_TEXT, _PLOT, _FOLDER = "detection.md", "detection.svg", "detection"


def report(files: Sequence[Path], docs: Path, check: bool) -> int:
    """Writes both; with ``check`` only reports whether they are out of date, with 1. Raises StudyError."""
    chosen = list(files) or list((docs / _FOLDER).glob("*.jsonl.gz"))
    if not chosen:
        raise StudyError(
            f"{docs / _FOLDER} contains no samples; measure them with `nox -s lab -- study measure`"
        )
    studies = load(chosen)
    made = text(studies)
    mark = hashlib.sha256(made.encode()).hexdigest()
    if check:
        fits = {_TEXT: _now(docs / _TEXT) == made, _PLOT: mark in _now(docs / _PLOT)}
        for name in (name for name, fresh in fits.items() if not fresh):
            print(
                f"{docs / name} is out of date: `nox -s lab -- study report` regenerates it", file=sys.stderr
            )
        return int(not all(fits.values()))
    write_whole(docs / _TEXT, made)
    draw(by_length(pictured(studies)), docs / _PLOT, mark)
    print(f"wrote {docs / _TEXT} and {docs / _PLOT}")
    return 0


def _now(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def pictured(studies: Sequence[Study]) -> Study:
    """The study that the plot is of: the one with most trials."""
    return max(studies, key=lambda study: len(study.cells))


def by_length(study: Study) -> dict[str, list[Cell]]:
    """Its trials of long cases and of short ones, by title."""
    return {
        f"cases over {1e6 * LONG:.0f} µs": [c for c in study.cells if c.seconds > LONG],
        f"cases of {1e6 * LONG:.0f} µs and less": [c for c in study.cells if c.seconds <= LONG],
    }


def text(studies: Sequence[Study]) -> str:
    """The page."""
    parts = [
        _HEAD.format(confidence=100 * CONFIDENCE, error=100 * trials.RULE.error, looks=trials.RULE.looks)
    ]
    parts += [_frozen(), f"![Detection rate over size]({_PLOT})", f"Drawn: `{pictured(studies).name}`."]
    count = {gpu: sum(len(s.cells) for s in studies if s.gpu == gpu) for gpu in (s.gpu for s in studies)}
    for gpu in sorted(count, key=lambda gpu: (-count[gpu], gpu)):
        for after in (True, False):
            if chosen := [s for s in studies if (s.gpu, s.after) == (gpu, after)]:
                parts += [f"## {gpu}, {'after' if after else 'before'} the freeze", *_section(chosen)]
    return "\n\n".join(parts) + "\n"


_HEAD = """# Detection power

<!-- Made by `nox -s lab -- study report` from docs/results/detection/: do not edit. -->

The *gate* is the rule that judges changed code: a changed binary is timed beside the stored one. How small a
slowdown does it detect, and how often is it red by mistake? To measure this, binaries were timed beside
themselves (A/A), without and with planted slowdowns of known size, in the way that the gate times a changed
binary. All stored samples are judged by the current rule. Rates are in percent, with {confidence:g} %
Clopper-Pearson confidence limits. The unit is one trial of one case; a process has only one trial of a case
and size. [slowdowns.md](slowdowns.md) has the detection of realistic edits of the kernels, and
[tools.md](tools.md#rules-for-slowdowns) the results of other tools on the same samples. A *board* is one
physical GPU. A file that does not name its board counts as a board of its own.

**The verdict.** Blocks ABBA and BAAB, at most {looks} interim analyses, and an error probability of
{error:g} % divided among the cases of a run. A case that is undecided, or only a little slower, is judged by
a second process (here: the next trial of the case). *Red* is REGRESSED, shown to be slower by more than the
margin of 0.5 %, or AMBIGUOUS, not shown to be slower by less. A slowdown of exactly the margin is mostly
AMBIGUOUS; both detecting and not detecting it are correct.

**What is planted.** After the kernel, within the timed interval, one thread spins for a number of SM cycles
and counts how many it took. In files with planted slowdowns, and in all files without a commit, it also runs
in the A/A pairs, with zero cycles to spin, so the two sides differ only by the counted cycles. The planted
size is these cycles divided by the SM clock and by the time of the other side. The measured size is the mean
over all trials at the first interim analysis."""


def _frozen() -> str:
    if not frozen.COMMIT:
        return "**The freeze.** The rule is not frozen: all trials are from before."
    return (
        f"**The freeze.** The rule is that of commit {frozen.COMMIT[:12]} ({frozen.DATE[:10]}). Earlier "
        "trials may have influenced the rule, so they are shown separately."
    )


def _section(studies: Sequence[Study]) -> Iterator[str]:
    """Of one GPU model."""
    if any(c.size == 0 for s in studies for c in s.cells):
        yield _alarms(studies)
    if wrong := list(_wrong(studies)):
        yield "\n".join(wrong)
    if any(c.size for s in studies for c in s.cells):
        yield _detection([c for s in studies for c in s.cells if c.size])
    yield _files(studies)


def _groups(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """By class, in the order of CLASSES."""
    found: dict[str, list[Cell]] = {kind: [] for kind in CLASSES}
    for cell in cells:
        found[cell.kind].append(cell)
    return {kind: chosen for kind, chosen in found.items() if chosen}


def _alarms(studies: Sequence[Study]) -> str:
    """How often A/A trials are red, by class."""
    same = [c for s in studies for c in s.cells if c.size == 0]
    rows = []
    for kind, chosen in {**_groups(same), "all": same}.items():
        boards = {s.board for s in studies if any(c.size == 0 and kind in (c.kind, "all") for c in s.cells)}
        rates = [r for method in (RED, REGRESSED) if (r := Rate.of(chosen, method))]
        told = [said for r in rates for said in (str(r.count), f"{100 * r.limits[1]:.2f}")]
        cost = statistics.fmean(c.cost for c in chosen)
        rows.append([kind, str(len(chosen)), str(len(boards)), *told, f"{cost:.2f}"])
    heads = ["A/A", "trials", "boards", "red", "at most, %", "REGRESSED", "at most, %", "GPU s, mean"]
    return table(heads, rows, "l" + "r" * (len(heads) - 1))


def _wrong(studies: Sequence[Study]) -> Iterator[str]:
    """Each A/A trial that is red."""
    for study in studies:
        for c in (c for c in study.cells if c.size == 0 and c.found[RED]):
            interval = ""
            if c.paired.interval:
                low, high = (100 * end for end in c.paired.interval)
                interval = f", {low:+.2f} to {high:+.2f} %"
            said = f"{c.paired.outcome}{interval}"
            yield f"- red by mistake: {c.case}, trial {c.trial} of `{study.name}`: {said}"


def _detection(planted: Sequence[Cell]) -> str:
    rows = []
    for kind, cells in _groups(planted).items():
        for size in sorted({c.size for c in cells}):
            chosen = [c for c in cells if c.size == size]
            measured, half = mean(c.measured for c in chosen)
            rows.append(
                [
                    kind,
                    f"{100 * mean(c.planted for c in chosen)[0]:.2f} %",
                    f"{100 * measured:.2f} ± {100 * half:.2f} %",
                    str(len(chosen)),
                    *(str(Rate.of(chosen, method)) for method in (RED, REGRESSED)),
                    f"{statistics.fmean(c.cost for c in chosen):.2f}",
                ]
            )
    heads = ["slowdown", "planted", "measured", "trials", "red, %", "REGRESSED, %", "GPU s, mean"]
    return table(heads, rows, "l" + "r" * (len(heads) - 1))


def _files(studies: Sequence[Study]) -> str:
    rows = []
    for s in studies:
        info, cases = s.head["machine_info"], {c.case for c in s.cells}
        times = [1e6 * c.seconds for c in s.cells]
        board = "–" if s.board == s.name else s.board
        date, commit = str(s.head["datetime"])[:10], str(s.head.get("commit", "–"))[:12]
        tools = f"{info.get('driver', '–')}, {info.get('nvcc', '–')}"
        timed = f"{len(cases)}, {min(times):.0f} to {max(times):.0f} µs"
        counts = str(len(s.cells)), str(s.failed)
        rows.append([f"`{s.name}`", board, date, commit, tools, timed, *counts, f"`{s.digest[:16]}`"])
    heads = ["file", "board", "date", "commit", "driver, nvcc", "cases", "trials", "failed", "SHA-256"]
    return table(heads, rows, "llllllrrl")


_SPECIFICATION = Path(__file__).with_name("detection.vl.json")


def draw(groups: Mapping[str, Sequence[Cell]], path: Path, mark: str) -> None:
    """One panel per group, by title; ``mark`` is written into the file. Raises StudyError without
    vl-convert."""
    sizes = sorted({c.size for cells in groups.values() for c in cells})
    rates = [
        {
            "panel": title,
            "method": method,
            "order": order,
            "size": size,
            "planted": f"{100 * size:g} %" if size else "A/A",
            "share": 100 * found.share,
            "low": 100 * found.limits[0],
            "high": 100 * found.limits[1],
        }
        for title, cells in groups.items()
        for order, method in enumerate((RED, REGRESSED))
        for size in sizes
        if (found := Rate.of((c for c in cells if c.size == size), method))
    ]
    spec = json.loads(_SPECIFICATION.read_text(encoding="utf-8"))
    try:
        write_whole(path, charts.svg({**charts.on_paper(), **spec, "datasets": {"rates": rates}}, mark))
    except charts.NoDrawingError as error:
        raise StudyError(f"no plot ({error}); `pip install --group report` brings vl-convert") from None
