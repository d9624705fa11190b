"""Comparisons on a simulated GPU: verdicts, the control, what cannot be judged, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.commands.compare import main
from harness.devices import DeviceError, NoDevice
from harness.gate.compare import Comparison, compare
from harness.gate.document import document, verdicts
from harness.gate.pairs import Pair
from harness.model import Case, Problem
from harness.project.commit import Commit, Tree
from harness.reports.paired import heading, markdown, table
from harness.timing import throttle
from harness.timing.looks import Rule
from harness.timing.plan import PairPlan
from harness.verdicts import paired
from harness.verdicts.vocabulary import Outcome, VerdictKind
from tests.ladder import KERNELS_DIR
from tests.unit import synthetic
from tests.unit.repo import Repo
from tests.unit.simulated import SimulatedDevice, crash

PLAN = PairPlan(())
COMMIT, TREE = Commit("main", "1a2b3c4d5e6f" + "0" * 28, ()), Tree("f" * 40, True)
SIZES = (512, 1024, 2048, 4096)


def case(name: str = "tiled", size: int = 1024, base: bool = False) -> Case:
    """A case; as the base's, its kernel says so."""
    made = synthetic.case(name, problem=Problem(size, size, size))
    if not base:
        return made
    return dataclasses.replace(made, kernel=dataclasses.replace(made.kernel, idea="base"))


def pair(name: str = "tiled", size: int = 1024, outcome: Outcome | None = None, detail: str = "") -> Pair:
    return Pair(case(name, size), case(name, size, base=True), outcome, detail)


def slower_by(**shares: float) -> Callable[[Case], float]:
    """Durations in which a kernel of the working tree is slower than the base's by so much."""

    def seconds(of: Case) -> float:
        share = 0.0 if of.kernel.idea == "base" else shares.get(of.kernel.name, 0.0)
        return 1e-12 * of.problem.flops * (1 + share)

    return seconds


IDENTICAL = [pair("naive", size, paired.SAME_BINARY, "same cubin, same launch") for size in SIZES]


def run(
    pairs: list[Pair], device: SimulatedDevice | None = None, rule: Rule | None = None, **shares: float
) -> Comparison:
    device = device or SimulatedDevice(slower_by(**shares))
    result = compare(device, pairs, rule or Rule(), 7, PLAN, device.busy)
    told = document(result, COMMIT, TREE, {}, "2026-11-21T00:00:00+00:00")
    told = json.loads(json.dumps(told, allow_nan=False))
    for kinds, rows in zip(verdicts(told), (result.controls, result.rows), strict=True):
        timed = {row.case.id: row.outcome for row in rows if row.samples.blocks}
        assert kinds == timed  # What the document alone says is what was said.
    return result


def kinds(result: Comparison) -> list[str]:
    """Reason codes; `test_reasons_are_of_one_kind_each` holds their kinds."""
    return [row.outcome.reason for row in result.rows]


# Verdicts


@pytest.mark.parametrize(
    ("share", "kind", "status"),
    [(0.0, "WITHIN_MARGIN", 0), (0.02, "SLOWER_PAIRED", 1), (-0.02, "FASTER_PAIRED", 0)],
)
def test_change_of_a_kernel_is_seen(share: float, kind: str, status: int) -> None:
    result = run([*IDENTICAL, pair("tiled"), pair("register")], tiled=share)
    assert kinds(result) == ["SAME_BINARY"] * 4 + [kind, "WITHIN_MARGIN"]
    assert (result.exit_status, result.unfit) == (status, "")
    finding = result.rows[4].finding
    assert finding is not None
    assert finding.interval[0] < share < finding.interval[1]


def test_reasons_are_of_one_kind_each_and_red_or_green() -> None:
    said = {
        o.reason: (o.kind, paired.red(o))
        for o in vars(paired).values()
        if isinstance(o, Outcome) and o is not paired.NO_PAIR
    }
    kind = VerdictKind
    assert said == {
        "SAME_BINARY": (kind.PASS, False),
        "WITHIN_MARGIN": (kind.PASS, False),
        "FASTER_PAIRED": (kind.IMPROVED, False),
        "NOT_IN_BASE": (kind.NO_BASELINE, False),
        "SLOWER_PAIRED": (kind.REGRESSED, True),
        "PAIR_AMBIGUOUS": (kind.AMBIGUOUS, True),
        "BASE_UNUSABLE": (kind.AMBIGUOUS, True),
        "MACHINE_UNFIT": (kind.AMBIGUOUS, True),
        "COMPILE_ERROR": (kind.CRASHED, True),
        "OUTPUT": (kind.WRONG, True),
    }


def test_document_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 1, but this version reads 2; compare again"):
        verdicts({"gemm_comparison": 1})


