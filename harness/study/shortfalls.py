"""Where a study falls short, by how much and why, in words; each number from the samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from harness.cases import find_case
from harness.judge import Policy
from harness.model import F32
from harness.study import trials
from harness.study.analysis import CONFIDENCE, GATE, GATE_FIRST, PAIRED, Rate, rate

if TYPE_CHECKING:
    from harness.study.document import Study

FALSE_ALARMS = 0.001  # of A/A trials, at most
_FINE, _USUAL = PAIRED[min(PAIRED)], PAIRED[max(PAIRED)]


def paragraphs(study: Study, long: Sequence[str], short: Sequence[str]) -> list[str]:
    """Only those that this study has reason for. ``long`` and ``short`` are the cases that the targets speak
    of, and the others."""
    found = (_measured(study), _gate(study, long), _short(study, short), *_alarms(study), _trials(study))
    return [text for text in found if text]


def _floor_and_threshold(study: Study, case_id: str) -> tuple[float, float]:
    """Noise floor and the gate's threshold of a case, relative."""
    major, minor = map(int, study.head["machine_info"]["capability"].split("."))
    case = find_case(case_id, (major, minor))
    floor = trials.entry(case, study.head["baseline"][case_id]).noise_floor
    return floor, Policy().threshold(case, floor)


def _range(values: Collection[float], digits: int = 1) -> str:
    """``1.5 to 4.6``, or one number where they read alike."""
    ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _ratios(study: Study, cases: Collection[str]) -> list[float]:
    """Measured slowdown over the planted one, of each case and size of 1 % and more."""
    found = []
    for case in cases:
        for size in study.sizes:
            chosen = [c for c in study.of(size, [case]) if c.planted == c.planted]
            if size >= 0.01 and chosen:
                planted = statistics.fmean(c.planted for c in chosen)
                found.append(statistics.fmean(c.measured for c in chosen) / planted)
    return found


def _measured(study: Study) -> str:
    tensor = [case for case in study.cases if case.split("-")[1] != F32.name]
    plain, slow = _ratios(study, set(study.cases) - set(tensor)), _ratios(study, tensor)
    if not plain or not slow:
        return ""
    text = (
        "**Measured against planted.** Of sizes of 1 % and more, the measured slowdown is "
        f"{_range(plain, 2)} of the planted one on CUDA cores, and {_range(slow, 2)} on tensor cores."
    )
    if min(slow) >= 0.99:
        return text
    clocks = [statistics.median(c.mhz for c in study.cells if c.case == case) for case in tensor]
    top = study.head["machine_info"].get("max_sm_clock_mhz")
    if top and max(clocks) < 0.99 * top:
        text += (
            f" The SM clock over these launches is {_range([mhz / top for mhz in clocks], 2)} of the maximal "
            f"{top} MHz, which fits: by all appearance the tensor cores pull the clock down, and the cycles "
            "counted behind them take less time than at that clock."
        )
    return text + (
        f" There a column stands for slowdowns up to {100 * (1 - min(slow)):.0f} % smaller than its head "
        "says; what was measured is what counts."
    )


def _gate(study: Study, cases: Sequence[str]) -> str:
    """Why the gate misses 1 %."""
    cells, two = study.of(0.01, cases), study.of(0.02, cases)
    confirmed, first = rate(cells, GATE), rate(cells, GATE_FIRST)
    if confirmed is None or first is None or confirmed.share >= 0.99:
        return ""
    limits = [100 * _floor_and_threshold(study, case)[1] for case in cases]
    text = (
        f"**The gate and 1 %.** Of the {len(cases)} cases that the target speaks of, the gate's threshold is "
        f"{_range(limits)} % of the GFLOPS, and 1 % of the GFLOPS is 1.01 % of the time: it lies on the very "
        f"size or above. So a first look finds 1 % in {first} % of the trials, and as a fresh worker has to "
        f"find it again, {confirmed} % are left. That is the price of few false alarms."
    )
    if found := rate(two, GATE):
        text += f" It finds 2 % in {found} %."
    half = rate(study.of(0.005, cases), _FINE)
    if (one := rate(cells, _USUAL)) and half:
        text += (
            f" Half a per cent and one per cent are for the paired comparison, which finds 1 % in {one} % by "
            f"{_USUAL.split(', ')[1]}, and 0.5 % in {half} % by {_FINE.split(', ')[1]}."
        )
    return text


def _short(study: Study, cases: Sequence[str]) -> str:
    if not cases:
        return ""
    limits = [100 * _floor_and_threshold(study, case)[1] for case in cases]
    said = [
        f"{name} finds {100 * size:g} % in {found} %"
        for name, size, method in (
            ("the gate", 0.05, GATE),
            ("the paired comparison by " + _USUAL.split(", ")[1], 0.01, _USUAL),
        )
        if (found := rate(study.of(size, cases), method))
    ]
    return (
        "**Short cases.** No target speaks of cases of 100 µs and less. Their noise floors make the gate's "
        f"thresholds {_range(limits)} %{': ' if said else ''}{'; '.join(said)}."
    )


def _alarms(study: Study) -> Iterator[str]:
    """The gate's false alarms, and what would have become of them elsewhere."""
    same = study.of(0.0, study.cases)
    alarms = [cell for cell in same if cell.found[GATE]]
    for case in dict.fromkeys(cell.case for cell in alarms):
        floor, threshold = _floor_and_threshold(study, case)
        first = [100 * cell.against_stored[0] for cell in same if cell.case == case]
        told = "; ".join(
            f"in trial {c.trial} two workers were slower than the stored median by "
            + " and ".join(f"{100 * change:.1f} %" for change in c.against_stored)
            for c in alarms
            if c.case == case
        )
        yield (
            f"**A false alarm of the gate**: {case}, {told}, its threshold being {100 * threshold:.1f} % of "
            f"the GFLOPS. The {len(first)} workers of its A/A trials lay between {min(first):+.1f} % and "
            f"{max(first):+.1f} % of that median; the five of its baseline within {100 * floor:.1f} %, the "
            "noise floor that the threshold rests on."
        )
    if alarms:
        yield (
            "The study judges by two measurements alone, as if the builds were two. `nox -s gpu` has two "
            "more rules, which are not in these rates: a binary that is the baseline's own is DRIFTED, which "
            "is red unless allowed, but no regression; and another binary is REGRESSED only if it is slower "
            "beside its baseline's commit, too, where that commit can be had."
        )


def _trials(study: Study) -> str:
    """How many A/A trials a rate as low as the target would take."""
    seen = {name: rate(study.of(0.0, study.cases), name) for name in (_FINE, _USUAL)}
    none = [found for found in seen.values() if found and not found.count]
    if not none or none[0].limits[1] <= FALSE_ALARMS:
        return ""
    needed = math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log1p(-FALSE_ALARMS))
    assert Rate(0, needed).limits[1] <= FALSE_ALARMS
    return (
        f"**Too few A/A trials.** {none[0].trials} of them without a false alarm show a rate of at most "
        f"{100 * none[0].limits[1]:.1f} %. To show at most {100 * FALSE_ALARMS:g} % takes {needed} without "
        "one."
    )
