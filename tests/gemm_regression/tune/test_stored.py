"""Tuned spaces as stored: what is written is read again, and what cannot be trusted is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.baselines import BaselineError, store
from gemm_regression.model import Config, Space
from gemm_regression.tune import stored
from gemm_regression.tune.stored import Evaluation, FailedConfig
from tests.gemm_regression.tune.tunable import FLOP, tuned


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


def test_the_baselines_do_not_see_the_folder(tmp_path: Path) -> None:
    stored.write(tmp_path, TUNED)
    assert store.stored(tmp_path) == []
    assert store.current(tmp_path, "nvidia-h200") is None


def test_the_best_is_of_those_confirmed_and_of_the_objective() -> None:
    assert TUNED.best == TUNED.confirmed[1]
    assert TUNED.of_declared == TUNED.confirmed[0]
    assert replace(TUNED, confirmed=()).best == TUNED.evaluations[1]
    per_watt = replace(TUNED, confirmed=(), objective="gflops_per_watt")
    assert per_watt.best == TUNED.evaluations[0]
    assert replace(TUNED, confirmed=(), evaluations=()).best is None


def edited(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text())
    for name, value in changes.items():
        group = document if name in document else document["gemm_tuned"]
        group[name] = value
    path.write_text(json.dumps(document))


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
        (
            {"evaluations": [[[64, 3], [0.1, None, None, 0.0]]]},
            r"\[64, 3\] is not in its axes TILE_M, BAND_ROWS",
        ),
        ({"evaluations": [[[64, 8], [0.1, None, None, 0.0]]] * 2}, "a config twice"),
        ({"datetime": "today"}, "today"),
    ],
)
def test_what_cannot_be_trusted_is_refused(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    path = stored.write(tmp_path, TUNED)
    if changes:
        edited(path, **changes)
    else:
        path.write_text(path.read_text()[:300])
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
