"""The options of a run, the suite's own and those of pytest and pytest-benchmark, through the whole suite."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines.merge import write_export
from gemm_regression.model import Case
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project.selection import illegal
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice, VerifiedDevice, slowed
from tests.gemm_regression.rig import CASES, KERNELS_FILE, OTHER, OURS, RECORDED, SLOW, SUITE_FILE, Rig, named
from tests.gemm_regression.samples import KERNELS, select
from tests.gemm_regression.synthetic import scaled

SLOWED, UNTOUCHED = RECORDED[SLOW], RECORDED[OTHER]
NOTHING_ELSE = {"test_no_orphans"}
MACHINE = {"test_machine"}  # asked for after whichever cases are timed
ASLEEP = "the driver is asleep"
SHAPE = SLOWED[1].rpartition("-")[2]
CONFIG = SLOWED[0].split("-", 2)[2].rpartition("-")[0]


# Which baseline


@pytest.fixture
def second(rig: Rig) -> Path:
    """A newer baseline in which the first kernel is twice as fast."""
    stored = rig.stored.entries.items()
    return rig.store(scaled(e, 0.5) if case in SLOWED else e for case, e in stored)


@pytest.mark.parametrize("option", [(), ("--benchmark-compare",), ("--benchmark-compare=0002",)], ids=str)
def test_newest_baseline_is_what_a_run_is_judged_by(rig: Rig, second: Path, option: tuple[str, ...]) -> None:
    outcome = rig.run(*OURS, *option)
    assert outcome.red == MACHINE
    assert all(outcome.row(case)[5] == "-50.0" for case in SLOWED)
    # pytest-benchmark's own table shows the stored figures beside the new ones.
    assert outcome.text.count(" (NOW) ") == (len(CASES) if option else 0)


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("what", ["export", "run"])
def test_baseline_by_its_path(rig: Rig, what: str, absolute: bool) -> None:
    elsewhere = rig.root / "kept.json"
    if what == "export":
        write_export(rig.stored, elsewhere)
    else:
        assert rig.run(*OURS, device=ReplayDevice(2)).status == 0
        (rig.root / "out.json").rename(elsewhere)
    rig.store(scaled(entry, 0.5) for entry in rig.stored.entries.values())
    outcome = rig.run(*OURS, f"--benchmark-compare={elsewhere if absolute else 'kept.json'}")
    assert outcome.green
    assert "kept.json" in outcome.text
    assert outcome.text.count(" (NOW) ") == len(CASES)


# Which tests


def test_benchmark_only_skips_what_is_not_timed(rig: Rig) -> None:
    outcome = rig.run(*OURS, "--benchmark-only")
    assert outcome.green == named(*CASES) | MACHINE
    assert outcome.skipped.keys() == NOTHING_ELSE


def test_benchmark_skip_times_nothing(rig: Rig) -> None:
    device = ReplayDevice(busy=("pid 1 (x, 3 MiB)",))
    outcome = rig.run(*OURS, "--benchmark-skip", device=device, outputs=False)
    assert (outcome.status, device.attempts) == (0, {})
    assert f"{len(CASES)} skipped" in outcome.text


@pytest.mark.parametrize(
    ("option", "chosen"),
    [
        (("-k", f"{SLOW} and {SHAPE}"), named(SLOWED[1]) | MACHINE),
        (("-k", "test_no_orphans"), NOTHING_ELSE),
        (("-m", "gpu"), named(*CASES) | NOTHING_ELSE | MACHINE),
        (("--kernel", OTHER), named(*UNTOUCHED) | NOTHING_ELSE | MACHINE),
        (("--config", CONFIG), named(*SLOWED) | NOTHING_ELSE | MACHINE),
        (("--shape", SHAPE), {name for name in named(*CASES) if SHAPE in name} | NOTHING_ELSE | MACHINE),
        (("--shape", SHAPE, "--shape", SHAPE, "-k", SLOW), named(SLOWED[1]) | MACHINE),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_chosen_tests_run_and_no_others(rig: Rig, option: tuple[str, ...], chosen: set[str]) -> None:
    kernels = () if "--kernel" in option else OURS
    outcome = rig.run(*kernels, *option)
    assert outcome.green == chosen
    assert outcome.junit.keys() == chosen


@pytest.mark.parametrize(
    ("expression", "kernels"),
    [
        (f"[{SLOWED[0]}]", {SLOW}),
        (f"[{SLOWED[0]}] or [{UNTOUCHED[1]}]", {SLOW, OTHER}),
        (f"{SLOW} and not {SHAPE}", {SLOW}),
        (SHAPE, {SLOW, OTHER}),
        ("", {SLOW, OTHER}),
    ],
)
def test_variants_of_the_timed_cases_are_verified(rig: Rig, expression: str, kernels: set[str]) -> None:
    device = VerifiedDevice()
    verified = select("smoke", tuple(sorted(kernels))).verify
    outcome = rig.run(*OURS, KERNELS_FILE, "--verify-timed", "-k", expression, device=device)
    assert outcome.green == outcome.junit.keys() == {f"test_kernel[{case.id}]" for case in verified}
    assert device.attempts == {}


@pytest.mark.parametrize(
    ("expression", "status"),
    [(f"[{SLOWED[0]}]", 1), ("[no-such-case]", 5), ("test_kernel", 5), ("orphans", 5)],
)
def test_a_wrong_variant_of_a_timed_case_is_red_and_that_of_no_timed_case_no_success(
    rig: Rig, expression: str, status: int
) -> None:
    options = (*OURS, KERNELS_FILE, "--verify-timed", "-k", expression)
    assert rig.run(*options, device=VerifiedDevice(f"{SLOW}-"), outputs=False).status == status


def test_collecting_opens_no_device(rig: Rig) -> None:
    outcome = rig.run(*OURS, "--collect-only", "-q", "--benchmark-compare", outputs=False)
    assert (outcome.status, outcome.opened) == (0, 0)
    assert all(f"::{name}" in outcome.text for name in named(*CASES))


def test_collecting_lists_what_would_run_here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (False, True):
        monkeypatch.setattr("gemm_regression.pytest_plugin.session.has_gpu", lambda there=there: there)
        listed = rig.run(KERNELS_FILE, "--collect-only", "-q", outputs=False).text
        assert ("::test_kernel[cublas" in listed) is there
        assert "ld1073741828" in listed or there


def test_listing_shows_what_is_legal_and_why_the_rest_is_not(rig: Rig) -> None:
    device = ReplayDevice()
    outcome = rig.run("--list-cases", device=device, suite="full", outputs=False)
    assert (outcome.status, device.attempts) == (0, {})
    lines = outcome.text.splitlines()
    assert {f"  {case.id}" for case in select("full", (), device.info.capability).timed} <= set(lines)
    illegal = lines[lines.index("illegal for compute capability 9.0:") + 1 :]
    assert illegal
    assert all(": " in line for line in illegal)


def test_an_expression_that_matches_nothing_is_told(rig: Rig) -> None:
    outcome = rig.run(KERNELS_FILE, "-k", f"{SLOW[:-1]}x{SLOW[-1]}", outputs=False)
    assert outcome.status == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "matches no case" in outcome.text


# How strict


def test_margin(rig: Rig) -> None:
    def red(factor: float, *option: str) -> set[str]:
        device = ReplayDevice(3, slowed(factor, SLOWED[0]))
        return set(rig.run(*OURS, *option, device=device).failures)

    assert red(1.004) == set()
    assert red(1.004, "--margin=0.2%") == red(1.007) == red(1.015) == named(SLOWED[0])
    assert red(1.015, "--margin=2%") == red(1.015, "--margin=2") == set()
    assert red(1.03, "--margin=2%") == named(SLOWED[0])


@pytest.mark.parametrize(
    "option",
    [
        *("--margin=abc", "--margin=0", "--margin=-1%", "--margin=100%", "--margin=nan", "--margin="),
        *("--margin=3%", "--margin=2.1"),
        *("--sustained=-1", "--sustained=nan", "--sustained=11"),
        *("--time-limit=0", "--time-limit=inf", "--job-summary=missing/summary.md"),
        *("--suite=smok", "--kernel=tyled", "--config=tile33", "--shape=12x12", "--shape=-1x2x3"),
        *("--shape=99999999999x1x1", "--shape=axbxc", "--shape=2000000000x8x1", "--numprocesses=-3"),
        *("--job-summary=tests", "--benchmark-json=missing/out.json", "--benchmark-json=tests"),
        *("--sarif=/proc/found.sarif", "--job-summary=/proc/summary.md"),
    ],
)
def test_bad_value_is_refused_in_a_line_that_names_it(rig: Rig, option: str) -> None:
    error = rig.run(option, outputs=False).refusal
    assert option.partition("=")[2] in error
    assert any(
        hint in error
        for hint in (
            *("such as", "known: ", "more than 0", "0 to 10", "does not exist", "at most", "0 or more"),
            *("is a folder; name a file", "GiB of memory", "cannot be written"),
        )
    )


def test_illegal_config_is_refused_with_the_reason(rig: Rig) -> None:
    variant, (reason, *_) = illegal(KERNELS, GpuLimits.of((9, 0)))[0]
    kernel, _, label = variant.split("-", 2)
    outcome = rig.run("--kernel", kernel, "--config", label, suite="full", outputs=False)
    assert outcome.refusal == f"config {label!r} is illegal here: {reason}"


def test_unknown_gpu_generation_is_refused(rig: Rig) -> None:
    device = ReplayDevice(capability=(99, 0))
    assert "unknown compute capability 99.0" in rig.run(device=device, outputs=False).refusal


def test_problem_without_operations_is_never_timed(rig: Rig) -> None:
    assert rig.run("--shape=12x12x0", "--list-cases", outputs=False).text.count("12x12x0") == 0
    outcome = rig.run("--kernel", SLOW, "--shape=12x12x0", KERNELS_FILE, device=VerifiedDevice())
    (verified,) = outcome.green - NOTHING_ELSE
    assert re.fullmatch(rf"test_kernel\[{SLOW}-.*-12x12x0\]", verified)
    assert len(outcome.skipped) == 1


# The GPU


def test_busy_gpu_is_refused_unless_allowed(rig: Rig) -> None:
    device = ReplayDevice(busy=("pid 1 (x, 3 MiB)", "pid 2 (y, 4 MiB)"))
    error = rig.run(*OURS, device=device, outputs=False).refusal
    assert error.startswith("NVIDIA H200 is in use by pid 1 (x, 3 MiB); pid 2 (y, 4 MiB): ")
    assert "--allow-busy" in error
    for allowed in (("--allow-busy",), ("-k", "orphans")):
        assert rig.run(*OURS, *allowed, device=device).green


def test_no_gpu_skips_and_says_why_and_is_not_green(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=ASLEEP)
    assert (outcome.status, outcome.passed) == (4, set())
    assert f"nothing was timed and nothing checked: no GPU: {ASLEEP}" in outcome.text
    assert outcome.skipped == dict.fromkeys(named(*CASES) | NOTHING_ELSE, f"no GPU: {ASLEEP}")
    assert f"gpu: none ({ASLEEP})" in outcome.text


def test_no_gpu_beside_tests_that_need_none_is_green(rig: Rig) -> None:
    asked = (KERNELS_FILE, "--kernel=naive", "--shape=3x5x7")
    assert rig.run(*asked, device=ASLEEP).status == 0
    assert rig.run(*asked, "--benchmark-only", device=ASLEEP).status == 4


def test_no_gpu_is_refused_where_one_was_asked_for(rig: Rig) -> None:
    outcome = rig.run(*OURS, "--device", "cuda", device=ASLEEP, outputs=False)
    assert outcome.refusal == f"--device cuda: {ASLEEP}"


# The job summary


class Stopped(ReplayDevice):
    def time(self, case: Case, plan: Any) -> Measurement:
        if len(self.attempts) == 2:
            raise KeyboardInterrupt
        return super().time(case, plan)


@pytest.mark.parametrize(
    ("device", "begins", "has"),
    [
        (ReplayDevice(3, slowed(1.03, SLOW)), "## Red: ", "3 REGRESSED"),
        (ReplayDevice(3, slowed(1.03, SLOW)), "## Red: ", "NVIDIA H200"),
        (ReplayDevice(3, slowed(1 / 1.05, SLOW)), "## Green: ", "3 improved; to update their baseline: "),
        (ReplayDevice(3, slowed(1.03, edited=False)), "## Red: 6 PASS, ", f"- {SUITE_FILE}::test_machine"),
        (Stopped(), "## Red: 2 PASS, pytest ended with exit status 2\n", ""),
        (ASLEEP, "## Red: nothing was judged", ASLEEP),
    ],
)
def test_job_summary(rig: Rig, device: Any, begins: str, has: str) -> None:
    (rig.root / "summary.md").write_text("of an earlier run")
    rig.run(*OURS, "--job-summary=summary.md", device=device)
    text = (rig.root / "summary.md").read_text()
    assert (text.startswith(begins), has in text) == (True, True), text


def test_job_summary_of_a_wrong_kernel_is_red_though_all_were_fast(rig: Rig) -> None:
    wrong = next(c.id for c in select("smoke", (SLOW,)).verify if c.problem.beta == 0)
    file = rig.root / "summary.md"
    options = (*OURS, KERNELS_FILE, "-k", f"{SLOW} or orphans", f"--job-summary={file}")
    assert rig.run(*options, device=VerifiedDevice()).status == 0
    assert file.read_text().startswith("## Green: 3 PASS\n")
    assert rig.run(*options, device=VerifiedDevice(wrong)).red == {f"test_kernel[{wrong}]"}
    head, _, failed = file.read_text().partition("### Failed")
    assert head.startswith("## Red: 3 PASS, kernels failed\n")
    assert f"- {SLOW}: " in failed
    assert f"first tests/test_kernels.py::test_kernel[{wrong}]" in failed
