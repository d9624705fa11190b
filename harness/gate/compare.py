"""A run: the run's own A/A control, then every changed case against its counterpart, in up to three looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.devices import DeviceError, PairingDevice
from harness.gate.pairs import Pair
from harness.model import Case
from harness.timing.interval import PairedKind
from harness.timing.looks import Finding, Rule, decide
from harness.timing.plan import PairPlan
from harness.timing.samples import PairedSamples, total
from harness.timing.schedule import stretch
from harness.verdicts.paired import (
    FASTER,
    JUDGED,
    SAME_BINARY,
    SLOWER,
    UNDECIDED,
    UNFIT,
    failed_beside,
    outcome_of,
    red,
)
from harness.verdicts.vocabulary import Outcome

CONTROLS = 3  # identical pairs that are timed


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        case: of the working tree.
        outcome: the verdict.
        detail: one line, where there is something to say.
        finding: of the last look; None where nothing was decided by one.
        looks: what each look added.
    """

    case: Case
    outcome: Outcome
    detail: str = ""
    finding: Finding | None = None
    looks: tuple[PairedSamples, ...] = ()

    @property
    def failed(self) -> bool:
        return red(self.outcome)

    @property
    def samples(self) -> PairedSamples:
        return total(self.looks)


@dataclass(frozen=True)
class Comparison:
    """What comparing all pairs came to.

    Attributes:
        rule: margin, error and looks.
        seed: of the order of the launches.
        rows: the cases, in the order of the pairs.
        controls: pairs of equal builds.
        unfit: why nothing was judged, in one line, else empty.
    """

    rule: Rule
    seed: int
    rows: tuple[Row, ...]
    controls: tuple[Row, ...]
    unfit: str = ""

    @property
    def judged(self) -> int:
        return sum(row.outcome in JUDGED for row in self.rows)

    @property
    def exit_status(self) -> int:
        """0 all is fine, 1 a case is not or none was judged, 3 the machine is unfit and judged nothing."""
        if self.unfit:
            return 3
        return int(not self.judged or any(row.failed for row in self.rows))


def compare(
    device: PairingDevice,
    pairs: Sequence[Pair],
    rule: Rule,
    seed: int,
    plan: PairPlan,
    busy: Callable[[], list[str]] = list,
) -> Comparison:
    """Times and judges; ``plan`` gives all but the orders, ``busy`` tells who else computes on the GPU.

    A control that differs by half of delta leaves too little of it: then nothing is judged. Equal builds are
    those with the same cubin, else the base's own, twice.
    """
    timing = _Timing(device, seed, plan)
    controls = _judged(timing, _controls(pairs), control_rule(rule), "control")
    unfit = _unfit(controls)
    changed = [pair for pair in pairs if pair.outcome is None]
    judged = {} if unfit else {row.case.id: row for row in _judged(timing, changed, rule, "case")}
    if others := busy():
        unfit = unfit or f"other processes came to the GPU meanwhile: {'; '.join(others)}"
    rows = tuple(
        _unjudged(pair, unfit) if unfit or pair.outcome is not None else judged[pair.case.id]
        for pair in pairs
    )
    return Comparison(rule, seed, rows, tuple(controls), unfit)


def control_rule(rule: Rule) -> Rule:
    """A control has half the margin: what the machine itself adds to a comparison must leave room in it."""
    return replace(rule, delta=rule.delta / 2)


def _controls(pairs: Sequence[Pair]) -> list[Pair]:
    """A few pairs of equal builds, spread over the sizes of their problems."""
    equal = [pair for pair in pairs if pair.outcome == SAME_BINARY]
    if not equal:
        changed = [pair for pair in pairs if pair.outcome is None and pair.base]
        equal = [replace(pair, case=pair.base) for pair in changed if pair.base]
    equal.sort(key=lambda pair: pair.case.flop)
    last = len(equal) - 1
    places = {round(i * last / max(1, CONTROLS - 1)) for i in range(CONTROLS)} if equal else set()
    return [equal[place] for place in sorted(places)]


def _unfit(controls: Sequence[Row]) -> str:
    differing = [row for row in controls if row.outcome in (SLOWER, FASTER)]
    if differing:
        row = differing[0]
        assert row.finding is not None
        return (
            f"the machine is unfit: two equal builds of {row.case.id} differ by "
            f"{100 * row.finding.change:+.2f} %; find out what disturbs it, and run it again"
        )
    if controls and not any(row.finding for row in controls):
        return f"no control could be timed: {controls[0].detail}"
    return ""


def _unjudged(pair: Pair, unfit: str) -> Row:
    if pair.outcome is None:
        return Row(pair.case, UNFIT, unfit)
    return Row(pair.case, pair.outcome, pair.detail)


class _Timing:
    """Times the blocks of a look, keeps them, and keeps why a case could not be timed."""

    def __init__(self, device: PairingDevice, seed: int, plan: PairPlan) -> None:
        self._device, self._seed, self._plan = device, seed, plan

    def look(self, base: Case, case: Case, salt: str, first: int, blocks: int) -> PairedSamples:
        orders = stretch(self._seed, f"{salt}/{case.id}", first, blocks).orders
        return self._device.pair(base, case, replace(self._plan, orders=orders))


def _judged(timing: _Timing, pairs: Sequence[Pair], rule: Rule, salt: str) -> list[Row]:
    by_id = {pair.case.id: pair for pair in pairs}
    looks: dict[str, list[PairedSamples]] = {case: [] for case in by_id}
    errors: dict[str, DeviceError] = {}

    def more(case: str, look: int) -> tuple[Sequence[float], float] | None:
        pair = by_id[case]
        assert pair.base is not None
        try:
            added = timing.look(pair.base, pair.case, salt, *rule.blocks_of(look))
        except DeviceError as error:
            errors[case] = error
            return None
        looks[case].append(added)
        return added.log_ratios, total(looks[case]).resolution

    found = decide(list(by_id), more, rule)
    return [
        _row(pair.case, found.get(case), tuple(looks[case]), errors.get(case)) for case, pair in by_id.items()
    ]


def _row(
    case: Case, finding: Finding | None, looks: tuple[PairedSamples, ...], error: DeviceError | None
) -> Row:
    if error is not None:
        return Row(case, failed_beside(error.code), f"{error.code}: {error}", None, looks)
    samples = total(looks)
    if finding is None:
        detail = (
            f"{len(samples.blocks)} whole blocks, {samples.discarded} launches were thrown away for a "
            "throttled clock; let the GPU rest and run it again"
        )
        return Row(case, UNDECIDED, detail, None, looks)
    detail = ""
    if finding.kind is PairedKind.AMBIGUOUS:
        low, high = finding.interval
        detail = f"after {finding.blocks} blocks still between {100 * low:+.2f} % and {100 * high:+.2f} %"
    return Row(case, outcome_of(finding.kind), detail, finding, looks)
