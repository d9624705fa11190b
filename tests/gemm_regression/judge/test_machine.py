"""The judge of the machine: each ailment of a board is found, on one of its own figures and on one without;
by its joint test each scenario is red or green as it should be."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import compress
from math import log
from statistics import median
from typing import Any

import pytest

from gemm_regression.judge.machine import LEAST_CASES, Health, MachineVerdict, Shift, again, judge_machine
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.report.wording import finding_text, machine_lines
from tests.gemm_regression.simulated_machine import HERE, KNOWN, PROBES, SETTINGS, changed, run

_LONGER = ("wgmma", "wgmma_tf32", "mma_tma")


def slower(by: float, *kernels: str) -> Callable[[Shift], float]:
    return lambda case: by * (case.kernel in kernels)


def _at_the_cap(case: Shift) -> float:
    """A clock 20 % lower where the GPU is at its power cap: long products on tensor cores."""
    return 0.25 * (case.core == "tensor" and case.bound == "compute")


def _memory(case: Shift) -> float:
    """3 % longer for memory: another board, or a fault of this one."""
    return 0.03 * (case.bound != "compute")


def judged(shifts: Sequence[Shift], here: Health = HERE) -> MachineVerdict:
    return judge_machine(here, KNOWN, shifts)


@pytest.mark.parametrize(
    ("slow", "own", "least", "most"),
    [
        pytest.param(None, True, 0.0, 0.0, id="the same machine"),
        pytest.param(None, False, 0.0, 0.0, id="another board"),
        # 51 cases of them by a driver or a compiler: the old judge had 0 red.
        pytest.param(slower(0.04, *_LONGER), True, 1.0, 1.0, id="three kernels by 4 %"),
        *(
            pytest.param(slower(0.01, kernel), True, 0.95, 1.0, id=f"{kernel} by 1 %")
            for kernel in ("stream_k", "wgmma_tf32", "tf32x3")
        ),
        pytest.param(slower(0.03, "cublas"), True, 1.0, 1.0, id="a library by 3 %"),
        pytest.param(_at_the_cap, True, 1.0, 1.0, id="at the power cap"),
        pytest.param(_at_the_cap, False, 1.0, 1.0, id="another board at the power cap"),
        pytest.param(_memory, True, 1.0, 1.0, id="memory by 3 %"),
        pytest.param(_memory, False, 0.0, 0.0, id="another board's memory by 3 %"),
    ],
)
def test_what_is_slower_is_red_and_noise_is_not(
    slow: Callable[[Shift], float] | None, own: bool, least: float, most: float
) -> None:
    verdicts = [judged(run(seed, own, slow)) for seed in range(100 if slow else 200)]
    assert least <= sum(verdict.failed for verdict in verdicts) / len(verdicts) <= most


def subjects(verdict: MachineVerdict) -> set[str]:
    return {finding.subject for finding in verdict.findings}


def test_the_same_machine_passes() -> None:
    verdict = judged(run(0))
    said = (VerdictKind.PASS, "AS_STORED", (len(run(0)), 0))
    assert (verdict.kind, verdict.reason, verdict.checked) == said
    assert judged(run(0, own=False)).reason == "AS_ITS_MODEL"


def test_three_kernels_4_percent_slower_on_the_same_board_are_found() -> None:
    verdict = judged(run(1, slower=slower(0.04, *_LONGER)))
    assert verdict.kind is VerdictKind.DRIFTED
    assert {"wgmma f16", "wgmma bf16", "wgmma_tf32 tf32", "mma_tma tf32"} <= subjects(verdict)
    assert not {"wmma f16", "tf32x3 f32", "cuda compute"} & subjects(verdict)


def test_four_cases_of_a_kernel_are_enough_and_two_are_not() -> None:
    def few(seed: int, count: int) -> list[Shift]:
        return [case for case in run(seed) if case.kernel == "prefetch" and case.bound == "compute"][:count]

    def red(seed: int, count: int) -> bool:
        return judged([replace(one, log_ratio=one.log_ratio + log(1.01)) for one in few(seed, count)]).failed

    assert sum(red(seed, 4) for seed in range(100)) >= 95
    assert not any(red(seed, LEAST_CASES - 1) for seed in range(100))


def test_a_clock_20_percent_lower_at_the_power_cap_is_red_on_any_board() -> None:
    ill = HERE
    for probe in ("f16", "bf16", "tf32"):
        ill = changed(ill, probe, 0.8, "gflops", "mhz", "arithmetic")
    for board in ("here", "unknown"):
        verdict = judge_machine(replace(ill, board=board), KNOWN, run(3, own=False))
        assert (verdict.failed, verdict.reason) == (True, "CLOCK")


def test_one_slow_case_is_named_and_not_red() -> None:
    for seed in range(100):
        verdict = judged(run(seed, slower=lambda case: 0.1 * (case.case == "wgmma-f16-7")))
        noted = "wgmma-f16-7" in [case.case for case in verdict.notes]
        assert (verdict.failed, noted) == (False, True)


def test_no_case_alone_makes_its_group_red() -> None:
    for case in run(5):
        others = [other for other in run(5) if other.case != case.case and other.kernel == case.kernel][:3]
        slow = replace(case, log_ratio=0.3)
        assert not judged([*others, slow]).failed, case.case


def test_a_clock_that_changes_from_process_to_process_is_no_shift() -> None:
    """By a step of 15 MHz, as an H100's does."""
    runs = [run(seed, step=15 / 1980) for seed in range(100)]
    # Where none of the five stored processes had the step, or all, nothing tells of it.
    noisy = (median(case.noise for case in shifts if case.core == "cuda") > 0.005 for shifts in runs)
    usual = list(compress(runs, noisy))
    assert len(usual) > 80
    assert not any(judged(shifts).failed for shifts in usual)


