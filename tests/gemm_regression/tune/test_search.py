"""Kernel Tuner's strategies with this suite's runner; tuned spaces, stored and replayed; search spaces."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.baselines import BaselineError, store
from gemm_regression.cli import tune
from gemm_regression.model import Config, Rule, Space
from gemm_regression.report import tuning as report
from gemm_regression.tune import search, stored
from gemm_regression.tune.search import COMPARED, Budget, Search, replay
from gemm_regression.tune.stored import Evaluation, FailedConfig, Result, Tuned, TuneError
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.tune.tunable import FLOP, tuned

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


def evaluated(config: Config) -> Result:
    if config["TILE"] == 8:
        return FailedConfig(config, "HANG", "it hangs")
    return Evaluation(config, 0.001, gflops(config))


def run(strategy: str, budget: Budget, seconds: float = 0.0) -> tuple[list[Config], list[Config]]:
    """What a strategy found, in its order, and what was evaluated for it."""
    asked = []

    def evaluate(configs: Iterator[Config]) -> Iterator[Result]:
        for config in configs:
            asked.append(config)
            time.sleep(seconds)
            yield evaluated(config)

    search = Search(SPACE, CONFIGS, "gflops", evaluate, {})
    search.run(strategy, budget)
    return list(search.found), asked


def test_brute_force_asks_for_every_legal_config_once() -> None:
    found, asked = run("brute_force", Budget())
    assert found == asked
    assert sorted(asked, key=str) == sorted(CONFIGS, key=str)


@pytest.mark.parametrize("strategy", ["brute_force", *COMPARED])
def test_a_strategy_keeps_to_its_budget_and_to_the_space(strategy: str) -> None:
    found, asked = run(strategy, Budget(evaluations=9))
    assert 1 <= len(asked) <= 9
    assert set(found) == set(asked) <= set(CONFIGS)


def test_a_budget_of_seconds_ends_a_search() -> None:
    found, _ = run("brute_force", Budget(seconds=0.5), 0.1)
    assert 1 <= len(found) <= 6
    with pytest.raises(TuneError, match="exceeded the time limit"):
        run("brute_force", Budget(seconds=1e-6))


def test_a_strategy_that_only_comes_back_to_what_it_knows_ends() -> None:
    found, asked = run("simulated_annealing", Budget(evaluations=10_000))
    assert len(found) == len(asked) <= len(CONFIGS)


# Replaying


def searched(objective: str = "gflops", **more: float) -> Tuned:
    rng = random.Random(1)
    speeds = {config: gflops(config) + rng.random() for config in CONFIGS if config["TILE"] != 8}
    evaluations = (Evaluation(c, FLOP / of / 1e9, of, 1e9 / of, 500.0) for c, of in speeds.items())
    failed = tuple(FailedConfig(c, "HANG", "it hangs") for c in CONFIGS if c["TILE"] == 8)
    return tuned(evaluations, SPACE, objective=objective, failed=failed, **more)


@pytest.mark.parametrize("objective", ["gflops", "cycles"])
def test_a_replay_counts_the_evaluations_to_come_near_the_best(objective: str) -> None:
    of, budget = searched(objective), Budget(evaluations=len(CONFIGS))
    (found,) = replay(of, ["random_sample"], [1, 2, 3], budget)
    assert all(end == 1.0 for end in found.ends)  # it sees all of them
    to95, to99 = found.reached
    assert all(a is not None and b is not None and 1 <= a <= b for a, b in zip(to95, to99, strict=True))
    assert len(set(to99)) > 1  # seeds differ
    assert replay(of, ["random_sample"], [1, 2, 3], budget) == [found]  # and repeat


def test_a_strategy_that_fails_is_told_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it had found before; as some of Kernel Tuner's do on small spaces."""

    def fails(space: Any, runner: Any, options: Any) -> None:
        runner.run([space.list[0]], options)
        raise IndexError("list index out of range")

    known = search._kernel_tuner().interface.strategy_map
    monkeypatch.setitem(known, "pso", SimpleNamespace(tune=fails))
    of = searched()
    found = {one.strategy: one for one in replay(of, ["pso", "random_sample"], [1, 2], Budget(evaluations=9))}
    assert found["pso"].failures == ("the strategy pso failed: IndexError: list index out of range",) * 2
    assert len(found["pso"].ends) == 2
    assert found["random_sample"].failures == ()
    said = report.strategies(of, list(found.values()))
    assert "\n\nWith 2 of 2 seeds the strategy pso failed: IndexError: list index out of range. It is" in said
    with pytest.raises(TuneError, match="unknown strategy"):
        replay(of, ["nope"], [1], Budget(evaluations=3))


