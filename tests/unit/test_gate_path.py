"""The way of a suspected regression: a fresh worker, same code or not, beside the baseline's commit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from harness.devices import DeviceError
from harness.gate.record import extra_info
from harness.model import Case
from harness.reports.wording import difference_text, message, path
from harness.verdicts.drift import differences
from harness.verdicts.evidence import again
from harness.verdicts.vocabulary import CompareFail, Policy, VerdictKind
from tests.unit import synthetic
from tests.unit.repo import Repo, source
from tests.unit.way import MACHINE, Way, came_to, told_of

# The path


def test_what_is_slower_beside_its_baseline_s_commit_has_regressed(repo: Repo) -> None:
    way = Way(repo)
    result = way.run()
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.REGRESSED, "SLOWER_PAIRED")
    sha = repo.git("rev-parse", "HEAD")[:12]
    told = message(result.verdict, result.evidence)
    assert f"; paired with {sha}, its time changes by +" in told
    assert "confirmed in a new process" not in told
    info = extra_info(result)
    assert path(result.evidence) == f"compared with the baseline, paired with commit {sha}"
    assert info["evidence"]["paired"]["delta"] == pytest.approx(0.005)


def test_code_as_slow_as_its_baseline_s_commit_is_here_and_now_is_drift(repo: Repo) -> None:
    way = Way(repo, then=1.03e-3, machine=MACHINE | {"driver": "1000.2", "power_limit_w": 600.0})
    verdict, text = told_of(way)
    assert (verdict.kind, verdict.reason) == (VerdictKind.DRIFTED, "BASE_AS_SLOW")
    assert (
        "changed since the baseline: driver 999.1 → 1000.2, power limit in W 700.0 → 600.0, "
        "cuBLAS for the same" in text
    )
    assert verdict.failed(Policy())
    assert not verdict.failed(Policy(fail_on_drift=False))


def test_same_code_by_another_compiler_is_drift(repo: Repo) -> None:
    repo.write(source())
    assert came_to(Way(repo)) == ("DRIFTED", "SAME_CODE_SLOWER")


def test_unlucky_first_process_passes(repo: Repo) -> None:
    result = Way(repo, now=1e-3, first=0.05).run()
    assert result.verdict.outcome == ("PASS", "NOT_CONFIRMED")
    assert result.evidence.paired is not None
    assert result.evidence.paired.outcome == ("PASS", "WITHIN_MARGIN")
    assert path(result.evidence).endswith(", repeated in a new process")


def test_same_binary_and_launch_are_drift_unpaired(repo: Repo) -> None:
    way = Way(repo, cubin=synthetic.OLD, machine=MACHINE | {"ecc": False})
    verdict, text = told_of(way)
    assert (verdict.kind, verdict.reason) == (VerdictKind.DRIFTED, "SAME_BINARY_SLOWER")
    assert "ECC True → False" in text
    assert way.device.asked == []


def test_same_binary_launched_otherwise_is_a_change_of_code(repo: Repo) -> None:
    way = Way(repo, cubin=synthetic.OLD, entry={"launch": "grid 1x1x1, block 64x1x1, 0 bytes dynamic"})
    assert came_to(way) == ("REGRESSED", "SLOWER_PAIRED")
    # A baseline from before launches were stored is taken to have launched alike.
    assert came_to(Way(repo, cubin=synthetic.OLD, entry={"launch": None})) == (
        "DRIFTED",
        "SAME_BINARY_SLOWER",
    )


@pytest.mark.parametrize(
    ("then", "bias", "reason"), [(1.015e-3, 0.0, "PAIR_AMBIGUOUS"), (1e-3, 0.02, "MACHINE_UNFIT")]
)
def test_pair_that_cannot_tell_is_no_pass(repo: Repo, then: float, bias: float, reason: str) -> None:
    way = Way(repo, now=1.0202e-3, then=then, bias=bias)
    result = way.run()
    assert result.verdict.kind is VerdictKind.AMBIGUOUS
    assert result.evidence.paired is not None
    assert result.verdict.outcome == result.evidence.paired.outcome == ("AMBIGUOUS", reason)
    assert result.verdict.failed(Policy())


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"commit": "0" * 40}, f"not paired: no commit {'0' * 40} in this repository"),
        ({"dirty": True}, "not paired: the baseline was measured with uncommitted changes to "),
        ({"commit": "unknown"}, "not paired: no commit unknown"),
    ],
)
def test_baseline_whose_commit_is_not_there_is_confirmed_alone(
    repo: Repo, entry: dict[str, Any], why: str
) -> None:
    result = Way(repo, entry=entry).run()
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.REGRESSED, "SLOWER_CONFIRMED")
    assert why in message(result.verdict, result.evidence)
    assert path(result.evidence) == "compared with the baseline, no pair, repeated in a new process"


def test_device_that_cannot_pair_confirms_alone(repo: Repo) -> None:
    result = Way(repo, pairing=False).run()
    assert (result.verdict.kind, result.verdict.reason) == (VerdictKind.REGRESSED, "SLOWER_CONFIRMED")
    assert path(result.evidence) == "compared with the baseline, repeated in a new process"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("BASE_WRONG", ("REGRESSED", "SLOWER_CONFIRMED")),
        ("WRONG", ("WRONG", "OUTPUT")),
        ("HANG", ("CRASHED", "PAIR_CRASHED")),
        ("WORKER_DIED", ("CRASHED", "PAIR_CRASHED")),
        ("BASE_WORKER_DIED", ("REGRESSED", "SLOWER_CONFIRMED")),
    ],
)
def test_pair_that_fails(repo: Repo, code: str, expected: tuple[str, str]) -> None:
    def fail(base: Case, case: Case) -> None:
        if case.kernel.source != base.kernel.source:
            raise DeviceError(code, "one-f32-size1: no")

    assert came_to(Way(repo, fail=fail)) == expected


def test_check_of_the_user_s_own_holds_whatever_the_pair_tells(repo: Repo) -> None:
    way = Way(repo, now=1.003e-3, policy=Policy(compare_fail=(CompareFail("max", percent=0.1),)))
    assert came_to(way) == ("REGRESSED", "COMPARE_FAIL")


# What differs


def test_differences_name_settings_and_state() -> None:
    case = synthetic.case()
    entry = synthetic.entry(case, 0.01)
    known = {"sm_clock_mhz": 1980.0, "temperature_c": 40.0, "cublas_ratio": 0.5, "driver": "1.0"}
    entry = dataclasses.replace(entry, info={**entry.info, **known})
    machine = {"driver": "1.0", "power_limit_w": 700.0, "mig": None, "ecc": True}
    now = {"driver": "1.0", "power_limit_w": 500.0, "mig": True, "ecc": True}
    then = machine
    seen = {"temperature_c": 83.0, "clock_event_reasons": 4, "reference_seconds": (0.0051,) * 3}
    o = synthetic.observed(case, 0.012, sm_clock_mhz=1410.0, **seen)
    found = differences(then, entry.reference, now, o)
    assert [difference_text(d) for d in found] == [
        "power limit in W 700.0 → 500.0",
        "SM clock 1980 → 1410 MHz (software power cap)",
        "temperature 40 → 83 °C",
        "cuBLAS for the same problem -2.0 %",
    ]
    assert not any(d.decisive for d in found)
    same = synthetic.observed(case, 0.01, sm_clock_mhz=1975.0, temperature_c=45.0)
    found = differences(then, entry.reference, machine | {"ecc": False}, same)
    assert [(difference_text(d), d.decisive) for d in found] == [
        ("ECC True → False", True),
        ("cuBLAS for the same problem +0.0 %", False),
    ]


# Judged again


def test_verdict_again_depends_on_all_that_was_stored(repo: Repo) -> None:
    """Each part of the evidence, changed, changes the verdict: none is there for show."""
    way = Way(repo)
    result = way.run()
    assert result.measurement is not None
    info = json.loads(json.dumps(extra_info(result)))
    seconds = result.measurement.seconds

    def verdict(**changes: Any) -> str:
        evidence = {**info["evidence"], **changes}
        return again({**info, "evidence": evidence}, seconds)[0].reason

    told = info["evidence"]
    assert verdict() == "SLOWER_PAIRED"
    assert verdict(paired=None) == "SLOWER"
    assert verdict(paired=told["paired"] | {"delta": 0.04}) == "SLOWER"
    assert verdict(paired=told["paired"] | {"log_ratios": [0.0, 1e-4] * 6}) == "SLOWER"
    assert verdict(paired=told["paired"] | {"miss": 0.0}) == "SLOWER"
    assert verdict(paired=told["paired"] | {"resolution": 0.05}) == "SLOWER"
    assert verdict(paired=told["paired"] | {"resolution": 0.026}) == "PAIR_AMBIGUOUS"
    # As runs of older versions recorded it: confirmed first, and the pair by its verdict alone.
    old = {name: told["paired"][name] for name in ("kind", "reason", "detail", "commit")}
    old_policy = {name: value for name, value in told["policy"].items() if name != "pairs"}
    twice = {"first": told["measured"] | {"seconds": list(seconds)}, "policy": old_policy}
    assert verdict(**twice, paired=old) == "SLOWER_PAIRED"
    assert verdict(**twice, paired=None) == "SLOWER_CONFIRMED"
    assert verdict(**twice, paired=old | {"kind": "PASS", "reason": "WITHIN_MARGIN"}) == "BASE_AS_SLOW"
    assert verdict(measured=told["measured"] | {"throttled": True}, paired=None) == "THROTTLED"
    assert verdict(measured=told["measured"] | {"l2": "warm"}, paired=None) == "OTHER_L2_POLICY"
    assert verdict(
        **twice | {"measured": told["measured"] | {"cubin_sha256": synthetic.OLD}}, paired=None
    ) == ("SAME_BINARY_SLOWER")
    assert verdict(policy=told["policy"] | {"min_change": 0.1}, paired=None) == "WITHIN_THRESHOLD"
    assert verdict(baseline=None, paired=None) == "NOT_IN_BASELINE"
    assert verdict(baseline=None, paired=None, stored=False) == "NO_BASELINE_FILE"
    assert verdict(error=["HANG", "no answer"]) == "HANG"
    assert again(info, [1e-3] * 9)[0].reason == "SLOWER_PAIRED"
