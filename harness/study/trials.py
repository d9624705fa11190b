"""Planted slowdowns of known size, timed as the gate times and as the paired comparison does.

The slowdown is a kernel that counts SM cycles (``spin`` in probe.cu), launched after the kernel within the
same timed interval. At size 0 it is launched too, with nothing to count, so that both sides differ by the
cycles only. Its true size is the cycles counted, divided by the SM clock and by the time without it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from random import Random
from typing import Any

from harness.baselines.entries import cycle_noise_floor, noise_floor
from harness.devices import DeviceError, Gpu
from harness.model import Case
from harness.study.ladder import case_of
from harness.study.raw import SCHEMA, StudyError, clocks, seconds, ticks
from harness.timing.interval import PairedKind
from harness.timing.looks import Finding, Rule, decide
from harness.timing.measurement import Measurement
from harness.timing.plan import PairPlan, Plan
from harness.timing.samples import Block, PairedSamples
from harness.timing.schedule import stretch
from harness.verdicts.evidence import Evidence, conclude
from harness.verdicts.judge import confirm, judge
from harness.verdicts.paired import UNDECIDED, Paired, outcome_of
from harness.verdicts.vocabulary import Observation, Policy, Reference, Verdict, VerdictKind

SIZES = (0.0, 0.0025, 0.005, 0.01, 0.02, 0.05)
MARGINS = (0.0025, 0.005)  # of the paired comparison, on the same blocks
ERROR = 0.01  # error probability of a run of the paired comparison, divided among the cases below
BASELINE_RUNS = 5
# 9 µs to 20 ms, on CUDA cores and tensor cores. Few different K, since each needs a pool of random numbers.
CASES = (
    "tiled-f32-tile32-pad0-256x256x128",
    "naive-f32-block32x32-256x256x256",
    "wmma-bf16-tile128x128x32-warp64x32-1024x1024x1024",
    "double_buffered-f32-tile128x128x16-thread8x8-pad4-stages2-1024x1024x1024",
    "naive-f32-block32x32-1024x1024x1024",
    "wmma-f16-tile128x128x32-warp64x32-2048x2048x2048",
    "warp_tiled-f32-tile256x128x8-warp64x64-thread16x8-stages4-4096x4096x4096",
    "naive-f32-block32x32-4096x3072x4096",
)
Record = dict[str, Any]


# What decides, here and in the report


def rule(margin: float) -> Rule:
    """The paired comparison's rule for one case of such a run, with its share of the error probability."""
    return Rule(delta=margin, error=ERROR / len(CASES))


def reference(case: Case, stored: Mapping[str, Any]) -> Reference:
    """What a case is compared with, as if from another build, so that a slowdown is a regression, not
    drift. Older files have no clocks of the processes: there seconds are all."""
    medians = stored["medians"]
    median = statistics.median_low(medians)
    floors = noise_floor(medians), cycle_noise_floor(medians, stored.get("clocks_mhz", ()))
    clock = stored["mhz"] if floors[1] is not None else None
    return Reference(median, case.gflops(median), *floors, sm_clock_mhz=clock)


def policy(case: Case) -> Policy:
    """The gate's policy for a case, without command-line options."""
    return Policy().of_kernel(case.kernel.threshold)


def gate_verdict(
    case: Case,
    stored: Mapping[str, Any],
    runs: Sequence[Mapping[str, Any]],
    paired: Paired,
) -> Verdict:
    """The gate's verdict on a case of another binary than its baseline's: from a measurement, its repetition
    in a new process if it was slower, and the paired comparison with the baseline's commit."""
    first, *again = (_observation(case, run) for run in runs)
    evidence = Evidence(first, reference(case, stored), second=again[0] if again else None, paired=paired)
    return conclude(evidence, policy(case))


def gate_pair(looks: Sequence[Mapping[str, Any]], margin: float) -> Paired:
    """The gate's paired comparison, in one process."""
    finding = pair_finding(looks, margin)
    if finding is None:
        return Paired(*UNDECIDED, delta=margin)
    return Paired(
        *outcome_of(finding.kind),
        change=finding.change,
        interval=finding.interval,
        delta=margin,
        log_ratios=log_ratios(looks[: finding.look + 1]),
        resolution=looks[finding.look]["resolution"],
        miss=finding.miss,
    )


