"""Compares two commits, or two compilers: every case that has changed, beside what it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gemm_regression.devices import PairingDevice
from gemm_regression.judge.paired import (
    CONTROL_FAILED,
    JUDGED,
    NOT_IN_BASE,
    REMOVED,
    SAME_BINARY,
    Paired,
    red,
)
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, Outcome
from gemm_regression.model import Case
from gemm_regression.run.pairing import NO_SAMPLES, Control, Pair, Pairing
from gemm_regression.timing.looks import Rule
from gemm_regression.timing.plan import PairPlan
from gemm_regression.timing.samples import PairedSamples

_NOTHING_TIMED = (SAME_BINARY, NOT_IN_BASE, REMOVED)


@dataclass(frozen=True)
class Row:
    """One ``case``: the working tree's, or the base's where it was removed; ``paired``, its verdict with the
    evidence; and the ``samples`` of the first process."""

    case: Case
    paired: Paired
    samples: PairedSamples = NO_SAMPLES

    @property
    def outcome(self) -> Outcome:
        return self.paired.outcome

    @property
    def failed(self) -> bool:
        return red(self.outcome)


@dataclass(frozen=True)
class Comparison:
    """The result of comparing all pairs.

    Attributes:
        rule: error probability and number of looks.
        seed: for the random order of the launches.
        rows: the cases, in the order of the pairs.
        controls: pairs of identical builds that were timed.
        margin: the slowdown that counts where no kernel declares another.
    """

    rule: Rule
    seed: int
    rows: tuple[Row, ...]
    controls: tuple[Control, ...] = ()
    margin: float = DEFAULT_MARGIN

    @property
    def judged(self) -> int:
        return sum(row.outcome in JUDGED for row in self.rows)

    @property
    def unfit(self) -> bool:
        """Whether nothing that has changed could be judged, because of the machine."""
        changed = [row.outcome for row in self.rows if row.outcome not in _NOTHING_TIMED]
        return bool(changed) and all(outcome == CONTROL_FAILED for outcome in changed)

    @property
    def exit_status(self) -> int:
        """0 everything passed, 1 a case failed or none was judged, 3 nothing that has changed could be
        judged, because controls failed."""
        if self.unfit:
            return 3
        return int(not self.judged or any(row.failed for row in self.rows))


def compare(
    device: PairingDevice,
    pairs: Sequence[Pair | Row],
    rule: Rule,
    seed: int,
    plan: PairPlan,
    busy: Callable[[], list[str]] = list,
    step: Callable[[str], None] = lambda what: None,
    margin: float = DEFAULT_MARGIN,
) -> Comparison:
    """Times the pairs, and judges them; a row says already what is to be said. ``plan``: everything but the
    order of launches; ``busy``: lists other GPU processes; if there are any at the end, nothing is judged."""
    changed = [pair for pair in pairs if isinstance(pair, Pair)]
    pairing = Pairing(device, rule, len(changed), seed, plan, step)
    for pair in changed:
        pairing.time(pair)
    timed = {each.pair.case.id: Row(each.pair.case, each.paired, each.samples) for each in pairing.finish()}
    if others := busy():
        why = f"other processes used the GPU meanwhile: {'; '.join(others)}"
        timed = {
            pair.case.id: Row(pair.case, Paired(*CONTROL_FAILED, detail=why, base=pair.label))
            for pair in changed
        }
    rows = tuple(timed[each.case.id] if isinstance(each, Pair) else each for each in pairs)
    return Comparison(rule, seed, rows, tuple(pairing.controls), margin)
