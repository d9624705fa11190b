"""From the evidence on a timed case to its verdict: judged while it grows, stored, judged again. Pure.

The code's speed is judged by a pair alone (`paired`), the machine's once a run (`machine`): the same binary
cannot have changed its speed. What a run's JSON contains of a case is sufficient for the same verdict, even
if kernels have been renamed or removed since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel

from gemm_regression.judge.paired import LIBRARY, NOT_PAIRED, SAME_BINARY, Paired
from gemm_regression.judge.vocabulary import (
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    Observation,
    Policy,
    Reference,
    Verdict,
    VerdictKind,
)

MIN_SAMPLES = 5  # fewer rounds give no meaningful median


def unusable(o: Observation) -> Verdict | None:
    """The verdict on a measurement that says nothing, or None."""
    if any(not (0 < s < math.inf) for s in o.seconds):
        return Verdict(VerdictKind.AMBIGUOUS, "IMPOSSIBLE_SAMPLE")
    if len(o.seconds) < MIN_SAMPLES:
        return Verdict(VerdictKind.AMBIGUOUS, "TOO_FEW_SAMPLES")
    return None


def is_baselines(o: Observation, reference: Reference) -> bool:
    """Whether our code is the baseline's: the same binary, launched in the same way, or a library's."""
    if o.library:
        return True
    same = o.cubin_sha256 is not None and o.cubin_sha256 == reference.cubin_sha256
    if reference.launch_id and o.launch_id:
        return same and o.launch_id == reference.launch_id
    return same and reference.launch == o.launch


def judge(
    o: Observation | None,
    reference: Reference | None,
    policy: Policy,
    paired: Paired | None = None,
    *,
    stored: bool = True,
) -> Verdict:
    """The verdict on a case that ran: observed, and where its binary is not the baseline's, paired with it.
    ``stored`` False: this GPU has no baseline at all."""
    if o is None or (paired and paired.change is None):
        assert paired is not None
        return Verdict(*paired.outcome, baseline_gflops=reference.gflops if reference else None)
    if verdict := unusable(o):
        return verdict
    if reference is None:
        missing = Verdict(VerdictKind.NO_BASELINE, NOT_IN_BASELINE if stored else NO_BASELINE_FILE)
        return replace(missing, gflops=o.gflops)
    if paired is None:
        outcome = LIBRARY if o.library else SAME_BINARY if is_baselines(o, reference) else NOT_PAIRED
        verdict = Verdict(*outcome, baseline_gflops=reference.gflops)
        change = reference.median_s / o.median - 1
    else:
        assert paired.change is not None
        verdict = Verdict(
            *paired.outcome, margin=paired.needed or paired.margin, baseline_gflops=reference.gflops
        )
        change = 1 / (1 + paired.change) - 1
    verdict = replace(verdict, change=change, gflops=o.gflops)
    for check in policy.compare_fail:
        if exceeded := check.exceeded(o.seconds, reference.stats):
            return replace(verdict.to(VerdictKind.REGRESSED, "COMPARE_FAIL"), exceeded=exceeded)
    return verdict


def broken(code: str) -> Verdict:
    """The verdict if the device failed, by its error code: WRONG, or CRASHED for everything else."""
    if code == "WRONG":
        return Verdict(VerdictKind.WRONG, "OUTPUT")
    return Verdict(VerdictKind.CRASHED, code)


@dataclass(frozen=True)
class Evidence:
    """What is known of a case to be judged.

    Attributes:
        seen: its measurement; of a pair, the new side's; None if nothing was timed.
        reference: the case in the baseline; None if it is not there.
        stored: whether this GPU has a baseline.
        paired: the result of the pair with the baseline's binary, if the case has another one.
        error: code and text of a failure of the device.
    """

    seen: Observation | None = None
    reference: Reference | None = None
    stored: bool = True
    paired: Paired | None = None
    error: tuple[str, str] | None = None


def conclude(e: Evidence, policy: Policy) -> Verdict:
    """The verdict on everything known so far."""
    if e.error:
        return broken(e.error[0])
    return judge(e.seen, e.reference, policy, e.paired, stored=e.stored)


# Stored with a run

UNUSABLE = (
    "gemm_unusable"  # next to pytest-benchmark's "benchmarks", which can contain only cases with samples
)
MACHINES = "gemm_machines"  # the verdict on each GPU's machine, by the number of the GPU


def recorded(e: Evidence, policy: Policy) -> dict[str, Any]:
    """The evidence as a JSON object, without the samples that pytest-benchmark stores itself."""
    reference = e.reference and asdict(e.reference)
    if reference and not policy.compare_fail:
        reference["stats"] = {}
    return {
        "policy": asdict(policy),
        "stored": e.stored,
        "baseline": reference,
        "measured": e.seen and {name: getattr(e.seen, name) for name in _Measured.model_fields},
        "paired": e.paired and asdict(e.paired),
        "error": e.error and list(e.error),
    }


class _Measured(BaseModel, extra="forbid"):
    flop: float
    launch: str
    library: bool
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    clock_event_reasons: int
    throttled: bool
    l2: str
    duty: float
    cubin_sha256: str | None
    launch_id: str
    choice: str


class _Recorded(BaseModel, extra="forbid"):
    """The evidence in a run's JSON."""

    policy: Policy
    stored: bool
    baseline: Reference | None
    measured: _Measured | None
    paired: Paired | None
    error: tuple[str, str] | None


class _Info(BaseModel):
    case: str
    evidence: _Recorded
    seconds: tuple[float, ...]


def recall(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Evidence, Policy]:
    """The evidence and the policy, from a stored case and the samples of its measurement. Raises pydantic's
    ValidationError if it is not what a run stores."""
    given = _Info.model_validate({**info, "seconds": seconds})
    e = given.evidence
    measured = e.measured
    seen = Observation(given.case, seconds=given.seconds, **measured.model_dump()) if measured else None
    evidence = Evidence(seen, e.baseline, e.stored, e.paired and e.paired.again(), e.error)
    return evidence, e.policy


def again(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Verdict, Policy]:
    """The verdict on stored evidence, and its policy. Raises as `recall`."""
    evidence, policy = recall(info, seconds)
    return conclude(evidence, policy), policy
