"""Comparisons on a simulated GPU: verdicts, controls, what cannot be judged, and how it is told."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli.paired import compare as main
from gemm_regression.compiler.tools import Nvcc, find_nvcc
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge import vocabulary as paired
from gemm_regression.judge.vocabulary import Outcome, Paired
from gemm_regression.model import Case, Problem
from gemm_regression.project.commit import Commit, Tree, checked_out
from gemm_regression.project.loader import load
from gemm_regression.report.comparison import heading, markdown, table
from gemm_regression.report.sources import of_comparison
from gemm_regression.run.compare import Comparison, Side, compare
from gemm_regression.run.pairing import ComparedCase, Pair
from gemm_regression.run.replay import document, verdicts
from gemm_regression.timing.looks import SequentialTest
from gemm_regression.timing.plan import PairPlan
from tests.gemm_regression import synthetic
from tests.gemm_regression.cli.repo import Command, Repo
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.simulated import SimulatedDevice
from tests.ladder import KERNELS_DIR

PLAN = PairPlan(())
SIDE, TREE = Side(Commit("main", "1a2b3c4d5e6f" + "0" * 28, ())), Tree("f" * 40, True)
SIZES = (512, 1024, 2048, 4096)
BASE = " of the base"
MARGIN = 0.005


def case(name: str = "tiled", size: int = 1024) -> Case:
    return synthetic.case(name, problem=Problem(size, size, size))


def pair(name: str = "tiled", size: int = 1024, margin: float = MARGIN, core: str = "cuda") -> Pair:
    of = case(name, size)
    made = SimulatedDevice().binary(of)
    assert made is not None
    base = dataclasses.replace(made, name=made.name + BASE)
    return Pair(of, base, margin, core, of.flop / 2e13, SIDE.label, made)


def row(outcome: Outcome, why: str = "why") -> ComparedCase:
    return ComparedCase(case(), Paired(*outcome, detail=why))


def slower_by(**shares: float) -> Callable[[StoredBinary], float]:
    """Durations in which a kernel of the working tree is slower than the base's by so much."""

    def seconds(of: StoredBinary) -> float:
        share = 0.0 if of.name.endswith(BASE) else shares.get(of.name.split("-")[0], 0.0)
        return 1e-12 * of.work.problem.flops * (1 + share)

    return seconds


IDENTICAL = [ComparedCase(case("naive", size), Paired(*paired.SAME_BINARY)) for size in SIZES]


def run(
    pairs: list[Pair | ComparedCase], device: SimulatedDevice | None = None, **shares: float
) -> Comparison:
    device = device or SimulatedDevice(slower_by(**shares))
    result = compare(device, pairs, SequentialTest(), 7, PLAN, device.busy)
    controls, cases = verdicts(written(result))
    # What the document alone says is what was said.
    assert cases == {each.case.id: each.outcome for each in result.rows}
    failed = [outcome == paired.CONTROL_FAILED for outcome in controls]
    assert failed == [bool(control.why) for control in result.controls]
    return result


def written(result: Comparison) -> dict[str, Any]:
    told = document(result, SIDE, TREE, {}, "2026-11-21T00:00:00+00:00")
    back: dict[str, Any] = json.loads(json.dumps(told, allow_nan=False))
    return back


def reasons(result: Comparison) -> list[str]:
    """Reason codes; `test_reasons_are_of_one_kind_each` holds their kinds."""
    return [each.outcome.reason for each in result.rows]


# Verdicts


def test_reasons_are_of_one_kind_each_and_red_or_green() -> None:
    told = [of for of in vars(paired).values() if isinstance(of, Outcome)]
    told = [of for of in told if of not in (paired.LIBRARY, paired.BINARY_NOT_KEPT, paired.NOT_PAIRED)]
    assert {of for of in told if not paired.red(of)} == {
        *(("PASS", "SAME_BINARY"), ("PASS", "NOT_SLOWER"), ("IMPROVED", "FASTER")),
        *(("NO_BASELINE", "NOT_IN_BASE"), ("ORPHAN", "REMOVED")),
    }
    assert {of for of in told if paired.red(of)} == {
        *(("REGRESSED", "SLOWER"), ("AMBIGUOUS", "MAYBE_SLOWER"), ("AMBIGUOUS", "BASE_UNUSABLE")),
        *(("AMBIGUOUS", "CONTROL_FAILED"), ("NOT_COMPILED", "COMPILE_ERROR"), ("WRONG", "OUTPUT")),
        ("NOT_LAUNCHED", "SIGNATURE"),
    }