def test_doubt_takes_three_looks_and_is_no_pass() -> None:
    device = SimulatedDevice(slower_by(tiled=0.005))
    result = run([*IDENTICAL, pair("tiled")], device)
    assert kinds(result)[-1] == "PAIR_AMBIGUOUS"
    assert result.exit_status == 1
    asked = [len(orders) for name, orders in device.asked if "tiled" in name]
    assert asked == [12, 12, 24]
    assert "after 48 blocks still between +0." in result.rows[-1].detail


def test_the_margin_is_the_users() -> None:
    assert kinds(run([*IDENTICAL, pair("tiled")], tiled=0.005, rule=Rule(delta=0.002)))[-1] == "SLOWER_PAIRED"
    assert kinds(run([*IDENTICAL, pair("tiled")], tiled=0.005, rule=Rule(delta=0.01)))[-1] == "WITHIN_MARGIN"


def test_blocks_follow_the_seed() -> None:
    orders = []
    for seed in (7, 7, 8):
        device = SimulatedDevice(slower_by())
        compare(device, [pair()], Rule(), seed, PLAN)
        orders.append(device.asked)
    assert orders[0] == orders[1] != orders[2]


# The control


def test_identical_pairs_are_timed_as_control_only_and_few_of_them() -> None:
    device = SimulatedDevice(slower_by())
    result = run([*IDENTICAL, pair("tiled")], device)
    assert [row.case.problem.m for row in result.controls] == [512, 2048, 4096]
    assert all(row.outcome == paired.WITHIN for row in result.controls)
    assert {name for name, _ in device.asked if "naive" in name} == {r.case.id for r in result.controls}


@pytest.mark.parametrize("bias", [0.01, -0.01, 0.004])
def test_machine_that_prefers_one_side_judges_nothing(bias: float) -> None:
    """Even a bias below the margin: it would be added to every comparison."""
    device = SimulatedDevice(slower_by(tiled=0.03), bias=bias)
    result = run([*IDENTICAL, pair("tiled")], device)
    assert result.exit_status == 3
    assert kinds(result) == ["SAME_BINARY"] * 4 + ["MACHINE_UNFIT"]
    assert result.unfit.startswith("the control failed: two identical builds of naive-")
    assert not any("tiled" in name for name, _ in device.asked)


def test_where_all_has_changed_the_base_is_its_own_control() -> None:
    device = SimulatedDevice(slower_by(tiled=0.03))
    result = run([pair("tiled")], device)
    (control,) = result.controls
    assert control.case.kernel.idea == "base"
    assert control.outcome == paired.WITHIN
    assert kinds(result) == ["SLOWER_PAIRED"]
    assert kinds(run([pair("tiled")], SimulatedDevice(slower_by(tiled=0.03), bias=0.01))) == ["MACHINE_UNFIT"]


def test_control_that_cannot_be_timed_is_no_control() -> None:
    result = run([pair("tiled")], SimulatedDevice(fail=crash))
    assert (kinds(result), result.exit_status) == (["MACHINE_UNFIT"], 3)
    assert result.unfit.startswith("no control could be timed: WORKER_DIED")


def test_process_that_comes_meanwhile_makes_the_machine_unfit() -> None:
    device = SimulatedDevice(slower_by(), others=["pid 7 (train, 9 MiB)"])
    result = run([*IDENTICAL, pair("tiled")], device)
    assert result.exit_status == 3
    assert "pid 7 (train, 9 MiB)" in result.unfit
    assert kinds(result)[-1] == "MACHINE_UNFIT"


# What cannot be judged


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("WORKER_DIED", "CRASHED WORKER_DIED"),
        ("HANG", "CRASHED HANG"),
        ("WRONG", "WRONG OUTPUT"),
        ("BASE_WRONG", "AMBIGUOUS BASE_UNUSABLE"),
        ("BASE_ILLEGAL_ADDRESS", "AMBIGUOUS BASE_UNUSABLE"),
    ],
)
@pytest.mark.parametrize("look", [0, 1])
def test_case_that_fails_in_any_look_costs_itself_alone(code: str, kind: str, look: int) -> None:
    timed: list[str] = []

    def fail(base: Case, of: Case) -> None:
        timed.append(of.kernel.name)
        if of.kernel.name == "tiled" and timed.count("tiled") > look:
            raise DeviceError(code, "tiled-f32: no more")

    device = SimulatedDevice(slower_by(tiled=0.005), fail=fail)
    result = run([*IDENTICAL, pair("tiled"), pair("register")], device)
    assert [str(row.outcome) for row in result.rows[4:]] == [kind, "PASS WITHIN_MARGIN"]
    assert result.rows[4].detail == f"{code}: tiled-f32: no more"
    assert result.exit_status == 1
    assert timed.count("tiled") == look + 1


