"""Times cases beside what they are compared with, side by side in one process, until each is clear.

Controls vouch for the machine: pairs of one binary with itself, one for each kind of core and size that is
judged. One that fails is repeated in a new process, with the cases that wait for it; if it fails there, too,
those cases alone are not judged. What is slower, or not clear, is timed once more in a second process, which
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gemm_regression.devices import DeviceError, PairingDevice
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.judge.paired import CONTROL_FAILED, MAYBE_SLOWER, Paired, failed_beside
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import Case
from gemm_regression.timing.looks import Estimate, Finding, Rule, conclude, look_until
from gemm_regression.timing.plan import PairPlan
from gemm_regression.timing.samples import PairedSamples, stretch, total

Base = Case | StoredBinary
Group = tuple[str, int]  # what one control vouches for: kind of core, and size
NO_SAMPLES = PairedSamples(())
_SIZES = (50e-6, 500e-6)  # seconds: launches shorter than these have a control of their own


@dataclass(frozen=True)
class Pair:
    """A ``case`` and its ``base``; ``margin``: the slowdown that counts, relative; ``core``: the kind of core
    it runs on; ``seconds``: how long a launch takes, about; ``label``: what the base is, for people; ``new``:
    the binary that is timed for the case, where it is not what the device makes of it."""

    case: Case
    base: Base
    margin: float
    core: str = ""
    seconds: float = 1e-4
    label: str = ""
    new: StoredBinary | None = None

    @property
    def group(self) -> Group:
        return self.core, sum(self.seconds >= size for size in _SIZES)


@dataclass(frozen=True)
class Control:
    """A pair of identical builds of a ``case`` of a ``group``, the ``samples`` and the ``finding``, None if
    it could not be timed, with half of the ``margin`` of the pairs that it vouches for; ``why`` it failed,
    in one line, or empty."""

    case: Case
    group: Group
    finding: Finding | None = None
    samples: PairedSamples = NO_SAMPLES
    why: str = ""
    margin: float = 0.0


@dataclass(frozen=True)
class Timed:
    """A ``pair`` that was timed: ``paired``, what is concluded, and the ``samples`` of the first process."""

    pair: Pair
    paired: Paired
    samples: PairedSamples = NO_SAMPLES


_NOT_YET = Paired(VerdictKind.AMBIGUOUS, "NOT_YET")  # timed, for its control has failed


@dataclass
class Pairing:
    """Pairs of a run on one device.

    Attributes:
        device: times them.
        rule: error probability and looks.
        cases: how many the whole run has to pair, on all of its devices.
        seed: for the random order of the launches.
        plan: everything but that order.
        step: is told each case that is timed.
        controls: every control that was timed.
    """

    device: PairingDevice
    rule: Rule
    cases: int
    seed: int = 0
    plan: PairPlan = field(default_factory=lambda: PairPlan(()))
    step: Callable[[str], None] = lambda what: None
    controls: list[Control] = field(default_factory=list)
    _sound: dict[Group, Control] = field(default_factory=dict)
    _first: list[tuple[Pair, Estimate, PairedSamples]] = field(default_factory=list)
    _waiting: list[Timed] = field(default_factory=list)
    _refused: list[Pair] = field(default_factory=list)
    _done: list[Timed] = field(default_factory=list)
    _process: int = 0

    def time(self, pair: Pair) -> None:
        """Times a pair now; or, where its control has failed, in the next process."""
        if self._control(pair).why:
            self._refused.append(pair)
            self._waiting.append(Timed(pair, _NOT_YET))
            self.device.ahead()
        else:
            self._timed(pair)

    def finish(self) -> list[Timed]:
        """The results of all pairs, each of them once."""
        found: list[Timed] = []
        while True:
            for timed in self._concluded():
                (self._waiting if timed.paired.doubtful else found).append(timed)
            if not self._waiting:
                break
            self.device.restart()
            self._process += 1
            self._sound.clear()
            waiting, self._waiting = self._waiting, []
            for timed in waiting:
                found += self._in_new_process(timed)
        done, self._done = self._done, []
        return [*found, *done]

    def _in_new_process(self, timed: Timed) -> list[Timed]:
        """A pair that waits for one: timed at last, or once more; none if that is not its result yet."""
        pair = timed.pair
        if why := self._control(pair).why:
            if pair in self._refused:
                return [Timed(pair, Paired(*CONTROL_FAILED, detail=why, base=pair.label), timed.samples)]
            self._refused.append(pair)
            self._waiting.append(timed)
        elif timed.paired is _NOT_YET:
            self._timed(pair)
        else:
            return [self._again(timed)]
        return []

    # One pair

    def _look(
        self, pair: Pair, other: Base, settled: Callable[[Estimate], bool], name: str = ""
    ) -> tuple[Estimate | None, PairedSamples]:
        """The estimate of a pair's base beside another after as many looks as it takes, and the samples.
        Raises DeviceError."""
        looks: list[PairedSamples] = []
        plan = replace(self.plan, duty=pair.case.kernel.duty)  # which no binary tells

        def more(look: int) -> tuple[Sequence[float], float]:
            orders = stretch(
                self.seed + self._process, name + pair.case.id, *self.rule.blocks_of(look)
            ).orders
            looks.append(self.device.pair(pair.base, other, replace(plan, orders=orders)))
            return looks[-1].log_ratios, total(looks).resolution

        return look_until(more, settled, self.rule), total(looks)

    def _settled(self, margin: float) -> Callable[[Estimate], bool]:
        return lambda estimate: estimate.p_value(margin) <= self.rule.share(self.cases)

    def _timed(self, pair: Pair) -> None:
        self.step(pair.case.id)
        try:
            estimate, samples = self._look(pair, pair.new or pair.case, self._settled(pair.margin))
        except DeviceError as error:
            said = Paired(*failed_beside(error.code), detail=f"{error.code}: {error}", base=pair.label)
            self._done.append(Timed(pair, said))
            return
        if estimate is None:
            self._done.append(
                Timed(pair, Paired(*MAYBE_SLOWER, detail=_few(samples), base=pair.label), samples)
            )
        else:
            self._first.append((pair, estimate, samples))

    def _concluded(self) -> list[Timed]:
        """What the first processes of the pairs that were timed since the last call say."""
        first, self._first = self._first, []
        estimates = {str(number): estimate for number, (_, estimate, _) in enumerate(first)}
        margins = {str(number): pair.margin for number, (pair, _, _) in enumerate(first)}
        findings = conclude(estimates, margins, self.rule, max(self.cases, len(first)))
        found = []
        for finding, (pair, _, samples) in zip(findings.values(), first, strict=True):
            paired = Paired.of(finding, samples.log_ratios, samples.resolution, pair.margin)
            found.append(Timed(pair, replace(paired, base=pair.label), samples))
        return found

    def _again(self, timed: Timed) -> Timed:
        """A pair in the second process. What cannot be timed there stays as it is."""
        pair = timed.pair
        self.step(f"{pair.case.id} in a second process")
        try:
            _, samples = self._look(pair, pair.new or pair.case, self._settled(pair.margin))
        except DeviceError:
            return timed
        return replace(timed, paired=timed.paired.in_second_process(samples.log_ratios, samples.resolution))

    # Controls

    def _control(self, pair: Pair) -> Control:
        """The control of the pair's group, timed before the first of them in each process."""
        if pair.group not in self._sound:
            control = self._controlled(pair)
            if control is None:
                return Control(pair.case, pair.group)
            self._sound[pair.group] = control
            self.controls.append(control)
        return self._sound[pair.group]

    def _controlled(self, pair: Pair) -> Control | None:
        """The pair's base beside itself; None if it does not run, which the pair itself tells. Judged with
        half the margin, since what the machine adds must be well below it."""
        margin, miss = pair.margin / 2, self.rule.share(self.cases)

        def settled(estimate: Estimate) -> bool:
            return estimate.differs(margin, miss) or estimate.half_width(miss) < margin

        self.step(f"control {pair.case.id}")
        try:
            estimate, samples = self._look(pair, pair.base, settled, "control/")
        except DeviceError:
            return None
        why, finding = "", None
        if estimate is None:
            why = f"no control could be timed: {_few(samples)}"
        else:
            finding = Finding.of(estimate, margin, miss)
            if estimate.differs(margin, miss):
                off = f"{100 * finding.change:+.2f} %"
                why = f"two identical builds of {pair.case.id} differ by {off} in each of two processes"
        return Control(pair.case, pair.group, finding, samples, why, margin)


def _few(samples: PairedSamples) -> str:
    return (
        f"{len(samples.blocks)} complete blocks, {samples.discarded} launches were discarded because of a "
        "throttled clock; let the GPU cool down and run it again"
    )