def _noisy(log_ratios: Iterable[float], noise: float) -> list[Shift]:
    """A kernel with these shifts and this noise, in a run whose other kernels have little."""
    others = [case for case in run(9) if case.kernel != "tiled"]
    like = next(case for case in run(9) if case.case == "tiled-f32-6")
    return [*others, *(replace(like, log_ratio=value, noise=noise) for value in log_ratios)]


def test_cases_that_scatter_by_more_than_their_noise_are_not_certain() -> None:
    near, far = [0.008] * 6, [-0.03, -0.02, -0.01, 0.0, 0.007, 0.008, 0.009, 0.03, 0.04, 0.05, 0.06]
    assert judged(_noisy([*near, 0.009], 0.001)).failed
    assert not judged(_noisy(far, 0.001)).failed


def test_a_case_whose_processes_agreed_by_chance_does_not_speak_for_its_kernel() -> None:
    shifts = _noisy([0.0] * 10 + [0.05], noise=0.03)
    quiet = replace(shifts[-1], log_ratio=0.012, noise=0.0)
    assert not judged([*shifts, quiet]).failed


def test_a_library_3_percent_slower_is_found_and_told_with_its_version() -> None:
    shifts = [
        replace(case, changed=("cublas",) if case.kernel == "cublas" else ())
        for case in run(4, slower=slower(0.03, "cublas"))
    ]
    verdict = judged(shifts)
    assert {"cublas f32", "cublas f16", "cublas bf16"} == subjects(verdict)
    assert all(finding.changed == ("cublas",) for finding in verdict.findings)


def test_own_figures_and_the_models_are_judged_each_by_its_own_limit() -> None:
    def mixed(core: str) -> list[Shift]:
        shifts = run(6, slower=lambda case: 0.02 * (case.core == core))
        return [replace(case, own=case.core == "cuda") for case in shifts]

    assert not judged(mixed("")).failed
    assert not judged(mixed("tensor")).failed
    verdict = judged(mixed("cuda"))
    assert verdict.failed
    assert all("f32" in name or "cuda" in name for name in subjects(verdict))
    assert verdict.checked == (110, 121)