def test_document_of_another_version_or_that_was_edited_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 2, but this version reads 3; compare again"):
        verdicts({"gemm_comparison": 2})
    told = written(run([pair("tiled")]))
    told["cases"][0]["log_ratios"] = ["fast"]
    with pytest.raises(ValueError, match="log_ratios"):
        verdicts(told)


def test_margins_are_the_bases_and_another_one_is_told() -> None:
    result = run([pair("tiled", margin=0.002), pair("register", margin=0.01)], tiled=0.005, register=0.005)
    assert reasons(result) == ["SLOWER", "NOT_SLOWER"]
    lines = table(result, SIDE, False).splitlines()
    assert lines[-1].endswith(": slower from 1 % on, as its kernel declares")


# Controls


def test_nothing_changed_passes_without_timing_anything() -> None:
    device = SimulatedDevice(slower_by())
    result = run([*IDENTICAL], device)
    assert (result.exit_status, result.controls, device.asked) == (0, (), [])


@pytest.mark.parametrize("bias", [0.01, -0.01, 0.004])
def test_machine_that_prefers_one_side_judges_nothing(bias: float) -> None:
    """Even a bias below the margin: it would be added to every comparison."""
    device = SimulatedDevice(slower_by(tiled=0.03), bias=bias, spread=0.0003)
    result = run([*IDENTICAL, pair("tiled")], device)
    assert (result.exit_status, result.unfit) == (3, True)
    assert reasons(result) == ["SAME_BINARY"] * 4 + ["CONTROL_FAILED"]
    assert "nothing that has changed could be judged" in heading(result, SIDE, TREE)[-1]
    assert "two identical builds of tiled-" in table(result, SIDE, False)
    assert {name for name, _ in device.asked} == {f"{pair('tiled').base.name}{' stored'}"}  # type: ignore[union-attr]


def test_process_that_comes_meanwhile_makes_the_machine_unfit() -> None:
    device = SimulatedDevice(slower_by(), others=["pid 7 (train, 9 MiB)"])
    result = run([*IDENTICAL, pair("tiled")], device)
    assert result.exit_status == 3
    assert reasons(result)[-1] == "CONTROL_FAILED"
    assert "other processes used the GPU meanwhile: pid 7 (train, 9 MiB)" in table(result, SIDE, False)


# What cannot be judged


@pytest.mark.parametrize(
    "outcome", [paired.NOT_IN_BASE, paired.REMOVED, paired.BASE_UNUSABLE, paired.COMPILE_ERROR]
)
def test_what_has_no_counterpart_is_told_and_passes_only_where_it_is_new_or_gone(outcome: Outcome) -> None:
    status = 0 if outcome in (paired.NOT_IN_BASE, paired.REMOVED) else 1
    result = run([*IDENTICAL, row(outcome, why="this is why")])
    assert (result.rows[-1].outcome, result.exit_status) == (outcome, status)
    assert "this is why" in table(result, SIDE, False)
    assert "this is why" in markdown(result, SIDE, TREE)


@pytest.mark.parametrize("outcome", [None, paired.NOT_IN_BASE, paired.REMOVED, paired.BASE_UNUSABLE])
def test_nothing_judged_is_no_pass(outcome: Outcome | None) -> None:
    result = run([row(outcome)] if outcome else [])
    assert result.exit_status == 1
    assert "nothing was judged" in heading(result, SIDE, TREE)
    assert markdown(result, SIDE, TREE).startswith("## Red")


# Clocks


def test_build_that_draws_more_power_is_slower_but_not_in_cycles() -> None:
    def mhz(arm: str) -> float:
        return 1980.0 if arm == "A" else 1980.0 / 1.05

    result = run([pair("tiled")], SimulatedDevice(slower_by(tiled=0.05), mhz=mhz))
    told = written(result)["cases"][-1]
    assert (told["reason"], told["discarded"]) == ("SLOWER", 0)
    assert told["cycles_change"] == pytest.approx(0, abs=1e-3)


# Told


def test_table_and_markdown_name_both_sides_and_every_changed_case() -> None:
    result = run([*IDENTICAL, pair("tiled"), pair("register")], tiled=0.03)
    text, page = table(result, SIDE, False), markdown(result, SIDE, TREE)
    assert page.startswith(
        "## Red: ffffffffffff with changes against main (1a2b3c4d5e6f): 4 PASS SAME_BINARY, "
    )
    for said in (text, page):
        line = next(line for line in said.splitlines() if "! tiled-f32" in line)
        numbers = [float(number) for number in re.findall(r"(?<=\s)\d{4}\.\d\d(?=\s)", line)]
        assert numbers == pytest.approx([2147.48, 2211.91], rel=2e-3)
        assert "REGRESSED SLOWER" in line
        assert sum("control tiled" in line for line in said.splitlines()) == 2  # one a process
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


