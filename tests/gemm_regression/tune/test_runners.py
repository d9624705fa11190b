"""Tuning with several GPUs through Ray, which here are pretended: lost workers, wrong clusters, no Ray."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.cli import tune
from gemm_regression.model import Config, Problem
from gemm_regression.tune.runners import Cluster, Runner
from gemm_regression.tune.stored import Evaluation, Result, TuneError
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.tune.tunable import project

ROOT = Path(__file__).resolve().parents[3]


class Pretended(Runner):
    """Takes 20 ms for a config. SIZE 13 kills its process the first time, as long as the file ``once`` is
    there, SIZE 14 each time; SIZE 15 raises."""

    capability = (9, 0)

    def __init__(self, once: Path, name: str = "NVIDIA H200") -> None:
        self.device_name, self.machine, self._once = name, {"name": name}, once

    def evaluate(self, problem: Problem, config: Config) -> Result:
        time.sleep(0.02)
        if config["SIZE"] == 13 and self._once.exists():
            self._once.unlink()
            os._exit(3)
        if config["SIZE"] == 14:
            os._exit(4)
        if config["SIZE"] == 15:
            raise RuntimeError("a fault of the harness")
        return Evaluation(config, 0.001, float(config["SIZE"]))


class Different(Pretended):
    def __init__(self) -> None:
        super().__init__(Path(), f"GPU {os.getpid()}")


class Absent(Pretended):
    def __init__(self) -> None:
        raise RuntimeError("NVML finds no GPU")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of this host that says it has four GPUs."""
    ray = pytest.importorskip("ray")
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}}
    ray.init(
        address="local", num_gpus=4, num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", runtime_env=environment,
    )  # fmt: skip
    yield ray
    ray.shutdown()


def run(on: Cluster, sizes: list[int]) -> dict[int, Result]:
    results = on.results(Problem(64, 64, 64), iter([Config(SIZE=size) for size in sizes]))
    return {one.config["SIZE"]: one for one in results}


def test_gpus_share_the_configs_and_a_lost_one_costs_its_evaluation(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    four = Cluster(Pretended, [tmp_path / "once"])
    assert (four.count, four.device_name, four.capability) == (4, "NVIDIA H200", (9, 0))
    found = run(four, [1, 2, 13, 3, 4, 15, 5, 6])
    assert [getattr(found[size], "gflops", None) for size in (1, 2, 13, 3)] == [1.0, 2.0, 13.0, 3.0]
    fault: Any = found[15]
    assert (fault.code, "a fault of the harness" in fault.reason) == ("HARNESS_ERROR", True)
    found = run(four, [7, 14, 8])
    assert [getattr(found[size], "code", "") for size in (7, 14, 8)] == ["", "WORKER_LOST", ""]
    four.close()


def test_where_all_workers_are_lost_the_search_ends() -> None:
    """Config 1 takes its worker with it, whichever has it: it is recorded, so that the next run goes on."""

    class RayError(Exception):
        pass

    def get(config: Config) -> Result:
        if config["SIZE"] == 1:
            raise RayError
        return Evaluation(config, gflops=1.0)

    one: Any = object.__new__(Cluster)
    one._ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (RayError,), {})),
        wait=lambda running, num_returns: (running[:1], running[1:]),
        get=get,
    )
    one._workers = [SimpleNamespace(evaluate=SimpleNamespace(remote=lambda problem, config: config))]
    results = one.results(Problem(1, 1, 1), iter([Config(SIZE=size) for size in range(4)]))
    assert isinstance(next(results), Evaluation)
    assert getattr(next(results), "code", "") == "WORKER_LOST"
    with pytest.raises(TuneError, match="all Ray workers are lost; the same command goes on"):
        next(results)


@pytest.mark.parametrize(
    ("runner", "wanted", "said"),
    [
        (Different, None, r"has different GPUs \(GPU "),
        (Absent, None, r"a Ray worker did not start: .*NVML finds no GPU"),
        (Absent, 5, "the Ray cluster has 4 GPUs, not 5"),
    ],
)
def test_workers_that_do_not_fit_say_why(
    ray: Any, runner: type[Pretended], wanted: int | None, said: str
) -> None:
    with pytest.raises(TuneError, match=said):
        Cluster(runner, [], wanted=wanted)


class NoGpus:
    """Ray of a cluster without GPUs, or none at its address."""

    def __init__(self, answers: bool = True) -> None:
        self.answers = answers

    def is_initialized(self) -> bool:
        return False

    def init(self, **settings: Any) -> None:
        if not self.answers:
            raise ConnectionError("Could not find any running Ray instance.\nSee the documentation.")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0}

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize(
    ("ray", "arguments", "said"),
    [
        (NoGpus(), ["--ray", "auto"], "the Ray cluster has no GPUs"),
        (NoGpus(), ["--gpus", "2"], "the Ray cluster has no GPUs, not 2"),
        (NoGpus(), ["--ray", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: "),
        (NoGpus(answers=False), ["--gpus", "2"], "Ray does not start here"),
        (None, ["--gpus", "2"], "Ray is not usable here"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_said_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    printed: Printed,
    ray: NoGpus | None,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert tune.main(["--kernel", "one", "--shape", "64x64x64", *arguments]) == 2
    assert said in printed.error
