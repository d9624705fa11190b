"""Workers that crash, hang and refuse: each costs one case, and the next case gets a worker that works."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda import client
from gemm_regression.devices.cuda.client import CudaDevice
from gemm_regression.devices.cuda.protocol import Build
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.devices.work import Work
from gemm_regression.model import Problem
from gemm_regression.oracle import make_inputs
from gemm_regression.timing.plan import PairPlan
from tests.unit import synthetic
from tests.unit.fake_worker import (
    LATE,
    die,
    plan,
    refuse,
    serve,
    serve_if_it_does_not_time,
    serve_late,
)

CASE = synthetic.case()
OTHER = synthetic.case("naive")


class NoGpuAtAll:
    """What the parent asks NVML."""

    def info(self) -> Any:
        return SimpleNamespace(capability=(9, 0))

    def others(self, ours: frozenset[int]) -> list[str]:
        return [f"all but {pid}" for pid in ours]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    monkeypatch.setattr(client, "Gpu", NoGpuAtAll)
    monkeypatch.setattr(client, "_serve", serve)
    monkeypatch.setattr(client, "_START_SECONDS", 20.0)
    made = CudaDevice(time_limit=20.0)
    yield made
    made.close()


def worker_of(device: CudaDevice, behaviour: str = "") -> int:
    """The process id of the worker that answered."""
    pid: Any = device.time(CASE, plan(behaviour))
    assert frozenset([pid]) == device.pids
    assert isinstance(pid, int)
    return pid


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ("exit", "WORKER_DIED", "the worker process died (exit code 7)"),
        ("killed", "WORKER_DIED", "the worker process died (exit code -9)"),
        ("hang", "HANG", "no answer within 0.3 s: the kernel hangs; its worker was killed"),
        ("fatal", "ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    ],
)
def test_lost_worker_costs_one_case(device: CudaDevice, behaviour: str, code: str, said: str) -> None:
    lost = worker_of(device)
    device.time_limit = 0.3 if behaviour == "hang" else 20.0
    with pytest.raises(DeviceError) as failed:
        device.time(CASE, plan(behaviour))
    assert failed.value.code == code
    assert str(failed.value) == f"{CASE.variant}: {said}"
    assert not is_alive(lost)
    assert device.pids == frozenset()
    assert worker_of(device) != lost


@pytest.mark.parametrize(
    ("behaviour", "code", "said"),
    [
        ("refused", "OUT_OF_MEMORY", f"{CASE.variant}: out of memory"),
        ("named", "WRONG", f"{CASE.variant} on 4x4x4: wrong"),
    ],
)
def test_refusal_keeps_the_worker(device: CudaDevice, behaviour: str, code: str, said: str) -> None:
    pid = worker_of(device)
    with pytest.raises(DeviceError) as failed:
        device.time(CASE, plan(behaviour))
    assert (failed.value.code, str(failed.value)) == (code, said)
    assert worker_of(device) == pid


def test_worker_that_died_between_two_cases(device: CudaDevice) -> None:
    pid = worker_of(device)
    os.kill(pid, 9)
    with pytest.raises(DeviceError) as failed:
        worker_of(device)
    assert failed.value.code == "WORKER_DIED"
    assert worker_of(device) != pid


def test_starting_does_not_count_as_hanging(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_serve", serve_late)
    device.time_limit = LATE / 2
    worker_of(device)


def test_a_worker_that_is_started_ahead_is_the_one_that_answers(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_serve", serve_late)
    with ThreadPoolExecutor(1) as ahead:
        started: Any = ahead.submit(device.facts)
        time.sleep(LATE / 4)
        assert worker_of(device) == started.result()


def test_a_hang_in_a_fresh_worker_costs_the_case_s_own_limit(device: CudaDevice) -> None:
    device.time_limit = 0.3
    with pytest.raises(DeviceError, match=r"no answer within 0\.3 s") as failed:
        device.time(CASE, plan("hang"))
    assert failed.value.code == "HANG"
    assert device.pids == frozenset()


@pytest.mark.parametrize(
    ("start", "limit", "code", "said"),
    [
        (serve_late, LATE / 5, "NO_START", "the worker process was not ready within 0.4 s"),
        (die, 60.0, "WORKER_DIED", "the worker process died (exit code 7)"),
        (refuse, 60.0, "OUT_OF_MEMORY", "cuCtxCreate failed: out of memory"),
    ],
)
def test_worker_that_does_not_start_costs_one_case(
    device: CudaDevice,
    monkeypatch: pytest.MonkeyPatch,
    start: Callable[[Any], None],
    limit: float,
    code: str,
    said: str,
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(client, "_serve", start)
        broken.setattr(client, "_START_SECONDS", limit)
        with pytest.raises(DeviceError) as failed:
            device.time(CASE, plan(""))
    assert (failed.value.code, str(failed.value)) == (code, f"{CASE.variant}: {said}")
    assert device.pids == frozenset()
    worker_of(device)


def test_restart_is_a_fresh_process(device: CudaDevice) -> None:
    pid = worker_of(device)
    assert worker_of(device) == pid
    device.restart()
    assert not is_alive(pid)
    assert worker_of(device) != pid


def test_close_leaves_no_process_and_may_be_repeated(device: CudaDevice) -> None:
    pid = worker_of(device)
    device.close()
    device.close()
    assert not is_alive(pid)
    assert device.pids == frozenset()


def test_own_worker_does_not_make_the_gpu_busy(device: CudaDevice) -> None:
    assert device.busy() == []
    pid = worker_of(device)
    assert device.busy() == [f"all but {pid}"]


def test_variant_that_did_not_compile_is_not_asked_for(device: CudaDevice) -> None:
    failed = device.prepare([CASE, OTHER])
    assert failed == {OTHER.variant: f"{OTHER.variant}: error: no such thing"}
    for call in (lambda: device.time(OTHER, plan("exit")), lambda: device.resources(OTHER)):
        with pytest.raises(DeviceError, match="no such thing") as refused:
            call()
        assert refused.value.code == "COMPILE_ERROR"
    worker_of(device)


def test_worker_begun_ahead_is_the_next_one_and_ends_with_the_device(device: CudaDevice) -> None:
    first = worker_of(device)
    device.ahead()
    device.ahead()  # still one
    (waiting,) = {p.pid for p in multiprocessing.active_children()} - {first}
    assert worker_of(device) == first
    device.restart()
    assert worker_of(device) == waiting
    device.ahead()
    (unused,) = {p.pid for p in multiprocessing.active_children()} - {waiting}
    device.close()
    assert unused is not None
    assert not is_alive(unused)


def test_crash_while_compiling_blames_no_kernel(device: CudaDevice) -> None:
    worker_of(device)
    (pid,) = device.pids
    os.kill(pid, 9)
    with pytest.raises(DeviceError, match=r"^prepare: the worker process died"):
        device.prepare([CASE, OTHER])


def test_case_is_timed_at_the_duty_cycle_of_its_kernel(device: CudaDevice) -> None:
    resting = replace(CASE, kernel=replace(CASE.kernel, duty=0.25))
    for case, duty in ((resting, 0.25), (OTHER, 1.0)):
        seen: Any = device.time(case, plan("echo"))
        assert (seen.duty, seen.sustained) == (duty, 0.0)
        assert device.time(case, replace(plan("echo"), sustained=2.0)) == replace(seen, sustained=2.0)
        paired: Any = device.pair(OTHER, case, PairPlan((), l2="echo"))
        assert paired.duty == duty


def test_numbers_are_drawn_once_for_each_type_and_depth(device: CudaDevice) -> None:
    problems = [Problem(64, 64, 64), Problem(128, 32, 64), Problem(64, 64, 128)]
    asked: list[Any] = []
    device._ask = lambda request, limit=None: asked.append(request)  # type: ignore[method-assign]
    device.prepare_inputs([replace(case, problem=p) for case in (CASE, OTHER) for p in problems])
    (request,) = asked
    assert request.what == "prepare_inputs"
    assert sorted(work.depth for work in request.works) == [64, 128]
    assert pickle.loads(pickle.dumps(request)) == request


def test_health_is_of_the_worker_and_of_nvml(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(request: Any) -> Any:
        asked.append(request.what)
        return {"l2": {"gbps": 5.0}}

    monkeypatch.setattr(device, "_ask", ask)
    monkeypatch.setattr(device, "gpu", SimpleNamespace(settings=lambda: {"ecc": True}, others=sorted))
    assert device.health() == {"l2": {"gbps": 5.0}, "ecc": True, "others": []}
    assert asked == ["roofs"]


# Pairs


def test_pair_hands_over_both_builds_each_with_its_own_launch(device: CudaDevice) -> None:
    shape = OTHER.kernel.shape_of(OTHER.config, OTHER.dtype)
    narrow = replace(OTHER.kernel, shape=replace(shape, threads=(16, 16)))
    base = replace(OTHER, kernel=narrow)
    answer: Any = device.pair(base, OTHER, PairPlan(("ABBA",)))
    names, works = answer
    assert names == [f"{OTHER.variant} of the base", OTHER.variant]
    assert [work.launch for work in works] == [base.launch, OTHER.launch]
    assert works[0].launch.block == (16, 16, 1) != works[1].launch.block
    assert {work.problem for work in works} == {OTHER.problem}


def test_a_stored_binary_is_handed_over_with_its_launch_and_without_a_source(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    stored = StoredBinary("old", b"cubin", "gemm", replace(Work.of(OTHER), slope=2.0))
    plan = PairPlan(("ABBA",), duty=0.5)
    with monkeypatch.context() as watched:
        watched.setattr(device, "_ask", lambda request, limit=None: asked.append(request))
        device.pair(stored, OTHER, plan)
        device.pair(stored, stored, plan)
    first, second = (pickle.loads(pickle.dumps(request)) for request in asked)
    base, new = first.builds
    assert (base.name, base.source, base.entry, base.cubin) == ("old of the base", "", "gemm", b"cubin")
    assert (new.name, new.cubin) == (OTHER.variant, b"")
    assert first.works == (stored.work, Work.of(OTHER))
    assert [request.pair.duty for request in (first, second)] == [1.0, 0.5]  # the kernel's, or the plan's


def test_what_is_launched_of_a_case_is_asked_for_once_for_all_problems(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def ask(request: Any, limit: float) -> Any:
        asked.append(request)
        return [(b"cubin", "gemm")]

    with monkeypatch.context() as watched:
        watched.setattr(device, "_ask", ask)
        for problem in (OTHER.problem, Problem(1, 2, 3)):
            case = replace(OTHER, problem=problem)
            assert device.binary(case) == StoredBinary(OTHER.variant, b"cubin", "gemm", Work.of(case))
    assert [request.what for request in asked] == ["binary"]
    assert device.binary(synthetic.case("cublas")) is None
    device.prepare([CASE, OTHER])
    with pytest.raises(DeviceError, match="no such thing") as refused:
        device.binary(replace(OTHER, problem=Problem(1, 2, 3)))
    assert refused.value.code == "COMPILE_ERROR"


@pytest.mark.parametrize("behaviour", ["exit", "killed"])
def test_worker_that_dies_within_a_block_costs_that_pair(device: CudaDevice, behaviour: str) -> None:
    with pytest.raises(DeviceError, match=rf"^{OTHER.variant}: the worker process died") as caught:
        device.pair(OTHER, OTHER, PairPlan(("ABBA",), l2=behaviour))
    assert caught.value.code == "WORKER_DIED"
    assert device.pair(OTHER, OTHER, PairPlan(("ABBA",)))


def test_pair_that_hangs_is_given_up(device: CudaDevice) -> None:
    device.time_limit = 0.5
    with pytest.raises(DeviceError, match=r"no answer within 0\.5 s") as caught:
        device.pair(OTHER, OTHER, PairPlan(("ABBA",), l2="hang"))
    assert caught.value.code == "HANG"


def test_pairs_are_prepared_together(device: CudaDevice) -> None:
    done: list[str] = []
    device.prepare_pairs([OTHER, CASE, replace(CASE, problem=Problem(1, 2, 3)), CASE], done.append)
    assert done == [OTHER.variant, CASE.variant]
    device.prepare_pairs([])
    assert device.pair(CASE, CASE, PairPlan(()))  # what failed of the base has not spoilt the case


# One of several GPUs


def test_the_worker_of_a_numbered_gpu_sees_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str | None, bool]] = []

    def main(connection: Any, times: bool) -> None:
        seen.append((os.environ.get("CUDA_VISIBLE_DEVICES"), times))

    worker = SimpleNamespace(main=main)
    monkeypatch.setitem(sys.modules, "gemm_regression.devices.cuda.worker", worker)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    client._serve(None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    client._serve(None, "5")
    client._serve(None, "5", False)
    assert seen == [(None, True), ("5", True), ("5", False)]


def test_a_device_that_is_to_check_says_so_to_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "Gpu", NoGpuAtAll)
    monkeypatch.setattr(client, "_serve", serve_if_it_does_not_time)
    made = CudaDevice(time_limit=20.0, times=False)
    made.start()
    assert made.pids
    made.close()


def test_an_abandoned_device_fails_at_once_whatever_it_does(device: CudaDevice) -> None:
    worker_of(device)
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(device.time, CASE, plan("hang"))
        time.sleep(0.2)
        device.abandon()
        with pytest.raises(DeviceError, match="the worker process died"):
            hanging.result(timeout=10)
    with pytest.raises(DeviceError, match="the run has ended"):
        device.time(CASE, plan(""))


def test_what_one_gpu_compiled_another_of_its_kind_knows(
    monkeypatch: pytest.MonkeyPatch, device: CudaDevice
) -> None:
    other = CudaDevice(time_limit=20.0)
    other.compiles_like(device)
    assert device.prepare([CASE, OTHER])
    with pytest.raises(DeviceError) as refused:
        other.time(OTHER, plan(""))
    assert refused.value.code == "COMPILE_ERROR"
    other.close()


def test_a_series_is_one_request_with_each_operand_once(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its launches, with the inputs of each, are in their order."""
    asked: list[Any] = []
    monkeypatch.setattr(device, "_build", lambda case: Build.of(case, (9, 0)))

    def ask(request: Any) -> list[Any]:
        asked.append(request)
        return [*range(5)]

    monkeypatch.setattr(device, "_ask", ask)
    inputs = make_inputs(CASE.kernel.operation, CASE.problem, CASE.dtype, "exact")
    cases = [replace(CASE, problem=replace(CASE.problem, alpha=float(number))) for number in range(5)]
    outputs: list[Any] = list(device.run_series(cases, [inputs] * 5))
    assert outputs == [0, 1, 2, 3, 4]
    (request,) = asked
    assert [work.problem.alpha for work in request.works] == [0.0, 1.0, 2.0, 3.0, 4.0]
    received = pickle.loads(pickle.dumps(request))
    assert len({id(given["A"]) for given in received.inputs}) == 1
    for name, array in inputs.items():
        np.testing.assert_array_equal(received.inputs[4][name], array)
