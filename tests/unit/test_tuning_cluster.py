"""Tuning with several GPUs through Ray, which here are pretended: lost workers, wrong clusters, no Ray."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.cli import tune
from gemm_regression.model import Config, Problem
from gemm_regression.tune import cluster
from gemm_regression.tune.cluster import Cluster, ClusterError, Setup
from gemm_regression.tune.evaluating import Measured, OneDevice
from tests.unit.tunable import project

ROOT = Path(__file__).resolve().parents[2]


class Pretended(OneDevice):
    """Takes 20 ms for a config. One of SIZE 13 kills its process the first time, one of SIZE 14 each time, as
    long as the file ``once`` is there; SIZE 15 raises."""

    capability = (9, 0)

    def __init__(self, once: Path, name: str) -> None:
        super().__init__()
        self.device_name, self.machine, self._once = name, {"name": name}, once

    def evaluator(self, problem: Problem) -> Any:
        return self

    def evaluate(self, config: Config) -> Measured:
        time.sleep(0.02)
        if config["SIZE"] == 13 and self._once.exists():
            self._once.unlink()
            os._exit(3)
        if config["SIZE"] == 14:
            os._exit(4)
        if config["SIZE"] == 15:
            raise RuntimeError("a fault of the harness")
        return Measured({"time": 1.0, "gflops": float(config["SIZE"]), "noise": 0.0})


def pretended(setup: Setup) -> Pretended:
    return Pretended(Path(setup.root, "once"), "NVIDIA H200")


def different(setup: Setup) -> Pretended:
    return Pretended(Path(setup.root, "once"), f"GPU {os.getpid()}")


def none(setup: Setup) -> Pretended:
    raise RuntimeError("NVML finds no GPU")


def setup(root: Path, opens: str = "pretended") -> Setup:
    return Setup(str(root), "one", "f32", "gflops", 20.0, f"tests.unit.test_tuning_cluster:{opens}")


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of this host that says it has two GPUs."""
    ray = pytest.importorskip("ray")
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}}
    ray.init(
        address="local", num_gpus=2, num_cpus=2, include_dashboard=False, log_to_driver=False,
        logging_level="ERROR", runtime_env=environment,
    )  # fmt: skip
    yield ray
    ray.shutdown()


def run(on: Cluster, sizes: list[int]) -> dict[int, Measured]:
    on.begin(Problem(64, 64, 64))
    return dict(on.results(iter([(size, Config(SIZE=size)) for size in sizes])))


def test_two_gpus_share_the_configs(ray: Any, tmp_path: Path) -> None:
    with_two = Cluster(setup(tmp_path))
    assert (with_two.count, with_two.device_name, with_two.capability) == (2, "NVIDIA H200", (9, 0))
    found = run(with_two, [*range(1, 13), *range(16, 24)])
    assert {size: one.values["gflops"] for size, one in found.items()} == {
        size: float(size) for size in found
    }
    assert len(found) == 20
    with_two.close()


def test_a_lost_worker_costs_its_evaluation_not_the_run(ray: Any, tmp_path: Path) -> None:
    (tmp_path / "once").touch()
    both = Cluster(setup(tmp_path))
    found = run(both, [1, 2, 13, 3, 4, 14, 15, 5, 6])
    assert found[13].values["gflops"] == 13.0  # by another worker
    assert (found[14].code, found[15].code) == ("WORKER_LOST", "HARNESS_ERROR")
    assert "a fault of the harness" in found[15].reason
    assert all(found[size].values["gflops"] == size for size in (1, 2, 3, 4, 5, 6))
    assert not (tmp_path / "once").exists()
    assert run(both, [7, 8])[8].values["gflops"] == 8.0  # and the new workers go on
    both.close()


def test_workers_that_are_all_lost_at_once_leave_no_config_out(tmp_path: Path) -> None:
    """Config 1 takes its worker with it, whichever has it: with one worker, nobody asks for 2 meanwhile."""

    class RayError(Exception):
        pass

    class Call:
        def __init__(self, answers: Any) -> None:
            self.remote = lambda *given: lambda: answers(*given)

    def evaluate(problem: str, place: int, values: Mapping[str, int]) -> tuple[int, Measured]:
        if place == 1:
            raise RayError
        return place, Measured({"gflops": float(place)})

    def worker(*given: Any) -> Any:
        return SimpleNamespace(evaluate=Call(evaluate), facts=Call(lambda: None))

    one = object.__new__(Cluster)
    one._ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, RayTaskError=type("RayTaskError", (RayError,), {})),
        wait=lambda running, **more: (running[:1], running[1:]),
        get=lambda call: call(),
        kill=lambda lost: None,
    )
    one._workers, one._actor, one._setup, one._lost = (
        [worker()],
        SimpleNamespace(remote=worker),
        setup(tmp_path),
        0,
    )
    found = run(one, [0, 1, 2, 3])
    assert found[1].code == "WORKER_LOST"
    assert [found[place].values["gflops"] for place in (0, 2, 3)] == [0.0, 2.0, 3.0]


def test_different_gpus_are_refused(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"has different GPUs \(GPU "):
        Cluster(setup(tmp_path, "different"))


def test_workers_that_do_not_start_say_why(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"a Ray worker did not start: .*NVML finds no GPU"):
        Cluster(setup(tmp_path, "none"))


def test_more_gpus_than_there_are_is_refused(ray: Any, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="the Ray cluster has 2 GPUs, not 3"):
        Cluster(setup(tmp_path), wanted=3)


class NoGpus:
    """Ray of a cluster without GPUs, or none at its address."""

    def __init__(self, answers: bool = True) -> None:
        self.answers, self.closed = answers, False

    def is_initialized(self) -> bool:
        return False

    def init(self, **settings: Any) -> None:
        if not self.answers:
            raise ConnectionError("Could not find any running Ray instance.\nSee the documentation.")

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 8.0}

    def shutdown(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("answers", "arguments", "said"),
    [
        (True, ["--ray", "auto"], "the Ray cluster has no GPUs"),
        (True, ["--gpus", "2"], "the Ray cluster has no GPUs, not 2"),
        (False, ["--ray", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: Connection refused"),
        (False, ["--gpus", "2"], "Ray does not start here"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_said_in_a_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answers: bool,
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setattr(cluster, "_ray", lambda: NoGpus(answers))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert tune.main(["--kernel", "one", "--shape", "64x64x64", *arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_without_ray_it_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project(tmp_path))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert tune.main(["--kernel", "one", "--shape", "64x64x64", "--gpus", "2"]) == 2
    err = capsys.readouterr().err
    assert "Ray is not usable here" in err
    assert err.count("\n") == 1