@pytest.mark.parametrize(
    ("outcome", "status"), [(paired.NOT_IN_BASE, 0), (paired.BASE_UNUSABLE, 1), (paired.COMPILE_ERROR, 1)]
)
def test_what_has_no_counterpart_is_told_and_passes_only_where_it_is_new(
    outcome: Outcome, status: int
) -> None:
    result = run([*IDENTICAL, pair("tiled", outcome=outcome, detail="this is why")])
    assert (result.rows[-1].outcome, result.exit_status) == (outcome, status)
    assert "this is why" in table(result, False)
    assert "this is why" in markdown(result, COMMIT, TREE)


def test_nothing_judged_is_no_pass() -> None:
    for pairs in (
        [],
        [pair(outcome=paired.NOT_IN_BASE, detail="new")],
        [pair(outcome=paired.BASE_UNUSABLE, detail="old")],
    ):
        result = run(pairs)
        assert result.exit_status == 1
        assert "nothing was judged" in heading(result, COMMIT, TREE)
        assert markdown(result, COMMIT, TREE).startswith("## Red")


def test_nothing_changed_passes_with_its_control() -> None:
    result = run(IDENTICAL)
    assert (result.exit_status, len(result.controls)) == (0, 3)


# Clocks


def test_throttled_blocks_come_again_and_what_stays_throttled_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttle, "REST_SECONDS", 0.0)
    launches = 0

    def mhz(arm: str) -> float:
        nonlocal launches
        launches += 1
        return 1400.0 if 30 < launches <= 120 else 1980.0

    device = SimulatedDevice(slower_by(), mhz=mhz)
    samples = device.pair(case(base=True), case(), PairPlan(("ABBA", "BAAB") * 12))
    assert len(samples.blocks) == 24
    assert samples.discarded >= 96

    def wandering(arm: str) -> float:
        nonlocal launches
        launches += 1
        return 1400.0 + launches % 40 * 15

    result = run([pair("tiled")], SimulatedDevice(slower_by(), mhz=wandering))
    assert result.exit_status == 3
    assert "discarded because of a throttled clock" in result.unfit


def test_build_that_draws_more_power_is_slower_but_not_in_cycles() -> None:
    def mhz(arm: str) -> float:
        return 1980.0 if arm == "A" else 1980.0 / 1.05

    device = SimulatedDevice(slower_by(tiled=0.05), mhz=mhz)
    result = run([*IDENTICAL, pair("tiled")], device)
    row = document(result, COMMIT, TREE, {}, "")["cases"][-1]
    assert (row["verdict_reason"], row["discarded"]) == ("SLOWER_PAIRED", 0)
    assert row["cycles_change"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("seconds", "rounds"), [(1e-6, 24), (1e-4, 13), (1e-2, 1)])
def test_rounds_of_a_visit_fill_a_block(seconds: float, rounds: int) -> None:
    device = SimulatedDevice(lambda of: seconds)
    samples = device.pair(case(base=True), case(), PairPlan(("ABBA",) * 2))
    assert [len(block.a) for block in samples.blocks] == [2 * rounds] * 2


# Told


def test_table_and_markdown_name_both_sides_and_every_changed_case() -> None:
    result = run([*IDENTICAL, pair("tiled"), pair("register")], tiled=0.02)
    text, page = table(result, False), markdown(result, COMMIT, TREE)
    assert page.startswith(
        "## Red: ffffffffffff with changes against main (1a2b3c4d5e6f): 4 PASS SAME_BINARY, "
    )
    for said in (text, page):
        line = next(line for line in said.splitlines() if "! tiled-f32" in line)
        numbers = [float(number) for number in re.findall(r"(?<=\s)\d{4}\.\d\d(?=\s)", line)]
        assert numbers == pytest.approx([2147.48, 2190.43], rel=2e-3)
        assert "REGRESSED SLOWER_PAIRED" in line
        assert sum("control naive" in line for line in said.splitlines()) == 3
        assert sum("naive-f32-block32x32-1024x1024x1024" in line for line in said.splitlines()) == 0
    assert "in this run is at most 1 % (seed 7)" in page


# The command


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """A repository with this suite's kernels, of which the working tree has changed one."""
    made = Repo(tmp_path / "repo")
    made.git("rm", "--quiet", "-r", "kernels")
    (made.root / "kernels").mkdir(exist_ok=True)
    for file in KERNELS_DIR.glob("*.*"):
        (made.root / "kernels" / file.name).write_bytes(file.read_bytes())
    old = made.root / "kernels" / "s01_naive.cu"
    text = old.read_text()
    assert "alpha * " in text
    old.write_text(text.replace("alpha * ", "alpha * 1.0000001f * "))
    made.git("add", "--all")
    made.git("commit", "--quiet", "-m", "kernels")
    old.write_text(text)
    return made


