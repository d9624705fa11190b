"""What may be wrong with a machine, through whole runs: told in one test of its own, not blamed on code."""

from __future__ import annotations

import dataclasses
import re
import shutil
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression import baselines
from gemm_regression.cli import stored as evidence_command
from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import StoredBinary
from gemm_regression.model import Case
from gemm_regression.timing.plan import Measurement
from gemm_regression.timing.samples import PairedSamples
from tests.gemm_regression.judge.replay import ReplayDevice, slowed
from tests.gemm_regression.rig import CASES, LIBRARY, OTHER, OURS, RECORDED, SLOW, Rig, named

TRAIN = "pid 7 (train, 9 MiB)"
MACHINE = {"test_machine"}


def on(change: Any = None, health: dict[str, Any] | None = None, **info: Any) -> ReplayDevice:
    """The recorded GPU, with other facts of NVML's and other probes."""
    device = ReplayDevice(3, change, **info)
    if health:
        device.health = lambda: health  # type: ignore[method-assign]
    return device


# Another process on the GPU


class _Visited(ReplayDevice):
    """Another process comes with the second case and goes with the third."""

    def busy(self) -> list[str]:
        return [TRAIN] if len(self.attempts) == 2 else []


class _WhilePaired(ReplayDevice):
    def busy(self) -> list[str]:
        return [TRAIN] if self.asked else []


@pytest.mark.parametrize(
    ("mode", "device"),
    [
        ((), _Visited()),
        (("--allow-no-baseline",), _Visited()),
        (("--baseline-run",), _Visited()),
        ((), _WhilePaired(3, slowed(1.0))),
    ],
)
def test_a_visitor_during_a_run_is_the_machines(rig: Rig, mode: tuple[str, ...], device: Any) -> None:
    outcome = rig.run(*OURS, *mode, device=device)
    assert outcome.red == MACHINE
    assert "MACHINE: AMBIGUOUS OTHER_PROCESSES" in outcome.failures["test_machine"]
    assert TRAIN in outcome.failures["test_machine"]
    assert evidence_command.evidence([str(rig.root / "out.json")]) == 0


@pytest.mark.parametrize("mode", [("--allow-busy",), ("--allow-drift",)])
def test_a_visitor_may_be_allowed(rig: Rig, mode: tuple[str, ...]) -> None:
    assert rig.run(*OURS, *mode, device=_Visited()).status == 0


# No baseline is measured on a machine that is not as it should be

SICK = {"f32": {"gflops": 66000.0, "mhz": 1500.0}}


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (lambda: _Visited(), "AMBIGUOUS (OTHER_PROCESSES)"),
        (lambda: on(health=SICK), "DRIFTED (CLOCK)"),
        (lambda: on(power_limit_w=500.0), "DRIFTED (POWER_LIMIT)"),
    ],
)
def test_a_baseline_of_a_sick_machine_is_refused_twice(rig: Rig, device: Any, reason: str) -> None:
    """By its run, and if that is told to let it pass, by whoever stores it."""
    for allowed, failed in (((), MACHINE), (("--allow-drift",), set())):
        outcome = rig.run(*OURS, "--baseline-run", *allowed, device=device())
        assert (outcome.status, set(outcome.failures)) == (len(failed), failed)
        with pytest.raises(baselines.BaselineError, match=re.escape(f"its machine was {reason}")):
            baselines.load_run(rig.root / "out.json")


def test_a_baseline_run_is_not_held_against_the_figures_that_it_replaces(rig: Rig) -> None:
    """A new driver on which the same binaries take 5 % longer must be stored at some time."""
    outcome = rig.run(*OURS, "--baseline-run", device=on(slowed(1.05, edited=False), driver="999.1"))
    assert outcome.green
    assert outcome.json["gemm_machines"]["0"]["checked"] == [0, 0]
    assert baselines.load_run(rig.root / "out.json").healthy


# Clocks, power and settings


@pytest.mark.parametrize(
    ("device", "says"),
    [
        (lambda: on(health=SICK), "DRIFTED CLOCK"),
        (lambda: on(health={"f32": {"gflops": 50e3, "mhz": 1980.0}}), "DRIFTED ARITHMETIC"),
        (lambda: on(health={"f32": {"gflops": float("nan"), "mhz": 1980.0}}), "DRIFTED ARITHMETIC"),
        (lambda: on(power_limit_w=500.0), "power limit 500 W, should be 700 W"),
        (lambda: on(ecc=False), "DRIFTED ECC"),
    ],
)
def test_a_machine_that_is_not_as_it_was_is_red_by_itself(rig: Rig, device: Any, says: str) -> None:
    outcome = rig.run(*OURS, "--job-summary=summary.md", device=device())
    assert outcome.red == MACHINE
    assert says in outcome.failures["test_machine"]
    assert all(outcome.row(case)[-1] == "PASS" for case in CASES)
    assert (rig.root / "summary.md").read_text().startswith("## Red: 6 PASS")


