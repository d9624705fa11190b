"""A run whose binaries have changed, through the whole suite: its summary, and the options."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.commands import evidence as evidence_command
from harness.model import Case
from harness.timing.measurement import Measurement
from tests.unit.replay import ReplayDevice, slowed
from tests.unit.rig import OURS, RECORDED, SLOW, Rig, named


class Pairing(ReplayDevice):
    """Could pair, and is never asked to: the baseline of the recording has no commit here."""

    def pair(self, base: Any, case: Any, plan: Any) -> Any:
        raise AssertionError("there is nothing to pair with")

    def prepare_pairs(self, cases: Any, step: Any = None) -> None:
        raise AssertionError("there is nothing to compile")

    def binary(self, case: Case) -> Any:
        raise AssertionError("there is nothing to compare")


def test_changed_cases_that_cannot_be_paired_are_counted(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = rig.run(*OURS, device=Pairing(3, slowed(1.0, SLOW)))
    assert outcome.status == 0
    changed = RECORDED[SLOW]
    (line,) = [line for line in outcome.text.splitlines() if "another binary" in line]
    assert line.startswith(
        f"{len(changed)} cases have another binary than the baseline's: 0 compared with its commit, "
        f"{len(changed)} judged by the baseline alone ({len(changed)} because "
    )
    for case in changed:
        info = outcome.timed[case]["extra_info"]
        assert info["path"] == "compared with the baseline, no pair"
        assert info["evidence"]["policy"]["pairs"] is True
    assert evidence_command.main([str(rig.root / "out.json")]) == 0
    assert "0 differ" in capsys.readouterr().out


def test_the_clock_alone_is_listed(rig: Rig) -> None:
    """At a clock 10 % lower, where the baseline's runs agree in cycles."""

    def lower(case: Case, m: Measurement, attempt: int) -> Measurement:
        if SLOW not in case.id:
            return m
        seconds = tuple(s / 0.9 for s in m.seconds)
        return dataclasses.replace(m, seconds=seconds, sm_clock_mhz=0.9 * m.sm_clock_mhz)

    outcome = rig.run(*OURS, device=ReplayDevice(3, lower))
    found = [line for line in outcome.text.splitlines() if "slower only by the clock" in line]
    excused = [case for case in RECORDED[SLOW] if f"test_performance[{case}]" in outcome.passed]
    assert outcome.failures.keys() == named(*(case for case in RECORDED[SLOW] if case not in excused))
    assert all("DRIFTED" in message for message in outcome.failures.values())
    if excused:
        assert found == [f"{len(excused)} slower only by the clock: {', '.join(excused)}"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--margin=0", "--margin '0': must be between 0 % and 100 %, such as 0.5%"),
        ("--margin=wide", "--margin 'wide': must be between 0 % and 100 %, such as 0.5%"),
        ("--pair-budget=-1", "--pair-budget -1.0: must be 0 seconds or more, such as 60"),
    ],
)
def test_options_that_mean_nothing(rig: Rig, option: str, said: str) -> None:
    outcome = rig.run(option)
    assert outcome.status == 4
    assert outcome.errors == [said]
