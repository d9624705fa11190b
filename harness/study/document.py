"""docs/detection.md and its plot, from the stored samples alone."""

from __future__ import annotations

import hashlib
import statistics
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from harness.files import write_whole
from harness.reports.markdown import table_text
from harness.study import boards, plot, trials
from harness.study.analysis import ALONE, CONFIDENCE, GATE, GATE_SLOWER, PAIRED, Rate, mean, rate, undecided
from harness.study.raw import StudyError
from harness.study.shortfalls import FALSE_ALARMS, SECONDS, needed, paragraphs
from harness.study.studies import LONG, Study, load, models, same

_TEXT, _PLOT, _FOLDER = "detection.md", "detection.svg", "detection"


def report(files: Sequence[Path], docs: Path, check: bool) -> int:
    """Writes both; with ``check`` only reports whether they are out of date, with 1. Raises StudyError."""
    chosen = list(files) or list((docs / _FOLDER).glob("*.jsonl.gz"))
    if not chosen:
        raise StudyError(f"{docs / _FOLDER} contains no samples; measure them with `nox -s study -- measure`")
    studies = load(chosen)
    made = text(studies)
    mark = hashlib.sha256(made.encode()).hexdigest()
    if check:
        stale = [
            name
            for name, fits in (
                (_TEXT, lambda now: now == made),
                (_PLOT, lambda now: mark in now),
            )
            if not fits(_now(docs / name))
        ]
        for name in stale:
            print(f"{docs / name} is out of date: `nox -s study -- report` regenerates it", file=sys.stderr)
        return int(bool(stale))
    write_whole(docs / _TEXT, made)
    drawn = pictured(studies)
    panels = {title: [c for c in drawn.cells if c.case in cases] for title, cases in drawn.groups.items()}
    plot.draw(panels, docs / _PLOT, mark)
    print(f"wrote {docs / _TEXT} and {docs / _PLOT}")
    return 0


