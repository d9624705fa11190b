"""Everything a verdict is based on, in one place: judged while it grows, stored, judged again. Pure.

`gate.timed` collects the evidence. What a run's JSON contains of a case is sufficient for the same verdict,
even if kernels have been renamed or removed since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator

from harness.model import find_problem
from harness.verdicts.drift import Difference
from harness.verdicts.judge import CONFIRMED, beside, broken, confirm, judge, settle, shared, unpaired
from harness.verdicts.paired import Paired, of_older
from harness.verdicts.vocabulary import Observation, Policy, Reference, Verdict


@dataclass(frozen=True)
class Evidence:
    """What is known of a case to be judged.

    Attributes:
        first: the first measurement; None only with an error.
        reference: the case in the baseline; None if it is not there.
        stored: whether this GPU has a baseline.
        second: the measurement of a new process, to confirm a suspected regression.
        paired: the result of the paired comparison with the baseline's commit.
        differences: what has changed since the baseline was measured.
        others: descriptions of other processes that used the GPU.
        error: code and text of a failure of the device.
    """

    first: Observation | None = None
    reference: Reference | None = None
    stored: bool = True
    second: Observation | None = None
    paired: Paired | None = None
    differences: tuple[Difference, ...] = ()
    others: tuple[str, ...] = ()
    error: tuple[str, str] | None = None

    @property
    def last(self) -> Observation | None:
        """The observation that the verdict is on."""
        return self.second or self.first


def conclude(e: Evidence, policy: Policy) -> Verdict:
    """The verdict on everything known so far, with the policy for the kernel."""
    if e.error:
        return broken(e.error[0])
    verdict = confirmed(e, policy)
    if e.others:
        return shared(verdict)
    if e.paired is not None and policy.pairs:
        verdict = beside(verdict, e.paired)
    if verdict.reason != CONFIRMED or e.second is None or e.reference is None:
        return verdict
    if e.paired is not None and not policy.pairs:
        verdict = settle(verdict, e.paired)
    if verdict.reason != CONFIRMED:
        return verdict
    decisive = any(d.decisive for d in e.differences)
    return unpaired(verdict, e.second, e.reference, decisive=decisive, excuse=not policy.pairs)


def confirmed(e: Evidence, policy: Policy) -> Verdict:
    """The verdict without a paired comparison."""
    if e.first is None:
        raise ValueError("a case that was not measured cannot be judged")
    verdict = judge(e.first, e.reference, policy, stored=e.stored)
    if e.second is None or e.reference is None:
        return verdict
    return confirm(verdict, e.second, e.reference, policy)


# Stored with a run

UNUSABLE = (
    "gemm_unusable"  # next to pytest-benchmark's "benchmarks", which can contain only cases with samples
)
_SEEN = (
    *("sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons", "throttled"),
    *("l2", "duty", "cubin_sha256", "choice"),
)
_OF_BASELINE = (
    *("median_s", "gflops", "noise_floor", "cycle_noise_floor", "cubin_sha256", "choice"),
    *("l2", "duty", "sm_clock_mhz", "launch", "board_spread", "other_board"),
)


def recorded(e: Evidence, policy: Policy) -> dict[str, Any]:
    """The evidence as a JSON object, without the samples that pytest-benchmark stores itself."""
    last, reference = e.last, e.reference
    return {
        "policy": asdict(policy),
        "flop": last.flop if last else 0,
        "library": bool(last and last.library),
        "launch": last.launch if last else "",
        "stored": e.stored,
        "baseline": reference
        and {
            "info": {name: getattr(reference, name) for name in _OF_BASELINE},
            "stats": dict(reference.stats) if policy.compare_fail else {},
        },
        "measured": _seen(last) if last else None,
        "first": _seen(e.first) | {"seconds": list(e.first.seconds)} if e.first and e.second else None,
        "paired": e.paired and asdict(e.paired),
        "differences": [asdict(d) for d in e.differences],
        "others": list(e.others),
        "error": e.error and list(e.error),
    }


def _seen(o: Observation) -> dict[str, Any]:
    return {name: getattr(o, name) for name in _SEEN}


def _policy(given: Any) -> Any:
    """Older versions paired only what was slower than the threshold."""
    return {"pairs": False, **given} if isinstance(given, dict) else given


def _pair(given: Any) -> Any:
    """Converts a pair recorded by an older version to the current form."""
    if not isinstance(given, dict) or "reason" in given:
        return given
    kind, reason = of_older(given["kind"])
    return {name: given[name] for name in ("commit", "change", "interval", "delta")} | {
        "kind": kind,
        "reason": reason,
        "detail": given["text"],
    }


class _Seen(BaseModel):
    sm_clock_mhz: float
    power_w: float
    temperature_c: float
    clock_event_reasons: int
    throttled: bool
    cubin_sha256: str | None
    l2: str = "cold"
    duty: float = 1.0
    choice: str = ""


class _First(_Seen):
    seconds: tuple[float, ...]


class _Baseline(BaseModel):
    info: Reference
    stats: dict[str, Any]


class _Recorded(BaseModel):
    """The evidence in a run's JSON. Older runs store the kernel's own threshold next to the policy, no
    ``flop`` and no ``library``, and differences as text."""

    policy: Annotated[Policy, BeforeValidator(_policy)]
    launch: str
    stored: bool
    baseline: _Baseline | None
    measured: _Seen | None
    first: _First | None
    paired: Annotated[Paired | None, BeforeValidator(_pair)]
    differences: tuple[Difference | str, ...] = ()
    decisive: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    error: tuple[str, str] | None = None
    kernel_threshold: float | None = None
    flop: float | None = None
    library: bool | None = None


class _Info(BaseModel):
    case: str
    variant: str
    evidence: _Recorded
    seconds: tuple[float, ...]


def recall(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Evidence, Policy]:
    """The evidence and the policy for the kernel, from a stored case and the samples of its last measurement.
    Raises pydantic's ValidationError if it is not what a run stores, ValueError for a case id that contains
    no problem."""
    given = _Info.model_validate({**info, "seconds": seconds})
    case, e = given.case, given.evidence
    flop = e.flop
    if flop is None:
        flop = find_problem(case.removeprefix(f"{given.variant}-")).flops
    # Older runs do not store this; a library call has no cubin.
    library = e.library if e.library is not None else not (e.measured and e.measured.cubin_sha256)

    def observation(seen: _Seen | None, samples: tuple[float, ...]) -> Observation | None:
        if seen is None:
            return None
        parts = seen.model_dump(exclude={"seconds"})
        return Observation(case, flop, samples, launch=e.launch, library=library, **parts)

    last = observation(e.measured, given.seconds)
    first = observation(e.first, e.first.seconds) if e.first else None
    reference = replace(e.baseline.info, stats=e.baseline.stats) if e.baseline else None
    evidence = Evidence(
        first or last,
        reference,
        e.stored,
        last if first else None,
        e.paired and e.paired.again(),
        tuple(Difference(d, decisive=d in e.decisive) if isinstance(d, str) else d for d in e.differences),
        e.others,
        e.error,
    )
    return evidence, e.policy.of_kernel(e.kernel_threshold)


def again(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Verdict, Policy]:
    """The verdict on stored evidence, and its policy. Raises as `recall`."""
    evidence, policy = recall(info, seconds)
    return conclude(evidence, policy), policy
