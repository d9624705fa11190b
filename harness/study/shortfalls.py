"""Which targets a study misses, by how much and why, as text; each number from the samples."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from harness.model import F32
from harness.study import trials
from harness.study.analysis import ALONE, ALONE_FIRST, GATE, PAIRED, Rate, rate, trials_to_show
from harness.study.ladder import case_of
from harness.study.studies import Study, same

FALSE_ALARMS = 0.001  # share of A/A trials, at most
SECONDS = 1.0  # GPU seconds per case, at most
_FINE, _USUAL = PAIRED[min(PAIRED)], PAIRED[max(PAIRED)]


def paragraphs(study: Study, files: Sequence[Study]) -> list[str]:
    """Only those that apply. ``files`` are all of its GPU model: their A/A trials count."""
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
    """``1.5 to 4.6``, or one number if both round to the same."""
    ends = [f"{end:.{digits}f}" for end in (min(values), max(values))]
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def _ratios(study: Study, cases: Collection[str]) -> list[float]:
    """Measured slowdown divided by the planted one, for each case and size of 1 % and more."""
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
        "**Measured and planted.** For sizes of 1 % and more, the measured slowdown is "
        f"{spread_text(plain, 2)} times the planted one on CUDA cores, and {spread_text(slow, 2)} times on "
        "tensor cores."
    )
    if min(slow) >= 0.99:
        return text
    clocks = [statistics.median(c.mhz for c in study.cells if c.case == case) for case in tensor]
    top = study.head["machine_info"].get("max_sm_clock_mhz")
    if top and max(clocks) < 0.99 * top:
        text += (
            f" The SM clock during these launches is {spread_text([mhz / top for mhz in clocks], 2)} times "
            "the "
            f"maximum of {top} MHz, which is consistent: the tensor cores apparently pull the clock down, "
            "and "
            "the cycles counted after them take less time than they would at that clock."
        )
    return text + (
        f" For tensor cores, a column therefore stands for slowdowns up to {100 * (1 - min(slow)):.0f} % "
        "smaller than its heading; the measured size is what counts."
    )


def _gate(study: Study, cases: Sequence[str]) -> str:
    """Why the gate does not detect 1 %, and what it detects where no pair is possible."""
    found = rate(study.of(0.01, cases), GATE)
    alone, first = (rate(study.of(0.01, cases), method) for method in (ALONE, ALONE_FIRST))
    if found is None or alone is None or first is None:
        return ""
    text = ""
    if found.share < 0.99:
        missed = [c for c in study.of(0.01, cases) if not c.found[GATE]]
        verdicts = ", ".join(
            f"{n} of {name}" for name, n in Counter((c.case, c.said) for c in missed).items()
        )
        text = f"**The gate and 1 %.** Not red in {len(missed)} of {found.trials} trials: {verdicts}. "
    limits = [100 * _floor_and_threshold(study, case)[1] for case in cases]
    return text + (
        f"**The baseline alone and 1 %.** Where no pair is possible, the threshold of the {len(cases)} "
        f"cases of the target is {spread_text(limits)} % of the GFLOPS, and 1 % of the GFLOPS is 1.01 % of "
        f"the time. So the first measurement detects 1 % in {first} % of the trials, and since a new process "
        f"has to confirm it, {alone} % remain."
    )


def _short(study: Study, cases: Sequence[str]) -> str:
    if not cases:
        return ""
    limits = [100 * _floor_and_threshold(study, case)[1] for case in cases]
    said = [
        f"{name} {100 * size:g} % in {found} %"
        for name, size, method in (
            ("the baseline alone detects", 0.05, ALONE),
            ("the gate is red at", 0.01, GATE),
        )
        if (found := rate(study.of(size, cases), method))
    ]
    return (
        "**Short cases.** With the noise floors of cases of 100 µs and less, the thresholds of the baseline "
        f"alone are {spread_text(limits)} %{': ' if said else ''}{'; '.join(said)}."
    )


def alarms(studies: Sequence[Study]) -> Iterator[str]:
    """The false alarms of the gate, and those that the baseline alone would have raised."""
    for study in studies:
        for c in (cell for cell in same([study]) if cell.found[GATE]):
            processes = " and ".join(f"{100 * change:+.1f} %" for change in c.against_stored)
            yield (
                f"**A false alarm of the gate** (`{study.name}`): {c.case}, trial {c.trial}: {c.said}; in "
                f"the first interim analysis the sides differed by {100 * c.measured:+.2f} %, and the "
                f"processes from the stored median by {processes}."
            )
        yield from _alone(study)


def _alone(study: Study) -> Iterator[str]:
    pairs = same([study])
    raised = [cell for cell in pairs if cell.found[ALONE]]
    for case in dict.fromkeys(cell.case for cell in raised):
        floor, threshold = _floor_and_threshold(study, case)
        first = [100 * cell.against_stored[0] for cell in pairs if cell.case == case]
        raised_text = "; ".join(
            f"in trial {c.trial} two processes were slower than the stored median by "
            + " and ".join(f"{100 * change:.1f} %" for change in c.against_stored)
            + f", and the gate says {c.said}"
            for c in raised
            if c.case == case
        )
        yield (
            f"**A false alarm of the baseline alone** (`{study.name}`): {case}, {raised_text}; its threshold "
            f"is {100 * threshold:.1f} % of the GFLOPS. The {len(first)} processes of its A/A trials were "
            f"between {min(first):+.1f} % and {max(first):+.1f} % of that median; the five of its baseline "
            f"within {100 * floor:.1f} %, the noise floor that the threshold is based on."
        )


def needed(count: int) -> str:
    """How many trials the target needs if ``count`` of them raised a false alarm."""
    least = trials_to_show(FALSE_ALARMS, count)
    return f"{least} trials {f'with no more than {count}' if count else 'without a false alarm'}"


def _trials(files: Sequence[Study]) -> str:
    """How many A/A trials it would need to show a rate as low as the target."""
    seen = {name: rate(same(files), name) for name in (_FINE, _USUAL, GATE)}
    by_rate: dict[Rate, list[str]] = {}
    for name, found in seen.items():
        if found and found.share <= FALSE_ALARMS < found.limits[1]:
            by_rate.setdefault(found, []).append(name)
    if not by_rate:
        return ""
    whole = f" in all {len(files)} files of this GPU model" if len(files) > 1 else ""
    every = len(same(files))
    said = [
        f"{' and '.join(names)}: {found.count or 'no'} false {'alarm' if found.count == 1 else 'alarms'} "
        f"among {'them' if found.trials == every else f'the {found.trials} judged by it'}, so the rate is at "
        f"most {100 * found.limits[1]:.2f} %; showing at most {100 * FALSE_ALARMS:g} % takes "
        f"{needed(found.count)}"
        for found, names in by_rate.items()
    ]
    return f"**Too few A/A trials.** There are {every}{whole}: {'; '.join(said)}."


def _seconds(files: Sequence[Study]) -> str:
    """Which cases' A/A trials exceed the target of GPU seconds."""
    pairs = same(files)
    said = []
    for case in dict.fromkeys(cell.case for cell in sorted(pairs, key=lambda cell: cell.seconds)):
        mine = [c.cost for c in pairs if c.case == case]
        spent = {name: [cost[name] for cost in mine if name in cost] for name in (GATE, _FINE, _USUAL)}
        over = {name: sum(s > SECONDS for s in costs) for name, costs in spent.items()}
        if any(over.values()):
            counts = ", ".join(f"{count} ({name})" for name, count in over.items() if count)
            said.append(f"{case}, {len(spent[GATE])} trials: {counts}")
    if not said:
        return ""
    return f"**Over {SECONDS:g} s of GPU.** A/A trials that take longer: {'; '.join(said)}."
