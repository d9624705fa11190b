"""From timed cases to verdicts, and to their records in the run's JSON: time what is the baseline's, pair
what has changed. And the verdict on each machine, by its health before anything is timed and by how the
baseline's own binaries do.

Knows neither pytest nor CUDA, only GPUs that can `time` and `pair`, baselines and a policy."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from gemm_regression.baselines import Baseline, BaselineEntry, BaselineError, binary, gpu_slug, provenance
from gemm_regression.compiler.nvcc import core_of
from gemm_regression.compiler.tools import arch
from gemm_regression.counters.traffic import TrafficData
from gemm_regression.devices import DeviceError, Gpu
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.evidence import MIN_SAMPLES, Evidence, conclude, is_baselines, recorded, unusable
from gemm_regression.judge.machine import Health, MachineVerdict, Settings, Shift, judge_machine
from gemm_regression.judge.vocabulary import BINARY_NOT_KEPT, Observation, Paired, Policy, Reference, Verdict
from gemm_regression.model import Case, Problem
from gemm_regression.run.pairing import ComparedCase, Pair, Pairing
from gemm_regression.timing.bounds import Level, Roofs, bound, roofs_of, shares
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import TIMING, Measurement, PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples

# What the judge sees of a measurement, and what a run's JSON has of it.
_SEEN = ("seconds", "sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons", "l2", "duty")
_RECORDED = (*_SEEN[1:], "spread", "cublas_ratio", "discarded", "throttled")
_RESOURCES = ("registers", "shared_bytes", "local_bytes", "cubin_sha256")


@dataclass(frozen=True)
class TimedCase:
    """A case, its verdict and what that is based on.

    Attributes:
        case: the case.
        verdict: its verdict.
        evidence: everything the verdict is based on.
        policy: the run's policy.
        measurement: of a pair, the new side's; None if nothing was timed.
    """

    case: Case
    verdict: Verdict
    evidence: Evidence = field(default_factory=Evidence)
    policy: Policy = field(default_factory=Policy)
    measurement: Measurement | None = None

    @property
    def cublas_ratio(self) -> float | None:
        return self.measurement.cublas_ratio if self.measurement and self.usable else None

    @property
    def usable(self) -> bool:
        """Whether there are enough samples, all of them valid durations."""
        return self.measurement is not None and self.verdict.gflops is not None


def _changed(case: Case, mine: StoredBinary | None, reference: Reference) -> bool:
    return mine is not None and not is_baselines(observation(case, None, mine), reference)


def observation(case: Case, m: Measurement | None, mine: StoredBinary | None = None) -> Observation:
    """The part of a measurement that the judge uses; without one, what is known of the case before."""
    of_binary: dict[str, Any] = {"cubin_sha256": mine.sha256, "launch_id": mine.launch_id} if mine else {}
    timed = {name: getattr(m, name) for name in _SEEN} if m else {}
    return Observation(case.work, launch=str(case.launch), library=case.kernel.library, **of_binary, **timed)


def usable_shift(result: TimedCase) -> bool:
    """Whether a case says something of the machine: the baseline's own binary, timed as the baseline was."""
    e = result.evidence
    if not (e.seen and e.reference) or e.paired or unusable(e.seen):
        return False
    alike = (e.seen.l2, e.seen.duty) == (e.reference.l2, e.reference.duty)
    return alike and is_baselines(e.seen, e.reference)


# The GPUs of a run


