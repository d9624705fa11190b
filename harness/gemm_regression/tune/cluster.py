"""Tuning with several GPUs, of this host or of others, through Ray: one actor for each GPU.

A worker that is lost in the middle costs its evaluation, which another repeats; a new one takes its place.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from gemm_regression.model import Config, Problem, find_problem
from gemm_regression.project.loader import load
from gemm_regression.tune.evaluating import Job, Measured, OneDevice, OneGpu
from gemm_regression.tune.stored import Evaluation, Failed

_START_SECONDS = 180.0
_CONNECT_SECONDS = 10.0
_TRIES = 2  # of a config whose worker was lost
_MOST_LOST = 16
_GO_ON = "the same command goes on from the cache file"


class ClusterError(ValueError):
    """No Ray, no cluster, no GPU in it, or all workers lost; one line with what to do."""


@dataclass(frozen=True)
class Setup:
    """What a worker needs to make its device: ``opens`` is the function that does it, ``module:name``."""

    root: str
    kernel: str
    dtype: str
    objective: str
    time_limit: float
    opens: str = "gemm_regression.tune.cluster:open_gpu"


def open_gpu(setup: Setup) -> OneGpu:
    """The GPU that Ray gave to this process. Raises NoDevice."""
    kernel = next(each for each in load(Path(setup.root)).kernels if each.name == setup.kernel)
    dtype = next(each for each in kernel.dtypes if each.name == setup.dtype)
    return OneGpu(kernel, dtype, setup.objective, setup.time_limit)


class Worker:
    """What an actor does: owns one device."""

    def __init__(self, setup: Setup) -> None:
        module, _, name = setup.opens.partition(":")
        self._device: OneDevice = getattr(import_module(module), name)(setup)
        self._problem = ""

    def facts(self) -> tuple[str, tuple[int, int], Mapping[str, Any]]:
        return self._device.device_name, self._device.capability, self._device.machine

    def evaluate(self, problem: str, place: int, values: Mapping[str, int]) -> tuple[int, Measured]:
        self._begin(problem)
        ((_, measured),) = self._device.results(iter([(place, Config(**values))]))
        return place, measured

    def confirmed(
        self, problem: str, configs: Sequence[Mapping[str, int]]
    ) -> tuple[list[Evaluation], list[Failed], float | None]:
        self._begin(problem)
        return self._device.confirmed([Config(**values) for values in configs])

    def _begin(self, problem: str) -> None:
        if problem != self._problem:
            self._device.begin(find_problem(problem))
            self._problem = problem


class Cluster:
    """See `tune.Gpus`. ``address`` of a Ray cluster, ``auto`` for the one that runs on this host; None for a
    new one of this host alone. ``wanted`` GPUs, or all. Raises ClusterError."""

    def __init__(self, setup: Setup, address: str | None = None, wanted: int | None = None) -> None:
        self._ray = _ray()
        self._problem = ""
        self._workers: list[Any] = []
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address, setup)
        there = int(self._ray.cluster_resources().get("GPU", 0))
        if not there or (wanted or 1) > there:
            self.close()
            raise ClusterError(
                f"the Ray cluster has {there or 'no'} GPUs"
                + (f", not {wanted}" if wanted else "")
                + "; `ray status` shows what it has"
            )
        self._setup, self._lost = setup, 0
        self._actor = self._ray.remote(num_gpus=1, num_cpus=0)(Worker)
        self._workers = [self._actor.remote(setup) for _ in range(wanted or there)]
        self.device_name, self.capability, self.machine = self._facts()

    @property
    def count(self) -> int:
        return len(self._workers)

    def _facts(self) -> tuple[str, tuple[int, int], Mapping[str, Any]]:
        try:
            found = self._ray.get([worker.facts.remote() for worker in self._workers], timeout=_START_SECONDS)
        except (self._ray.exceptions.RayError, TimeoutError) as error:
            self.close()
            raise ClusterError(f"a Ray worker did not start: {_last_line(error)}") from None
        names = sorted({name for name, _, _ in found})
        if len(names) > 1:
            self.close()
            raise ClusterError(
                f"the Ray cluster has different GPUs ({', '.join(names)}), which do not compare"
            )
        name, capability, machine = found[0]
        return str(name), capability, machine

    def begin(self, problem: Problem) -> None:
        self._problem = problem.id

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        ray, tries, again, more = self._ray, dict[int, int](), list[Job](), True
        idle = list(self._workers)
        running: dict[Any, tuple[Any, Job | None]] = {}  # no job: a worker in the place of a lost one begins
        while True:
            while idle:
                job = again.pop() if again else next(jobs, None)
                if job is None:
                    more = False
                    break
                place, config = job
                tries[place] = tries.get(place, 0) + 1
                worker = idle.pop()
                running[worker.evaluate.remote(self._problem, place, dict(config))] = worker, job
            busy = any(job for _, job in running.values())
            if not (busy or again or more):  # with all workers lost at once, nobody has asked for the rest
                return
            done, _ = ray.wait(list(running), num_returns=1, timeout=None if busy else _START_SECONDS)
            if not done:
                raise ClusterError(f"all Ray workers are lost, and none starts in their place; {_GO_ON}")
            worker, job = running.pop(done[0])
            try:
                found = ray.get(done[0])
                idle.append(worker)
            except ray.exceptions.RayTaskError as error:
                found = job and (job[0], Measured({}, "HARNESS_ERROR", _last_line(error)))
                idle.append(worker)
            except ray.exceptions.RayError:
                new = self._replaced(worker)
                running[new.facts.remote()] = new, None
                if job and tries[job[0]] < _TRIES:
                    again.append(job)
                    continue
                found = job and (job[0], Measured({}, "WORKER_LOST", "both workers that had it were lost"))
            if job:
                yield found

    def _replaced(self, lost: Any) -> Any:
        self._ray.kill(lost)
        new = self._actor.remote(self._setup)
        self._workers[self._workers.index(lost)] = new
        self._lost += 1
        if self._lost > _MOST_LOST:
            raise ClusterError(f"{self._lost} Ray workers were lost; {_GO_ON}")
        return new

    def confirmed(self, configs: Sequence[Config]) -> tuple[list[Evaluation], list[Failed], float | None]:
        """On one GPU, since boards of a model differ."""
        for worker in self._workers:
            try:
                found = self._ray.get(worker.confirmed.remote(self._problem, [dict(c) for c in configs]))
            except self._ray.exceptions.RayError:
                continue
            return found  # type: ignore[no-any-return]
        raise ClusterError(f"all Ray workers are lost; {_GO_ON}")

    def close(self) -> None:
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []
        if self._ours:
            self._ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"Ray is not usable here ({error}); install it with `pip install ray`") from None
    return ray


def _connect(ray: Any, address: str | None, setup: Setup) -> None:
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    # Workers find the harness and the project where this process does; other hosts share the file system.
    environment = {"env_vars": {"PYTHONPATH": _path()}}
    if address:
        _answers(address)
    # Without an address Ray would take one that another program began here, or wait for one that is gone.
    settings |= {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        ray.init(runtime_env=environment, **settings)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        where = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
        token = "; if it asks for a token, set RAY_AUTH_TOKEN" if address else ""
        raise ClusterError(f"{where}: {_last_line(error)}{token}") from None


def _answers(address: str) -> None:
    """Raises ClusterError at once where nothing listens at host:port; Ray itself would try for minutes."""
    if address == "auto":  # as Ray finds it
        current = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (current.read_text() if current.is_file() else "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        said = getattr(error, "strerror", None) or error
        raise ClusterError(f"no Ray cluster answers at {address}: {said}") from None


def _path() -> str:
    import sys

    return ":".join(path for path in sys.path if path)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