def _now(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def pictured(studies: Sequence[Study]) -> Study:
    """The study that the plot is of: the one with most trials of those with something planted."""
    return max(studies, key=lambda study: (not study.alone, len(study.cells)))


def text(studies: Sequence[Study]) -> str:
    """The page."""
    found = models(studies)
    times = [
        statistics.median(c.seconds for c in s.cells if c.case == case)
        for model in found
        for s in model.studies
        for case in s.cases
    ]
    least, most = 1e6 * min(times), 1e3 * max(times)
    parts = [_HEAD.format(confidence=100 * CONFIDENCE, error=100 * trials.ERROR, least=least, most=most)]
    parts += [f"![Detection rate over size]({_PLOT})", f"Drawn: `{pictured(studies).name}`."]
    if len(found) > 1:
        parts.append(_together(studies))
    for model in found:
        for study in model.studies:
            parts += _section(study, model.files)
        parts += boards.section(model)
    return "\n\n".join(parts) + "\n"


_HEAD = """# Detection power

<!-- Made by `nox -s study -- report` from docs/detection/: do not edit. -->

How small a slowdown does each method detect, and how often does it raise a false alarm? Slowdowns of known
size were planted in kernels of {least:.0f} µs to {most:.0f} ms, and every method judged the same samples.
Rates are in percent, with {confidence:g} % Clopper-Pearson confidence limits; the unit is one trial of one
case.

**What is planted.** After the kernel, within the timed interval, one thread spins for a number of SM cycles
and counts how many it took. It also runs in the A/A pairs, with zero cycles to spin: the two sides differ
only by the counted cycles. The true size is those cycles divided by the SM clock and by the time of the other
side. It is checked against the interleaved blocks: the mean over all trials of the first interim analysis,
with its confidence limits (the column *measured*).

**The methods.** *Gate*: what `nox -s gpu` says of a case of another binary than its baseline's. The median is
compared with the stored one of five processes, and the case is compared side by side with the baseline's
commit; slower than the baseline and not than the commit, it is measured again in another process, and slower
than the commit by less than 2 %, compared again in another process (here: in the next trial). *Red* is
every verdict that fails: REGRESSED, AMBIGUOUS or DRIFTED. *Baseline alone*: the same without the pair, as
where the commit cannot be had: slower by more than 1 % or three noise floors, and confirmed in another
process. *Paired comparison*: blocks ABBA and BAAB, at most three interim analyses, an error probability of
{error:g} % divided among the cases of a run; the gate's own pairs, where what stays AMBIGUOUS fails, have a
fourth since. *Two runs*: other tools
applied to the samples that the gate had, a stored run and a new one. *Interleaved*: other tools applied to
the samples that the paired comparison had, all its blocks pooled. pytest-benchmark's check and NVBench's
robust comparison are computed by their own code (NVBench's with its default thresholds, on files of its own
format; clocks are stored to 1 MHz); asv's rule is a Mann-Whitney test at p < 0.002 and a median above 1.1
times the old one.

A size equal to the margin of the paired comparison (0.25 % with ±0.25 %, 0.5 % with ±0.5 %) is neither
outside nor inside it. No further interim analysis was made for that margin, and detecting such a size or not
is neither an error nor a success. The gate, whose margin is ±0.5 %, is red there: AMBIGUOUS, for the case is
slower for certain."""


def _together(studies: Sequence[Study]) -> str:
    """The false alarms on all GPU models."""
    every = same(studies)
    said = [
        f"{method}: {found.count} of {found.trials}, at most {100 * found.limits[1]:.2f} %"
        for method in (GATE, GATE_SLOWER, *PAIRED.values())
        if (found := rate(every, method))
    ]
    return (
        f"**False alarms on {len({s.gpu for s in studies})} GPU models together**, {len(every)} A/A trials "
        f"of {len(studies)} files: {'; '.join(said)}."
    )


def _section(study: Study, files: Sequence[Study]) -> list[str]:
    """``files`` are all of its GPU model: the A/A trials of all of them count."""
    cases = study.cases
    least = min(len(study.of(size, [case])) for size in study.sizes for case in cases)
    others = " No other tool was evaluated." if study.head.get("summaries") else ""
    parts = [
        f"## {study.gpu}, {study.date}",
        f"{boards.machine(study)}. {len(cases)} cases, {len(study.cells)} trials, at least {least} of each "
        f"case and size; {study.failed} failed. Samples: `{study.name}`, SHA-256 "
        f"`{study.digest[:16]}`.{others}{study.note}",
    ]
    for title, group in study.groups.items():
        if group:
            parts += [f"### {title.capitalize()}", _rates(study, group)]
    parts += ["### Targets"]
    if len(files) > 1:
        parts.append(
            f"The A/A trials of all {len(files)} files of this GPU model count: {len(same(files))}, "
            f"{len(same([study]))} of them in this file."
        )
    parts += ["\n".join(_targets(study, files))]
    if why := paragraphs(study, files):
        parts += ["### Missed targets, and why", *why]
    parts += ["### GPU seconds per trial", _costs(study)]
    return [*parts, "### Case by case", _by_case(study)]


def _name(size: float) -> str:
    return f"{100 * size:g} %" if size else "A/A"


def _rates(study: Study, cases: Collection[str]) -> str:
    heads = ["called slower, %", *map(_name, study.sizes), "A/A undecided"]
    rows = []
    for method in study.methods:
        shares = [rate(study.of(size, cases), method) for size in study.sizes]
        left = undecided(study.of(0.0, cases), method)
        rows.append([method, *(str(share or "–") for share in shares), str(left or "–")])
    return table_text(heads, "l" + "r" * (len(heads) - 1), rows)


def _targets(study: Study, files: Sequence[Study]) -> Iterator[str]:
    """Each target, and the result."""
    long, short = study.groups.values()
    fine, usual = PAIRED[min(PAIRED)], PAIRED[max(PAIRED)]
    over, under = (f"cases {which} {1e6 * LONG:.0f} µs" for which in ("over", "of at most"))
    for size, aim, method, cases, which in (
        (0.01, 0.99, GATE, long, over),
        (0.005, 0.95, GATE, long, over),
        (0.01, 0.90, GATE, short, under),
        (0.01, 0.99, usual, long, over),
        (0.005, 0.95, fine, long, over),
    ):
        if found := rate(study.of(size, cases), method):
            yield (
                f"- {100 * size:g} % detected in ≥ {100 * aim:g} % of trials, {which}: {method}: "
                f"{found.count} of {found.trials}, {found}: {detected(found, aim)}"
            )
    everything = same(files)
    for method in (GATE, GATE_SLOWER, fine, usual, ALONE):
        if found := rate(everything, method):
            yield (
                f"- false alarms in ≤ {100 * FALSE_ALARMS:g} % of A/A trials: {method}: {found.count} of "
                f"{found.trials}, {found.text(2)}: {outcome(found)}"
            )
    for method in (GATE, fine, usual):
        if spent := [cell.cost[method] for cell in everything if method in cell.cost]:
            share = sum(s <= SECONDS for s in spent) / len(spent)
            yield (
                f"- ≤ {SECONDS:g} s of GPU per case, A/A: {method}: {statistics.fmean(spent):.2f} s on "
                f"average, {100 * share:.0f} % of trials within {SECONDS:g} s, at most {max(spent):.2f} s"
            )


def detected(found: Rate, aim: float) -> str:
    """Whether a target for detection is met, and whether so many trials show it."""
    if found.share < aim:
        return f"missed by {100 * (aim - found.share):.1f} percentage points"
    shown = f"shown: at least {100 * found.limits[0]:.1f} %"
    return f"met, {shown}" if found.limits[0] >= aim else f"met by these trials; {shown}"


def outcome(alarms: Rate) -> str:
    """Whether the target for false alarms is met."""
    shown = 100 * alarms.limits[1]
    if alarms.limits[1] <= FALSE_ALARMS:
        return f"met, shown: at most {shown:.2f} %"
    if alarms.share > FALSE_ALARMS:
        return f"missed by {100 * (alarms.share - FALSE_ALARMS):.2f} percentage points"
    return f"shown: at most {shown:.2f} %; {100 * FALSE_ALARMS:g} % needs {needed(alarms.count)}"


def _costs(study: Study) -> str:
    heads = ["mean over cases, s", *map(_name, study.sizes)]
    rows = []
    for method in (m for m in (GATE, *PAIRED.values(), ALONE) if m in study.methods):
        spent = [[c.cost[method] for c in study.of(size, study.cases)] for size in study.sizes]
        rows.append([method, *(f"{statistics.fmean(seconds):.3f}" for seconds in spent)])
    return table_text(heads, "l" + "r" * len(study.sizes), rows)


def _by_case(study: Study) -> str:
    shown = [method for method in (GATE, *PAIRED.values(), ALONE) if method in study.methods]
    heads = ["case", "µs", "size", "planted", "measured", *(f"{method}, %" for method in shown), "trials"]
    rows = []
    for case in study.cases:
        for size in study.sizes:
            chosen = study.of(size, [case])
            if not chosen:
                continue
            planted, _ = mean(c.planted for c in chosen)
            measured, half = mean(c.measured for c in chosen)
            rows.append(
                [
                    case,
                    f"{1e6 * statistics.median(c.seconds for c in chosen):.1f}",
                    _name(size),
                    f"{100 * planted:.3f} %",
                    f"{100 * measured:.3f} ± {100 * half:.3f} %",
                    *(f"{100 * share.share:.0f}" for m in shown if (share := rate(chosen, m))),
                    str(len(chosen)),
                ]
            )
    return table_text(heads, "lrrrr" + "r" * len(shown) + "r", rows)