@dataclass(eq=False)
class Board:
    """One GPU of a run.

    Attributes:
        number: which of the visible GPUs, from 0.
        gpu: the device.
        baseline: what its cases are compared with; None without one.
        measured: all that was stored of its model when the run began, oldest first.
        root: the folder of the baselines; ``binary``: reads that of an entry there, or raises BaselineError.
        pairing: of the run so far; None before the first pair.
        health: what it could do before anything was timed, as `Gpu.health`; empty where that failed.
        busy: lists other processes on the GPU, if that matters; ``visitors``: all that it named.
        verified, timed: the cases that can run on it, by id.
    """

    number: int
    gpu: Gpu
    baseline: Baseline | None = None
    measured: Sequence[Baseline] = ()
    root: Path = Path()
    binary: Callable[[Path, BaselineEntry], StoredBinary] = binary
    pairing: Pairing | None = None
    health: Mapping[str, Any] = field(default_factory=dict)
    busy: Callable[[], Sequence[str]] = tuple
    visitors: dict[str, None] = field(default_factory=dict)
    verified: dict[str, Case] = field(default_factory=dict)
    timed: dict[str, Case] = field(default_factory=dict)
    _looking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def slug(self) -> str:
        """The folder of its model in baselines/."""
        return gpu_slug(self.gpu.info.name)

    @property
    def label(self) -> str:
        """``1, board 4173df1b``."""
        board = self.gpu.info.board
        return f"{self.number}, board {board}" if board else str(self.number)

    def answers(self) -> bool:
        """Whether a process on it starts, and answers."""
        try:
            self.gpu.start()
            self.gpu.facts()  # which are told at the end, when the process is gone
        except DeviceError:
            return False
        return True

    def machine(self) -> dict[str, Any]:
        """The GPU, its settings, and the versions of the software."""
        return provenance.machine_of(self.gpu)

    def has_stored(self, name: str) -> bool:
        """Whether a case is legal here, and in the baseline."""
        return name in self.timed and self.baseline is not None and self.baseline.entry(name) is not None

    def look_at_health(self) -> None:
        """What the GPU can do before anything is timed, once, whoever asks meanwhile; one that cannot tell
        fails with its first case."""
        with self._looking, contextlib.suppress(DeviceError):
            self.health = self.health or self.gpu.health()

    def look_for_visitors(self) -> None:
        self.visitors.update(dict.fromkeys(self.busy()))

    def changed(self, names: Collection[str]) -> set[str]:
        """Those of the cases of these ids that have to be paired: their binary or launch is not the
        baseline's."""
        found = set()
        for name in (name for name in names if self.has_stored(name)):
            entry = self.baseline.entry(name) if self.baseline else None
            with contextlib.suppress(DeviceError):  # told when it is timed
                mine = self.gpu.binary(self.timed[name])
                if entry and _changed(self.timed[name], mine, entry.reference):
                    found.add(name)
        return found

    def judge(
        self,
        cases: Iterable[Case],
        done: Callable[[TimedCase], None],
        policy: Policy,
        plan: Plan,
        says: Callable[[str], None] = lambda what: None,
        judging: bool = True,
        pairs: int = 1,
    ) -> None:
        """Times cases, and compares them with the baseline if ``judging``; a failure of the GPU becomes a
        verdict, not an exception. ``done`` is told the results, those of pairs when a case is timed alone or
        none is left, and ``says`` what is done meanwhile; ``pairs``: how many of all of the run's cases have
        to be paired, on whichever GPU.

        A case is taken from ``cases`` when the GPU is free for it, so that several GPUs can share them; one
        that was chosen, and was measured before under its own name, has that measurement.
        """
        if self.pairing is None:
            self.pairing = Pairing(self.gpu, SequentialTest(), pairs, plan=PairPlan((), l2=plan.l2))
        baseline = self.baseline if judging else None
        measured: dict[tuple[str, Problem], Measurement] = {}
        paired: dict[str, list[tuple[Case, Reference, StoredBinary]]] = {}
        same, known = dict[object, str](), dict[str, ComparedCase]()
        left, alone = iter(cases), list[tuple[Case, Reference | None, StoredBinary | None]]()

        def concluded(case: Case, e: Evidence, m: Measurement | None = None) -> None:
            done(TimedCase(case, conclude(e, policy), e, policy, m))

        def pair_of(case: Case) -> Pair | None:
            """With the baseline's binary; None where it needs none, or another's is its own."""
            entry = baseline.entry(case.id) if baseline else None
            reference = entry.reference if entry else None
            try:
                mine = self.gpu.binary(case)
                if entry is None or reference is None or not _changed(case, mine, reference):
                    alone.append((case, reference, mine))
                    return None
                base = self.binary(self.root, entry)
            except DeviceError as error:
                concluded(case, Evidence(None, reference, error=(error.code, str(error))))
            except BaselineError as error:
                nothing = Paired(*BINARY_NOT_KEPT, detail=str(error))
                concluded(case, Evidence(None, reference, paired=nothing))
            else:
                assert mine is not None  # a library has not changed
                margin, capability = policy.margin_of(entry.margin), self.gpu.info.capability
                first = same.setdefault((base.key, mine.key, margin), case.id)
                paired.setdefault(first, []).append((case, reference, mine))
                if first == case.id:
                    return Pair.on(capability, case, base, margin, entry.commit, entry.median_s)
                if first in known:  # else it is told with it
                    tell(known[first])
            return None

        def changed() -> Iterator[Pair]:
            """Up to a case that is timed alone, before which those are done in both processes."""
            for case in left:
                if pair := pair_of(case):
                    says(f"{case.id} beside the baseline's binary")
                    yield pair
                    self.look_for_visitors()
                if alone:
                    return

        def tell(timed: ComparedCase) -> None:
            for case, reference, mine in paired.pop(timed.case.id):
                m = self._new_side(case, plan, timed.samples) if timed.samples.blocks else None
                seen = observation(case, m, mine) if m else None
                concluded(case, Evidence(seen, reference, paired=timed.paired), m)

        def time_alone(case: Case, reference: Reference | None, mine: StoredBinary | None) -> None:
            says(case.id)
            place = case.variant, case.problem
            try:
                m = measured.get(place) if case.chosen_for else None
                m = measured[place] = m or self.gpu.time(case, plan)
            except DeviceError as error:
                concluded(case, Evidence(None, reference, error=(error.code, str(error))))
                return
            self.look_for_visitors()
            concluded(case, Evidence(observation(case, m, mine), reference, baseline is not None), m)

        while True:
            for timed in self.pairing.all(changed()):
                known[timed.case.id] = timed
                tell(timed)
            if not alone:
                return
            time_alone(*alone.pop())

    def _new_side(self, case: Case, plan: Plan, samples: PairedSamples) -> Measurement:
        """What was timed of the new binary: alone, if that is enough, else beside the baseline's."""
        clocks = tuple(mhz for block in samples.blocks for mhz in block.b_mhz)
        beside = tuple(s for block in samples.blocks for s in block.b)
        resources = None
        with contextlib.suppress(DeviceError):  # it cannot tell any more, which says nothing of the pair
            resources = self.gpu.resources(case)
        return Measurement(
            seconds=samples.warm if len(samples.warm) >= MIN_SAMPLES else beside,
            reference_seconds=(),
            resources=resources,
            sm_clock_mhz=median([mhz for mhz in clocks if mhz == mhz] or [0.0]),
            power_w=0.0,
            temperature_c=0.0,
            clock_event_reasons=samples.reasons,
            discarded=samples.discarded,
            throttled=False,
            l2=plan.l2,
            duty=case.kernel.duty,
            extra={"gpu_seconds": round(samples.gpu_seconds, 4)},
        )


