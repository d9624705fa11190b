"""Recorded runs, as they are and tampered with, through the whole suite: what is red, and what it says."""

from __future__ import annotations

import dataclasses
import re
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression import baselines
from gemm_regression.cli import stored as evidence_command
from gemm_regression.model import Case
from gemm_regression.pytest_plugin import judged
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice, slowed
from tests.gemm_regression.rig import (
    CASES,
    LIBRARY,
    OTHER,
    OURS,
    RECORDED,
    SLOW,
    Outcome,
    Printed,
    Rig,
    named,
)
from tests.gemm_regression.samples import select

SLOWED, UNTOUCHED = RECORDED[SLOW], RECORDED[OTHER]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def test_same_code_run_again_is_green(rig: Rig) -> None:
    device = ReplayDevice(3)
    outcome = rig.run(*OURS, "--kernel", LIBRARY, device=device)
    assert outcome.green == named(*CASES, *RECORDED[LIBRARY]) | {"test_no_orphans", "test_machine"}
    assert device.restarts == 1
    for case in CASES:
        stored, info, row = (
            rig.stored.entries[case].gflops,
            outcome.timed[case]["extra_info"],
            outcome.row(case),
        )
        gflops = info["gflops"]
        assert gflops == pytest.approx(stored, rel=0.01)
        assert _number(row[3]) == pytest.approx(gflops, abs=1)
        shares = [100 * info["cublas_ratio"], 100 * (gflops / stored - 1)]
        assert [_number(cell) for cell in row[4:6]] == pytest.approx(shares, abs=0.1)
        assert row[-1] == "PASS"


def test_header_names_what_the_figures_rest_on(rig: Rig) -> None:
    device = ReplayDevice()
    text = rig.run("--collect-only", outputs=False).text
    assert "gpu: none (not opened for --collect-only)" in text
    text, info = rig.run(*OURS, device=device).text, device.info
    gpu = next(line for line in text.splitlines() if line.startswith("gpu: "))
    limits = f"power limit {info.power_limit_w} W", f"max SM clock {info.max_sm_clock_mhz} MHz"
    assert all(fact in gpu for fact in (info.name, f"{info.memory_mib} MiB", *limits))
    driver = rf"^driver: {re.escape(info.driver)}, CUDA {info.cuda_driver}, nvcc (none|\d+\.\d+)"
    assert re.search(driver, text, re.M)
    count = len(rig.stored.entries)
    assert f"\nsuite: smoke, baseline: nvidia-h200, {count} cases, {count} of them measured" in text


def test_benchmark_table_shows_the_gflops_that_were_judged(rig: Rig) -> None:
    outcome = rig.run(*OURS, "--benchmark-compare", device=ReplayDevice(2))
    stored = rig.stored.entries
    assert "OPS (GFLops/s)" in outcome.text
    for case in CASES:
        rows = [line for line in outcome.text.splitlines() if line.startswith(f"test_performance[{case}] ")]
        shown = {"(NOW)" in row: _number(re.findall(r"([\d,.]+) \(", row)[-1]) for row in rows}
        judged = outcome.timed[case]["extra_info"]["gflops"]
        assert shown[True] == pytest.approx(judged, rel=1e-6)
        assert shown[False] == pytest.approx(stored[case].gflops, rel=1e-5)


@pytest.mark.parametrize(
    ("unit", "head"), [({}, "OPS (GFLops/s)"), ({"unit": "GB/s"}, "   OPS (GB/s)")], ids=["GFLOPS", "GB/s"]
)
def test_the_benchmark_table_names_the_unit_of_an_operation(unit: dict[str, str], head: str) -> None:
    benchmarks = [{"extra_info": {"flops": 8e9, **unit}}] * 2
    scaled = judged.pytest_benchmark_scale_unit(None, "operations", benchmarks)
    assert scaled is not None
    assert scaled[1] == 8.0
    table, lines = Mock(), list[str]()
    table.write_line = lines.append
    shown = judged.pytest_terminal_summary(table)
    next(shown)
    table.write_line(f"OPS ({scaled[0]}ops/s)")
    assert lines == [head]


def test_legend_of_the_benchmark_table_is_true(rig: Rig) -> None:
    assert "Legend:" not in rig.run(*OURS).text  # the ladder has it all
    text = rig.run(*OURS, "-v").text
    legend = text[text.index("\nLegend:\n") :]
    assert "1 / Mean" not in legend
    assert (
        "\n  OPS: 1 / Median; GFLops/s are GFLOPS, 2·M·N·K·batch / Median, GB/s all operands / Median\n"
        in legend
    )


