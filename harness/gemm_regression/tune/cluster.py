"""Tuning with several GPUs, of this host or of others, through Ray: one actor for each GPU.

A worker that is lost in the middle costs its evaluation, which another repeats; the others go on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gemm_regression.model import Config, Problem
from gemm_regression.tune.evaluating import Confirmed, Runner
from gemm_regression.tune.stored import Failed, Result, TuneError

_START_SECONDS = 180.0
_CONNECT_SECONDS = 10.0
_GO_ON = "all Ray workers are lost; the same command goes on from the cache file"


class Cluster(Runner):
    """An actor for each GPU, a ``runner`` of the ``given``. ``address`` of a Ray cluster, ``auto``
    for the one that runs on this host; None for a new one of this host alone. ``wanted`` GPUs, or all. Raises
    TuneError."""

    def __init__(
        self,
        runner: type[Runner],
        given: Sequence[Any],
        address: str | None = None,
        wanted: int | None = None,
    ) -> None:
        self._ray, self._workers = _ray(), list[Any]()
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, address)
        with contextlib.ExitStack() as unfit:
            unfit.callback(self.close)
            there = int(self._ray.cluster_resources().get("GPU", 0))
            if not there or (wanted or 1) > there:
                asked = f", not {wanted}" if wanted else ""
                raise TuneError(
                    f"the Ray cluster has {there or 'no'} GPUs{asked}; `ray status` shows what it has"
                )
            actor = self._ray.remote(num_gpus=1, num_cpus=0)(runner)
            self._workers = [actor.remote(*given) for _ in range(wanted or there)]
            facts = [worker.facts.remote() for worker in self._workers]
            try:
                found = self._ray.get(facts, timeout=_START_SECONDS)
            except (self._ray.exceptions.RayError, TimeoutError) as error:
                raise TuneError(f"a Ray worker did not start: {_last_line(error)}") from None
            if len(names := sorted({name for name, _, _ in found})) > 1:
                raise TuneError(
                    f"the Ray cluster has different GPUs ({', '.join(names)}), which do not compare"
                )
            unfit.pop_all()
        self.device_name, self.capability, self.machine = found[0]
        self.count = len(self._workers)

    def results(self, problem: Problem, configs: Iterator[Config]) -> Iterator[Result]:
        ray, idle = self._ray, list(self._workers)
        running: dict[Any, tuple[Any, Config]] = {}
        again: list[Config] = []  # whose worker was lost
        tried: set[Config] = set()
        while True:
            while idle and (config := again.pop() if again else next(configs, None)) is not None:
                worker = idle.pop()
                running[worker.evaluate.remote(problem, config)] = worker, config
            if not running:
                break
            (done,), _ = ray.wait(list(running), num_returns=1)
            worker, config = running.pop(done)
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                result = Failed(config, "HARNESS_ERROR", _last_line(error))
            except ray.exceptions.RayError:
                self._workers.remove(worker)
                if self._workers and config not in tried:
                    tried.add(config)
                    again.append(config)
                else:
                    yield Failed(config, "WORKER_LOST", "the workers that had it were lost")
                continue
            idle.append(worker)
            yield result
        if not self._workers:
            raise TuneError(_GO_ON)

    def confirmed(self, problem: Problem, configs: Sequence[Config]) -> Confirmed:
        """On one GPU, since boards of a model differ."""
        for worker in self._workers:
            try:
                found: Confirmed = self._ray.get(worker.confirmed.remote(problem, list(configs)))
            except self._ray.exceptions.RayError:
                continue
            return found
        raise TuneError(_GO_ON)

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
        raise TuneError(f"Ray is not usable here ({error}); install it with `pip install ray`") from None
    return ray


def _connect(ray: Any, address: str | None) -> None:
    # Workers find the harness and the project where this process does; other hosts share the file system.
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}}
    # Without an address Ray would take one that another program began here, or wait for one that is gone.
    where = {"address": address} if address else {"address": "local", "include_dashboard": False}
    try:
        if address:
            _answers(address)
        ray.init(runtime_env=environment, log_to_driver=False, logging_level="ERROR", **where)
    except (ConnectionError, OSError, OverflowError, RuntimeError, ValueError) as error:
        said = f"no Ray cluster answers at {address}" if address else "Ray does not start here"
        token = "; if it asks for a token, set RAY_AUTH_TOKEN" if address else ""
        raise TuneError(f"{said}: {_last_line(error)}{token}") from None


def _answers(address: str) -> None:
    """Raises OSError at once where nothing listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
