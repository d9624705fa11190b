"""The row of the ladder that is, for each problem, what `select` chooses: timed, judged and stored like a
kernel, under an id without the choice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from gemm_regression.baselines import append, current, load_run, merge_runs
from gemm_regression.cli.stored import select as command
from gemm_regression.counters.counts import chosen as counted
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.client import CudaDevice
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.vocabulary import Policy, Verdict, VerdictKind
from gemm_regression.model import F32, Case, Config, Kernel, Problem, find_dtype
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project.loader import ProjectError, load
from gemm_regression.project.selection import Choice, select
from gemm_regression.report.page import readme_section
from gemm_regression.report.runs import RunRow
from gemm_regression.run.creep import Refresh, by_choice, chosen_again, refresh
from gemm_regression.run.timed import Board, TimedCase, observation
from gemm_regression.timing.plan import Measurement, Plan
from gemm_regression.tune.figures import gpus
from gemm_regression.tune.select import SelectionCheck, Selector, Summary, outcomes
from gemm_regression.tune.table import Speed
from tests.gemm_regression.judge.replay import ReplayDevice, VerifiedDevice
from tests.gemm_regression.rig import KERNELS_FILE, Outcome, Printed, Rig
from tests.gemm_regression.scenarios import World, is_new
from tests.gemm_regression.simulated import SimulatedDevice
from tests.gemm_regression.synthetic import (
    CUBE,
    NEW,
    SLUG,
    baseline,
    case,
    entry,
    five_runs,
    measurement,
    merged,
)
from tests.gemm_regression.tune.test_select import EVEN, FIGURES, LARGE, SMALL, figure, selector
from tests.gemm_regression.tune.test_select import measured as stored
from tests.ladder import H200, LADDER, PROJECT

CHOICE = next(kernel for kernel in LADDER if kernel.is_dispatcher)
ROWS = select(PROJECT, Choice(kernels=(CHOICE.name,)), H200)
ROW = Case(CHOICE, F32, Config(), CUBE)
F32_SQUARES = ("--kernel", "select", "-k", "select-f32 and not batch")


def resolved(config: int = 0) -> Case:
    """The row as if that config of `tiled` had been chosen."""
    return replace(case("tiled", config), chosen_for=ROW)


class Replay(ReplayDevice):
    """Answers for a choice with the recording of what was chosen."""

    def time(self, case: Case, plan: Any) -> Measurement:
        return super().time(replace(case, chosen_for=None), plan)


def test_it_is_timed_at_every_problem_that_a_kernel_takes() -> None:
    of_select = ROWS.timed[0].kernel.dtypes  # without FP8 and INT8
    own = [c for c in select(PROJECT, Choice(), H200).timed if c.kernel.compiled and c.dtype in of_select]
    wanted = {(c.problem, c.dtype) for c in own if c.kernel.operation.plain_product}
    timed = {(c.problem, c.dtype) for c in ROWS.timed}
    assert timed >= wanted
    # stages that others outdo are timed at fewer, and may still be the one that takes a problem
    assert {problem for problem, _ in timed - wanted} <= set(PROJECT.suites["full"].timed)
    assert {c.id for c in ROWS.timed} >= {"select-f32-4096x64x4096", "select-f32-8x8x8-batch65535"}
    refused = {each.refusal for each in ROWS.refused}
    assert "select-f16 8x8x8-batch65535: no kernel accepts it" in refused


def test_it_is_verified_on_a_gpu_and_not_emulated() -> None:
    assert {c.kernel.name for c in ROWS.verify} == {"select"}
    emulated = select(PROJECT, Choice(), H200, emulated=True).verify
    assert "select" not in {c.kernel.name for c in emulated}


def test_every_row_has_a_choice_that_can_run_there() -> None:
    selector = Selector.of(PROJECT, "nvidia-h200")
    for asked in (*ROWS.timed, *ROWS.verify):
        found = selector.resolved(asked)
        assert (found.id, found.problem) == (asked.id, asked.problem)
        assert found.kernel.compiled
        assert not found.refusals
    assert selector.resolved(case("tiled")) == case("tiled")
    assert Selector(LADDER, "new-gpu", GpuLimits.of(H200)).resolved(ROW).choice


def test_a_choice_has_the_id_of_the_row_and_the_launch_of_the_kernel() -> None:
    of = resolved()
    assert (of.id, of.variant) == (f"select-f32-{CUBE.id}", "tiled-f32-tile32-pad0")
    assert of.choice == "tiled-tile32-pad0"
    assert case("tiled").choice == ""
    assert of.launch == case("tiled").launch
    assert not observation(of, measurement()).library
    shown = RunRow(TimedCase(of, Verdict(VerdictKind.PASS, "SAME_BINARY")))
    assert shown.cells[:3] == ("  select", "f32", "tiled-tile32-pad0")


class Clocked(SimulatedDevice):
    """A device that says which cases it timed, and fails at one."""

    fails = ""

    def time(self, case: Case, plan: Plan) -> Measurement:
        self.asked.append((case.id, ()))
        if case.id == self.fails:
            raise DeviceError("HANG", case.id)
        return measurement(0.01 * len(self.asked))


@pytest.mark.parametrize("fails", ["", case("tiled").id])
def test_a_choice_that_was_timed_under_its_own_name_is_not_timed_again(fails: str) -> None:
    """Unless it could not be; another problem or config is another measurement."""
    other = Problem(64, 64, 64)
    device = Clocked()
    device.fails = fails
    larger = replace(resolved(), problem=other)
    given = [case("tiled"), resolved(), replace(larger, chosen_for=replace(ROW, problem=other))]
    found: list[TimedCase] = []
    Board(0, device).judge(given, found.append, Policy(allow_no_baseline=True), Plan())
    results = {result.case.id: result for result in found}
    own = [] if not fails else [ROW.id]
    assert [name for name, _ in device.asked] == [case("tiled").id, *own, f"select-f32-{other.id}"]
    row_, stage = results[ROW.id], results[case("tiled").id]
    assert (row_.measurement is stage.measurement) is not bool(fails)
    assert row_.evidence.seen
    assert results[f"select-f32-{other.id}"].measurement is not row_.measurement


class ChosenBefore(World):
    """Another config was chosen when the baseline was measured."""

    def stored(self, case: Case) -> StoredBinary:
        return super().stored(resolved(1))


@pytest.mark.parametrize(("slower", "reason"), [(0.0, "NOT_SLOWER"), (0.02, "SLOWER")])
def test_another_choice_is_timed_beside_the_old_one(slower: float, reason: str) -> None:
    found, _ = ChosenBefore([resolved()], lambda case: slower).run()
    assert {case: result.verdict.reason for case, result in found.items()} == {ROW.id: reason}


def test_a_row_is_stored_with_what_it_chooses_by_the_new_figures() -> None:
    """Else the next run would find another choice, and judge it although nothing was edited."""
    slow, fast = case("tiled"), case("tiled", 1)
    row = replace(entry(ROW, 0.02), chosen=resolved().choice)
    measured = baseline(entry(slow, 0.02), entry(fast, 0.01, cubin=NEW), row)
    made, left = chosen_again(measured, {slow.id: slow, fast.id: fast, ROW.id: resolved(1)})
    new = made.entries[ROW.id]
    assert (new.case_id, new.chosen) == (ROW.id, resolved(1).choice)
    assert (new.median_s, new.cubin_sha256) == (0.01, NEW)
    assert (made.entries[slow.id], left) == (measured.entries[slow.id], [])
    # The same choice stays as it was timed; of another one that was not timed nothing is known.
    only = baseline(row)
    assert chosen_again(only, {ROW.id: resolved()})[0].entries == only.entries
    made, left = chosen_again(only, {ROW.id: resolved(1)})
    assert not made.entries
    assert resolved(1).choice in left[0]


@pytest.mark.parametrize("fastest", [0, 1])
def test_figures_that_are_not_stored_yet_count_as_the_newest(tmp_path: Path, fastest: int) -> None:
    project = replace(PROJECT, root=tmp_path)
    tiled = next(kernel for kernel in LADDER if kernel.name == "tiled")
    of = [Case(tiled, F32, config, CUBE) for config in tiled.configs[:2]]
    newest = baseline(*(entry(each, 0.01 if i == fastest else 0.02) for i, each in enumerate(of)))
    selector = Selector.of(project, SLUG, H200, newest)
    assert selector.resolved(ROW).config == of[fastest].config


@pytest.mark.parametrize("gflops_of_row", [2.0, 0.5])
def test_what_a_row_chose_has_its_figure_although_it_is_not_timed_by_itself(
    tmp_path: Path, gflops_of_row: float
) -> None:
    """Seen: where only the row had timed it, the next run chose another, which is 4 % slower."""
    tiled = next(kernel for kernel in LADDER if kernel.name == "tiled")
    timed, chosen = (Case(tiled, F32, config, CUBE, chosen_for=ROW) for config in tiled.configs[:2])
    row = replace(entry(ROW, 0.01 / gflops_of_row), chosen=chosen.choice)
    newest = baseline(entry(replace(timed, chosen_for=None), 0.01), row)
    found = Selector.of(replace(PROJECT, root=tmp_path), SLUG, H200, newest).resolved(ROW)
    assert found == (chosen if gflops_of_row > 1 else timed)


def test_without_a_choice_nothing_runs() -> None:
    with pytest.raises(ValueError, match="select-f32-4096x4096x4096: nothing was chosen for it"):
        CudaDevice._binary(cast(CudaDevice, None), ROW)
    with pytest.raises(ValueError, match="a choice among kernels has no PTX to count"):
        counted(PROJECT, Choice(), H200, [ROW.id])
    assert not CHOICE.library


def test_a_declaration_that_chooses_has_no_source(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.gemm-regression]\nkernels = "k.py"\n')
    (tmp_path / "a.cu").write_text("")
    (tmp_path / "k.py").write_text(
        "from gemm_regression.model import BlockShape, Kernel\n"
        "KERNELS = (Kernel('a', 'a.cu', 'a', BlockShape((1, 1), (1, 1)), is_dispatcher=True),)\n"
    )
    with pytest.raises(ProjectError, match="it chooses among the other kernels, so it has no source"):
        load(tmp_path)


def measured(rig: Rig, *more: str, run: int = 0) -> Outcome:
    return rig.run(*F32_SQUARES, *more, device=Replay(run))


def test_a_row_is_measured_stored_and_judged(rig: Rig) -> None:
    first = measured(rig)
    assert first.red == {f"test_performance[select-f32-{n}x{n}x{n}]" for n in (1024, 2048, 4095)}
    assert all("NO_BASELINE" in message for message in first.failures.values())

    runs = []
    for number in range(5):
        assert measured(rig, "--baseline-run", run=number).status == 0
        runs.append((rig.root / "out.json").rename(rig.root / f"run_{number}.json"))
    append(rig.baselines.parent, merge_runs([load_run(run) for run in runs]), {})
    row, chosen = "select-f32-2048x2048x2048", "double_buffered-tile128x128x16-thread8x8-pad4-stages2"
    entry = rig.stored.entries[row].info
    assert (entry["variant"], entry["chosen"]) == ("select-f32", chosen)

    again = measured(rig)
    assert again.green
    assert "double_buffered-tile128x128x16" in " ".join(again.row(row))
    info = again.timed[row]["extra_info"]
    assert (info["verdict"], info["chosen"]) == ("PASS", chosen)


def test_a_baseline_of_rows_verifies_what_they_choose(rig: Rig) -> None:
    words = (KERNELS_FILE, "--verify-timed", "-k", "select-f32 and not batch")
    verified = rig.run(*words, device=VerifiedDevice()).green
    variant = "double_buffered-f32-tile128x128x16-thread8x8-pad4-stages2"
    assert f"test_kernel[{variant}-37x29x0-beta2]" in verified
    assert not any("tiled" in name for name in verified)
    assert rig.run(*words, device=VerifiedDevice(wrong=f"{variant}-137x131x45")).status == 1


def test_the_table_in_the_readme_shows_what_was_chosen(tmp_path: Path) -> None:
    runs = []
    for document in five_runs([case("tiled")]):
        made = json.loads(json.dumps(document).replace("tiled-f32-tile32-pad0-4096", "select-f32-4096"))
        made["benchmarks"][0]["extra_info"] |= {"variant": "select-f32", "chosen": "tiled-tile32-pad0"}
        runs.append(made)
    section = readme_section([merged(tmp_path, runs)], LADDER)
    assert "| select | for each problem" in section
    assert "| tiled-tile32-pad0 |" in section


# How far choices are behind the best


def without(found: SelectionCheck) -> tuple[Kernel | None, Any]:
    """What is chosen without the figures of that problem, and its share of the best."""
    return found.left_out and found.left_out.kernel, found.share_left_out


def test_with_its_own_figures_a_choice_is_the_best_and_without_it_may_not_be() -> None:
    shares = {290: (1, 3), 300: (3, 1), 310: (1, 3)}
    figures = [
        figure(of, Problem(n, n, n), speed)
        for n, both in shares.items()
        for of, speed in zip((SMALL, LARGE), both, strict=True)
    ]
    found = {one.problem.m: one for one in outcomes(selector(figures))}
    assert [one.share for one in found.values()] == [1.0, 1.0, 1.0]
    # Without 300, large is ahead on either side of it, and has a third of the speed there.
    assert without(found[300]) == (LARGE, pytest.approx(1 / 3))
    assert [one.share_left_out for one in outcomes(selector())] == [1.0, 1.0, 1.0]
    (single,) = outcomes(selector(FIGURES[:2]))
    assert without(single) == (None, None)
    # Only what was measured at a shape is chosen for it.
    figures = [*FIGURES, figure(EVEN, Problem(512, 512, 512), 1e6)]
    found = {one.problem.m: one for one in outcomes(selector(figures, SMALL, LARGE, EVEN))}
    assert without(found[4096])[0] is LARGE
    assert found[512].share_left_out == pytest.approx(512 / 1e6)


def test_a_row_of_its_own_is_compared_too() -> None:
    of = selector()
    chosen = {one.problem.m: one.chosen for one in outcomes(of)}[512]
    name = f"{chosen.kernel.name}-{chosen.config.label}"
    at = Problem(512, 512, 512)
    for measured, share in (
        (Speed(chosen, at, 256.0, choice=name), 0.5),
        (Speed(chosen, at, 256.0, choice="another"), None),  # what was chosen before other figures came
        (Speed(chosen, at, 256.0, choice=name, board="another board"), None),
    ):
        found = {one.problem.m: one.row for one in outcomes(replace(of, rows={("f32", at): measured}))}
        assert found == {64: None, 512: share, 4096: None}


def test_the_ladder_is_within_five_percent_of_the_best_at_every_timed_shape() -> None:
    found = list(outcomes(Selector.of(PROJECT, "nvidia-h200")))
    assert len(found) > 40
    for shares in ([one.share for one in found], [one.row for one in found]):
        if summary := Summary.of(shares):
            assert summary.worst >= 0.95
            assert summary.mean >= 0.99


def behind(of: Selector) -> list[str]:
    """Rows that were measured with something faster than what is chosen now, boards' differences apart."""
    found = []
    for (dtype, problem), then in of.rows.items():
        now = of.select(problem, find_dtype(dtype)).gflops or 0.0
        if now < 0.95 * then.gflops:
            lost = f"{then.choice} had {then.gflops:,.0f} GFLOPS, not {now:,.0f}"
            found.append(f"{problem.id} in {dtype}: {lost}: is it still timed?")
    return found


