"""Prevents small losses from adding up: a new binary is stored only if it is not slower than the best binary
ever stored for its case.

A comparison with only the last binary would accept a loss of almost the margin each time. A slower binary is
refused, unless the user gives a reason; then later binaries are compared with this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gemm_regression.baselines import Baseline, BaselineEntry, BaselineError, load_binary
from gemm_regression.devices import Gpu
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import FASTER, NOT_SLOWER, Paired, Policy
from gemm_regression.model import Case
from gemm_regression.run.pairing import ComparedCase, Pair, Pairing
from gemm_regression.timing.looks import SequentialTest


@dataclass(frozen=True)
class Refresh:
    """What becomes of a measurement.

    Attributes:
        entries: those to be stored, by case.
        refused: slower than the best binary, or not certainly as fast, by case.
        accepted: the same, but stored, with the reason.
        unpaired: why a case could not be compared with its best binary; it is stored.
    """

    entries: Mapping[str, BaselineEntry]
    refused: Mapping[str, Paired] = field(default_factory=dict)
    accepted: Mapping[str, Paired] = field(default_factory=dict)
    unpaired: Mapping[str, str] = field(default_factory=dict)


def refresh(
    device: Gpu,
    root: Path,
    measured: Baseline,
    before: Baseline | None,
    cases: Mapping[str, Case],
    accepting: Mapping[str, str],
    pairing: Pairing | None = None,
) -> Refresh:
    """Pairs what is new of a measurement with the best binary of each case. ``before``: what is current;
    ``cases`` by id; ``accepting``: why a case may be slower. What a kernel chooses as it did before becomes
    what its choice does under its own name, if that was measured, too."""
    entries, unpaired = dict(measured.entries), dict[str, str]()
    wanted, best_of = list[Pair](), dict[str, tuple[str, str]]()
    stored = by_choice(before, cases) if before else None
    alike = {name: own for name, own in _own(stored, cases) if own in measured.entries} if stored else {}
    for case_id, entry in measured.entries.items():
        old = stored.entry(case_id) if stored and case_id not in alike else None
        mine = device.binary(cases[case_id])
        if old is None or mine is None:
            continue
        best = old.best or (old.cubin_sha256, old.launch_id)
        if mine.key == best:
            continue
        if mine.key == (old.cubin_sha256, old.launch_id):
            entries[case_id] = replace(entry, best=old.best)
            continue
        margin = Policy().margin_of(old.margin)
        capability, label = device.info.capability, "the best binary ever stored"
        try:
            base = _load(root, old, best)
        except BaselineError as error:
            unpaired[case_id] = str(error)
            continue
        wanted.append(Pair.on(capability, cases[case_id], base, margin, label, old.median_s))
        best_of[case_id] = (str(best[0]), str(best[1]))
    pairing = pairing or Pairing(device, SequentialTest(), len(wanted))
    refused, accepted = dict[str, Paired](), dict[str, Paired]()
    for timed in pairing.all(wanted):
        case_id = timed.case.id
        if _faster(timed):
            continue
        if timed.outcome == NOT_SLOWER:
            entries[case_id] = replace(entries[case_id], best=best_of[case_id])
        elif case_id in accepting:
            accepted[case_id] = timed.paired
            entries[case_id] = replace(entries[case_id], accepted=accepting[case_id])
        else:
            refused[case_id] = timed.paired
            del entries[case_id]
    for case_id, own in alike.items():
        entry = entries.pop(case_id)
        if own in entries:
            entries[case_id] = replace(entries[own], case_id=case_id, test=entry.test, chosen=entry.chosen)
    return Refresh(entries, refused, accepted, unpaired)


def _faster(timed: ComparedCase) -> bool:
    """Whether the new binary is the best from now on."""
    interval = timed.paired.interval
    certainly = timed.outcome == NOT_SLOWER and interval is not None and interval[1] < 0
    return timed.outcome == FASTER or certainly


def _load(root: Path, old: BaselineEntry, best: tuple[str | None, str | None]) -> StoredBinary:
    cubin, launch = best
    if cubin is None or launch is None:
        raise BaselineError("its best binary was not kept")
    return load_binary(root, old.variant, cubin, launch)


def reasons(given: Iterable[tuple[str, str]]) -> dict[str, str]:
    """``--accept-slower CASE REASON``, by case. Raises ValueError for an empty reason."""
    found = {}
    for case, reason in given:
        if not reason.strip():
            raise ValueError(f"--accept-slower {case}: needs a reason, which is stored")
        found[case] = reason.strip()
    return found


def by_choice(stored: Baseline, cases: Mapping[str, Case]) -> Baseline:
    """A baseline in which what a kernel chooses, if it chose the same when it was measured, has the entry of
    its choice's own name: one binary is judged in one way. ``cases``, by id."""
    entries = dict(stored.entries)
    for name, own in _own(stored, cases):
        row = entries[name]
        entries[name] = replace(entries[own], case_id=name, test=row.test, chosen=row.chosen)
    return replace(stored, entries=entries)


def _own(stored: Baseline, cases: Mapping[str, Case]) -> Iterator[tuple[str, str]]:
    """The cases of kernels that choose as they did, and the cases of what they choose; both are stored."""
    for name, case in cases.items():
        row, own = stored.entry(name), replace(case, chosen_for=None).id
        if case.chosen_for and row and row.chosen == case.choice and stored.entry(own):
            yield name, own


def chosen_again(measured: Baseline, known: Mapping[str, Case]) -> tuple[Baseline, list[str]]:
    """A measurement whose kernels that choose have what they choose by it, which is what a run will find; and
    why the others are left out. ``known``: the cases by id, with what they choose by this measurement."""
    entries, why = dict(measured.entries), list[str]()
    for name, case in known.items():
        own = measured.entry(replace(case, chosen_for=None).id) if case.chosen_for else None
        if own:
            entries[name] = replace(own, case_id=name, test=entries[name].test, chosen=case.choice)
        elif entries[name].chosen != case.choice:
            why.append(f"not stored: {name}: now chooses {case.choice}, which was not timed at this problem")
            del entries[name]
    return replace(measured, entries=entries), why
