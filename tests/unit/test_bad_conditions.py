"""What may be wrong with a machine or a repository: told in one line each, and not blamed on the code."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import baselines
from harness.commands import evidence as evidence_command
from harness.gate.record import extra_info
from harness.model import Case
from harness.reports import wording
from harness.reports.wording import message
from harness.timing.measurement import Measurement
from harness.verdicts.evidence import Evidence
from harness.verdicts.judge import judge
from harness.verdicts.vocabulary import Observation, Policy, Reference, Verdict, VerdictKind
from tests.unit import synthetic
from tests.unit.replay import ReplayDevice, slowed
from tests.unit.repo import PARAMETERS, Repo, declarations, source
from tests.unit.rig import CASES, OURS, SLOW, Rig, named
from tests.unit.way import MACHINE, Way, came_to, told_of

TRAIN = "pid 7 (train, 9 MiB)"
POWER_CAP, THERMAL, BRAKE = 0x04, 0x20, 0x80


# Another process on the GPU


@pytest.mark.parametrize("now", [1.03e-3, 1e-3, 0.9e-3])
def test_process_that_comes_to_the_gpu_leaves_nothing_to_judge(repo: Repo, now: float) -> None:
    way = Way(repo, now=now, busy=lambda: [TRAIN])
    verdict, text = told_of(way)
    assert (verdict.kind, verdict.reason) == (VerdictKind.AMBIGUOUS, "SHARED_GPU")
    assert f"other processes used the GPU: {TRAIN}; stop them and run it again" in text
    assert verdict.failed(Policy(fail_on_drift=False))
    assert way.device.asked == []


def test_process_that_comes_while_a_suspicion_is_settled(repo: Repo) -> None:
    seen = iter([[], [TRAIN]])
    assert came_to(Way(repo, busy=lambda: next(seen))) == ("AMBIGUOUS", "SHARED_GPU")


class _Visited(ReplayDevice):
    """Another process comes with the second case and goes with the third."""

    def busy(self) -> list[str]:
        return [TRAIN] if len(self.attempts) == 2 else []


@pytest.mark.parametrize("option", ["--allow-no-baseline", "--baseline-run", "--allow-busy"])
def test_visitor_during_a_run_costs_the_cases_it_met(rig: Rig, option: str) -> None:
    outcome = rig.run(*OURS, option, device=_Visited())
    if option == "--allow-busy":
        assert outcome.status == 0
        return
    (message,) = outcome.failures.values()
    assert outcome.status == 1
    assert TRAIN in message
    assert evidence_command.main([str(rig.root / "out.json")]) == 0
    with pytest.raises(
        baselines.BaselineError, match=r"AMBIGUOUS \(SHARED_GPU\) cannot be used for a baseline"
    ):
        baselines.load_run(rig.root / "out.json")


# Clocks and power

EXPECTED: dict[str, Any] = {"sm_clock_mhz": 1980.0}


def slow_clock(mhz: float, work: float = 0.0, reasons: int = 0) -> dict[str, Any]:
    """A kernel that takes a share ``work`` more cycles than its baseline, at this clock, unpaired."""
    return {
        "now": 1e-3 * (1 + work) * 1980 / mhz,
        "entry": EXPECTED,
        "seen": {"sm_clock_mhz": mhz, "clock_event_reasons": reasons},
        "pairing": False,
    }


@pytest.mark.parametrize(
    ("reasons", "machine", "says"),
    [
        (0, {}, "1200 MHz instead of 1980 (none)"),
        (POWER_CAP, {"power_limit_w": 450.0}, "1200 MHz instead of 1980 (software power cap)"),
    ],
    ids=["locked low", "power limit"],
)
def test_as_many_cycles_at_a_lower_clock_may_be_the_other_binary_s_doing(
    repo: Repo, reasons: int, machine: dict[str, Any], says: str
) -> None:
    """It may draw more power. Runs of older versions, which did not pair every change, called it drift."""
    way = Way(repo, machine=MACHINE | machine, **slow_clock(1200, 0.002, reasons))
    verdict, text = told_of(way)
    assert (verdict.kind, verdict.reason) == (VerdictKind.AMBIGUOUS, "LOWER_CLOCK")
    assert says in text
    older, text = told_of(dataclasses.replace(way, policy=Policy(pairs=False)))
    assert (older.kind, older.reason) == (VerdictKind.DRIFTED, "LOWER_CLOCK")
    assert says in text
    assert verdict.per_clock == pytest.approx(-0.002, abs=1e-4)


def test_slowdown_that_holds_in_cycles_stands_at_any_clock(repo: Repo) -> None:
    assert came_to(Way(repo, **slow_clock(1200, 0.03))) == ("REGRESSED", "SLOWER_CONFIRMED")


def test_kernel_that_waits_for_memory_cannot_be_judged_at_a_lower_clock(repo: Repo) -> None:
    assert came_to(Way(repo, **slow_clock(1200, -0.3))) == ("AMBIGUOUS", "LOWER_CLOCK")


def test_clock_within_a_percent_is_as_expected(repo: Repo) -> None:
    assert came_to(Way(repo, **slow_clock(1962, 0.03))) == ("REGRESSED", "SLOWER_CONFIRMED")


@pytest.mark.parametrize("cubin", [synthetic.OLD, synthetic.NEW])
def test_lower_clock_is_named_where_the_code_is_not_to_blame(repo: Repo, cubin: str) -> None:
    limited = MACHINE | {"power_limit_w": 450.0}
    slow = slow_clock(1200) | {"pairing": True}
    verdict, text = told_of(Way(repo, cubin=cubin, then=slow["now"], machine=limited, **slow))
    reason = {synthetic.OLD: "SAME_BINARY_SLOWER", synthetic.NEW: "BASE_AS_SLOW"}[cubin]
    assert (verdict.kind, verdict.reason) == (VerdictKind.DRIFTED, reason)
    assert "power limit in W 700.0 → 450.0, SM clock 1980 → 1200 MHz" in text


def judged(o: Observation, stored: Reference | None) -> tuple[Verdict, str]:
    """The verdict, and what is told of it."""
    verdict = judge(o, stored, Policy(allow_no_baseline=True))
    return verdict, message(verdict, Evidence(o, stored))


def test_slower_code_does_not_hide_behind_a_higher_clock() -> None:
    case = synthetic.case()
    stored = dataclasses.replace(synthetic.reference(case, 0.01), sm_clock_mhz=1500.0)
    for work, reason in ((0.10, "HIGHER_CLOCK"), (0.0, "FASTER"), (0.005, "FASTER")):
        o = synthetic.observed(case, 0.01 * (1 + work) * 1500 / 1650, sm_clock_mhz=1650.0)
        assert judge(o, stored, Policy()).reason == reason
    verdict, text = judged(synthetic.observed(case, 0.01, sm_clock_mhz=1650.0), stored)
    assert (verdict.kind, verdict.reason) == (VerdictKind.AMBIGUOUS, "HIGHER_CLOCK")
    assert "only because the SM clock is 1650 MHz instead of 1500" in text
    assert verdict.failed(Policy(allow_no_baseline=True, allow_orphans=True, fail_on_drift=False))


# A hot board


@pytest.mark.parametrize("reasons", [0x08, THERMAL, 0x40, BRAKE])
@pytest.mark.parametrize("stored", [True, False])
def test_hot_board_is_not_judged_nor_measured(reasons: int, stored: bool) -> None:
    case = synthetic.case()
    expected = dataclasses.replace(synthetic.reference(case), **EXPECTED)
    hot = synthetic.observed(
        case, 0.0103, sm_clock_mhz=1905.0, temperature_c=88.0, clock_event_reasons=reasons
    )
    verdict, text = judged(hot, expected if stored else None)
    assert (verdict.kind, verdict.reason) == (VerdictKind.AMBIGUOUS, "THROTTLED")
    assert "1905 MHz, 100 W, 88 °C, clock-event reasons: " in text
    assert "let the GPU cool down" in text


def test_heat_that_left_the_clock_as_it_was_does_not_matter() -> None:
    case = synthetic.case()
    expected = dataclasses.replace(synthetic.reference(case), **EXPECTED)
    warm = synthetic.observed(case, 0.01, sm_clock_mhz=1975.0, clock_event_reasons=THERMAL)
    assert judge(warm, expected, Policy()).kind is VerdictKind.PASS


# Settings


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [("driver", "1000.2", "driver 999.1 → 1000.2"), ("ecc", False, "ECC True → False")],
)
def test_other_settings_and_no_pair_leave_code_and_machine_apart(
    repo: Repo, name: str, value: Any, says: str
) -> None:
    verdict, text = told_of(Way(repo, pairing=False, machine=MACHINE | {name: value}))
    assert (verdict.kind, verdict.reason) == (VerdictKind.AMBIGUOUS, "OTHER_SETTINGS")
    assert f"The cause may be the code or the machine, which has changed ({says})." in text
    assert came_to(Way(repo, machine=MACHINE | {name: value})) == ("REGRESSED", "SLOWER_PAIRED")
    # What only sets the clock is seen in the clock.
    limited = MACHINE | {"power_limit_w": 650.0}
    assert came_to(Way(repo, pairing=False, machine=limited)) == ("REGRESSED", "SLOWER_CONFIRMED")


def test_settings_of_a_case_are_those_it_was_measured_under(repo: Repo) -> None:
    way = Way(repo, pairing=False, entry={"driver": "1000.2"}, machine=MACHINE | {"driver": "1000.2"})
    assert came_to(way) == ("REGRESSED", "SLOWER_CONFIRMED")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"driver": "999.1"}, "driver 580.159.04 → 999.1"),
        ({"power_limit_w": 500.0}, "power limit in W 700.0 → 500.0"),
        ({"ecc": False}, "ECC True → False"),
        ({"applications_sm_clock_mhz": 1200}, "application SM clock in MHz 1980 → 1200"),
    ],
)
def test_green_run_on_a_changed_machine_says_so(rig: Rig, change: dict[str, Any], says: str) -> None:
    device = ReplayDevice(3)
    device.info = dataclasses.replace(device.info, **change)
    outcome = rig.run(*OURS, "--job-summary=summary.md", device=device)
    line = f"changed since the baseline was measured: {says}"
    assert outcome.status == 0
    assert line in outcome.text
    assert line in (rig.root / "summary.md").read_text()
    assert "not as when" not in rig.run(*OURS).text


def test_mig_makes_another_gpu_of_it(rig: Rig) -> None:
    device = ReplayDevice()
    device.info = dataclasses.replace(device.info, mig=True)
    outcome = rig.run(*OURS, device=device, outputs=False)
    assert outcome.status == 4
    assert "measured with MIG off, but MIG is on, and a part of a GPU is another GPU" in outcome.errors[0]
    assert device.attempts == {}


# Worker


def test_worker_that_dies_while_it_times_costs_its_case(rig: Rig) -> None:
    from harness.devices import DeviceError

    class Dies(ReplayDevice):
        def time(self, case: Case, plan: Any) -> Measurement:
            if case.id == CASES[0]:
                raise DeviceError("WORKER_DIED", f"{case.variant}: the worker process died (exit code -9)")
            return super().time(case, plan)

    outcome = rig.run(*OURS, device=Dies())
    assert outcome.failures.keys() == named(CASES[0])
    (message,) = outcome.failures.values()
    assert message.endswith("the worker process died (exit code -9)")
    assert "CRASHED" in message


# The baseline's commit


def no_kernel(repo: Repo) -> None:
    repo.commit(declared=declarations(name="two"))


def other_abi(repo: Repo) -> None:
    repo.commit(source(parameters=PARAMETERS + ", int batch"))


def does_not_compile(repo: Repo) -> None:
    repo.commit(source("C[0] = missing;"))


def other_harness(repo: Repo) -> None:
    repo.commit(declared="from harness.model import Krenel")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (no_kernel, "has no kernel one"),
        (other_abi, "the kernel takes 12 parameters, not 11 ("),
        (does_not_compile, 'identifier "missing" is undefined'),
        (other_harness, "are declared for another version of the harness"),
    ],
)
def test_baseline_s_commit_that_cannot_be_run_leaves_the_confirmed_verdict(
    repo: Repo, spoil: Callable[[Repo], None], why: str
) -> None:
    spoil(repo)
    repo.write(source("C[0] = beta;"))
    verdict, text = told_of(Way(repo))
    assert (verdict.kind, verdict.reason) == (VerdictKind.REGRESSED, "SLOWER_CONFIRMED")
    assert "; not paired: " in text
    assert why in text


def test_shallow_clone_without_the_baseline_s_commit(repo: Repo, tmp_path: Path) -> None:
    old = repo.git("rev-parse", "HEAD")
    repo.commit(source("C[0] = 2;"))
    clone = tmp_path / "clone"
    command = ["git", "clone", "--quiet", "--depth=1", repo.root.as_uri(), str(clone)]
    subprocess.run(command, check=True, capture_output=True)
    repo.root = clone
    verdict, text = told_of(Way(repo, entry={"commit": old}))
    assert (verdict.kind, verdict.reason) == (VerdictKind.REGRESSED, "SLOWER_CONFIRMED")
    assert "not in this shallow clone; get it with `git fetch --unshallow`" in text


def test_baseline_of_a_dirty_tree_has_no_commit_to_be_paired_with(repo: Repo) -> None:
    result = Way(repo, entry={"dirty": True}).run()
    assert wording.path(result.evidence).endswith("no pair, repeated in a new process")
    assert "the baseline was measured with uncommitted changes to" in message(result.verdict, result.evidence)
    assert json.loads(json.dumps(extra_info(result)))["evidence"]["paired"]["reason"] == "NO_PAIR"


def test_every_recorded_case_keeps_its_verdict_with_clocks_known(rig: Rig) -> None:
    """The rules above cry no wolf on what an H200 does from run to run."""
    for run in range(4):
        outcome = rig.run(*OURS, device=ReplayDevice(run))
        assert outcome.status == 0, outcome.text
        for case in CASES:
            info = outcome.timed[case]["extra_info"]
            assert abs(info["change_per_clock"]) < 0.01
            flop = info["flop_per_clock"] * info["sm_clock_mhz"] * 1e6
            assert flop == pytest.approx(info["gflops"] * 1e9)
    outcome = rig.run(*OURS, device=ReplayDevice(3, slowed(1.03, SLOW)))
    assert outcome.status == 1