@pytest.mark.parametrize("seed", range(5))
def test_a_stored_run_is_judged_again(seed: int) -> None:
    slow = run(seed, slower=lambda case: 0.07 * (case.kernel == "wgmma") + 0.2 * case.case.endswith("2"))
    shifts = [replace(case, own=seed % 2 == 0, changed=("driver",)) for case in slow]
    verdict = judged(shifts, changed(HERE, "dram", 0.9, "gbps"))
    assert (verdict.failed, bool(verdict.notes)) == (True, True)
    assert again(json.loads(json.dumps(verdict.recorded()))) == verdict


@pytest.mark.parametrize(
    ("field", "value"),
    [("log_ratio", math.nan), ("seconds", 0.0), ("noise", -0.1), ("noise", math.nan), ("core", "sparse")],
)
def test_what_is_no_shift_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"^naive-f32-0: "):
        replace(run(0)[0], **{field: value})


def test_a_verdict_is_told_in_a_few_lines() -> None:
    slow = run(8, slower=lambda case: 0.04 * (case.kernel == "wgmma") + 0.5 * (case.case == "naive-f32-8"))
    shifts = [replace(case, changed=("driver",) if case.kernel == "wgmma" else ()) for case in slow]
    counted = "231 unchanged cases beside this board's own figures, 0 beside other boards'"
    lines = machine_lines(judged(shifts))
    assert lines[0] == f"MACHINE: DRIFTED SHIFTED; {counted}"
    (told,) = [line for line in lines if line.startswith("  wgmma f16: the same binaries take ")]
    assert told.endswith("more than 0.2 % in the median of 11 cases; differs: driver")
    assert "with the same binary: naive-f32-8 (+50.1 %), wgmma-" in lines[-1]
    assert machine_lines(judged(run(8))) == [f"MACHINE: as it was; {counted}"]
    low = judge_machine(replace(HERE, settings={**SETTINGS, "power_limit_w": 500.0}), KNOWN, ())
    assert finding_text(low.findings[0]) == "power limit 500 W, should be 700 W: nvidia-smi -pl 700"


# Health


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (changed(HERE, "dram", 0.94, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (changed(HERE, "l2", 0.84, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (changed(HERE, "f32", 0.95, "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
        (changed(HERE, "f32", 0.95, "mhz"), VerdictKind.DRIFTED, "CLOCK"),
        (changed(HERE, "f32", math.nan, "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
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


def test_where_memory_lies_in_the_l2_is_no_fault() -> None:
    """Seen: 7,983 to 8,922 GB/s in nine processes on one H200, the other probes within 1 %."""
    assert not judge_machine(changed(HERE, "l2", 7983 / 8922, "gbps"), KNOWN, ()).findings


def test_a_healthy_board_that_nobody_has_seen_passes() -> None:
    """Seen: an H200 whose L2 has 0.92 of the bandwidth of the least of eleven others."""
    for probe, factor in (("dram", 0.95), ("l2", 0.91), ("f16", 0.95), ("dram", 1.1)):
        other = replace(changed(HERE, probe, factor, "gflops", "gbps"), board="unseen")
        assert not judge_machine(other, KNOWN, ()).findings


@pytest.mark.parametrize(
    "ill",
    [
        *(
            changed(HERE, probe, 0.8, field)
            for probe, field in (("dram", "gbps"), ("l2", "gbps"), ("f32", "mhz"))
        ),
        *(replace(HERE, settings=SETTINGS | other) for other in ({"ecc": False}, {"mig": True})),
        replace(HERE, settings={"power_limit_w": 500.0}),
    ],
)
def test_a_fault_or_setting_unlike_its_models_is_red_on_a_board_that_nobody_has_seen(ill: Health) -> None:
    assert judge_machine(replace(ill, board="unseen"), KNOWN, ()).failed


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