_BOUNDS = {Level.DRAM: "dram", Level.L2: "l2"}


def judge_board(board: Board, results: Iterable[TimedCase], known: TrafficData) -> MachineVerdict:
    """The verdict on the machine of one GPU by the cases that it timed; ``known``: how much they move."""
    machine = board.machine()
    probes = {name: value for name, value in board.health.items() if isinstance(value, Mapping)}
    now = Health.of({**machine, **board.health, "roofs": probes}, board.visitors)
    before = [Health.of(one.machine_info) for one in board.measured]
    roofs = roofs_of({**machine, "roofs": probes or None})
    shifts = [shift_of(board, result, machine, known, roofs) for result in results if usable_shift(result)]
    return judge_machine(now, before, shifts)


def shift_of(
    board: Board, result: TimedCase, machine: Mapping[str, object], known: TrafficData, roofs: Roofs | None
) -> Shift:
    """How a case whose binary has not changed compares with its stored figure."""
    case, seen = result.case, result.evidence.seen
    entry = board.baseline.entry(case.id) if board.baseline else None
    assert seen is not None
    assert entry is not None
    level = None
    if roofs:
        work = known.work(board.slug, case, seen.cubin_sha256)
        level = bound(shares(work, roofs, case.dtype.name, seen.median))
    then, here = entry.machine, board.gpu.info.board
    settings = [(name, then.get(name), machine.get(name)) for name in Settings.model_fields]
    return Shift(
        case=case.id,
        kernel=case.kernel.name,
        dtype=case.dtype.name,
        core=core_of(case.kernel, case.config, case.dtype, arch(board.gpu.info.capability)),
        bound=_BOUNDS.get(level[0], "compute") if level else "latency",
        seconds=entry.median_s,
        log_ratio=math.log(seen.median / entry.median_s),
        noise=entry.noise_floor,
        # Whether this board measured it, timed as it is now.
        own=here is not None and entry.board == here and then.get("timing") == TIMING,
        changed=tuple(n for n, was, is_ in settings if was != is_ and None not in (was, is_)),
    )