def test_json_has_ops_as_everybody_s_legend_has_it(rig: Rig) -> None:
    for bench in rig.run(*OURS).timed.values():
        assert bench["stats"]["ops"] == pytest.approx(1 / bench["stats"]["mean"], rel=1e-9)
        assert bench["stats"]["ops"] != pytest.approx(1 / bench["stats"]["median"], rel=1e-9)


Regressed = tuple[Outcome, ReplayDevice]


@pytest.fixture
def regressed(rig: Rig) -> Regressed:
    device = ReplayDevice(3, slowed(1.03, SLOW))
    return rig.run(*OURS, device=device), device


def test_slower_kernel_fails_and_no_other(regressed: Regressed, rig: Rig) -> None:
    outcome, device = regressed
    assert outcome.red == named(*SLOWED)
    assert outcome.passed == named(*UNTOUCHED) | {"test_no_orphans", "test_machine"}
    assert device.restarts == 2  # all of them again in one new process
    for case in SLOWED:
        message = outcome.failures[f"test_performance[{case}]"]
        told = r"its time changes by \+([\d.]+) % .*more than the margin of 0.5 %"
        found = re.fullmatch(f"Failed: REGRESSED: {case}: .*{told}.*", message)
        assert found, message
        assert float(found[1]) == pytest.approx(3.0, abs=0.2)
        assert "in a second process" in message
        first, *_, kind, reason = outcome.row(case)
        assert (first, kind, reason) == ("!", "REGRESSED", "SLOWER")
    assert outcome.text.count("Traceback") == 0
    # One entry for all cases of the kernel, the first in full, and at the end one line with the reason.
    told = f"{SLOW}: REGRESSED SLOWER   ({len(SLOWED)} tests, 1 variant)"
    assert outcome.text.count(told) == 1
    assert outcome.text.count("its time changes by") == 1
    failed = [line for line in outcome.text.splitlines() if line.startswith("FAILED ")]
    more = f" and {len(SLOWED) - 1} more - REGRESSED SLOWER"
    assert [line[line.index("]") + 1 :] for line in failed] == [more]


def test_a_quiet_run_shows_what_is_red(rig: Rig) -> None:
    outcome = rig.run(*OURS, "-q", device=ReplayDevice(3, slowed(1.03, SLOW)))
    every = len(SLOWED) + len(UNTOUCHED)
    table = outcome.text.split(" ladder ")[1]
    (told,) = re.findall(rf"{every} cases: (.*)", table)
    assert {*told.split(", ")} == {f"{len(UNTOUCHED)} PASS", f"{len(SLOWED)} REGRESSED"}
    assert sum(line.startswith("! ") for line in table.splitlines()) == len(SLOWED)
    assert not [line for line in table.splitlines() if line.startswith("  ") and line.endswith(" PASS")]


def chosen_by(rig: Rig, text: str, command: str) -> set[str]:
    """The tests that run with the -k of a command that the text names."""
    found = re.search(rf'{command} -- -k "([^"]+)"', text)
    assert found, text
    return rig.run("-k", found[1]).junit.keys() - {"test_machine"}


def test_reproducing_command_selects_that_case_alone(regressed: Regressed, rig: Rig) -> None:
    for message in regressed[0].failures.values():
        assert chosen_by(rig, message, "Reproduce: nox -s gpu") == named(message.split(": ")[2])


def test_a_changed_case_is_paired_and_not_timed_besides(regressed: Regressed) -> None:
    outcome, device = regressed
    assert device.attempts == dict.fromkeys(UNTOUCHED, 1)
    assert {name for name, _ in device.asked if "stored" not in name} == set(SLOWED)
    assert {outcome.timed[case]["extra_info"]["verdict"] for case in SLOWED} == {"REGRESSED"}


def test_the_same_binaries_slower_are_the_machines_which_may_be_allowed_and_is_listed(rig: Rig) -> None:
    device = ReplayDevice(3, slowed(1.03, edited=False))
    outcome = rig.run(*OURS, device=device)
    assert outcome.red == {"test_machine"}
    assert "MACHINE: DRIFTED SHIFTED" in outcome.failures["test_machine"]
    assert {outcome.row(case)[-1] for case in CASES} == {"PASS"}
    outcome = rig.run(*OURS, "--allow-drift", device=device)
    assert outcome.green
    assert "MACHINE: DRIFTED SHIFTED" in outcome.text
    assert rig.run(*OURS, "--allow-drift", device=ReplayDevice(3, slowed(1.03, SLOW))).status == 1