def test_a_board_that_cannot_tell_its_health_is_not_taken_for_healthy(rig: Rig) -> None:
    device: Any = ReplayDevice(3)
    device.health = Mock(side_effect=DeviceError("LAUNCH_FAILED", "no probe"))
    outcome = rig.run(*OURS, device=device)
    assert outcome.red == MACHINE
    assert "AMBIGUOUS NOT_MEASURED" in outcome.failures["test_machine"]


def test_a_driver_that_slows_the_same_binaries_is_named(rig: Rig) -> None:
    change = slowed(1.02, edited=False)
    outcome = rig.run(*OURS, "--kernel", LIBRARY, device=on(change, driver="999.1"))
    assert outcome.red == MACHINE
    assert "more than 0.2 % in the median of 3 cases; differs: driver" in outcome.failures["test_machine"]


def test_code_is_found_slower_on_a_slower_machine_all_the_same(rig: Rig) -> None:
    class Both(ReplayDevice):
        def time(self, case: Case, plan: Any) -> Measurement:
            m = super().time(case, plan)
            return dataclasses.replace(m, seconds=tuple(1.05 * s for s in m.seconds))

    outcome = rig.run(*OURS, device=Both(3, slowed(1.02, SLOW)))
    assert outcome.red == named(*RECORDED[SLOW]) | MACHINE
    assert f"{OTHER} f32" in outcome.failures["test_machine"]


def test_one_slow_case_is_named_and_not_red(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=on(slowed(1.1, CASES[0], edited=False)))
    assert outcome.status == 0
    assert f"slower by themselves, with the same binary: {CASES[0]} (+" in outcome.text


# Another board, and recorded runs of this one


def test_every_recorded_run_is_green(rig: Rig) -> None:
    """The rules cry no wolf on what an H200 does from run to run, nor on a board that nothing is known of."""
    for run in range(4):
        for board in ("4173df1b", "0cf0cdcd"):
            outcome = rig.run(*OURS, device=ReplayDevice(run, board=board))
            assert outcome.green
            (machine,) = outcome.json["gemm_machines"].values()
            assert machine["reason"] == ("AS_STORED" if board == "4173df1b" else "AS_ITS_MODEL")


def test_another_board_2_percent_slower_is_no_fault_and_20_percent_is(rig: Rig) -> None:
    assert rig.run(*OURS, device=on(slowed(1.02, edited=False), board="0cf0cdcd")).status == 0
    assert rig.run(*OURS, device=on(slowed(1.2, edited=False), board="0cf0cdcd")).red == MACHINE


# The binaries of the baseline


def test_a_stored_binary_that_is_gone_or_damaged_is_no_pass(rig: Rig) -> None:
    change, folder = slowed(1.0, SLOW), rig.root / "baselines" / "binaries"
    for file in folder.rglob("*.cubin.xz"):
        file.write_bytes(b"no binary")
    outcome = rig.run(*OURS, device=ReplayDevice(3, change))
    assert outcome.red == named(*RECORDED[SLOW])
    assert all("NO_BASELINE" in message for message in outcome.failures.values())
    assert not outcome.failures.keys() & named(*RECORDED[OTHER])
    shutil.rmtree(folder)
    assert rig.run(*OURS, "--allow-no-baseline", device=ReplayDevice(3, change)).status == 0
    assert evidence_command.evidence([str(rig.root / "out.json")]) == 0


def test_a_stored_binary_that_does_not_run_here_is_red(rig: Rig) -> None:
    class Refuses(ReplayDevice):
        def pair(self, base: Any, case: Any, plan: Any) -> PairedSamples:
            if isinstance(base, StoredBinary):
                raise DeviceError("BASE_LAUNCH_FAILED", "no kernel image is available")
            return super().pair(base, case, plan)

    outcome = rig.run(*OURS, device=Refuses(3, slowed(1.0, SLOW)))
    assert outcome.red == named(*RECORDED[SLOW])
    for message in outcome.failures.values():
        assert "AMBIGUOUS" in message
        assert "does not run here: " in message
        assert 'nox -s baseline -- -k "[' in message
