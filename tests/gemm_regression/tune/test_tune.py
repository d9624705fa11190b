"""`nox -s tune` on a GPU of the tests' own: what is excluded, timed, listed, stored, resumed and refused."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression.baselines import provenance
from gemm_regression.cli import tune
from gemm_regression.compiler.nvcc import compile_all
from gemm_regression.devices import NoDevice
from gemm_regression.timing.plan import Plan
from gemm_regression.tune import runners, stored
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.tune.tunable import SOURCE, FakeGpu, project

pytestmark = pytest.mark.compile
pytest.importorskip("kernel_tuner")

SHAPE = ("--kernel", "one", "--shape", "512x512x512")
Tune = Callable[..., int]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project(tmp_path / "project"))
    monkeypatch.setattr(provenance, "nvcc_version", lambda: "13.0.88")
    return tmp_path / "project"


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """The command, on this GPU."""

    def on(gpu: FakeGpu, *arguments: str, hazards: bool = False) -> int:
        monkeypatch.setattr(runners, "open_cuda", lambda time_limit: gpu)
        return tune.main([*SHAPE, "-q", *([] if hazards else ["--no-hazards"]), *arguments])

    return on


def the_file(root: Path) -> stored.Tuned:
    (path,) = (root / "baselines" / "nvidia-h200" / "tuned").glob("*.json")
    return stored.load(path)


def best(tuned: stored.Tuned) -> stored.Evaluation:
    assert tuned.best
    return tuned.best


def labels(results: tuple[stored.Result, ...]) -> list[str]:
    return [one.config.label for one in results]


def test_every_config_is_timed_listed_or_counted(root: Path, run: Tune, printed: Printed) -> None:
    fails = {"size32-step4": "ILLEGAL_ADDRESS"}
    gpu = FakeGpu(microseconds={"size32": 8.0}, fails=fails, wrong=("size16-step4",))
    assert run(gpu) == 0
    tuned, out = the_file(root), printed.out
    assert labels(tuned.evaluations) == ["size8-step4", "size16", "size32"]
    assert {one.config.label: one.code for one in tuned.failed} == fails | {
        "size24": "COMPILE_ERROR",
        "size24-step4": "COMPILE_ERROR",
        "size16-step4": "WRONG",
    }
    assert "static_assert: SIZE: not 24" in out
    assert tuned.pruned == {"SIZE 8 in steps of one": 1, "N threads per block (N), at most N allowed": 2}
    assert "size16-step4" not in gpu.timed  # what is wrong is never timed
    assert best(tuned).config.label == "size32"
    speeds = [2 * 512**3 / seconds / 1e9 for seconds in (8e-6, 9e-6)]
    assert [best(tuned).gflops, tuned.library_gflops] == pytest.approx(speeds)
    assert tuned.of_declared in tuned.confirmed
    assert gpu.timed[-3:] == ["size32", "size8-step4", "size16"]  # measured again
    assert "best: size32" in out
    assert "to keep it, add Config(SIZE=32) to the configs of one\n" in out


def test_a_best_config_that_fails_when_measured_again_is_not_the_best(root: Path, run: Tune) -> None:
    def later(gpu: FakeGpu, plan: Plan) -> None:
        gpu.fails = {"size32": "WRONG"} if plan.reference else {}

    assert run(FakeGpu(microseconds={"size32": 8.0, "size16": 9.0}, before=later)) == 0
    tuned = the_file(root)
    assert best(tuned).config.label == "size16"
    assert ("size32" in labels(tuned.failed), "size32" in labels(tuned.evaluations)) == (True, False)


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(root: Path, run: Tune, printed: Printed) -> None:
    def interrupted(gpu: FakeGpu, plan: Plan) -> None:
        if len(gpu.timed) == 2:
            raise KeyboardInterrupt

    assert run(FakeGpu(fails={"size8-step4": "HANG"}, before=interrupted)) == 130
    assert "stopped: 2 results are in " in printed.out
    assert not (root / "baselines").exists()
    gpu = FakeGpu()
    assert run(gpu) == 0
    assert "2 results were in " in printed.out
    assert len(gpu.timed) == 3 + 3  # the rest, and the best again
    assert len(the_file(root).evaluations) == 4
    assert "size8-step4" in labels(the_file(root).failed)


def test_ctrl_c_before_the_search_is_said_in_a_line(
    run: Tune, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setattr("gemm_regression.tune.tune.compile_all", Mock(side_effect=KeyboardInterrupt))
    assert run(FakeGpu()) == 130
    assert printed.err == "error: stopped\n"


def test_a_large_space_is_screened_as_it_is_asked_for(
    root: Path, run: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemm_regression.tune.tune.AHEAD", 3)
    assert run(FakeGpu()) == 0
    tuned = the_file(root)
    assert (len(tuned.evaluations), [one.code for one in tuned.failed]) == (5, ["COMPILE_ERROR"] * 2)


def test_a_torn_last_line_costs_that_config(root: Path, run: Tune, printed: Printed) -> None:
    cache = root / "cache.json"
    assert run(FakeGpu(), "--cache", str(cache)) == 0
    whole = cache.read_text()
    cache.write_text(whole[:-30])
    gpu = FakeGpu()
    assert run(gpu, "--cache", str(cache)) == 0
    assert "its last line was torn" in printed.out
    assert len(gpu.timed) == 1 + 3
    assert sorted(cache.read_text().splitlines()) == sorted(whole.splitlines())
    lines = whole.splitlines(keepends=True)
    cache.write_text("".join([lines[0], lines[1][:30] + "\n", *lines[2:]]))
    assert run(gpu, "--cache", str(cache)) == 2
    assert "line 2 is damaged" in printed.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel": "other-f32"}, "another kernel: other-f32, not one-f32"),
        ({"GPU": "NVIDIA H100"}, "another GPU: NVIDIA H100, not NVIDIA H200"),
        ({"compiler": "12.0"}, "another compiler: 12.0, not "),
        ({"problem": "8x8x8"}, "another problem: 8x8x8, not 512x512x512"),
        ({"version of the kernel's source": "0"}, "another version of the kernel's source: 0, not "),
        ({"notes": 1}, "no cache file of this suite"),
    ],
)
def test_a_cache_file_of_something_else_is_refused_and_kept(
    root: Path, run: Tune, printed: Printed, change: dict[str, object], said: str
) -> None:
    cache = root / "cache.json"
    words = ("--cache", str(cache), "--axis", "SIZE=16")
    assert run(FakeGpu(), *words) == 0
    printed.both()
    first, *rest = cache.read_text().split("\n")
    text = "\n".join([json.dumps(json.loads(first) | change), *rest])
    cache.write_text(text)
    assert run(FakeGpu(), *words) == 2
    assert said in printed.error
    assert cache.read_text() == text
    assert run(FakeGpu(), *words, "--fresh") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "0x8x8"], "0x8x8 has nothing to compute"),
        (["--axis", "SIZ=8"], "no axis 'SIZ'; there are: SIZE, STEP"),
        (["--axis", "SIZE="], "the axis SIZE of a space has no value"),
        (["--axis", "SIZE=big"], "--axis SIZE=big: must be a name and integers"),
        (["--axis", "SIZE=64"], "none of the 2 configs is legal; of 2: N threads per block"),
        (["--axis", "SIZE=24"], "nothing is left to time of 2 configs: 2: static_assert: SIZE: not 24"),
        (["--strategy", "brute"], "unknown strategy 'brute'"),
        (["--strategy", "skopt"], "No module named 'skopt'"),
        (["--budget", "soon"], "--budget soon: must be seconds such as 300s, or evaluations such as 200"),
        (["--kernel", "two"], "two declares no search space (space=Space(axes)); these do: one, three"),
        (["--kernel", "three"], "three: its search space is empty"),
        (["--dtype", "f16"], "one has no f16, only f32"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_line(
    run: Tune, printed: Printed, arguments: list[str], said: str
) -> None:
    assert run(FakeGpu(), *arguments) == 2
    assert re.match(f"error: .*{re.escape(said)}", printed.error)


def test_configs_with_the_same_binary_are_timed_once(root: Path, run: Tune, printed: Printed) -> None:
    (root / "kernels" / "one.cu").write_text(SOURCE.replace("step = STEP", "step = 2"))
    gpu = FakeGpu()
    assert run(gpu, "--axis", "SIZE=16,32") == 0
    assert "2 not timed: the same binary and launch as another config" in printed.out
    assert set(gpu.timed) == {"size16", "size32"}


def test_a_race_is_found_before_the_gpu_sees_it(root: Path, run: Tune) -> None:
    start = "    float sum = 0.0f;\n"
    race = "    __shared__ volatile float seen;\n    if (SIZE == 32) { seen = 0.0f; sum = seen; }\n"
    (root / "kernels" / "one.cu").write_text(SOURCE.replace(start, start + race))
    gpu = FakeGpu()
    assert run(gpu, "--axis", "SIZE=16,32", "--axis", "STEP=1", hazards=True) == 0
    assert set(gpu.timed) == {"size16"}
    (failed,) = the_file(root).failed
    assert (failed.config.label, "race" in failed.reason) == ("size32", True)


def test_without_a_gpu_it_says_what_there_is_instead(
    root: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setattr(runners, "open_cuda", Mock(side_effect=NoDevice("no NVIDIA driver responds")))
    assert tune.main(SHAPE) == 2
    assert "no NVIDIA driver responds; without one, --device emulated counts instructions" in printed.error


def test_a_busy_gpu_is_refused(run: Tune, printed: Printed) -> None:
    gpu = FakeGpu(others=["pid 1 (python, 5 MiB)"])
    assert run(gpu) == 2
    assert "in use by pid 1" in printed.err
    assert run(gpu, "--allow-busy", "--axis", "SIZE=16") == 0


def test_the_emulated_device_counts_instructions_and_stores_nothing(root: Path, printed: Printed) -> None:
    words = ["--kernel", "one", "--shape", "64x64x64", "--device", "emulated", "-q", "--axis", "SIZE=16,32"]
    for _ in range(2):  # counted, and from the cache file
        assert tune.main(words) == 0
        out = printed.out.splitlines()
        ranked = [line for line in out if "warp instructions" in line]
        assert len(ranked) == 4
        assert ranked[0].endswith("-step4")  # unrolled: fewer
    assert not (root / "baselines").exists()


def test_a_budget_of_few_evaluations_compiles_no_others(
    root: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    compiled = list[Any]()

    def counted(variants: Sequence[Any], *more: Any) -> Any:
        compiled.extend(variants)
        return compile_all(variants, *more)

    monkeypatch.setattr("gemm_regression.tune.tune.compile_all", counted)
    words = ["--kernel", "one", "--shape", "64x64x64", "--device", "emulated", "-q", "--budget", "1"]
    assert tune.main(words) == 0
    assert printed.out.count("warp instructions") == 1
    assert len(compiled) == 1


def test_a_budget_of_evaluations_ends_the_search(root: Path, run: Tune) -> None:
    assert run(FakeGpu(), "--strategy", "random_sample", "--budget", "2", "--seed", "3") == 0
    tuned = the_file(root)
    known = (len(tuned.evaluations), tuned.strategy, tuned.budget, tuned.seed)
    assert known == (2, "random_sample", "2 evaluations", 3)


def test_the_objective_is_what_the_best_is_best_at(root: Path, run: Tune) -> None:
    gpu = FakeGpu(microseconds={"size8-step4": 4.0})
    assert run(gpu, "--objective", "cycles", "--strategy", "greedy_ils", "--budget", "5") == 0
    tuned = the_file(root)
    assert (tuned.objective, best(tuned).cycles) == ("cycles", round(4e-6 * 1980e6))
