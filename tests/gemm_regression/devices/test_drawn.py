"""Operands that say how they are drawn, on a made-up GPU: stored with a launch, and drawn as they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from gemm_regression.devices.work import Work, launch_document, read_launch
from gemm_regression.model import Array, Case
from gemm_regression.project.loader import load
from tests.gemm_regression.devices.fake_gpu import made_up_gpu

KERNELS = {k.name: k for k in load(Path(__file__).parents[2] / "beyond_gemm").kernels}


def work(name: str, *sizes: int) -> Work:
    kernel = KERNELS[name]
    problem = kernel.narrowed(kernel.operation.problem(*sizes))
    return Work.of(Case(kernel, kernel.dtypes[0], kernel.configs[0], problem))


WORKS = {
    "w4a16": work("w4a16", 64, 4096),
    "int8_scaled": work("int8_scaled", 32, 48, 1024),
    "blocks": work("blocks", 64, 96),
    "softmax": work("softmax", 5, 33),
    "attention": work("attention", 5, 8, 7, 3),
    "gather": work("gather", 70, 33, 40),
    "grouped": work("grouped", 500, 16, 16, 20),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_launch_is_read_back(name: str) -> None:
    document = json.loads(json.dumps(launch_document("f", WORKS[name])))
    assert read_launch(document) == ("f", WORKS[name])


def test_what_draws_nothing_of_its_own_is_stored_as_before() -> None:
    assert "draws" not in launch_document("f", WORKS["softmax"])
    assert "draws" in launch_document("f", WORKS["gather"])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", WORKS)
def test_data_of_a_timed_launch_are_in_their_ranges(
    name: str, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = WORKS[name]
    with made_up_gpu(monkeypatch) as (gpu, modules):
        data = modules.timed_data.TimedDataArena(gpu).get(of)
        data.fill(None, of, 1, exact)
        held: dict[str, Array] = {}
        for operand, storage in of.storages.items():
            size = storage.dtype.itemsize * int(np.prod(storage.shape))
            held[operand] = gpu.at(data.at[operand], size).view(storage.dtype).astype(np.float64)
    for operand, drawn in of.draws.items():
        values, (how, *limits) = held[operand], drawn.split()
        if how == "made":
            assert (values[0], values[-1]) == (0, of.problem.m)
            assert (np.diff(values) >= 0).all()
        assert len(np.unique(values)) > 10
        if how == "integers":
            assert int(limits[0]) <= values.min() < values.max() <= int(limits[1])
        if how == "scale":
            assert 0.5 * 2.0 ** int(limits[0]) <= values.min() < values.max() <= 2.0 * 2.0 ** int(limits[0])
    assert all(np.isfinite(held[n]).all() for n, role in of.roles.items() if role != "result")


def test_ranges_and_scales_of_a_timed_launch() -> None:
    assert WORKS["w4a16"].draws == {
        "weights": "integers 0 255",
        "scales": "scale -2",
        "zeros": "integers 0 15",
    }
    assert WORKS["gather"].draws == {"index": "integers 0 39", "weight": "scale 0"}
    assert WORKS["int8_scaled"].draws["row_scales"] == "scale -7"
    assert WORKS["int8_scaled"].draws["column_scales"] == "scale 0"
    assert not WORKS["softmax"].exact
    assert not WORKS["int8_scaled"].product
