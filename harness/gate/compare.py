"""Compares two commits: first an A/A control, then every changed case, in a few interim analyses."""

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
    NO_PAIR,
    SAME_BINARY,
    SLOWER,
    UNDECIDED,
    UNFIT,
    failed_beside,
    outcome_of,
    red,
)
from harness.verdicts.vocabulary import Outcome

CONTROLS = 3  # pairs of identical builds to time
CONTROL = "control"


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        case: the working tree's.
        outcome: the verdict.
        detail: an explanation in one line, or empty.
        finding: of the last interim analysis; None if there was none.
        looks: the samples added by each interim analysis.
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
    """The result of comparing all pairs.

    Attributes:
        rule: margin, error probability and number of interim analyses.
        seed: for the random order of the launches.
        rows: the cases, in the order of the pairs.
        controls: pairs of identical builds.
        unfit: why nothing was judged, in one line, or empty.
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
        """0 everything passed, 1 a case failed or none was judged, 3 the control failed, so nothing was
        judged."""
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
    step: Callable[[str], None] = lambda what: None,
    late: Callable[[], bool] = lambda: False,
) -> Comparison:
    """Times and judges. ``plan``: everything but the order of launches; ``busy``: lists other GPU processes;
    ``step`` is called for each interim analysis of a case. Once it is ``late``, no other pair is begun: those
    left, the last ones, are NO_PAIR, and what is inconclusive stays so.

    If a control differs by more than half of delta, nothing is judged. Identical builds are cases with the
    same cubin, or if there are none, the base's own build twice.
    """
    timing = _Timing(device, seed, plan, step)
    controls = _judged(timing, _controls(pairs), control_rule(rule), CONTROL)
    unfit = _unfit(controls)
    changed = [pair for pair in pairs if pair.outcome is None]
    judged = {} if unfit else {row.case.id: row for row in _judged(timing, changed, rule, "case", late)}
    if others := busy():
        unfit = unfit or f"other processes used the GPU meanwhile: {'; '.join(others)}"
    rows = tuple(
        _unjudged(pair, unfit) if unfit or pair.outcome is not None else judged[pair.case.id]
        for pair in pairs
    )
    return Comparison(rule, seed, rows, tuple(controls), unfit)


def control_rule(rule: Rule) -> Rule:
    """A control is judged with half the margin, since the machine's own difference must be well below it."""
    return replace(rule, delta=rule.delta / 2)


def _controls(pairs: Sequence[Pair]) -> list[Pair]:
    """A few pairs of identical builds, spread over the problem sizes."""
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
            f"the control failed: two identical builds of {row.case.id} differ by "
            f"{100 * row.finding.change:+.2f} %; find out what disturbs the machine, and run it again"
        )
    if controls and not any(row.finding for row in controls):
        return f"no control could be timed: {controls[0].detail}"
    return ""


def _unjudged(pair: Pair, unfit: str) -> Row:
    if pair.outcome is None:
        return Row(pair.case, UNFIT, unfit)
    return Row(pair.case, pair.outcome, pair.detail)


class _Timing:
    """Times the blocks of an interim analysis."""

    def __init__(self, device: PairingDevice, seed: int, plan: PairPlan, step: Callable[[str], None]) -> None:
        self._device, self._seed, self._plan, self._step = device, seed, plan, step

    def look(self, base: Case, case: Case, salt: str, first: int, blocks: int) -> PairedSamples:
        orders = stretch(self._seed, f"{salt}/{case.id}", first, blocks).orders
        try:
            return self._device.pair(base, case, replace(self._plan, orders=orders))
        finally:
            self._step(f"{'control ' * (salt == CONTROL)}{case.id}")


def _judged(
    timing: _Timing,
    pairs: Sequence[Pair],
    rule: Rule,
    salt: str,
    late: Callable[[], bool] = lambda: False,
) -> list[Row]:
    by_id = {pair.case.id: pair for pair in pairs}
    looks: dict[str, list[PairedSamples]] = {case: [] for case in by_id}
    errors: dict[str, DeviceError] = {}
    left_out: set[str] = set()

    def more(case: str, look: int) -> tuple[Sequence[float], float] | None:
        if not look and late():
            left_out.add(case)
            return None
        pair = by_id[case]
        assert pair.base is not None
        try:
            added = timing.look(pair.base, pair.case, salt, *rule.blocks_of(look))
        except DeviceError as error:
            errors[case] = error
            return None
        looks[case].append(added)
        return added.log_ratios, total(looks[case]).resolution

    found = decide(list(by_id), more, rule, late)
    return [
        Row(pair.case, NO_PAIR, "no time was left")
        if case in left_out
        else _row(pair.case, found.get(case), tuple(looks[case]), errors.get(case))
        for case, pair in by_id.items()
    ]


def _row(
    case: Case, finding: Finding | None, looks: tuple[PairedSamples, ...], error: DeviceError | None
) -> Row:
    if error is not None:
        return Row(case, failed_beside(error.code), f"{error.code}: {error}", None, looks)
    samples = total(looks)
    if finding is None:
        detail = (
            f"{len(samples.blocks)} complete blocks, {samples.discarded} launches were discarded because of "
            "a "
            "throttled clock; let the GPU cool down and run it again"
        )
        return Row(case, UNDECIDED, detail, None, looks)
    detail = ""
    if finding.kind is PairedKind.AMBIGUOUS:
        low, high = finding.interval
        detail = f"after {finding.blocks} blocks still between {100 * low:+.2f} % and {100 * high:+.2f} %"
    return Row(case, outcome_of(finding.kind), detail, finding, looks)
