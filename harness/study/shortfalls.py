"""Where a study falls short, by how much and why, in words; each number from the samples."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence

from harness.model import F32
from harness.study import trials
from harness.study.analysis import GATE, GATE_FIRST, PAIRED, Rate, rate, trials_to_show
from harness.study.ladder import case_of
from harness.study.studies import Study, same

FALSE_ALARMS = 0.001  # of A/A trials, at most
SECONDS = 1.0  # of GPU a case, at most
_FINE, _USUAL = PAIRED[min(PAIRED)], PAIRED[max(PAIRED)]


def paragraphs(study: Study, files: Sequence[Study]) -> list[str]:
    """Only those that there is reason for. ``files`` are all of its GPU model: their A/A trials count."""
    long, short = study.groups.values()
    found = (
        _measured(study),
        _gate(study, long),
        _short(study, short),
        *alarms([study]),
        _trials(files),
        _seconds(files),
    )
    return [text for text in found if text]


def _floor_and_threshold(study: Study, case_id: str) -> tuple[float, float]:
    """Noise floor and the gate's threshold of a case, relative."""
    major, minor = map(int, study.head["machine_info"]["capability"].split("."))
    case = case_of(case_id, (major, minor))
    floor = trials.reference(case, study.head["baseline"][case_id]).noise_floor
    return floor, trials.policy(case).threshold(floor)


def spread_text(values: Collection[float], digits: int = 1) -> str:
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
        f"{spread_text(plain, 2)} of the planted one on CUDA cores, and {spread_text(slow, 2)} on tensor "
        "cores."
    )
    if min(slow) >= 0.99:
        return text
    clocks = [statistics.median(c.mhz for c in study.cells if c.case == case) for case in tensor]
    top = study.head["machine_info"].get("max_sm_clock_mhz")
    if top and max(clocks) < 0.99 * top:
        text += (
            f" The SM clock over these launches is {spread_text([mhz / top for mhz in clocks], 2)} of the "
            f"maximal {top} MHz, which fits: by all appearance the tensor cores pull the clock down, and the "
            "cycles counted behind them take less time than at that clock."
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
        f"{spread_text(limits)} % of the GFLOPS, and 1 % of the GFLOPS is 1.01 % of the time: it lies on the "
        f"very size or above. So a first look finds 1 % in {first} % of the trials, and as a fresh worker "
        f"has to find it again, {confirmed} % are left. That is the price of few false alarms."
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
        f"thresholds {spread_text(limits)} %{': ' if said else ''}{'; '.join(said)}."
    )


def alarms(studies: Sequence[Study]) -> Iterator[str]:
    """The gate's false alarms, and what would have become of them elsewhere."""
    found = [text for study in studies for text in _alarms(study)]
    yield from found
    if found:
        yield (
            "The study judges by two measurements alone, as if the builds were two. `nox -s gpu` has two "
            "more rules, which are not in these rates: a binary that is the baseline's own is DRIFTED, which "
            "is red unless allowed, but no regression; and another binary is REGRESSED only if it is slower "
            "beside its baseline's commit, too, where that commit can be had."
        )


def _alarms(study: Study) -> Iterator[str]:
    pairs = same([study])
    raised = [cell for cell in pairs if cell.found[GATE]]
    for case in dict.fromkeys(cell.case for cell in raised):
        floor, threshold = _floor_and_threshold(study, case)
        first = [100 * cell.against_stored[0] for cell in pairs if cell.case == case]
        told = "; ".join(
            f"in trial {c.trial} two workers were slower than the stored median by "
            + " and ".join(f"{100 * change:.1f} %" for change in c.against_stored)
            for c in raised
            if c.case == case
        )
        yield (
            f"**A false alarm of the gate** (`{study.name}`): {case}, {told}, its threshold being "
            f"{100 * threshold:.1f} % of the GFLOPS. The {len(first)} workers of its A/A trials lay between "
            f"{min(first):+.1f} % and {max(first):+.1f} % of that median; the five of its baseline within "
            f"{100 * floor:.1f} %, the noise floor that the threshold rests on."
        )


def needed(count: int) -> str:
    """How many trials the target takes, where ``count`` have raised a false alarm."""
    least = trials_to_show(FALSE_ALARMS, count)
    return f"{least} trials {f'with no more than {count}' if count else 'without an alarm'}"


def _trials(files: Sequence[Study]) -> str:
    """How many A/A trials a rate as low as the target would take."""
    seen = {name: rate(same(files), name) for name in (_FINE, _USUAL, GATE)}
    by_rate: dict[Rate, list[str]] = {}
    for name, found in seen.items():
        if found and found.share <= FALSE_ALARMS < found.limits[1]:
            by_rate.setdefault(found, []).append(name)
    if not by_rate:
        return ""
    whole = f", those of all {len(files)} files of this GPU model" if len(files) > 1 else ""
    said = [
        f"{' and '.join(names)}: {found.count or 'no'} false {'alarm' if found.count == 1 else 'alarms'} in "
        f"them, so the rate is at most {100 * found.limits[1]:.2f} %, and to show at most "
        f"{100 * FALSE_ALARMS:g} % takes {needed(found.count)}"
        for found, names in by_rate.items()
    ]
    return f"**Too few A/A trials.** There are {len(same(files))}{whole}: {'; '.join(said)}."


def _seconds(files: Sequence[Study]) -> str:
    """Which cases' A/A trials take more than the GPU seconds that are aimed at."""
    pairs = same(files)
    said = []
    for case in dict.fromkeys(cell.case for cell in sorted(pairs, key=lambda cell: cell.seconds)):
        spent = {name: [c.cost[name] for c in pairs if c.case == case] for name in (GATE, _FINE, _USUAL)}
        over = {name: sum(s > SECONDS for s in costs) for name, costs in spent.items()}
        if any(over.values()):
            told = ", ".join(f"{count} ({name})" for name, count in over.items() if count)
            said.append(f"{case}, {len(spent[GATE])} trials: {told}")
    if not said:
        return ""
    return f"**Over {SECONDS:g} s of GPU.** A/A trials that take more: {'; '.join(said)}."
