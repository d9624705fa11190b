"""Times cases beside what they are compared with, side by side in one process, until each is clear.

Controls vouch for the machine: pairs of one binary with itself, one for each kind of core and size that is
judged. One that fails is repeated in a new process, with the cases that wait for it; if it fails there, too,
those cases alone are not judged. What is slower, or not clear, is timed once more in a second process, which
decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from gemm_regression.compiler.nvcc import TENSOR_CORES, core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices import DeviceError, PairingDevice
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import CONTROL_FAILED, MAYBE_SLOWER, Outcome, Paired, failed_beside, red
from gemm_regression.model import Case
from gemm_regression.timing.looks import (
    Estimate,
    PairedKind,
    PairFinding,
    SequentialTest,
    conclude,
    look_until,
)
from gemm_regression.timing.plan import PairPlan
from gemm_regression.timing.samples import PairedSamples, schedule, total

Base = Case | StoredBinary
Group = tuple[str, int]  # what one control vouches for: kind of core, and size
NO_SAMPLES = PairedSamples(())
_SIZES = (50e-6, 500e-6)  # seconds: launches shorter than these have a control of their own
_DOUBTFUL = (PairedKind.SLOWER, PairedKind.AMBIGUOUS)  # in a first process
_FLOPS = {True: 2e14, False: 2e13}  # of tensor cores or CUDA cores, a second


def size_of(seconds: float) -> int:
    """Of a launch that takes so long: which control vouches for it."""
    return sum(seconds >= size for size in _SIZES)


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

    @classmethod
    def on(
        cls,
        capability: tuple[int, int],
        case: Case,
        base: StoredBinary,
        margin: float,
        label: str,
        seconds: float | None = None,
        new: StoredBinary | None = None,
    ) -> Pair:
        """On a GPU of this capability; where ``seconds`` are not known, they are what its cores may take."""
        core = core_of(case.kernel, case.config, case.dtype, arch(capability))
        seconds = case.flop / _FLOPS[core == TENSOR_CORES] if seconds is None else seconds
        return cls(case, base, margin, core, seconds, label, new)

    @property
    def group(self) -> Group:
        return self.core, size_of(self.seconds)


@dataclass(frozen=True)
class Control:
    """A pair of identical builds of a ``case`` of a ``group``, the ``samples`` and the ``finding``, None if
    it could not be timed, with half of the ``margin`` of the pairs that it vouches for; ``why`` it failed,
    in one line, or empty."""

    case: Case
    group: Group
    finding: PairFinding | None = None
    samples: PairedSamples = NO_SAMPLES
    why: str = ""
    margin: float = 0.0


@dataclass(frozen=True)
class ComparedCase:
    """One ``case``: ``paired``, its verdict with the evidence, and the ``samples`` of the first process. Of a
    comparison, the working tree's case, or the base's where it was removed."""

    case: Case
    paired: Paired
    samples: PairedSamples = NO_SAMPLES

    @property
    def outcome(self) -> Outcome:
        return self.paired.outcome

    @property
    def failed(self) -> bool:
        return red(self.outcome)


@dataclass
class _Tried:
    """A ``pair``; what the processes so far ``found``, None before its control was sound in one; whether it
    was ``refused`` in one, because its control failed there."""

    pair: Pair
    found: ComparedCase | None = None
    refused: bool = False


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
    rule: SequentialTest
    cases: int
    seed: int = 0
    plan: PairPlan = field(default_factory=lambda: PairPlan(()))
    step: Callable[[str], None] = lambda what: None
    controls: list[Control] = field(default_factory=list)
    _sound: dict[Group, Control] = field(default_factory=dict)
    _process: int = 0

    def all(self, pairs: Iterable[Pair]) -> list[ComparedCase]:
        """Times pairs, each as it comes; their results, each of them once. What is doubtful, and what had no
        sound control, is timed in another process once all have been."""
        found: list[ComparedCase] = []
        tried: Iterable[_Tried] = map(_Tried, pairs)
        while True:
            first, left = list[tuple[_Tried, Estimate, PairedSamples]](), list[_Tried]()
            for one in tried:
                why = self._control(one.pair).why
                if why and one.refused:
                    failed = Paired(*CONTROL_FAILED, detail=why, base=one.pair.label)
                    found.append(replace(one.found or ComparedCase(one.pair.case, failed), paired=failed))
                elif why:
                    one.refused = True
                    left.append(one)
                    self.device.ahead()
                elif one.found is not None:
                    found.append(self._again(one.pair, one.found))
                elif isinstance(timed := self._timed(one.pair), ComparedCase):
                    found.append(timed)
                else:
                    first.append((one, *timed))
                    if timed[0].conclude(one.pair.margin, self.rule.share(self.cases)) in _DOUBTFUL:
                        self.device.ahead()
            for one, compared in self._concluded(first):
                one.found = compared
                if compared.paired.doubtful:
                    left.append(one)
                else:
                    found.append(compared)
            if not left:
                return found
            tried = left
            self.device.restart()
            self._process += 1
            self._sound.clear()

    # One pair

    def _look(
        self, pair: Pair, other: Base, settled: Callable[[Estimate], bool], name: str = ""
    ) -> tuple[Estimate | None, PairedSamples]:
        """The estimate of a pair's base beside another after as many looks as it takes, and the samples.
        Raises DeviceError."""
        looks: list[PairedSamples] = []
        plan = replace(self.plan, duty=pair.case.kernel.duty)  # which no binary tells
        seed = self.seed + self._process

        def more(look: int) -> tuple[Sequence[float], float]:
            orders = schedule(seed, name + pair.case.id, *self.rule.blocks_of(look)).orders
            looks.append(self.device.pair(pair.base, other, replace(plan, orders=orders)))
            return looks[-1].log_ratios, total(looks).resolution

        return look_until(more, settled, self.rule), total(looks)

    def _look_at(self, pair: Pair) -> tuple[Estimate | None, PairedSamples]:
        share = self.rule.share(self.cases)
        return self._look(pair, pair.new or pair.case, lambda e: e.p_value(pair.margin) <= share)

    def _timed(self, pair: Pair) -> ComparedCase | tuple[Estimate, PairedSamples]:
        """What its first process measures; why that is nothing."""
        self.step(pair.case.id)
        samples = NO_SAMPLES
        try:
            estimate, samples = self._look_at(pair)
        except DeviceError as error:
            said = Paired(*failed_beside(error.code), detail=f"{error.code}: {error}", base=pair.label)
        else:
            if estimate is not None:
                return estimate, samples
            said = Paired(*MAYBE_SLOWER, detail=_few(samples), base=pair.label)
        return ComparedCase(pair.case, said, samples)

    def _concluded(
        self, first: Sequence[tuple[_Tried, Estimate, PairedSamples]]
    ) -> Iterator[tuple[_Tried, ComparedCase]]:
        """What the first processes of pairs say, all of one process together."""
        estimates = {str(number): estimate for number, (_, estimate, _) in enumerate(first)}
        margins = {str(number): one.pair.margin for number, (one, _, _) in enumerate(first)}
        findings = conclude(estimates, margins, self.rule, max(self.cases, len(first)))
        for finding, (one, _, samples) in zip(findings.values(), first, strict=True):
            paired = Paired.of(finding, samples.log_ratios, samples.resolution, one.pair.margin)
            yield one, ComparedCase(one.pair.case, replace(paired, base=one.pair.label), samples)

    def _again(self, pair: Pair, timed: ComparedCase) -> ComparedCase:
        """A pair in the second process. What cannot be timed there stays as it is."""
        self.step(f"{pair.case.id} in a second process")
        try:
            _, samples = self._look_at(pair)
        except DeviceError:
            return timed
        return replace(timed, paired=timed.paired.in_second_process(samples.log_ratios, samples.resolution))

    def _control(self, pair: Pair) -> Control:
        """The control of the pair's group, its base beside itself, timed before the first of them in each
        process; none where it does not run, which the pair itself tells. Judged with half the margin, since
        what the machine adds must be well below it."""
        if found := self._sound.get(pair.group):
            return found
        margin, miss = pair.margin / 2, self.rule.share(self.cases)

        def settled(estimate: Estimate) -> bool:
            return estimate.differs(margin, miss) or estimate.half_width(miss) < margin

        self.step(f"control {pair.case.id}")
        try:
            estimate, samples = self._look(pair, pair.base, settled, "control/")
        except DeviceError:
            return Control(pair.case, pair.group)
        finding, why = None, ""
        if estimate is None:
            why = f"no control could be timed: {_few(samples)}"
        else:
            finding = PairFinding.of(estimate, margin, miss)
            if estimate.differs(margin, miss):
                off = f"{100 * finding.change:+.2f} %"
                why = f"two identical builds of {pair.case.id} differ by {off} in each of two processes"
        control = self._sound[pair.group] = Control(pair.case, pair.group, finding, samples, why, margin)
        self.controls.append(control)
        return control


def _few(samples: PairedSamples) -> str:
    return (
        f"{len(samples.blocks)} complete blocks, {samples.discarded} launches were discarded because of a "
        "throttled clock; let the GPU cool down and run it again"
    )
