"""`nox -s tune` on a GPU of the tests' own: what is excluded, timed, listed, stored, resumed and refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gemm_regression.baselines import provenance
from gemm_regression.cli import tune
from gemm_regression.devices import NoDevice
from gemm_regression.model import Config
from gemm_regression.project.loader import load
from gemm_regression.tune import evaluating, stored
from tests.unit.tunable import DECLARATIONS, SOURCE, FakeGpu, project

pytestmark = pytest.mark.compile
pytest.importorskip("kernel_tuner")

SHAPE = ("--kernel", "one", "--shape", "512x512x512")
LABELS = ["size8-step4", "size16", "size16-step4", "size32", "size32-step4"]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project(tmp_path / "project"))
    monkeypatch.setattr(provenance, "nvcc_version", lambda: "13.0.88")
    return tmp_path / "project"


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeGpu], FakeGpu]:
    def on(gpu: FakeGpu) -> FakeGpu:
        monkeypatch.setattr(evaluating, "open_cuda", lambda time_limit: gpu)
        return gpu

    return on


def run(*arguments: str) -> int:
    return tune.main([*SHAPE, "--no-hazards", "-q", *arguments])


def the_file(root: Path) -> stored.Tuned:
    (path,) = (root / "baselines" / "nvidia-h200" / "tuned").glob("*.json")
    return stored.load(path)


def test_every_config_is_timed_listed_or_counted(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = use(
        FakeGpu(
            microseconds={"size32": 8.0},
            fails={"size32-step4": "ILLEGAL_ADDRESS"},
            wrong=("size16-step4",),
        )
    )
    assert run() == 0
    tuned, out = the_file(root), capsys.readouterr().out
    assert [one.config.label for one in tuned.evaluations] == ["size8-step4", "size16", "size32"]
    failed = {one.config.label: one.code for one in tuned.failed}
    assert failed == {
        "size24": "COMPILE_ERROR",
        "size24-step4": "COMPILE_ERROR",
        "size16-step4": "WRONG",
        "size32-step4": "ILLEGAL_ADDRESS",
    }
    assert "static_assert: SIZE: not 24" in out
    assert tuned.pruned == {"SIZE 8 in steps of one": 1, "N threads per block (N), at most N allowed": 2}
    assert "size16-step4" not in gpu.timed  # what is wrong is never timed
    assert tuned.best
    assert tuned.best.config.label == "size32"
    assert tuned.best.gflops == pytest.approx(2 * 512**3 / 8e-6 / 1e9)
    assert tuned.library_gflops == pytest.approx(2 * 512**3 / 9e-6 / 1e9)
    assert tuned.of_declared in tuned.confirmed
    assert gpu.timed[-3:] == ["size32", "size8-step4", "size16"]  # measured again
    assert "best: size32" in out


def test_a_best_config_that_fails_when_measured_again_is_not_the_best(
    root: Path, use: Callable[[FakeGpu], FakeGpu]
) -> None:
    class Later(FakeGpu):
        def time(self, case: object, plan: object) -> object:  # type: ignore[override]
            if plan.reference:  # type: ignore[attr-defined]
                self.fails = {"size32": "WRONG"}
            return super().time(case, plan)  # type: ignore[arg-type]

    use(Later(microseconds={"size32": 8.0, "size16": 9.0}))
    assert run() == 0
    tuned = the_file(root)
    assert tuned.best
    assert tuned.best.config.label == "size16"
    assert "size32" in {one.config.label for one in tuned.failed}
    assert "size32" not in {one.config.label for one in tuned.evaluations}


def test_ctrl_c_loses_nothing_and_the_same_command_goes_on(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(FakeGpu):
        def time(self, case: object, plan: object) -> object:  # type: ignore[override]
            if len(self.timed) == 2:
                raise KeyboardInterrupt
            return super().time(case, plan)  # type: ignore[arg-type]

    use(Interrupted())
    assert run() == 130
    out = capsys.readouterr().out
    assert "stopped: 2 results are in " in out
    assert not (root / "baselines").exists()
    gpu = use(FakeGpu())
    assert run() == 0
    assert "2 results were in " in capsys.readouterr().out
    assert len(gpu.timed) == 3 + 3  # the rest, and the best again
    assert len(the_file(root).evaluations) == 5


def test_ctrl_c_before_the_search_is_said_in_a_line(
    root: Path,
    use: Callable[[FakeGpu], FakeGpu],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def stop(*arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    use(FakeGpu())
    monkeypatch.setattr("gemm_regression.tune.screening.compile_all", stop)
    assert run() == 130
    assert capsys.readouterr().err == (
        "tune: stopped before anything was timed; what was compiled stays in the cache\n"
    )


def test_the_best_config_is_written_into_the_declaration(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    use(FakeGpu(microseconds={"size32-step4": 5.0}))
    assert run("--accept", "--axis", "SIZE=16,32") == 0
    assert "one declares size32-step4 now" in capsys.readouterr().out
    assert load(root).kernels[0].configs[-1] == Config(SIZE=32, STEP=4)


def test_a_large_space_is_screened_as_it_is_asked_for(
    root: Path, use: Callable[[FakeGpu], FakeGpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gemm_regression.tune.tune.AHEAD", 3)
    use(FakeGpu())
    assert run() == 0
    tuned = the_file(root)
    assert len(tuned.evaluations) == 5
    assert {one.code for one in tuned.failed} == {"COMPILE_ERROR"}
    assert len(tuned.failed) == 2


def test_a_torn_last_line_costs_that_config(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    use(FakeGpu())
    cache = root / "cache.json"
    assert run("--cache", str(cache)) == 0
    lines = cache.read_text().rstrip(" }\n").split("\n")
    cache.write_text("\n".join([*lines[:-1], lines[-1][:30]]))
    gpu = use(FakeGpu())
    assert run("--cache", str(cache)) == 0
    assert "its last line was torn" in capsys.readouterr().out
    assert len(gpu.timed) == 1 + 3
    cache.write_text("\n".join([lines[0], lines[1][:30], *lines[2:]]))
    assert run("--cache", str(cache)) == 2
    assert "line 2 is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel_name": "other-f32"}, "another kernel: other-f32, not one-f32"),
        ({"device_name": "NVIDIA H100"}, "another GPU: NVIDIA H100, not NVIDIA H200"),
        ({"nvcc": "12.0"}, "another compiler: 12.0, not "),
        ({"problem_size": "8x8x8"}, "another problem: 8x8x8, not 512x512x512"),
        ({"sources": "0"}, "another version of the kernel's source"),
        ({"tune_params_keys": ["STEP", "SIZE"]}, "another order of axes"),
    ],
)
def test_a_cache_file_of_something_else_is_refused_and_kept(
    root: Path,
    use: Callable[[FakeGpu], FakeGpu],
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    said: str,
) -> None:
    use(FakeGpu())
    cache = root / "cache.json"
    assert run("--cache", str(cache), "--axis", "SIZE=16") == 0
    first, *rest = cache.read_text().split("\n")
    head = json.loads(first + "}}") | change
    text = "\n".join([json.dumps(head)[:-2], *rest])
    cache.write_text(text)
    assert run("--cache", str(cache), "--axis", "SIZE=16") == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert cache.read_text() == text
    assert run("--cache", str(cache), "--axis", "SIZE=16", "--fresh") == 0


def test_a_file_that_is_no_cache_is_refused(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    use(FakeGpu())
    cache = root / "notes.json"
    cache.write_text('{"notes": 1}\n')
    assert run("--cache", str(cache)) == 2
    assert "no cache file of this suite" in capsys.readouterr().err
    assert cache.read_text() == '{"notes": 1}\n'


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
        (["--kernel", "two"], "two declares no search space (space=Space(axes)); these do: one"),
        (["--dtype", "f16"], "one has no f16, only f32"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_line(
    root: Path,
    use: Callable[[FakeGpu], FakeGpu],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    use(FakeGpu())
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("tune: ")
    assert err.count("\n") == 1


def test_an_empty_space_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[FakeGpu], FakeGpu],
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = DECLARATIONS[
        DECLARATIONS.index("space=Space(") : DECLARATIONS.index('    ),\n    Kernel(name="two"')
    ]
    monkeypatch.chdir(project(tmp_path, DECLARATIONS.replace(space, "space=Space(axes={}),\n")))
    use(FakeGpu())
    assert run() == 2
    assert "one: its search space is empty" in capsys.readouterr().err


def test_an_axis_that_the_kernel_ignores_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[FakeGpu], FakeGpu],
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(project(tmp_path, source=SOURCE.replace("step = STEP", "step = 2")))
    monkeypatch.setattr(provenance, "nvcc_version", lambda: "13.0.88")
    gpu = use(FakeGpu())
    assert run("--axis", "SIZE=16,32") == 0
    out = capsys.readouterr().out
    assert "STEP: every value gives the same binary, so the kernel ignores it" in out
    assert "SIZE: every" not in out
    assert "2 not timed: the same binary and launch as another config" in out
    assert set(gpu.timed) == {"size16", "size32"}


def test_a_race_is_found_before_the_gpu_sees_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    use: Callable[[FakeGpu], FakeGpu],
    capsys: pytest.CaptureFixture[str],
) -> None:
    racing = SOURCE.replace(
        "    float sum = 0.0f;\n",
        "    float sum = 0.0f;\n"
        "    __shared__ volatile float seen;\n"
        "    if (SIZE == 32) { seen = 0.0f; sum = seen; }\n",
    )
    monkeypatch.chdir(project(tmp_path, source=racing))
    monkeypatch.setattr(provenance, "nvcc_version", lambda: "13.0.88")
    gpu = use(FakeGpu())
    assert tune.main([*SHAPE, "-q", "--axis", "SIZE=16,32", "--axis", "STEP=1"]) == 0
    assert set(gpu.timed) == {"size16"}
    (failed,) = stored.load(next(tmp_path.glob("baselines/*/tuned/*.json"))).failed
    assert failed.config.label == "size32"
    assert "race" in failed.reason


def test_without_a_gpu_it_says_what_there_is_instead(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(time_limit: float) -> None:
        raise NoDevice("no NVIDIA driver responds")

    monkeypatch.setattr(evaluating, "open_cuda", none)
    assert run() == 2
    err = capsys.readouterr().err
    assert "no NVIDIA driver responds; without one, --device emulated counts instructions" in err
    assert err.count("\n") == 1


def test_a_busy_gpu_is_refused(
    root: Path, use: Callable[[FakeGpu], FakeGpu], capsys: pytest.CaptureFixture[str]
) -> None:
    use(FakeGpu(others=["pid 1 (python, 5 MiB)"]))
    assert run() == 2
    assert "in use by pid 1" in capsys.readouterr().err
    assert run("--allow-busy", "--axis", "SIZE=16") == 0


def test_the_emulated_device_counts_instructions_and_stores_nothing(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "--kernel",
        "one",
        "--shape",
        "64x64x64",
        "--device",
        "emulated",
        "-q",
        "--axis",
        "SIZE=16,32",
    ]
    assert tune.main(arguments) == 0
    out = capsys.readouterr().out.splitlines()
    ranked = [line for line in out if "warp instructions" in line]
    assert len(ranked) == 4
    assert ranked[0].endswith("-step4")  # unrolled: fewer
    assert not (root / "baselines").exists()


def test_a_budget_of_evaluations_ends_the_search(root: Path, use: Callable[[FakeGpu], FakeGpu]) -> None:
    use(FakeGpu())
    assert run("--strategy", "random_sample", "--budget", "2", "--seed", "3") == 0
    tuned = the_file(root)
    assert len(tuned.evaluations) == 2
    assert (tuned.strategy, tuned.budget, tuned.seed) == ("random_sample", "2 evaluations", 3)


def test_the_objective_is_what_the_best_is_best_at(root: Path, use: Callable[[FakeGpu], FakeGpu]) -> None:
    use(FakeGpu(microseconds={"size8-step4": 4.0}))
    assert run("--objective", "cycles", "--strategy", "greedy_ils", "--budget", "5") == 0
    tuned = the_file(root)
    assert tuned.objective == "cycles"
    assert tuned.best
    assert tuned.best.cycles == round(4e-6 * 1980e6)
