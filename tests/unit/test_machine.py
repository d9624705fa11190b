"""The judge of the machine, on a simulated GPU: each scenario is red or green as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import log
from random import Random
from statistics import median

import pytest

from harness.reports.machine import finding_text, machine_lines
from harness.verdicts.health import Health
from harness.verdicts.machine import (
    LEAST_CASES,
    MachineVerdict,
    Shift,
    again,
    judge_machine,
)
from harness.verdicts.vocabulary import VerdictKind

# Microseconds on an H200 of cases from 256³ to 8192³, and what bounds them.
_CUDA = [(24, "latency"), (40, "latency"), (68, "latency"), (110, "compute"), (480, "compute")]
_CUDA += [
    (420, "compute"),
    (3000, "compute"),
    (3050, "compute"),
    (23_000, "compute"),
    (350, "l2"),
    (900, "dram"),
]
_TENSOR = [(9, "latency"), (15, "latency"), (28, "latency"), (60, "l2"), (69, "l2"), (110, "compute")]
_TENSOR += [(180, "compute"), (190, "compute"), (1300, "compute"), (1350, "compute"), (350, "dram")]
_KERNELS = [
    *(
        (name, "f32", "cuda")
        for name in ("naive", "tiled", "register", "vectorized", "prefetch", "warp_tiled")
    ),
    *((name, "f32", "cuda") for name in ("stream_k", "lean_loop", "batched_small", "cublas")),
    *(
        (name, dtype, "tensor")
        for name in ("wmma", "wgmma", "mma_tma", "cublas")
        for dtype in ("f16", "bf16")
    ),
    *(("wgmma_tf32", "tf32", "tensor"), ("mma_tma", "tf32", "tensor"), ("tf32x3", "f32", "tensor")),
]
_LONGER = ("wgmma", "wgmma_tf32", "mma_tma")
_PROBES = {
    "f32": {"gflops": 65970.0, "mhz": 1980.0, "arithmetic": 66905.0},
    "f16": {"gflops": 965000.0, "mhz": 1802.0, "arithmetic": 974000.0},
    "bf16": {"gflops": 965000.0, "mhz": 1802.0, "arithmetic": 974000.0},
    "tf32": {"gflops": 482500.0, "mhz": 1802.0, "arithmetic": 487000.0},
    "l2": {"gbps": 8600.0, "mhz": 1979.5},
    "dram": {"gbps": 4100.0, "mhz": 1979.6, "arithmetic": 4814.0},
}
_SETTINGS = {"power_limit_w": 700.0, "default_power_limit_w": 700.0, "ecc": True, "mig": False}
HERE = Health("here", _PROBES, _SETTINGS)


def _with(health: Health, probe: str, factor: float, *fields: str) -> Health:
    values = health.probes[probe]
    changed = {name: value * factor if name in fields else value for name, value in values.items()}
    return replace(health, probes={**health.probes, probe: changed})


# Boards of the model as measured: DRAM of two kinds, L2 more or less, clocks a step apart.
KNOWN = (
    replace(_with(_with(HERE, "dram", 1.025, "gbps"), "l2", 0.975, "gbps"), board="there"),
    replace(_with(_with(HERE, "f16", 1.008, "gflops", "mhz"), "l2", 1.03, "gbps"), board="elsewhere"),
    HERE,
)


def run(seed: int, own: bool = True, slower: Callable[[Shift], float] | None = None) -> list[Shift]:
    """A run of a simulated GPU, with the noise of the H200s stored: processes share a clock and how launches
    start, and a case has noise of its own, with heavy tails. ``slower``: by how much each case is."""
    random = Random(seed)

    def process() -> dict[str, float]:
        return {
            "start": random.gauss(0, 0.10e-6),
            "cuda": random.gauss(0, 0.0003),
            "tensor": random.gauss(0, 0.0005),
        }

    def seen(shared: dict[str, float], core: str, seconds: float, noise: float) -> float:
        tail = random.choice([1, 1, 1, 1, 1, 1, 1, 1, 1, 4])
        return seconds * (1 + shared[core] + random.gauss(0, tail * noise)) + shared["start"]

    then, now = [process() for _ in range(5)], process()
    shifts = []
    for kernel, dtype, core in _KERNELS:
        for number, (us, bound) in enumerate(_CUDA if core == "cuda" else _TENSOR):
            seconds = us * 1e-6
            noise = (0.0004 if core == "cuda" else 0.0007) + 0.02e-6 / seconds
            medians = [seen(shared, core, seconds, noise) for shared in then]
            case = Shift(
                *(f"{kernel}-{dtype}-{number}", kernel, dtype, core, bound, median(medians)),
                log_ratio=log(seen(now, core, seconds, noise) / median(medians)),
                noise=(max(medians) - min(medians)) / median(medians),
                own=own,
            )
            shifts.append(
                replace(case, log_ratio=case.log_ratio + log(1 + (slower(case) if slower else 0.0)))
            )
    return shifts


def share_red(
    seeds: Iterable[int], slower: Callable[[Shift], float] | None = None, own: bool = True
) -> float:
    verdicts = [judge_machine(HERE, KNOWN, run(seed, own, slower)) for seed in seeds]
    return sum(verdict.failed for verdict in verdicts) / len(verdicts)


def subjects(verdict: MachineVerdict) -> set[str]:
    return {finding.subject for finding in verdict.findings}


def test_the_same_machine_passes() -> None:
    assert share_red(range(200)) == 0
    assert share_red(range(200), own=False) == 0
    verdict = judge_machine(HERE, KNOWN, run(0))
    assert (verdict.kind, verdict.reason) == (VerdictKind.PASS, "AS_STORED")
    assert verdict.checked == (len(run(0)), 0)
    assert judge_machine(HERE, KNOWN, run(0, own=False)).reason == "AS_ITS_MODEL"


def test_three_kernels_4_percent_slower_on_the_same_board_are_found() -> None:
    """51 cases of wgmma, wgmma_tf32 and mma_tma by a driver or a compiler: the old judge had 0 red."""
    assert share_red(range(100), lambda case: 0.04 * (case.kernel in _LONGER)) == 1
    verdict = judge_machine(HERE, KNOWN, run(1, slower=lambda case: 0.04 * (case.kernel in _LONGER)))
    assert verdict.kind is VerdictKind.DRIFTED
    assert {"wgmma f16", "wgmma bf16", "wgmma_tf32 tf32", "mma_tma tf32"} <= subjects(verdict)
    assert not {"wmma f16", "tf32x3 f32", "cuda compute"} & subjects(verdict)


@pytest.mark.parametrize("kernel", ["stream_k", "wgmma_tf32", "tf32x3"])
def test_one_percent_of_a_kernel_is_found(kernel: str) -> None:
    assert share_red(range(100), lambda case: 0.01 * (case.kernel == kernel)) >= 0.95


@pytest.mark.parametrize("kind", [("cuda", "compute"), ("tensor", "compute"), ("cuda", "dram")])
def test_one_percent_of_a_kind_is_found(kind: tuple[str, str]) -> None:
    assert share_red(range(100), lambda case: 0.01 * ((case.core, case.bound) == kind)) >= 0.95


def test_four_cases_of_a_kernel_are_enough_and_two_are_not() -> None:
    def few(seed: int, count: int) -> list[Shift]:
        return [case for case in run(seed) if case.kernel == "prefetch" and case.bound == "compute"][:count]

    def slower(seed: int, count: int) -> bool:
        shifts = [replace(case, log_ratio=case.log_ratio + log(1.01)) for case in few(seed, count)]
        return judge_machine(HERE, KNOWN, shifts).failed

    assert sum(slower(seed, 4) for seed in range(100)) >= 95
    assert not any(slower(seed, LEAST_CASES - 1) for seed in range(100))


def _at_the_cap(case: Shift) -> float:
    """A clock 20 % lower where the GPU is at its power cap: long products on tensor cores."""
    return 0.25 * (case.core == "tensor" and case.bound == "compute")


def test_a_clock_20_percent_lower_at_the_power_cap_is_red_on_any_board() -> None:
    for own in (True, False):
        assert share_red(range(50), _at_the_cap, own) == 1
    ill = HERE
    for probe in ("f16", "bf16", "tf32"):
        ill = _with(ill, probe, 0.8, "gflops", "mhz", "arithmetic")
    for board in ("here", "unknown"):
        verdict = judge_machine(replace(ill, board=board), KNOWN, run(3, own=False))
        assert (verdict.failed, verdict.reason) == (True, "CLOCK")


def test_one_slow_case_is_named_and_not_red() -> None:
    for seed in range(100):
        verdict = judge_machine(
            HERE, KNOWN, run(seed, slower=lambda case: 0.1 * (case.case == "wgmma-f16-7"))
        )
        assert not verdict.failed
        assert "wgmma-f16-7" in [case.case for case in verdict.notes]


def test_no_case_alone_makes_its_group_red() -> None:
    for case in run(5):
        others = [other for other in run(5) if other.case != case.case and other.kernel == case.kernel][:3]
        slow = replace(case, log_ratio=0.3)
        assert not judge_machine(HERE, KNOWN, [*others, slow]).failed, case.case


def test_boards_like_the_recorded_ones_pass_when_unknown() -> None:
    """tf32x3 at 4095³ -2.8 % and two batched_small -1.5 % were red. On some H200s wmma takes 3.2 % longer."""
    slow = {"tf32x3-f32-8": 0.028, "batched_small-f32-3": 0.015, "batched_small-f32-4": 0.015}
    assert share_red(range(100), lambda case: slow.get(case.case, 0.0), own=False) == 0
    assert share_red(range(100), lambda case: 0.032 * (case.kernel == "wmma"), own=False) == 0


def test_waiting_for_memory_3_percent_longer_is_another_board_or_a_fault_of_this_one() -> None:
    def memory(case: Shift) -> float:
        return 0.03 * (case.bound != "compute")

    assert share_red(range(100), memory, own=False) == 0
    assert share_red(range(100), memory, own=True) == 1


def test_a_library_3_percent_slower_is_found_and_told_with_its_version() -> None:
    shifts = [
        replace(case, changed=("cublas",) if case.kernel == "cublas" else ())
        for case in run(4, slower=lambda case: 0.03 * (case.kernel == "cublas"))
    ]
    verdict = judge_machine(HERE, KNOWN, shifts)
    assert {"cublas f32", "cublas f16", "cublas bf16"} == subjects(verdict)
    assert all(finding.changed == ("cublas",) for finding in verdict.findings)
    assert share_red(range(100), lambda case: 0.03 * (case.kernel == "cublas")) == 1


def test_own_figures_and_the_models_are_judged_each_by_its_own_limit() -> None:
    def mixed(slower: str) -> list[Shift]:
        return [
            replace(
                case,
                own=case.core == "cuda",
                log_ratio=case.log_ratio + log(1.02) * (case.core == slower),
            )
            for case in run(6)
        ]

    assert not judge_machine(HERE, KNOWN, mixed("")).failed
    assert not judge_machine(HERE, KNOWN, mixed("tensor")).failed
    verdict = judge_machine(HERE, KNOWN, mixed("cuda"))
    assert verdict.failed
    assert all("f32" in name or "cuda" in name for name in subjects(verdict))
    assert verdict.checked == (110, 121)


def test_faster_is_not_red() -> None:
    assert share_red(range(20), lambda case: -0.03) == 0


@pytest.mark.parametrize(
    ("now", "kind", "reason"),
    [
        (_with(HERE, "dram", 0.94, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (_with(HERE, "l2", 0.92, "gbps"), VerdictKind.DRIFTED, "BANDWIDTH"),
        (_with(HERE, "f32", 0.95, "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
        (_with(HERE, "f32", 0.95, "mhz"), VerdictKind.DRIFTED, "CLOCK"),
        (_with(HERE, "f32", float("nan"), "gflops"), VerdictKind.DRIFTED, "ARITHMETIC"),
        (replace(HERE, settings={**_SETTINGS, "power_limit_w": 500.0}), VerdictKind.DRIFTED, "POWER_LIMIT"),
        (replace(HERE, settings={"power_limit_w": 500.0}), VerdictKind.DRIFTED, "POWER_LIMIT"),
        (replace(HERE, settings={**_SETTINGS, "ecc": False}), VerdictKind.DRIFTED, "ECC"),
        (replace(HERE, settings={**_SETTINGS, "mig": True}), VerdictKind.DRIFTED, "MIG"),
        (replace(HERE, others=("python, 500 MiB",)), VerdictKind.AMBIGUOUS, "OTHER_PROCESSES"),
        (replace(HERE, probes={}), VerdictKind.AMBIGUOUS, "NOT_MEASURED"),
    ],
)
@pytest.mark.parametrize("board", ["here", "unknown"])
def test_an_unhealthy_board_is_red(now: Health, kind: VerdictKind, reason: str, board: str) -> None:
    verdict = judge_machine(replace(now, board=board), KNOWN, run(7))
    assert (verdict.failed, verdict.kind, verdict.reason) == (True, kind, reason)
    assert len(machine_lines(verdict)) == 1 + len(verdict.findings) + bool(verdict.notes)


def test_a_healthy_board_that_nobody_has_seen_passes() -> None:
    for probe, factor in (("dram", 0.98), ("l2", 0.96), ("f16", 0.985), ("dram", 1.1)):
        other = replace(_with(HERE, probe, factor, "gflops", "gbps"), board="unseen")
        assert not judge_machine(other, KNOWN, ()).findings


def test_a_model_that_nobody_has_seen_must_do_what_its_datasheet_makes_plausible() -> None:
    here = replace(HERE, settings={**_SETTINGS, "max_sm_clock_mhz": 1980})
    verdict = judge_machine(here, (), ())
    assert (verdict.failed, verdict.reason) == (False, "NOTHING_KNOWN")
    assert judge_machine(_with(here, "f32", 0.7, "gflops"), (), ()).reason == "ARITHMETIC"
    assert judge_machine(_with(here, "f32", 0.7, "gflops", "mhz", "arithmetic"), (), ()).reason == "CLOCK"
    low = replace(here, settings={**_SETTINGS, "power_limit_w": 300.0})
    assert judge_machine(low, (), ()).reason == "POWER_LIMIT"


def test_another_boards_power_limit_is_not_this_ones() -> None:
    """Where NVML says what this board's default is."""
    here = replace(HERE, board="unseen", settings={"power_limit_w": 650.0, "default_power_limit_w": 650.0})
    assert not judge_machine(here, KNOWN, ()).failed


