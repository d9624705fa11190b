"""Everything a verdict is based on, in one place: judged while it grows, stored, judged again. Pure.

`gate.timed` collects the evidence. What a run's JSON contains of a case is sufficient for the same verdict,
even if kernels have been renamed or removed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel

from gemm_regression.judge.judge import broken, judge
from gemm_regression.judge.paired import Paired
from gemm_regression.judge.vocabulary import Observation, Policy, Reference, Verdict


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
_SEEN = (
    *("flop", "launch", "library", "sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons"),
    *("throttled", "l2", "duty", "cubin_sha256", "launch_id", "choice"),
)


def recorded(e: Evidence, policy: Policy) -> dict[str, Any]:
    """The evidence as a JSON object, without the samples that pytest-benchmark stores itself."""
    reference = e.reference and asdict(e.reference)
    if reference and not policy.compare_fail:
        reference["stats"] = {}
    return {
        "policy": asdict(policy),
        "stored": e.stored,
        "baseline": reference,
        "measured": e.seen and {name: getattr(e.seen, name) for name in _SEEN},
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