def test_what_fails_is_far_from_the_best() -> None:
    """The first evaluations of brute force are of TILE 8, which hangs."""
    (found,) = replay(searched(), ["brute_force"], [1], Budget(evaluations=3))
    assert (found.reached, found.ends) == (((None,), (None,)), (0.0,))
    assert found.median(0) is None


def test_the_table_of_strategies_is_printed_and_written(tmp_path: Path, printed: Printed) -> None:
    file, page = stored.write(tmp_path, searched()), tmp_path / "strategies.md"
    arguments = ["--simulate", str(file), "--seeds", "3", "--strategy", "random_sample", "-q"]
    assert tune.main([*arguments, "--markdown", str(page)]) == 0
    assert "| random_sample |" in printed.out
    assert "| strategy | evaluations to 95% | evaluations to 99% |" in page.read_text()
    assert tune.main([*arguments, "--markdown", str(page), "--check"]) == 0
    stored.write(tmp_path, searched(seconds=11.0))
    assert tune.main([*arguments, "--markdown", str(page), "--check"]) == 1
    assert "was made of something else" in printed.err
    file.write_text("{}")
    assert tune.main(arguments) == 2
    assert "not a tuned space of this suite" in printed.err


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


# Spaces as stored


def evaluation(tile: int, band: int, seconds: float, watts: float | None = 650.0) -> Evaluation:
    config = Config(TILE_M=tile) if band == 8 else Config(TILE_M=tile, BAND_ROWS=band)
    return Evaluation(config, seconds, FLOP / seconds / 1e9, round(seconds * 1.98e9), watts, 0.001)


TUNED = tuned(
    (evaluation(64, 8, 0.004, 400.0), evaluation(128, 2, 0.003), evaluation(128, 8, 0.0031)),
    Space({"TILE_M": (64, 128), "BAND_ROWS": (2, 8)}, (), {"BAND_ROWS": 8}),
    seed=7,
    budget="300 s",
    declared=Config(TILE_M=128),
    confirmed=(evaluation(128, 8, 0.0032), evaluation(128, 2, 0.0031)),
    failed=(FailedConfig(Config(TILE_M=64, BAND_ROWS=2), "WRONG", "C[0, 0]: got 1, expected 2"),),
    pruned={"spills": 12},
    library_gflops=51300.0,
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = stored.write(tmp_path, TUNED)
    assert path == tmp_path / "nvidia-h200" / "tuned" / "warp_tiled-f32-4096x4096x4096.json"
    assert stored.load(path) == TUNED
    assert stored.find(tmp_path, "nvidia-h200") == [TUNED]
    assert stored.find(tmp_path, "nvidia-h100") == []
    assert (store.stored(tmp_path), store.current(tmp_path, "nvidia-h200")) == ([], None)  # no baselines


def test_the_best_is_of_those_confirmed_and_of_the_objective() -> None:
    assert TUNED.best == TUNED.confirmed[1]
    assert TUNED.of_declared == TUNED.confirmed[0]
    assert replace(TUNED, confirmed=()).best == TUNED.evaluations[1]
    assert replace(TUNED, confirmed=(), objective="gflops_per_watt").best == TUNED.evaluations[0]
    assert replace(TUNED, confirmed=(), evaluations=()).best is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "truncated or damaged"),
        ({"schema": 2}, "schema 2, but this version reads 1"),
        ({"gemm_tuned": []}, "not a tuned space of this suite"),
        ({"gpu": "nvidia-h100"}, "names two different GPUs"),
        ({"objective": "speed"}, "objective is 'speed'"),
        ({"evaluations": [[[64, 8], [0.0, None, None, 0.1]]]}, "not 0 seconds"),
        ({"evaluations": [[[64, 8], [0.1, None, None]]]}, "seconds, cycles, watts and noise"),
        ({"evaluations": [[[64, 3], [0.1, None, None, 0.0]]]}, r"\[64, 3\] is not in its axes TILE_M, BAND"),
        ({"evaluations": [[[64, 8], [0.1, None, None, 0.0]]] * 2}, "a config twice"),
        ({"datetime": "today"}, "today"),
    ],
)
def test_what_cannot_be_trusted_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = stored.write(tmp_path, TUNED)
    document = json.loads(path.read_text())
    for name, value in changes.items():
        (document if name in document else document["gemm_tuned"])[name] = value
    path.write_text(json.dumps(document)[: None if changes else 300])
    with pytest.raises(BaselineError, match=said) as refused:
        stored.load(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_would_be_refused_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a config twice"):
        replace(TUNED, evaluations=TUNED.evaluations[:1] * 2)
    with pytest.raises(ValueError, match="the config tile64 is not in its axes TILE_M, BAND_ROWS"):
        stored.write(tmp_path, replace(TUNED, axes={"TILE_M": (128,), "BAND_ROWS": (2, 8)}))
    assert not list(tmp_path.rglob("*.json"))