def test_faster_passes_and_shows_how_to_keep_it(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=ReplayDevice(3, slowed(1 / 1.05, SLOW)))
    assert outcome.green
    kinds = {case: outcome.row(case)[-1] for case in CASES}
    assert kinds == dict.fromkeys(SLOWED, "IMPROVED") | dict.fromkeys(UNTOUCHED, "PASS")
    told = "3 improved; to update their baseline: nox -s baseline"
    assert chosen_by(rig, outcome.text, told) == named(*SLOWED)


# What the baseline lacks, and what only it has


def test_sustained_figures_are_shown_and_stored_beside_what_is_judged(rig: Rig) -> None:
    """With their share of the library's, where both ran a problem."""

    def sustained(case: Case, m: Measurement, attempt: int) -> Measurement:
        seconds = m.median if case.kernel.library else 2 * m.median
        more = {"sustained_s": seconds, "sustained_mhz": 1410.5, "sustained_w": None}
        return dataclasses.replace(m, extra=more) if case.id != UNTOUCHED[0] else m

    outcome = rig.run(*OURS, "--kernel", LIBRARY, device=ReplayDevice(3, sustained))
    assert outcome.green
    told = (
        r"sustained, not judged: (\S+): (\S+) GFLOPS at 1410.5 MHz and \? W(, (\S+) % of cuBLAS)?; in timed"
    )
    found = re.findall(told, outcome.text)
    assert {case for case, *_ in found} == {*CASES, *RECORDED[LIBRARY]} - {UNTOUCHED[0]}
    infos = {case: bench["extra_info"] for case, bench in outcome.timed.items()}
    for case, gflops, _, share in found:
        speed, own = infos[case]["sustained_gflops"], infos[case]["gflops"]
        assert speed == pytest.approx(own if case in RECORDED[LIBRARY] else own / 2)
        assert _number(gflops) == pytest.approx(speed, rel=1e-3)
        assert bool(share) is (case not in RECORDED[LIBRARY])  # which has no share of itself
        if share:  # of the problem's other dtypes none
            library = infos[f"{LIBRARY}-f32-{case.rpartition('-')[2]}"]["sustained_gflops"]
            assert float(share) == pytest.approx(100 * speed / library, abs=0.06)


def test_case_that_the_baseline_lacks_fails_or_may_be_allowed_and_is_listed(rig: Rig) -> None:
    baselines.prune(rig.baselines.parent, "nvidia-h200", set(rig.stored.case_ids) - {SLOWED[0]})
    outcome = rig.run(*OURS)
    assert outcome.red == named(SLOWED[0])
    (message,) = outcome.failures.values()
    assert "NO_BASELINE" in message
    assert chosen_by(rig, message, "measure it: nox -s baseline") == named(SLOWED[0])
    outcome = rig.run(*OURS, "--allow-no-baseline")
    assert outcome.green
    first, *_, kind = outcome.row(SLOWED[0])
    assert (first != "!", kind) == (True, "NO_BASELINE")
    assert rig.run(*OURS, "--allow-no-baseline", device=ReplayDevice(0, slowed(1.03, OTHER))).status == 1


def test_kernel_that_the_baseline_lacks_is_one_command(rig: Rig) -> None:
    """The cases of one kernel are missing, those of another are not."""
    kept = set(rig.stored.case_ids) - set(RECORDED[LIBRARY])
    baselines.prune(rig.baselines.parent, "nvidia-h200", kept)
    outcome = rig.run(*OURS, "--kernel", LIBRARY, "--job-summary=summary.md")
    lacking = RECORDED[LIBRARY]
    assert len(lacking) > 5
    assert outcome.red == named(*lacking)
    line = f"NO_BASELINE: nox -s baseline -- --kernel {LIBRARY}"
    said = f"{line}   ({len(lacking)} tests, 4 variants)\n  not in the baseline: {lacking[0]} and "
    assert said in outcome.text
    assert f"\n- {line} (" in (rig.root / "summary.md").read_text()
    assert all(len(line) < 300 for line in outcome.text.splitlines())


