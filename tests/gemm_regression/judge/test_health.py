"""Whether a board is healthy: each ailment is found, on a board of its own figures and on one without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemm_regression.judge.machine import Health, judge_machine
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.report.wording import machine_lines
from tests.gemm_regression.simulated_machine import HERE, KNOWN, PROBES, SETTINGS, changed, run


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (changed(HERE, "dram", 0.94, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (changed(HERE, "l2", 0.92, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (changed(HERE, "f32", 0.95, "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
        (changed(HERE, "f32", 0.95, "mhz"), VerdictKind.DRIFTED, "CLOCK"),
        (changed(HERE, "f32", float("nan"), "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
        (replace(HERE, settings={**SETTINGS, "power_limit_w": 500.0}), VerdictKind.DRIFTED, "POWER_LIMIT"),
        (replace(HERE, settings={"power_limit_w": 500.0}), VerdictKind.DRIFTED, "POWER_LIMIT"),
        (replace(HERE, settings={**SETTINGS, "ecc": False}), VerdictKind.DRIFTED, "ECC"),
        (replace(HERE, settings={**SETTINGS, "mig": True}), VerdictKind.DRIFTED, "MIG"),
        (replace(HERE, others=("python, 500 MiB",)), VerdictKind.AMBIGUOUS, "OTHER_PROCESSES"),
        (replace(HERE, probes={}), VerdictKind.AMBIGUOUS, "NOT_MEASURED"),
    ],
)
def test_an_unhealthy_board_is_red(now: Health, kind: VerdictKind, reason: str) -> None:
    verdict = judge_machine(now, KNOWN, run(7))
    assert (verdict.failed, verdict.kind, verdict.reason) == (True, kind, reason)
    assert len(machine_lines(verdict)) == 1 + len(verdict.findings) + bool(verdict.notes)


def test_a_healthy_board_that_nobody_has_seen_passes() -> None:
    """Seen: an H200 whose L2 has 0.92 of the bandwidth of the least of eleven others."""
    for probe, factor in (("dram", 0.95), ("l2", 0.91), ("f16", 0.95), ("dram", 1.1)):
        other = replace(changed(HERE, probe, factor, "gflops", "gbps"), board="unseen")
        assert not judge_machine(other, KNOWN, ()).findings


@pytest.mark.parametrize(("probe", "field"), [("dram", "gbps"), ("l2", "gbps"), ("f32", "mhz")])
def test_what_a_fault_takes_is_red_on_a_board_that_nobody_has_seen(probe: str, field: str) -> None:
    other = replace(changed(HERE, probe, 0.8, field), board="unseen")
    assert judge_machine(other, KNOWN, ()).failed


@pytest.mark.parametrize(
    "settings", [{"power_limit_w": 500.0}, {**SETTINGS, "ecc": False}, {**SETTINGS, "mig": True}]
)
def test_settings_of_a_board_that_nobody_has_seen_are_those_of_its_model(settings: dict[str, object]) -> None:
    assert judge_machine(replace(HERE, board="unseen", settings=settings), KNOWN, ()).failed


def test_a_model_that_nobody_has_seen_must_do_what_its_datasheet_makes_plausible() -> None:
    here = replace(HERE, settings={**SETTINGS, "max_sm_clock_mhz": 1980})
    verdict = judge_machine(here, (), ())
    assert (verdict.failed, verdict.reason) == (False, "NOTHING_KNOWN")
    assert judge_machine(changed(here, "f32", 0.7, "gflops"), (), ()).reason == "ARITHMETIC"
    assert judge_machine(changed(here, "f32", 0.7, "gflops", "mhz", "arithmetic"), (), ()).reason == "CLOCK"
    low = replace(here, settings={**SETTINGS, "power_limit_w": 300.0})
    assert judge_machine(low, (), ()).reason == "POWER_LIMIT"


def test_another_boards_power_limit_is_not_this_ones() -> None:
    """Where NVML says what this board's default is."""
    here = replace(HERE, board="unseen", settings={"power_limit_w": 650.0, "default_power_limit_w": 650.0})
    assert not judge_machine(here, KNOWN, ()).failed


def test_health_is_read_from_machine_info() -> None:
    machine = {
        "name": "NVIDIA H200",
        "board": "here",
        "roofs": {**PROBES, "cycles": {"fma": 4.2}},
        **SETTINGS,
    }
    assert Health.of(machine) == replace(HERE, settings={"board": "here", **SETTINGS})
    assert Health.of({}, ["a.out"]) == Health(others=("a.out",))
