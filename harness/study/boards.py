"""A/A trials on other boards of a GPU model, as text and tables, and how much its boards differ."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from harness.reports.markdown import table_text
from harness.study.analysis import ALONE, ALONE_FIRST, GATE, GATE_SLOWER, PAIRED, rate, undecided
from harness.study.shortfalls import alarms, spread_text
from harness.study.studies import LONG, Model, Study, same

_QUICK = (
    "Those with a margin beside their cases were measured with `--quick`: other cases, of short trials, on "
    "CUDA cores, whose interim analyses end when the gate's margin is decided; of the other margin they say "
    "nothing. "
)


def section(model: Model) -> list[str]:
    """The page's section on boards other than those of the full studies; empty if there are none."""
    boards = model.boards
    if not boards:
        return []
    others = len({s.board for s in boards} - {s.board for s in model.studies})
    where = f"on {others} other {'board' if others == 1 else 'boards'}" if others else "again"
    unnamed = any(s.board == s.name for s in boards)
    parts = [
        f"## {boards[0].gpu}, A/A trials only, {where}",
        "Nothing was planted here, and no other tool was evaluated. Each file is judged against its own five "
        "processes. "
        + ("A file that does not name its board counts as a board of its own. " if unnamed else "")
        + (_QUICK if any("margins" in s.head for s in boards) else "")
        + "; ".join(dict.fromkeys(map(machine, boards)))
        + f". {len(same(boards))} A/A trials:",
        _files(boards),
        _rates(boards),
        *alarms(boards),
    ]
    first = {s.board: s for s in reversed(model.files)}  # of each board
    alike: dict[frozenset[str], list[Study]] = {}  # by their cases
    for study in (s for s in model.files if s in first.values()):
        alike.setdefault(frozenset(study.head["baseline"]), []).append(study)
    return parts + [text for studies in alike.values() for text in _differences(studies)]


def machine(study: Study) -> str:
    info = study.head["machine_info"]
    return (
        f"Driver {info['driver']}, CUDA {info['cuda_driver']}, nvcc {info['nvcc']}, power limit "
        f"{info['power_limit_w']} W"
    )


def _files(boards: Sequence[Study]) -> str:
    rows = [
        [
            f"`{s.name}`",
            "–" if s.board == s.name else s.board,
            s.date,
            _cases(s),
            str(len(s.cells)),
            str(s.failed),
            f"`{s.digest[:16]}`",
        ]
        for s in boards
    ]
    return table_text(["file", "board", "date", "cases", "trials", "failed", "SHA-256"], "llllrrl", rows)


def _cases(study: Study) -> str:
    """``8, 10 to 15975 µs``; with its margin, if the paired comparison had one alone."""
    found = {case: [c.seconds for c in study.cells if c.case == case] for case in study.cases}
    times = [1e6 * statistics.median(seconds) for seconds in found.values()]
    text = f"{len(study.cases)}, {spread_text(times, 0)} µs"
    margins = study.head.get("margins")
    return text + (f", ±{100 * margins[0]:g} % alone" if margins else "")


def _rates(boards: Sequence[Study]) -> str:
    """False alarms of each method, how often it is inconclusive, and what it costs."""
    groups = {
        title: [cell for s in boards for cell in s.of(0.0, s.groups[title])] for title in boards[0].groups
    }
    heads = ["false alarms, %"]
    for title in groups:
        heads += [title, "undecided, %"]
    heads.append("GPU s, mean (most)")
    rows = []
    for method in (GATE, GATE_SLOWER, *PAIRED.values(), ALONE, ALONE_FIRST):
        row = [method]
        for chosen in groups.values():
            found, left = rate(chosen, method), undecided(chosen, method)
            row += [
                f"{found.count} of {found.trials}: {found.text(2)}" if found else "–",
                str(left or "–"),
            ]
        spent = [cell.cost[method] for cell in same(boards) if method in cell.cost]
        if not spent:
            continue
        rows.append([*row, f"{statistics.fmean(spent):.2f} ({max(spent):.2f})"])
    return table_text(heads, "l" + "r" * (len(heads) - 1), rows)


@dataclass(frozen=True)
class Difference:
    """A case on several boards: its time in ``seconds``, how much the medians of the ``boards`` differ, and
    how much at most those of the ``workers`` (processes) of one board; each as maximum / minimum − 1."""

    case: str
    seconds: float
    boards: float
    workers: float


def differences(studies: Sequence[Study]) -> list[Difference]:
    """For every case with the same binary in all files, from the headers alone, the shortest first."""
    found = []
    for case in studies[0].head["baseline"]:
        stored = [s.head["baseline"].get(case, {}) for s in studies]
        binaries = {entry.get("cubin_sha256") for entry in stored}
        if len(binaries) != 1 or None in binaries:
            continue
        medians = [statistics.median_low(entry["medians"]) for entry in stored]
        workers = max(_spread(entry["medians"]) for entry in stored)
        found.append(Difference(case, statistics.median(medians), _spread(medians), workers))
    return sorted(found, key=lambda one: one.seconds)


def _spread(values: Collection[float]) -> float:
    return max(values) / min(values) - 1


def _differences(studies: Sequence[Study]) -> Iterator[str]:
    """``studies``: one per board."""
    found = differences(studies) if len(studies) > 1 else []
    if not found:
        return
    said = [
        f"for cases {words} by {spread_text([100 * d.boards for d in chosen], 2)} %"
        for words, chosen in (
            (f"over {1e6 * LONG:.0f} µs", [d for d in found if d.seconds > LONG]),
            (f"of {1e6 * LONG:.0f} µs and less", [d for d in found if d.seconds <= LONG]),
        )
        if chosen
    ]
    text = (
        "A board's value for a case is the median of its five processes' medians, at size 0. The boards "
        "differ "
        f"(maximum / minimum − 1) {', '.join(said)}."
    )
    if left := len(studies[0].head["baseline"]) - len(found):
        text += f" {left} more {'is not' if left == 1 else 'are not'} the same binary in all files."
    text += "".join(f" `{s.name}`:{s.note}" for s in studies if s.note)
    rows = [
        [d.case, f"{1e6 * d.seconds:.1f}", f"{100 * d.boards:.2f} %", f"{100 * d.workers:.2f} %"]
        for d in found
    ]
    heads = ["case", "µs", "between boards", "between processes on one board, at most"]
    yield f"### The same binaries on {len(studies)} boards"
    yield text
    yield table_text(heads, "lrrr", rows)