@pytest.mark.parametrize("gpu", gpus(PROJECT))
def test_no_figure_is_gone_that_a_choice_needs(gpu: str) -> None:
    """Seen twice: a case was dropped from the suite, and `select` took the next best."""
    assert not behind(Selector.of(PROJECT, gpu))


def test_a_figure_that_is_gone_is_told() -> None:
    of, at = selector(), ("f32", Problem(512, 512, 512))
    slower = of.select(at[1], F32)
    for faster, told in ((1.04, 0), (1.06, 1)):
        row = Speed(slower.variant, at[1], faster * (slower.gflops or 0.0), choice="another")
        assert len(behind(replace(of, rows={at: row}))) == told


def test_a_page_that_is_not_is_told(tmp_path: Path, printed: Printed) -> None:
    page = stored(tmp_path) / "select.md"
    page.write_text("# Page\n\n<!-- select:begin -->\n<!-- select:end -->\n")
    words = ["--markdown", str(page), "--project", str(tmp_path)]
    assert command([*words, "--check"]) == 1
    assert "out of date; `nox -s select -- --markdown" in printed.err
    assert command(words) == command([*words, "--check"]) == 0
    assert f"### {SLUG}" in page.read_text()
    page.write_text("no markers")
    assert command([*words, "--check"]) == 2