class Command:
    """Runs the command on a simulated GPU."""

    def __init__(self, repo: Repo, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.repo, self.folder, self.capsys = repo, folder, capsys

    def __call__(self, *arguments: str, device: Any = None) -> tuple[int, str, str]:
        def opened(limit: float) -> Any:
            if isinstance(device, str):
                raise NoDevice(device)
            return device or SimulatedDevice(slower_by())

        status = main([*arguments, "--project", str(self.repo.root)], opened)
        said = self.capsys.readouterr()
        assert self.repo.git("worktree", "list").count("\n") == 0
        return status, said.out, said.err


@pytest.fixture
def command(repo: Repo, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(repo, tmp_path, capsys)


CHOSEN = ("--suite", "smoke", "--kernel", "naive", "--kernel", "tiled")


@pytest.mark.compile
def test_command_compares_the_working_tree_with_a_commit(command: Command) -> None:
    files = command.folder / "out.json", command.folder / "out.md"
    status, out, err = command(
        "HEAD", *CHOSEN, "--seed", "3", "--json", str(files[0]), "--markdown", str(files[1])
    )
    assert status == 0
    lines = err.splitlines()
    assert re.fullmatch(r"compile both sides: 1 of \d+: naive f32 \S+, \d+ s, \d+ s left", lines[0])
    count = lines[0].split()[5].rstrip(":")
    assert any(line.startswith(f"compile both sides: {count} of {count}: tiled f32 ") for line in lines)
    timed = next(line for line in lines if line.startswith("compare"))
    assert re.fullmatch(r"compare: 1 of at most 18: control tiled-\S+, \d s, at most \d+ s left", timed)
    assert "3 PASS WITHIN_MARGIN, 3 PASS SAME_BINARY" in out
    told = json.loads(files[0].read_text())
    assert told["base"] == {"name": "HEAD", "id": command.repo.git("rev-parse", "HEAD")}
    assert told["machine_info"]["name"] == "NVIDIA H200"
    assert (told["seed"], told["exit_status"]) == (3, 0)
    assert {c["case"].split("-")[0] for c in told["cases"] if c["verdict_reason"] == "WITHIN_MARGIN"} == {
        "naive"
    }
    assert files[1].read_text().startswith("## Green")
    assert str(command.repo.root) not in files[0].read_text() + files[1].read_text() + out


@pytest.mark.compile
def test_command_compares_with_a_folder_where_there_is_no_git(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = command.folder / "copy"
    copy.mkdir()
    shutil.copytree(command.repo.root / "kernels", copy / "kernels")
    (copy / "kernels" / "s01_naive.cu").write_text(command.repo.git("show", "HEAD:kernels/s01_naive.cu"))
    out = command.folder / "out.json"
    elsewhere = command.folder / "elsewhere"
    shutil.copytree(command.repo.root, elsewhere, ignore=shutil.ignore_patterns(".git"))
    arguments = [str(copy), *CHOSEN, "--json", str(out), "--project", str(elsewhere)]
    assert main(arguments, lambda limit: SimulatedDevice(slower_by())) == 0
    assert (
        "the working tree against the folder copy: 3 PASS WITHIN_MARGIN, 3 PASS SAME_BINARY"
        in capsys.readouterr().out
    )
    told = json.loads(out.read_text())
    assert told["base"] == {"name": "copy", "id": ""}
    assert told["new"] == {"id": "", "dirty": True}


@pytest.mark.compile
def test_command_turns_red(command: Command) -> None:
    def seconds(of: Case) -> float:
        ours = of.kernel.source is not None and of.kernel.source.is_relative_to(command.repo.root)
        return 1e-3 * (1.03 if ours and of.kernel.name == "naive" else 1)

    status, out, _ = command("HEAD", *CHOSEN, "-k", "naive and not 4095", device=SimulatedDevice(seconds))
    assert status == 1
    assert "2 REGRESSED SLOWER_PAIRED" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such",), "no commit no-such in this repository"),
        (("HEAD", "--delta", "much"), "--delta much: must be between 0 % and 100 %, such as 0.5%"),
        (("HEAD", "--delta", "0"), "--delta 0: must be between"),
        (("HEAD", "--error", "-1"), "--error -1: must be between"),
        (("HEAD", "--kernel", "nave"), "did you mean 'naive'"),
        (("HEAD", "-k", "no such case"), "-k 'no such case': "),
        (("HEAD", "-k", "nothing"), "matches no case"),
        (("HEAD", "--json", "/nowhere/out.json"), "its folder does not exist"),
    ],
)
def test_wrong_command_is_one_line(command: Command, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = command(*arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_no_gpu_and_a_busy_one(command: Command) -> None:
    assert command("HEAD", device="no driver here") == (2, "", "error: no driver here\n")
    status, _, err = command("HEAD", device=SimulatedDevice(others=["pid 7 (train)"]))
    assert status == 2
    assert "in use by pid 7 (train)" in err
