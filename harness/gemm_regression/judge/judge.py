"""From the evidence on a timed case to its verdict. Pure: no file, no clock, no device, no wording.

The code's speed is judged by a pair alone (`paired`), the machine's once a run (`machine`): the same binary
cannot have changed its speed.
"""

from __future__ import annotations

import math
from dataclasses import replace

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