def test_health_is_read_from_machine_info() -> None:
    machine = {
        "name": "NVIDIA H200",
        "board": "here",
        "roofs": {**_PROBES, "cycles": {"fma": 4.2}},
        **_SETTINGS,
    }
    assert Health.of(machine) == HERE
    assert Health.of({}, ["a.out"]) == Health(others=("a.out",))


@pytest.mark.parametrize("seed", range(5))
def test_a_stored_run_is_judged_again(seed: int) -> None:
    shifts = [
        replace(case, own=seed % 2 == 0, changed=("driver",))
        for case in run(
            seed, slower=lambda case: 0.07 * (case.kernel == "wgmma") + 0.2 * case.case.endswith("2")
        )
    ]
    verdict = judge_machine(_with(HERE, "dram", 0.9, "gbps"), KNOWN, shifts)
    assert verdict.failed
    assert verdict.notes
    assert again(json.loads(json.dumps(verdict.recorded()))) == verdict


@pytest.mark.parametrize(
    "wrong",
    [
        {"log_ratio": float("nan")},
        {"seconds": 0.0},
        {"noise": -0.1},
        {"noise": float("nan")},
        {"core": "sparse"},
    ],
)
def test_what_is_no_shift_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^naive-f32-0: "):
        replace(run(0)[0], **wrong)


def test_a_verdict_is_told_in_a_few_lines() -> None:
    shifts = [
        replace(case, changed=("driver",) if case.kernel == "wgmma" else ())
        for case in run(
            8, slower=lambda case: 0.04 * (case.kernel == "wgmma") + 0.5 * (case.case == "naive-f32-8")
        )
    ]
    counted = "231 unchanged cases beside this board's own figures, 0 beside other boards'"
    lines = machine_lines(judge_machine(HERE, KNOWN, shifts))
    assert lines[0] == f"MACHINE: DRIFTED SHIFTED; {counted}"
    told = [line for line in lines if line.startswith("  wgmma f16: the same binaries take ")]
    assert len(told) == 1
    assert told[0].endswith("more than 0.2 % in the median of 11 cases; differs: driver")
    assert "with the same binary: naive-f32-8 (+50.2 %), wgmma-" in lines[-1]
    assert machine_lines(judge_machine(HERE, KNOWN, run(8))) == [f"MACHINE: as it was; {counted}"]
    low = judge_machine(replace(HERE, settings={**_SETTINGS, "power_limit_w": 500.0}), KNOWN, ())
    assert finding_text(low.findings[0]) == "power limit 500 W, should be 700 W: nvidia-smi -pl 700"
