"""Each verdict from the samples that call for it, and never a pass for what cannot be judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pynvml
import pytest
from _pytest.mark.expression import Expression
from hypothesis import given
from hypothesis import strategies as st

from harness.baselines.entries import noise_floor
from harness.reports.figures import gflops_text, percent_text
from harness.reports.wording import message, orphans_text
from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import confirm, judge
from harness.verdicts.vocabulary import CompareFail, Policy, Verdict, VerdictKind
from tests.unit import synthetic
from tests.unit.samples import select
from tests.unit.synthetic import NEW, OLD, case, observed, reference

POLICY = Policy()
TILED, CUBLAS = case("tiled"), case("cublas")


def verdict_on(median: float, *, policy: Policy = POLICY, noise: float = 0.0, **more: Any) -> Verdict:
    """Of samples with this median against a stored median of 10 ms."""
    return judge(observed(TILED, median, **more), reference(TILED, 0.01, noise), policy)


def said(median: float, *, policy: Policy = POLICY, **more: Any) -> str:
    """What is told of that verdict."""
    o, stored = observed(TILED, median, **more), reference(TILED)
    return message(judge(o, stored, policy), Evidence(o, stored))


@pytest.mark.parametrize(
    ("median", "kind", "reason"),
    [
        (0.010, "PASS", "WITHIN_THRESHOLD"),
        (0.01009, "PASS", "WITHIN_THRESHOLD"),
        (0.00995, "PASS", "WITHIN_THRESHOLD"),
        (0.01012, "REGRESSED", "SLOWER"),
        (0.0103, "REGRESSED", "SLOWER"),
        (0.0098, "IMPROVED", "FASTER"),
    ],
)
def test_the_change_against_one_percent(median: float, kind: str, reason: str) -> None:
    verdict = verdict_on(median)
    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert verdict.failed(POLICY) == (kind == "REGRESSED")


def test_the_change_is_that_of_gflops_not_of_seconds() -> None:
    verdict = verdict_on(0.02)
    assert verdict.change == pytest.approx(-0.5)
    assert verdict.gflops == pytest.approx(2 * 4096**3 / 0.02 / 1e9)
    assert verdict.baseline_gflops == pytest.approx(2 * 2 * 4096**3 / 0.02 / 1e9)


@pytest.mark.parametrize(("noise", "kind"), [(0.005, "REGRESSED"), (0.01, "PASS")])
def test_three_times_the_noise_floor_is_no_change(noise: float, kind: str) -> None:
    verdict = verdict_on(0.0102, noise=noise)  # 1.96 % fewer GFLOPS
    assert verdict.kind == kind
    assert verdict.threshold == pytest.approx(3 * noise)
    assert verdict.noise_floor == noise


def test_the_run_goes_before_the_kernel_and_the_kernel_before_one_percent() -> None:
    slow, stored = observed(TILED, 0.0103), reference(TILED)
    assert judge(slow, stored, POLICY.of_kernel(None)).threshold == 0.01
    assert judge(slow, stored, POLICY.of_kernel(0.05)).kind is VerdictKind.PASS
    assert judge(slow, stored, Policy(min_change=0.01).of_kernel(0.05)).kind is VerdictKind.REGRESSED
    assert judge(slow, stored, Policy(min_change=0.05)).kind is VerdictKind.PASS
    assert verdict_on(0.01006, policy=Policy(min_change=0.005)).kind is VerdictKind.REGRESSED
    # Below the noise, nobody may ask for it.
    assert verdict_on(0.01006, policy=Policy(min_change=0.005), noise=0.003).kind is VerdictKind.PASS


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"throttled": True}, "THROTTLED"),
        ({"rounds": 4}, "TOO_FEW_SAMPLES"),
        ({"rounds": 0}, "TOO_FEW_SAMPLES"),
        ({"seconds": (0.01,) * 6 + (float("nan"),)}, "IMPOSSIBLE_SAMPLE"),
        ({"seconds": (0.01,) * 6 + (0.0,)}, "IMPOSSIBLE_SAMPLE"),
        ({"seconds": (-1e-6,) * 7}, "IMPOSSIBLE_SAMPLE"),
        ({"l2": "warm"}, "OTHER_L2_POLICY"),
    ],
)
def test_what_cannot_be_judged_fails_under_every_policy(bad: dict[str, Any], reason: str) -> None:
    verdict = verdict_on(0.01, **bad)
    assert (verdict.kind, verdict.reason) == ("AMBIGUOUS", reason)
    assert TILED.id in said(0.01, **bad)
    lenient = Policy(allow_no_baseline=True, allow_orphans=True, fail_on_drift=False)
    assert verdict.failed(POLICY)
    assert verdict.failed(lenient)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0, "none"),
        (pynvml.nvmlClocksEventReasonSwPowerCap, "software power cap"),
        (
            pynvml.nvmlClocksEventReasonGpuIdle | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
            "idle, hardware thermal slowdown",
        ),
        (pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | 1 << 20, "hardware power brake, 0x100000"),
    ],
)
def test_throttled_samples_say_what_slowed_the_clock(bits: int, words: str) -> None:
    text = said(0.01, throttled=True, clock_event_reasons=bits)
    assert f"(1000 MHz, 100 W, 40 °C, clock-event reasons: {words}); let the GPU cool down" in text


def test_throttled_samples_are_not_called_new_either() -> None:
    assert judge(observed(TILED, throttled=True), None, POLICY).kind is VerdictKind.AMBIGUOUS


@pytest.mark.parametrize(("stored", "reason"), [(True, "NOT_IN_BASELINE"), (False, "NO_BASELINE_FILE")])
def test_no_baseline_fails_with_the_command_that_settles_it(stored: bool, reason: str) -> None:
    o = observed(TILED)
    verdict = judge(o, None, POLICY, stored=stored)
    assert (verdict.kind, verdict.reason) == ("NO_BASELINE", reason)
    command = f'nox -s baseline -- -k "[{TILED.id}]"' if stored else "nox -s baseline"
    assert message(verdict, Evidence(o, stored=stored)).endswith(
        f"measure {'it' if stored else 'one'}: {command}"
    )
    assert verdict.gflops is not None
    assert verdict.failed(POLICY)
    assert not verdict.failed(Policy(allow_no_baseline=True))


def test_orphans_are_told_with_the_command_that_settles_it() -> None:
    assert "a1, a2, a3, a4, a5 and 2 more. " in orphans_text([f"a{i}" for i in range(1, 8)])
    text = orphans_text([TILED.id])
    assert text.startswith(f"ORPHAN: 1 baseline cases are no longer in the suite: {TILED.id}. ")
    assert "python -m harness baseline prune" in text
    verdict = Verdict(VerdictKind.ORPHAN, "ANY")
    assert verdict.failed(POLICY)
    assert not verdict.failed(Policy(allow_orphans=True))


def test_what_is_green_by_itself() -> None:
    """What is fine, and what could not be tried here: never what was tried and is not known to be fine."""
    green = {kind for kind in VerdictKind if not Verdict(kind, "ANY").failed(POLICY)}
    fine = {VerdictKind.PASS, VerdictKind.IMPROVED}
    assert green == fine | {VerdictKind.NOT_EMULATED, VerdictKind.REFUSED}


def confirmed(second: float, *, of: Any = TILED, policy: Policy = POLICY, **more: Any) -> Verdict:
    stored = reference(of, 0.01, cubin=None if of.kernel.library else OLD)
    slow = observed(of, 0.0103)
    first = judge(slow, stored, policy)
    assert (first.kind, first.reason) == ("REGRESSED", "SLOWER")
    assert "regression suspected" in message(first, Evidence(slow, stored))
    return confirm(first, observed(of, second, **more), stored, policy)


@pytest.mark.parametrize(
    ("second", "more", "kind", "reason"),
    [
        (0.0103, {"cubin": NEW}, "REGRESSED", "SLOWER_CONFIRMED"),
        (0.0103, {"cubin": OLD}, "DRIFTED", "SAME_BINARY_SLOWER"),
        (0.0100, {"cubin": NEW}, "PASS", "NOT_CONFIRMED"),
        (0.0090, {"cubin": NEW}, "PASS", "NOT_CONFIRMED"),
        (0.0103, {"throttled": True}, "AMBIGUOUS", "THROTTLED"),
        (0.0100, {"rounds": 2}, "AMBIGUOUS", "TOO_FEW_SAMPLES"),
        (0.0103, {"cubin": None}, "REGRESSED", "SLOWER_CONFIRMED"),
    ],
)
def test_a_suspicion_measured_again(second: float, more: dict[str, Any], kind: str, reason: str) -> None:
    verdict = confirmed(second, **more)
    assert (verdict.kind, verdict.reason) == (kind, reason)
    assert verdict.failed(POLICY) == (kind != "PASS")


def test_a_slower_library_has_drifted() -> None:
    verdict = confirmed(0.0103, of=CUBLAS, cubin=None)
    assert (verdict.kind, verdict.reason) == ("DRIFTED", "LIBRARY_SLOWER")
    assert verdict.failed(POLICY)
    assert not verdict.failed(Policy(fail_on_drift=False))


def test_two_unknown_binaries_are_not_the_same_binary() -> None:
    stored = reference(TILED, 0.01, cubin=None)
    first = judge(observed(TILED, 0.0103), stored, POLICY)
    verdict = confirm(first, observed(TILED, 0.0103, cubin=None), stored, POLICY)
    assert verdict.kind is VerdictKind.REGRESSED


def test_a_regression_says_all_that_one_needs() -> None:
    slow, stored = observed(TILED, 0.0103), reference(TILED)
    text = message(confirmed(0.0103), Evidence(slow, stored, second=slow))
    assert "\n" not in text
    for part in (TILED.id, "13,344 GFLOPS", "13,744", "-2.91 %", "threshold 1 %", "noise floor 0 %"):
        assert part in text
    assert f'nox -s gpu -- -k "[{TILED.id}]"' in text


def test_the_reproducing_expression_selects_one_case_of_the_ladder() -> None:

    cases = select().timed
    names = [f"test_performance[{c.id}]" for c in cases]
    for chosen in cases[:: max(1, len(cases) // 20)]:
        expression = Expression.compile(f"[{chosen.id}]")
        selected = [n for n in names if expression.evaluate(lambda word, /, n=n, **_: word in n)]
        assert selected == [f"test_performance[{chosen.id}]"]


@pytest.mark.parametrize(
    ("check", "fails"),
    [
        (CompareFail("median", percent=0.5), True),
        (CompareFail("median", percent=0.7), False),
        (CompareFail("max", seconds=5e-5), True),
        (CompareFail("max", seconds=7e-5), False),
        (CompareFail("min", percent=0.5), True),
    ],
)
def test_the_user_may_be_stricter(check: CompareFail, fails: bool) -> None:
    policy = Policy(compare_fail=(check,))
    verdict = verdict_on(0.01006, policy=policy)  # 0.6 % more seconds
    assert (verdict.reason == "COMPARE_FAIL") == fails
    assert verdict.failed(policy) == fails
    assert (f"; {check.field} " in said(0.01006, policy=policy)) == fails


def test_the_user_s_own_check_is_confirmed_or_not_like_any_other() -> None:
    policy = Policy(compare_fail=(CompareFail("median", percent=0.5),))
    first = verdict_on(0.01006, policy=policy)
    again = confirm(first, observed(TILED, 0.01006, cubin=OLD), reference(TILED), policy)
    assert (again.kind, again.reason) == ("REGRESSED", "COMPARE_FAIL")
    assert confirm(first, observed(TILED, 0.01), reference(TILED), policy).reason == "NOT_CONFIRMED"


@pytest.mark.parametrize(
    ("field", "limits"), [("speed", {"percent": 1}), ("min", {}), ("min", {"percent": 1, "seconds": 1})]
)
def test_a_check_that_means_nothing_is_refused(field: str, limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=field):
        CompareFail(field, **limits)


@given(
    old=st.floats(1e-6, 1),
    ratio=st.floats(0.5, 2),
    noise=st.floats(0, 0.1),
    least=st.floats(0.001, 0.2),
)
def test_green_means_within_the_threshold_or_faster(
    old: float, ratio: float, noise: float, least: float
) -> None:
    policy = Policy(min_change=least)
    o = observed(TILED, old * ratio)
    verdict = judge(o, reference(TILED, old, noise), policy)
    lost = 1 - old / o.median  # share of the GFLOPS
    assert verdict.failed(policy) == (lost > max(least, 3 * noise))


def test_minimum_detectable_effect_is_found_by_both_looks_in_95_percent() -> None:
    """Of simulated baselines and runs whose process medians are normal, whatever their spread."""
    rng, o = np.random.default_rng(4), observed(TILED)
    for sigma in (0.0005, 0.01):
        found, tried = 0, 4000
        for _ in range(tried):
            medians = 0.01 * (1 + sigma * rng.standard_normal(5))
            stored = reference(TILED, float(np.median(medians)), noise_floor(list(medians)))
            v = judge(o, stored, POLICY)
            assert v.detectable is not None
            looks = 0.01 * (1 + sigma * rng.standard_normal(2)) / (1 - v.detectable)
            found += all(stored.median_s / look - 1 < -(v.threshold or 1) for look in looks)
        assert found / tried == pytest.approx(0.95, abs=0.012)


def test_a_quiet_case_detects_little_more_than_its_threshold() -> None:
    assert verdict_on(0.01, noise=0.0003).detectable == pytest.approx(0.0104, abs=1e-4)
    assert Verdict(VerdictKind.CRASHED, "HANG").detectable is None


def test_figures_read_the_same_everywhere() -> None:
    assert [gflops_text(g) for g in (None, 8838.4, 999.94, 12.345)] == ["–", "8,838", "999.9", "12.35"]
    assert [percent_text(p) for p in (None, -0.031, 0.0)] == ["–", "-3.1 %", "+0.0 %"]


# Seconds or cycles

VARIES: dict[str, Any] = {"run_clocks_mhz": [1000.0, 1010.0, 990.0, 1005.0, 995.0], "sm_clock_mhz": 1000.0}


def in_cycles(median: float, mhz: float, cubin: str = OLD, **stored: Any) -> Verdict:
    """Of a baseline whose runs agree in cycles and differ by 2 % in seconds, unless ``stored`` says more."""
    medians = [10.0 / mhz for mhz in VARIES["run_clocks_mhz"]]
    info = {"noise_floor": noise_floor(medians), "run_medians": medians, **VARIES, **stored}
    entry = synthetic.entry(TILED, 0.01, cubin=OLD)
    entry = dataclasses.replace(entry, info={**entry.info, **info})
    return judge(observed(TILED, median, sm_clock_mhz=mhz, cubin=cubin), entry.reference, POLICY)


@pytest.mark.parametrize("cubin", [OLD, NEW])
def test_runs_that_agree_in_cycles_are_judged_by_work_per_clock(cubin: str) -> None:
    """2.7 % slower at the same clock: within three noise floors of the seconds, not of the cycles."""
    verdict = in_cycles(0.01027, 1000.0, cubin)
    assert verdict.outcome == ("REGRESSED", "SLOWER")
    assert verdict.per_cycle
    assert verdict.threshold == pytest.approx(0.01)
    assert "threshold 1 % per clock, noise floor 0 %" in message(
        verdict, Evidence(observed(TILED, 0.01027), reference(TILED))
    )
    by_seconds = in_cycles(0.01027, 1000.0, cubin, run_clocks_mhz=[1000.0] * 5)
    assert by_seconds.outcome == ("PASS", "WITHIN_THRESHOLD")
    assert not by_seconds.per_cycle
    assert by_seconds.threshold == pytest.approx(0.0602, rel=0.01)


def test_the_clock_alone_is_no_drift_of_the_baseline_s_own_binary() -> None:
    """8 % slower in seconds at a clock 8 % lower, beyond three noise floors of seconds."""
    assert in_cycles(0.0108, 925.0).outcome == ("PASS", "SAME_PER_CLOCK")
    # Slower per clock as well, it is; and a lower clock at no cost hides nothing.
    assert in_cycles(0.0112, 925.0).outcome == ("REGRESSED", "SLOWER")
    assert in_cycles(0.0100, 925.0).outcome == ("PASS", "WITHIN_THRESHOLD")
    # Runs that do not agree better in cycles are judged by seconds.
    assert in_cycles(0.0108, 925.0, run_clocks_mhz=[1000.0] * 5).outcome == ("REGRESSED", "SLOWER")


def test_another_binary_that_lowers_the_clock_is_slower() -> None:
    assert in_cycles(0.0108, 925.0, NEW).outcome == ("REGRESSED", "SLOWER")


def test_a_user_s_own_check_is_not_excused_by_the_clock() -> None:
    policy = Policy(compare_fail=(CompareFail("median", percent=5.0),))
    o = observed(TILED, 0.0108, sm_clock_mhz=925.0, cubin=OLD)
    stored = dataclasses.replace(
        reference(TILED), cycle_noise_floor=0.0, noise_floor=0.02, sm_clock_mhz=1000.0
    )
    assert judge(o, stored, POLICY).reason == "SAME_PER_CLOCK"
    assert judge(o, stored, policy).outcome == ("REGRESSED", "COMPARE_FAIL")
