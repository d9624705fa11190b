"""Kernel Tuner's strategies with this suite's runner; replays; a config accepted; search spaces."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gemm_regression.cli import tune
from gemm_regression.model import Config, Rule, Space
from gemm_regression.project.loader import load
from gemm_regression.report import tuning as said
from gemm_regression.tune import stored
from gemm_regression.tune.accept import AcceptError, accept, edited
from gemm_regression.tune.cachefile import CacheFile, head
from gemm_regression.tune.evaluating import Job, Measured
from gemm_regression.tune.search import COMPARED, Budget, SearchError, replay, search
from gemm_regression.tune.stored import Evaluation, Failed, Tuned
from tests.unit.tunable import DECLARATIONS, project

pytest.importorskip("kernel_tuner")

SPACE = Space(
    {"TILE": (8, 16, 32, 64), "PAD": (0, 1, 4), "BAND": (2, 4, 8)},
    (Rule("no padding at 16", lambda v: v["TILE"] != 16 or v["PAD"] == 0),),
    {"BAND": 8},
)
CONFIGS = [SPACE.config(v) for v in SPACE.combinations() if not SPACE.broken(v)]
BEST = Config(TILE=64, PAD=0)


def gflops(config: Config) -> float:
    return 1000.0 + 10 * config["TILE"] - 20 * config["PAD"] + config.get("BAND", 8)


@dataclass
class Some:
    """Workers that fail for TILE 8."""

    count: int = 1
    asked: list[Config] = field(default_factory=list)

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        for place, config in jobs:
            self.asked.append(config)
            if config["TILE"] == 8:
                yield place, Measured({}, "HANG", "it hangs")
            else:
                yield place, Measured({"time": 1.0, "gflops": gflops(config), "noise": 0.0})


def cache(path: Path) -> CacheFile:
    return CacheFile(path / "cache.json", head("NVIDIA H200", "k-f32", "64x64x64", SPACE.axes, "13.0", "0"))


def run(path: Path, strategy: str, budget: Budget, seed: int = 1) -> tuple[dict[Config, Measured], Some]:
    found: dict[Config, Measured] = {}
    workers = Some()
    search(SPACE, CONFIGS, workers, cache(path), found, "gflops", strategy, budget, seed)
    return found, workers


def test_brute_force_asks_for_every_legal_config_once(tmp_path: Path) -> None:
    found, workers = run(tmp_path, "brute_force", Budget())
    assert sorted(workers.asked, key=str) == sorted(CONFIGS, key=str)
    assert max((c for c, m in found.items() if not m.code), key=gflops) == BEST


@pytest.mark.parametrize("strategy", ["brute_force", *COMPARED])
def test_a_strategy_keeps_to_its_budget_and_to_the_space(tmp_path: Path, strategy: str) -> None:
    found, workers = run(tmp_path, strategy, Budget(evaluations=9))
    assert 1 <= len(workers.asked) <= 9
    assert set(found) == set(workers.asked) <= set(CONFIGS)


def test_a_budget_of_seconds_ends_a_search(tmp_path: Path) -> None:
    class Slow(Some):
        def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
            for result in super().results(jobs):
                time.sleep(0.1)
                yield result

    found: dict[Config, Measured] = {}
    search(SPACE, CONFIGS, Slow(), cache(tmp_path), found, "gflops", "brute_force", Budget(seconds=0.5))
    assert 1 <= len(found) <= 6
    with pytest.raises(SearchError, match="exceeded the time limit"):
        run(tmp_path, "brute_force", Budget(seconds=1e-6))


def test_a_strategy_that_only_comes_back_to_what_it_knows_ends(tmp_path: Path) -> None:
    found, _ = run(tmp_path, "simulated_annealing", Budget(evaluations=10_000))
    assert len(found) <= len(CONFIGS)


def test_a_strategy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SearchError, match="brute_force"):
        run(tmp_path, "brut_force", Budget())


# Replaying


def tuned() -> Tuned:
    rng = random.Random(1)
    flop = 2 * 4096**3
    good = [config for config in CONFIGS if config["TILE"] != 8]
    evaluations = tuple(
        Evaluation(c, flop / (speed := gflops(c) + rng.random()) / 1e9, speed, 1e6, 500.0) for c in good
    )
    return Tuned(
        gpu="nvidia-h200",
        machine_info={
            "name": "NVIDIA H200",
            "capability": "9.0",
            "driver": "580",
            "cuda_driver": "13.0",
            "nvcc": "13.0.88",
        },
        commit_info={"id": "0", "dirty": False, "time": None},
        datetime="2026-11-21T20:00:00+00:00",
        kernel="k",
        dtype="f32",
        problem="4096x4096x4096",
        flop=flop,
        objective="gflops",
        strategy="brute_force",
        seconds=10.0,
        axes=SPACE.axes,
        defaults=SPACE.defaults,
        evaluations=evaluations,
        failed=tuple(Failed(c, "HANG", "it hangs") for c in CONFIGS if c["TILE"] == 8),
    )


def test_a_replay_counts_the_evaluations_to_come_near_the_best() -> None:
    (found,) = replay(tuned(), ["random_sample"], [1, 2, 3], Budget(evaluations=len(CONFIGS)))
    assert all(end == 1.0 for end in found.ends)  # it sees all of them
    to95, to99 = found.reached
    assert all(a is not None and b is not None and 1 <= a <= b for a, b in zip(to95, to99, strict=True))
    assert len(set(to99)) > 1  # seeds differ
    again = replay(tuned(), ["random_sample"], [1, 2, 3], Budget(evaluations=len(CONFIGS)))
    assert again == [found]  # and repeat


def test_what_fails_is_far_from_the_best() -> None:
    """The first evaluations of brute force are of TILE 8, which hangs."""
    (found,) = replay(tuned(), ["brute_force"], [1], Budget(evaluations=3))
    assert (found.reached, found.ends) == (((None,), (None,)), (0.0,))
    assert found.median(0) is None


def test_the_best_by_cycles_is_the_one_with_the_fewest() -> None:
    space = tuned()
    slow = replace(space, objective="cycles", evaluations=tuple(
        replace(one, cycles=1e9 / one.gflops) for one in space.evaluations
    ))  # fmt: skip
    (found,) = replay(slow, ["random_sample"], [1], Budget(evaluations=len(CONFIGS)))
    assert found.ends == (1.0,)


def test_the_table_of_strategies_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored.save(tmp_path / "k.json", tuned())
    page = tmp_path / "strategies.md"
    arguments = ["--simulate", str(tmp_path / "k.json"), "--seeds", "3", "--strategy", "random_sample", "-q"]
    assert tune.main([*arguments, "--markdown", str(page)]) == 0
    assert "| random_sample |" in capsys.readouterr().out
    assert "| strategy | evaluations to 95% | evaluations to 99% |" in page.read_text()
    assert tune.main([*arguments, "--markdown", str(page), "--check"]) == 0
    stored.save(tmp_path / "k.json", replace(tuned(), seconds=11.0))
    assert tune.main([*arguments, "--markdown", str(page), "--check"]) == 1
    assert "was made of something else" in capsys.readouterr().err


def test_a_replay_of_a_file_that_is_no_space_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.json").write_text("{}")
    assert tune.main(["--simulate", str(tmp_path / "k.json")]) == 2
    assert "not a tuned space of this suite" in capsys.readouterr().err


def test_a_plot_has_every_config_and_the_axes(tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    said.plot(tuned(), tmp_path / "k.svg")
    svg = (tmp_path / "k.svg").read_text()
    assert svg.startswith("<svg")
    for text in ("TILE", "PAD", "BAND", "configs, the fastest first"):
        assert text in svg


# Spaces


def test_a_config_of_a_space_and_its_values() -> None:
    config = SPACE.config({"TILE": 8, "PAD": 1, "BAND": 8})
    assert config == Config(TILE=8, PAD=1)
    assert SPACE.values(config) == (8, 1, 8)
    assert SPACE.values(Config(TILE=9, PAD=1)) is None
    assert SPACE.values(Config(TILE=8)) is None
    assert SPACE.including(Config(TILE=9, PAD=1)).values(Config(TILE=9, PAD=1)) == (9, 1, 8)
    assert SPACE.narrowed({"PAD": [0]}).size == 12


@pytest.mark.parametrize(
    ("axes", "defaults", "said"),
    [({"A": ()}, {}, "no value"), ({"A": (1, 1)}, {}, "one twice"), ({"A": (1,)}, {"B": 1}, "default of B")],
)
def test_a_space_that_makes_no_sense_is_refused(
    axes: dict[str, tuple[int, ...]], defaults: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Space(axes, (), defaults)


# Accepting


def test_a_config_is_added_to_a_declaration(tmp_path: Path) -> None:
    root = project(tmp_path)
    config = Config(SIZE=32, STEP=4)
    assert "one declares size32-step4 now" in accept(load(root), "one", config)
    kernels = {kernel.name: kernel for kernel in load(root).kernels}
    assert kernels["one"].configs == (Config(SIZE=16), config)
    assert kernels["two"].configs == (Config(SIZE=16),)
    assert accept(load(root), "one", config) == "one declares size32-step4 already"


def test_configs_made_by_a_loop_are_kept(tmp_path: Path) -> None:
    loop = "configs=tuple(Config(SIZE=size) for size in (8, 16)),"
    root = project(tmp_path, DECLARATIONS.replace("configs=(Config(SIZE=16),),", loop, 1))
    accept(load(root), "one", Config(SIZE=32))
    (kernel, _) = load(root).kernels
    assert kernel.configs == (Config(SIZE=8), Config(SIZE=16), Config(SIZE=32))


def test_an_edit_keeps_comments_and_other_languages() -> None:
    text = (
        'KERNELS = (\n    Kernel(\n        name="one",  # größer\n        configs=(\n'
        "            Config(A=1),  # ä\n        ),\n    ),\n)\n"
    )
    after = edited(text, "one", Config(A=2))
    assert after.count("größer") == 1
    assert "Config(A=1),  # ä\n            Config(A=2),\n" in after


def test_a_declaration_that_cannot_be_edited_says_what_to_write(tmp_path: Path) -> None:
    some = (
        "def some():\n    size = len(open(__file__).read()) % 1000 + 1\n    return (Config(SIZE=size),)\n\n"
    )
    lines = DECLARATIONS.replace("configs=(Config(SIZE=16),),", "configs=some(),")
    lines = lines.replace("def shape", f"{some}def shape")
    root = project(tmp_path, lines)
    with pytest.raises(
        AcceptError, match=r"left as it was.*add Config\(SIZE=32\) to the configs of one by hand"
    ):
        accept(load(root), "one", Config(SIZE=32))
    assert (root / "kernels" / "__init__.py").read_text() == lines