@pytest.fixture
def command(repo: Repo, printed: Printed) -> Command:
    return Command(main, repo, printed)


CHOSEN = ("--suite", "smoke", "--kernel", "naive", "--kernel", "tiled")


@pytest.mark.compile
def test_command_compares_the_working_tree_with_a_commit(command: Command, tmp_path: Path) -> None:
    files = tmp_path / "out.json", tmp_path / "out.md"
    written = ("--json", str(files[0]), "--markdown", str(files[1]))
    status, out, err = command("HEAD", *CHOSEN, "--seed", "3", *written, on=SimulatedDevice(slower_by()))
    assert status == 0
    lines = err.splitlines()
    assert len(re.findall(r"^compile: (\d+) of \1: tiled f32 \S+, \d+ s$", err, re.M)) == 2
    assert re.fullmatch(r"compare: 3 of 3: \S+, \d s", lines[-1])
    assert "3 PASS NOT_SLOWER, 3 PASS SAME_BINARY" in out
    told = json.loads(files[0].read_text())
    assert told["base"] == {"name": "HEAD", "id": command.repo.git("rev-parse", "HEAD"), "nvcc": ""}
    assert told["machine_info"]["name"] == "NVIDIA H200"
    assert (told["seed"], told["exit_status"]) == (3, 0)
    assert {c["case"].split("-")[0] for c in told["cases"] if c["reason"] == "NOT_SLOWER"} == {"naive"}
    assert files[1].read_text().startswith("## Green")
    assert str(command.repo.root) not in files[0].read_text() + files[1].read_text() + out


@pytest.mark.compile
def test_command_compares_with_a_folder_where_there_is_no_git(
    repo: Repo, tmp_path: Path, printed: Printed
) -> None:
    copy, out, elsewhere = (tmp_path / name for name in ("copy", "out.json", "elsewhere"))
    shutil.copytree(repo.root / "kernels", copy / "kernels")
    (copy / "kernels" / "s01_naive.cu").write_text(repo.git("show", "HEAD:kernels/s01_naive.cu"))
    shutil.copytree(repo.root, elsewhere, ignore=shutil.ignore_patterns(".git"))
    arguments = [str(copy), *CHOSEN, "--json", str(out), "--project", str(elsewhere)]
    assert main(arguments, lambda limit: SimulatedDevice(slower_by())) == 0
    assert "the working tree against the folder copy: 3 PASS NOT_SLOWER, 3 PASS SAME_BINARY" in printed.out
    told = json.loads(out.read_text())
    assert (told["base"]["name"], told["base"]["id"], told["new"]["id"]) == ("copy", "", "")
    assert told["new"]["dirty"]


@pytest.mark.compile
@pytest.mark.parametrize("kind", ["commit", "folder", "wheel"])
def test_command_compares_two_of_a_kind_wherever_the_working_tree_is(
    kind: str, command: Command, tmp_path: Path
) -> None:
    """The second is slower, and not the working tree, which has no kernel."""
    repo, names = command.repo, [f"{side}.whl" if kind == "wheel" else side for side in ("old", "new")]
    repo.git("tag", "old")
    repo.git("commit", "--all", "--quiet", "-m", "new")
    repo.git("tag", "new")
    for name, tag in zip(names, ("old", "new"), strict=True):
        with checked_out(tag, load(repo.root)) as commit:
            assert commit.root
            if kind == "folder":
                shutil.copytree(commit.root / "kernels", tmp_path / name / "kernels")
            elif kind == "wheel":
                made = shutil.make_archive(str(tmp_path / tag), "zip", commit.root, "kernels")
                Path(made).rename(tmp_path / name)
    declared = repo.root / "kernels" / "__init__.py"
    declared.write_text(declared.read_text().replace('name="naive"', 'name="other"'))
    asked = names if kind == "commit" else [str(tmp_path / name) for name in names]
    said = {"commit": ["old (", "new ("], "folder": ["the folder old", "the folder new"]}.get(
        kind, ["the wheel old.whl", "the wheel new.whl"]
    )

    def seconds(of: StoredBinary) -> float:
        return 1e-3 * (1.03 if said[0] not in of.name else 1)

    out = tmp_path / "out.json"
    status, told, err = command(*asked, *CHOSEN, "--json", str(out), on=SimulatedDevice(seconds))
    assert (status, err.count("error")) == (1, 0), err
    first = told.splitlines()[0]
    assert re.match(rf"{re.escape(said[1])}.*against {re.escape(said[0])}", first), first
    assert first.endswith("3 REGRESSED SLOWER, 3 PASS SAME_BINARY")
    assert json.loads(out.read_text())["new"]["dirty"] is False


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "old.whl cannot be read: No such file"),
        ("", "File is not a zip"),
        ("a", "old.whl has no kernels"),
    ],
)
def test_a_wheel_without_kernels_is_told_in_one_line(
    made: str | None, said: str, command: Command, tmp_path: Path
) -> None:
    wheel = tmp_path / "old.whl"
    if made is not None:
        wheel.write_text(made)
    if made:
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("other/a.py", "")
    status, out, err = command(str(wheel), on=SimulatedDevice())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.compile