OWN, AGAIN = case("tiled"), resolved()


def _stored(root: Path, build: int, *of: Case, slower: str = "") -> Refresh:
    """What becomes of a measurement by the build of that number, each 5 % slower than the last."""
    times = [2e-4 * 1.05**n for n in range(3)]
    device = SimulatedDevice(
        lambda side: times[build] if is_new(side) else times[int(side.cubin.decode()[-1])],
        cubin=lambda c: f"{c.variant} {build}".encode(),
    )
    binary = device.binary(OWN)
    assert binary
    run = five_runs(of, times[build], cubin=binary.sha256, day=build + 1)
    measured = merged(root / f"build{build}{len(of)}", run)
    if ROW.id in measured.entries:
        row = replace(measured.entries[ROW.id], chosen=AGAIN.choice)
        measured = replace(measured, entries={**measured.entries, ROW.id: row})
    known = {each.id: each for each in of}
    made = refresh(
        device, root, measured, current(root, SLUG), known, {slower: "it is right now"} if slower else {}
    )
    if made.entries:
        append(root, replace(measured, entries=made.entries), dict.fromkeys(made.entries, binary))
    return made


def test_a_choice_that_may_be_slower_under_its_own_name_may_be_so_when_it_is_chosen(tmp_path: Path) -> None:
    _stored(tmp_path, 0, OWN, AGAIN)
    refused = _stored(tmp_path, 1, OWN, AGAIN)
    assert (set(refused.refused), set(refused.entries)) == ({OWN.id}, set())
    made = _stored(tmp_path, 1, OWN, AGAIN, slower=OWN.id)
    new = made.entries
    assert new[ROW.id].cubin_sha256 == new[OWN.id].cubin_sha256
    assert (new[ROW.id].accepted, new[ROW.id].chosen) == ("it is right now", AGAIN.choice)
    # Not measured beside it, it is compared with what its choice has now.
    assert set(_stored(tmp_path, 2, AGAIN).refused) == {ROW.id}


def test_what_is_chosen_as_before_is_judged_by_what_its_choice_has_stored(tmp_path: Path) -> None:
    row = replace(entry(ROW, 0.01), chosen=AGAIN.choice)
    both = baseline(entry(OWN, 0.02, cubin=NEW), row)
    found = by_choice(both, {OWN.id: OWN, ROW.id: AGAIN}).entries[ROW.id]
    assert (found.case_id, found.median_s, found.cubin_sha256) == (ROW.id, 0.02, NEW)
    for before, now in ((both, resolved(1)), (baseline(row), AGAIN)):
        assert by_choice(before, {OWN.id: OWN, ROW.id: now}).entries == before.entries
