"""Verdicts on the evidence of a case: by its binary, or by its pair; the machine is judged elsewhere."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from gemm_regression.judge.evidence import Evidence, conclude, is_baselines
from gemm_regression.judge.vocabulary import (
    BINARY_NOT_KEPT,
    CompareFail,
    Observation,
    Paired,
    Policy,
    Reference,
    VerdictKind,
    failed_beside,
    red,
)
from gemm_regression.timing.looks import Estimate, PairFinding

REFERENCE = Reference(0.01, 1000.0, "a" * 64, "grid 1", "f" * 16, stats={"median": 0.01, "min": 0.0099})
SEEN = Observation(1e10, (0.01,) * 9, "grid 1", cubin_sha256="a" * 64, launch_id="f" * 16)
NEW = dataclasses.replace(SEEN, cubin_sha256="b" * 64)


def paired(change: float, spread: float = 0.0005, margin: float = 0.005) -> Paired:
    blocks = [math.log1p(change) + spread * sign for sign in (1, -1) * 6]
    finding = PairFinding.of(Estimate.of(blocks), margin, 1e-4)
    return Paired.of(finding, blocks, 0.0, margin)


@pytest.mark.parametrize("times", [0.5, 1.0, 1.3, 100.0])
@pytest.mark.parametrize("clock", [300.0, 1980.0])
def test_the_same_binary_cannot_have_changed_its_speed(times: float, clock: float) -> None:
    o = dataclasses.replace(SEEN, seconds=(0.01 * times,) * 9, sm_clock_mhz=clock)
    verdict = conclude(Evidence(o, REFERENCE), Policy())
    assert verdict.outcome == ("PASS", "SAME_BINARY")
    assert verdict.change == pytest.approx(1 / times - 1)


@pytest.mark.parametrize("other", [{"cubin_sha256": "b" * 64}, {"launch_id": "e" * 16}])
def test_another_binary_or_launch_is_another_code(other: dict[str, Any]) -> None:
    assert not is_baselines(dataclasses.replace(SEEN, **other), REFERENCE)
    assert is_baselines(SEEN, REFERENCE)


def test_an_older_entry_knows_its_launch_as_text() -> None:
    older = dataclasses.replace(REFERENCE, launch_id="")
    assert is_baselines(SEEN, older)
    assert not is_baselines(dataclasses.replace(SEEN, launch="grid 2"), older)
    nothing = dataclasses.replace(older, cubin_sha256=None)
    assert not is_baselines(dataclasses.replace(SEEN, cubin_sha256=None), nothing)


@pytest.mark.parametrize(
    ("change", "spread", "outcome", "failed"),
    [
        (0.02, 0.0005, ("REGRESSED", "SLOWER"), True),
        (0.005, 0.0005, ("AMBIGUOUS", "MAYBE_SLOWER"), True),
        (0.0, 0.0005, ("PASS", "NOT_SLOWER"), False),
        (-0.005, 0.0005, ("PASS", "NOT_SLOWER"), False),
        (-0.02, 0.0005, ("IMPROVED", "FASTER"), False),
        (0.0, 0.05, ("AMBIGUOUS", "MAYBE_SLOWER"), True),
        (-0.005, 0.004, ("PASS", "NOT_SLOWER"), False),  # perhaps faster than the margin, perhaps not
    ],
)
def test_a_pair_alone_judges_another_binary(
    change: float, spread: float, outcome: tuple[str, str], failed: bool
) -> None:
    verdict = conclude(Evidence(NEW, REFERENCE, paired=paired(change, spread)), Policy())
    assert verdict.outcome == outcome
    assert verdict.failed(Policy(allow_no_baseline=True, fail_on_drift=False)) is failed
    assert verdict.change == pytest.approx(1 / (1 + change) - 1, abs=1e-4)
    assert verdict.margin == 0.005


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        (Evidence(SEEN, None), ("NO_BASELINE", "NOT_IN_BASELINE")),
        (Evidence(SEEN, None, stored=False), ("NO_BASELINE", "NO_BASELINE_FILE")),
        (Evidence(None, REFERENCE, paired=Paired(*BINARY_NOT_KEPT)), ("NO_BASELINE", "BINARY_NOT_KEPT")),
        (Evidence(None, REFERENCE, paired=Paired(*failed_beside("HANG"))), ("CRASHED", "HANG")),
        (Evidence(None, REFERENCE, paired=Paired(*failed_beside("WRONG"))), ("WRONG", "OUTPUT")),
        (
            Evidence(None, REFERENCE, paired=Paired(*failed_beside("BASE_HANG"))),
            ("AMBIGUOUS", "BASE_UNUSABLE"),
        ),
        (Evidence(None, REFERENCE, error=("ILLEGAL_ADDRESS", "at 0")), ("CRASHED", "ILLEGAL_ADDRESS")),
        (Evidence(NEW, REFERENCE), ("AMBIGUOUS", "NOT_PAIRED")),
        (Evidence(dataclasses.replace(SEEN, launch_id="e" * 16), REFERENCE), ("AMBIGUOUS", "NOT_PAIRED")),
        (Evidence(dataclasses.replace(SEEN, seconds=()), None), ("AMBIGUOUS", "TOO_FEW_SAMPLES")),
        (Evidence(dataclasses.replace(SEEN, seconds=(0.0,) * 9), None), ("AMBIGUOUS", "IMPOSSIBLE_SAMPLE")),
    ],
)
def test_what_cannot_be_judged_fails(evidence: Evidence, outcome: tuple[str, str]) -> None:
    verdict = conclude(evidence, Policy())
    assert verdict.outcome == outcome
    assert verdict.failed(Policy())
    assert red(verdict.outcome)


def test_allowances() -> None:
    new = conclude(Evidence(SEEN, None), Policy())
    assert not new.failed(Policy(allow_no_baseline=True))
    assert new.kind is VerdictKind.NO_BASELINE


@pytest.mark.parametrize(
    ("run", "own", "expected"), [(None, None, 0.005), (None, 0.01, 0.01), (0.002, 0.01, 0.002)]
)
def test_the_margin_that_judges(run: float | None, own: float | None, expected: float) -> None:
    assert Policy(margin=run).margin_of(own) == expected


def test_the_users_own_check_holds_besides() -> None:
    check = CompareFail("median", percent=5)
    slow = dataclasses.replace(SEEN, seconds=(0.0106,) * 9)
    verdict = conclude(Evidence(slow, REFERENCE), Policy(compare_fail=(check,)))
    assert verdict.outcome == ("REGRESSED", "COMPARE_FAIL")
    assert verdict.exceeded is not None
    assert verdict.exceeded.check == check
    assert conclude(Evidence(SEEN, REFERENCE), Policy(compare_fail=(check,))).outcome == (
        "PASS",
        "SAME_BINARY",
    )
