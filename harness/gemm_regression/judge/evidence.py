"""From the evidence on a timed case to its verdict: judged while it grows, stored, judged again. Pure.

The code's speed is judged by a pair alone (`Paired`), the machine's once a run (`machine`): the same binary
cannot have changed its speed. What a run's JSON contains of a case is sufficient for the same verdict, even
if kernels have been renamed or removed since.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import BaseModel

from gemm_regression.judge.vocabulary import (
    LIBRARY,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    NOT_PAIRED,
    SAME_BINARY,
    Observation,
    Paired,
    Policy,
    Reference,
    Verdict,
    VerdictKind,
    failed_on_device,
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
    """The verdict on everything known so far: by the case's binary, or by its pair where that is another."""
    o, reference, paired = e.seen, e.reference, e.paired
    if e.error:
        return Verdict(*failed_on_device(e.error[0]))
    if o is None or (paired and paired.change is None):
        assert paired is not None
        return Verdict(*paired.outcome, baseline_gflops=reference.gflops if reference else None)
    if verdict := unusable(o):
        return verdict
    if reference is None:
        reason = NOT_IN_BASELINE if e.stored else NO_BASELINE_FILE
        return Verdict(VerdictKind.NO_BASELINE, reason, gflops=o.gflops)
    if paired is None:
        outcome = LIBRARY if o.library else SAME_BINARY if is_baselines(o, reference) else NOT_PAIRED
        change, margin = reference.median_s / o.median - 1, None
    else:
        assert paired.change is not None
        outcome, margin = paired.outcome, paired.needed or paired.margin
        change = 1 / (1 + paired.change) - 1
    verdict = Verdict(*outcome, change, margin, o.gflops, reference.gflops)
    for check in policy.compare_fail:
        if exceeded := check.exceeded(o.seconds, reference.stats):
            return replace(verdict, kind=VerdictKind.REGRESSED, reason="COMPARE_FAIL", exceeded=exceeded)
    return verdict


# Stored with a run

UNUSABLE = (
    "gemm_unusable"  # next to pytest-benchmark's "benchmarks", which can contain only cases with samples
)
MACHINES = "gemm_machines"  # the verdict on each GPU's machine, by the number of the GPU


def recorded(e: Evidence, policy: Policy) -> dict[str, Any]:
    """The evidence as a JSON object, without the samples that pytest-benchmark stores itself."""
    stats = e.reference.stats if e.reference and policy.compare_fail else {}
    kept = replace(
        e,
        seen=e.seen and replace(e.seen, seconds=()),
        reference=e.reference and replace(e.reference, stats=stats),
    )
    return {"policy": asdict(policy), **asdict(kept)}


class _Recorded(BaseModel):
    """The evidence in a run's JSON, all of it."""

    policy: Policy
    seen: Observation | None
    reference: Reference | None
    stored: bool
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
    seen = e.seen and replace(e.seen, seconds=given.seconds)
    return Evidence(seen, e.reference, e.stored, e.paired and e.paired.again(), e.error), e.policy


def again(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Verdict, Policy]:
    """The verdict on stored evidence, and its policy. Raises as `recall`."""
    evidence, policy = recall(info, seconds)
    return conclude(evidence, policy), policy