def test_new_gpu_has_no_baseline(rig: Rig) -> None:
    outcome = rig.run(*OURS, device=ReplayDevice(name="NVIDIA H300"))
    said = "NO_BASELINE: NVIDIA H300 has no baseline yet, so no timed case can be judged; measure one: "
    said += "nox -s baseline"
    assert outcome.red == named(CASES[0])
    assert [*outcome.failures.values()] == [f"Failed: {said}"]
    assert outcome.skipped.keys() == named(*CASES[1:])
    assert {outcome.row(case)[-1] for case in CASES} == {"NO_BASELINE"}
    assert {bench["extra_info"]["red"] for bench in outcome.timed.values()} == {True}
    assert "baseline: none" in outcome.text
    page = outcome.text.partition(" what failed ")[2].partition(" ladder ")[0]
    assert page.strip(" =\n").splitlines() == [said]
    assert [outcome.text.count(text) for text in ("--lf", "--refresh", "\nFAILED ")] == [0, 0, 1]
    assert rig.run(*OURS, "--allow-no-baseline", device=ReplayDevice(name="NVIDIA H300")).status == 0


def _live(suite: str) -> set[str]:
    return {case.id for case in select(suite).timed}


def _also_stored(rig: Rig, case: str) -> None:
    """The baseline has this case too."""
    entry = rig.stored.entries[SLOWED[0]]
    group = case.removeprefix(f"{entry.variant}-")
    rig.store([dataclasses.replace(entry, group=group, case_id=case)])


def test_baseline_case_that_is_gone_fails_or_may_be_allowed_and_is_listed(rig: Rig) -> None:
    gone = SLOWED[0].rpartition("-")[0] + "-48x48x48"
    assert gone not in _live("full")
    _also_stored(rig, gone)
    outcome = rig.run(*OURS)
    assert outcome.red == {"test_no_orphans"}
    message = outcome.failures["test_no_orphans"]
    assert f"ORPHAN: 1 baseline cases are in no suite any more: {gone}." in message
    assert "nox -s baseline -- prune" in message
    outcome = rig.run(*OURS, "--allow-orphans")
    assert outcome.green
    assert gone in outcome.text


@pytest.mark.parametrize("suite", ["full", "advice"])
def test_cases_that_were_not_chosen_are_no_orphans(rig: Rig, suite: str) -> None:
    assert rig.run("--kernel", OTHER).status == 0
    _also_stored(rig, min(_live(suite) - _live("smoke") - (_live("full") if suite != "full" else set())))
    assert rig.run(*OURS).status == 0


# What cannot be judged


@pytest.mark.parametrize("mode", [(), ("--baseline-run",), ("--allow-no-baseline", "--allow-drift")], ids=str)
@pytest.mark.parametrize("seconds", [(1e-4,) * 3, (), (0.0,) * 9], ids=["few", "none", "zero"])
def test_what_cannot_be_judged_is_red(rig: Rig, seconds: tuple[float, ...], mode: tuple[str, ...]) -> None:
    def change(case: Case, m: Measurement, attempt: int) -> Measurement:
        return dataclasses.replace(m, seconds=seconds) if case.id == SLOWED[0] else m

    outcome = rig.run(*OURS, *mode, device=ReplayDevice(3, change))
    assert outcome.red == named(SLOWED[0])
    (message,) = outcome.failures.values()
    assert message.startswith(f"Failed: AMBIGUOUS: {SLOWED[0]}: ")
    assert outcome.row(SLOWED[0])[0] == "!"
    assert set(outcome.timed) >= set(CASES) - {SLOWED[0]}


@pytest.mark.parametrize(
    ("change", "options"),
    [
        (None, ()),
        (slowed(1.03, SLOW), ()),
        (slowed(1.015, SLOW), ("--margin=2%",)),
        (slowed(0.9, SLOW), ()),
        (slowed(1.03, edited=False), ("--allow-drift",)),
        (None, ("--benchmark-compare-fail=max:1%",)),
        (None, ("--baseline-run",)),
    ],
)
def test_recorded_run_judged_again_from_its_json_gives_the_same_verdicts(
    rig: Rig, change: Any, options: tuple[str, ...], printed: Printed
) -> None:
    outcome = rig.run(*OURS, "--kernel", LIBRARY, *options, device=ReplayDevice(3, change))
    file = rig.root / "out.json"
    count, red = len(CASES) + len(RECORDED[LIBRARY]) + 1, len(outcome.failures)
    red += "--allow-drift" in options  # the machine is what it is
    assert evidence_command.evidence([str(file)]) == 0
    assert printed.out == f"{count} cases judged again ({red} failed), 0 differ from the recorded verdict\n"