def log_ratios(looks: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """Those of all blocks."""
    return tuple(ratio for look in looks for ratio in look["log_ratios"])


def alone_verdict(case: Case, stored: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict by the baseline alone, where no pair is possible: on one measurement, or on one and its
    repetition in a new process."""
    base, rules = reference(case, stored), policy(case)
    verdict = judge(_observation(case, runs[0]), base, rules)
    if len(runs) == 1:
        return verdict
    return confirm(verdict, _observation(case, runs[1]), base, rules)


def pair_finding(looks: Sequence[Mapping[str, Any]], margin: float) -> Finding | None:
    """What the paired comparison concludes from these interim analyses; None if there are too few blocks."""

    def more(case: str, look: int) -> tuple[Sequence[float], float]:
        return looks[look]["log_ratios"], looks[look]["resolution"]

    whole = rule(margin)
    taken = replace(whole, looks=len(looks), error=whole.error_of_a_look * len(looks))
    return decide(["case"], more, taken).get("case")


def _decided(looks: Sequence[Mapping[str, Any]], margin: float) -> bool:
    finding = pair_finding(looks, margin)
    return finding is not None and finding.kind is not PairedKind.AMBIGUOUS


def _observation(case: Case, run: Mapping[str, Any]) -> Observation:
    return Observation(
        case.id,
        case.flop,
        seconds(run["samples"]),
        library=case.kernel.library,
        sm_clock_mhz=run["mhz"],
        throttled=run["throttled"],
    )


# On the GPU


def head(
    device: Gpu,
    ids: Sequence[str],
    about: Mapping[str, Any],
    step: Callable[[str], None] = lambda what: None,
) -> Record:
    """The header of a study. In place of a stored baseline: for each case the medians of five processes at
    size 0, and the samples of the middle one. ``step`` is called for each case of each process."""
    found = [case_of(text, device.info.capability) for text in ids]
    runs: list[list[Measurement]] = []
    for _ in range(BASELINE_RUNS):
        device.restart()
        runs.append([])
        for case in found:
            runs[-1].append(device.time(case, Plan(spin=0)))
            device.ahead()
            step(case.id)
    baseline = {case.id: _stored([run[i] for run in runs]) for i, case in enumerate(found)}
    return {"study": SCHEMA, **about, "baseline": baseline}


def _stored(runs: Sequence[Measurement]) -> Record:
    medians = [float(f"{m.median:.7g}") for m in runs]
    middle = runs[medians.index(statistics.median_low(medians))]
    cubin = middle.resources.cubin_sha256 if middle.resources else None
    known = {"clocks_mhz": [m.sm_clock_mhz for m in runs]} if all(m.sm_clock_mhz for m in runs) else {}
    return {"medians": medians, **known, **_run(middle), "cubin_sha256": cubin}


def _run(m: Measurement) -> Record:
    return {
        "samples": ticks(m.seconds),
        "clocks": clocks(m.mhz),
        "mhz": m.sm_clock_mhz,
        "throttled": m.throttled,
        "gpu_seconds": m.extra["gpu_seconds"],
    }


def trial(
    device: Gpu,
    baseline: Mapping[str, Mapping[str, Any]],
    number: int,
    cells: Sequence[tuple[str, float]],
    margins: Sequence[float] = MARGINS,
    late: Callable[[], bool] = lambda: False,
) -> list[Record]:
    """One trial of each (case id, size), in randomised order; no other is begun once it is ``late``.

    All in the current worker; suspected regressions again in a new one, which is kept for the next trial. So
    no two measurements of the same case and size share a worker.
    """
    lot = Random(f"order/{number}")
    ids = list(dict.fromkeys(case for case, _ in cells))
    lot.shuffle(ids)
    records, suspected = [], []
    for text in ids:
        case = case_of(text, device.info.capability)
        sizes = [size for of, size in cells if of == text]
        lot.shuffle(sizes)
        for size in sizes:
            if late():
                break
            record = _cell(device, case, baseline[text], size, number, margins)
            device.ahead()
            records.append(record)
            if (
                "error" not in record
                and alone_verdict(case, baseline[text], record["gate"]).kind is VerdictKind.REGRESSED
            ):
                suspected.append((case, record))
    device.restart()
    for case, record in suspected:
        try:
            record["gate"].append(_run(device.time(case, Plan(spin=record["cycles"]))))
        except DeviceError as error:
            record["error"] = f"{error.code}: {error}"
    return records


def _cell(
    device: Gpu,
    case: Case,
    stored: Mapping[str, Any],
    size: float,
    number: int,
    margins: Sequence[float],
) -> Record:
    cycles = round(size * statistics.median_low(stored["medians"]) * stored["mhz"] * 1e6)
    record: Record = {"trial": number, "case": case.id, "size": size, "cycles": cycles}
    try:
        m: Measurement = device.time(case, Plan(spin=cycles))
        if m.resources and m.resources.cubin_sha256 != stored["cubin_sha256"]:
            raise StudyError(
                f"{case.id} compiles to another binary than at the start of the study; start a new file"
            )
        looks = list(_looks(device, case, cycles, size, number, margins))
    except DeviceError as error:
        return record | {"error": f"{error.code}: {error}"}
    return record | {"true": _true(looks[0], stored), "gate": [_run(m)], "looks": _records(looks)}


def _looks(
    device: Gpu, case: Case, cycles: int, size: float, number: int, margins: Sequence[float]
) -> Iterator[PairedSamples]:
    """Interim analyses until each of the margins is decided, at most as many as the rule has.

    A size equal to a margin is neither outside nor inside it, so that margin need not be decided.
    """
    seen: list[PairedSamples] = []
    most = rule(MARGINS[0])
    for look in range(most.looks):
        orders = stretch(number, f"{case.id}/{size}", *most.blocks_of(look)).orders
        seen.append(device.pair(case, case, PairPlan(orders, spin=(0, cycles))))
        yield seen[-1]
        if all(_decided(judged(_records(seen)), margin) for margin in margins if margin != size):
            return


def _records(looks: Sequence[PairedSamples]) -> list[Record]:
    return [
        {
            "blocks": [[ticks(b.a), ticks(b.b), clocks(b.a_mhz), clocks(b.b_mhz)] for b in look.blocks],
            "resolution": float(f"{seen.resolution:.4g}"),
            "discarded": look.discarded,
            "gpu_seconds": round(look.gpu_seconds, 4),
        }
        for look, seen in zip(looks, accumulate(looks), strict=True)
    ]


def judged(looks: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Interim analyses as stored, with the log-ratio of each block."""
    return [
        {
            **look,
            "log_ratios": [Block(seconds(a), seconds(b)).log_ratio for a, b, *_ in look["blocks"]],
        }
        for look in looks
    ]


def _true(look: PairedSamples, stored: Mapping[str, Any]) -> float | None:
    """The planted relative slowdown: the cycles counted in excess of the other side, over the time of A."""
    if look.spun is None or not look.blocks:
        return None
    known = [f for block in look.blocks for f in block.b_mhz if f == f]
    mhz = statistics.median(known) if known else float(stored["mhz"])
    return float(f"{(look.spun[1] - look.spun[0]) / (mhz * 1e6) / look.median('a'):.5g}")