def test_command_turns_red(command: Command) -> None:
    def seconds(of: StoredBinary) -> float:
        return 1e-3 * (1.03 if of.name.startswith("naive") and " at HEAD (" not in of.name else 1)

    status, out, _ = command("HEAD", *CHOSEN, "-k", "naive and not 4095", on=SimulatedDevice(seconds))
    assert status == 1
    assert "2 REGRESSED SLOWER" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such",), "no commit no-such in this repository"),
        ((), "nothing to compare with: name a commit, such as main, or another --nvcc"),
        (("--nvcc", "/nowhere/nvcc"), "/nowhere/nvcc is no nvcc: "),
        (("--nvcc", "/bin/ls"), "/bin/ls is no nvcc: /bin/ls --version failed: "),
        (("--nvcc", "/"), "/ is no nvcc: "),
        (("HEAD", "--margin", "much"), "--margin much: must be between 0 % and 100 %, such as 0.5%"),
        (("HEAD", "--margin", "0"), "--margin 0: must be between"),
        (("HEAD", "--margin", "3%"), "--margin 3%: must be at most 2%"),
        (("HEAD", "--error", "-1"), "--error -1: must be between"),
        (("HEAD", "--kernel", "nave"), "did you mean 'naive'"),
        (("HEAD", "-k", "no such case"), "-k 'no such case': "),
        (("HEAD", "-k", "nothing"), "matches no case"),
        (("HEAD", "--json", "/nowhere/out.json"), "its folder does not exist"),
    ],
)
def test_wrong_command_is_one_line(command: Command, arguments: tuple[str, ...], said: str) -> None:
    status, out, err = command(*arguments, on=SimulatedDevice())
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_no_gpu_and_a_busy_one(command: Command) -> None:
    command.needs_a_free_gpu("HEAD")


@pytest.mark.compile
def test_the_present_nvcc_is_no_other_one(command: Command) -> None:
    present = find_nvcc()
    status, _, err = command("--nvcc", str(present.path), on=SimulatedDevice())
    assert (status, err.count("\n")) == (2, 1)
    assert f"it is nvcc {present.version}, as the present one; leave it out" in err


@pytest.mark.compile
def test_another_nvcc_compiles_the_base_of_the_same_sources(command: Command, tmp_path: Path) -> None:
    """An nvcc of another version, which optimises less."""
    present, other = find_nvcc(), tmp_path / "nvcc"
    other.write_text(
        "#!/bin/sh\n"
        'if [ "$1" = --version ]; then echo "Cuda compiler driver V12.9.86"; exit; fi\n'
        f'exec {present.path} -Xptxas -O1 "$@"\n'
    )
    other.chmod(0o755)
    out = tmp_path / "out.json"
    chosen = ("--suite", "smoke", "--kernel", "naive", "-k", "not 4095", "--json", str(out))
    for base, label in (("", "the working tree"), ("HEAD", "HEAD (")):
        device = SimulatedDevice(
            lambda of: 1e-3 * (1.03 if "nvcc" not in of.name else 1)  # the present one's are slower
        )
        status, said, _ = command(*filter(None, [base]), "--nvcc", str(other), *chosen, on=device)
        assert status == 1
        assert re.match(rf".*against {re.escape(label)}.* with nvcc 12.9.86: 2 REGRESSED SLOWER", said)
        told = json.loads(out.read_text())
        assert told["base"]["nvcc"] == "12.9.86"
        assert "--nvcc" in of_comparison("here", told)[0].command
    assert Nvcc(other, "12.9.86") != present