# What is recorded


class SampleClock:
    """A timer for pytest-benchmark that replays device samples.

    ``benchmark.pedantic(clock.tick, rounds=len(samples))`` then records exactly those seconds: no host time
    is included, and nothing is calibrated.
    """

    __name__ = "device_clock"  # recorded in pytest-benchmark's JSON

    def __init__(self) -> None:
        self._now = 0.0
        self._samples: list[float] = []

    def load(self, samples: tuple[float, ...]) -> None:
        self._now, self._samples = 0.0, list(reversed(samples))

    def tick(self) -> None:
        # Starting at zero each time keeps microseconds exact, however many seconds have accumulated.
        self._now += self._samples.pop()

    def __call__(self) -> float:
        return self._now


def extra_info(result: TimedCase) -> dict[str, Any]:
    """The record in the run's JSON: what was measured, the verdict, and the evidence to judge it again.

    pytest-benchmark stores the samples of usable cases; those of unusable ones, few or none, are in here.
    """
    m, v, case = result.measurement, result.verdict, result.case
    info: dict[str, Any] = {
        "case": case.id,
        "variant": case.listed.variant,
        **({"chosen": case.choice} if case.choice else {}),
        "flops": case.work,
        **({"unit": unit} if (unit := case.kernel.operation.unit) != "GFLOPS" else {}),
        "verdict": str(v.kind),
        "verdict_reason": v.reason,
        "red": v.failed(result.policy),
        "launch": str(case.launch),
        "evidence": recorded(result.evidence, result.policy),
    }
    if m is None or not result.usable:
        return info | {"seconds": list(m.seconds) if m else []}
    info |= {name: getattr(m, name) for name in _RECORDED}
    info |= {
        "gflops": case.gflops(m.median),
        "median_s": m.median,
        "round_mhz": [round(mhz) if mhz == mhz else None for mhz in m.mhz],  # NaN where unknown
        "change": v.change,
        "margin": v.margin,
        # FLOP per SM clock cycle of the whole GPU; None if the clock is unknown.
        "flop_per_clock": case.flop / (m.median * m.sm_clock_mhz * 1e6) if m.sm_clock_mhz else None,
        **m.extra,
    }
    if m.resources is not None:
        info |= {name: getattr(m.resources, name) for name in _RESOURCES}
    if "sustained_s" in m.extra:
        info["sustained_gflops"] = case.gflops(m.extra["sustained_s"])
    return info
