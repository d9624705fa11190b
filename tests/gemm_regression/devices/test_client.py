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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.compiler.units import ModuleSource
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda import client
from gemm_regression.devices.cuda.client import CudaDevice
from gemm_regression.devices.work import CompiledBinary, StoredBinary, Work
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import make_inputs
from gemm_regression.timing.plan import PairPlan
from tests.gemm_regression import synthetic
from tests.gemm_regression.devices import fake_worker
from tests.gemm_regression.devices.fake_worker import LATE, die, plan, refuse, serve, serve_late

CASE = synthetic.case()
OTHER = synthetic.case("naive")
ECHO = PairPlan((), l2="echo")


class NoGpuAtAll:
    """What the parent asks NVML."""

    def info(self) -> Any:
        return SimpleNamespace(capability=(9, 0))

    def others(self, ours: frozenset[int]) -> list[str]:
        return [f"all but {pid}" for pid in ours]


def source(case: Case) -> ModuleSource:
    """What the worker makes a cubin of: the kernel's name."""
    name, no_ptx = case.kernel.name, Path("/nowhere")
    return ModuleSource(case.variant, f"{name}.cu", name, "", (), "sm_90a", (), (), no_ptx)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    monkeypatch.setattr(client, "NvmlGpu", NoGpuAtAll)
    monkeypatch.setattr(client, "_serve", serve)
    monkeypatch.setattr(client, "_START_SECONDS", 20.0)
    monkeypatch.setattr(client, "source_for", lambda case, capability: source(case))
    monkeypatch.setattr(client, "refuse_other_parameters", lambda case, arch: None)
    made = CudaDevice(time_limit=20.0)
    yield made
    made.close()


def worker_of(device: CudaDevice, behaviour: str = "") -> int:
    """The process id of the worker that answered."""
    pid: Any = device.time(CASE, plan(behaviour))
    assert frozenset([pid]) == device.pids
    assert isinstance(pid, int)
    return pid


def failure(call: Callable[[], object]) -> tuple[str, str]:
    """The code and the message with which it fails."""
    with pytest.raises(DeviceError) as failed:
        call()
    return failed.value.code, str(failed.value)


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
    beside = PairPlan(("ABBA",), l2=behaviour)
    for call in (lambda: device.time(CASE, plan(behaviour)), lambda: device.pair(OTHER, CASE, beside)):
        lost = worker_of(device)
        device.time_limit = 0.3 if behaviour == "hang" else 20.0
        assert failure(call) == (code, f"{CASE.variant}: {said}")
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
    assert failure(lambda: device.time(CASE, plan(behaviour))) == (code, said)
    assert worker_of(device) == pid


def test_worker_that_died_between_two_cases(device: CudaDevice) -> None:
    pid = worker_of(device)
    os.kill(pid, 9)
    assert failure(lambda: worker_of(device))[0] == "WORKER_DIED"
    assert worker_of(device) != pid


def test_starting_does_not_count_as_hanging(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a worker that is started ahead is the one that answers."""
    monkeypatch.setattr(client, "_serve", serve_late)
    device.time_limit = LATE / 2
    with ThreadPoolExecutor(1) as ahead:
        started: Any = ahead.submit(device.facts)
        time.sleep(LATE / 4)
        assert worker_of(device) == started.result()


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
        assert failure(lambda: device.time(CASE, plan(""))) == (code, f"{CASE.variant}: {said}")
    assert device.pids == frozenset()
    worker_of(device)


def test_restart_is_a_fresh_process_and_close_leaves_none(device: CudaDevice) -> None:
    pid = worker_of(device)
    assert worker_of(device) == pid
    device.restart()
    assert not is_alive(pid)
    again = worker_of(device)
    assert again != pid
    assert device.busy() == [f"all but {again}"]  # its own does not make the GPU busy
    device.close()
    device.close()
    assert not is_alive(again)
    assert device.pids == frozenset()
    assert device.busy() == []


def test_variant_that_does_not_compile_is_not_asked_for(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor by another GPU of its kind, nor compiled again."""
    compiled: list[str] = []

    def broken(case: Case, capability: tuple[int, int]) -> ModuleSource:
        compiled.append(case.kernel.name)
        return replace(source(case), text="broken" * (case.kernel.name == "naive"))

    monkeypatch.setattr(client, "source_for", broken)
    steps: list[str] = []
    assert device.prepare([CASE, OTHER], steps.append) == {OTHER.variant: "naive: error: no such thing"}
    assert steps == [CASE.variant, OTHER.variant]
    other = CudaDevice(time_limit=20.0)
    other.compiles_like(device)
    calls: dict[Callable[[], object], str] = {
        lambda: device.time(OTHER, plan("exit")): "COMPILE_ERROR",
        lambda: device.binary(replace(OTHER, problem=Problem(1, 2, 3))): "COMPILE_ERROR",
        lambda: device.resources(OTHER): "COMPILE_ERROR",
        lambda: other.time(OTHER, plan("")): "COMPILE_ERROR",
        lambda: device.pair(OTHER, CASE, PairPlan(())): "BASE_COMPILE_ERROR",
    }
    for call, code in calls.items():
        assert failure(call) == (code, "naive: error: no such thing")
    assert sorted(compiled) == ["naive", "tiled"]
    worker_of(device)


def test_parameters_that_the_compiled_kernel_does_not_take_are_refused(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(case: Case, arch: str) -> None:
        raise DeviceError("SIGNATURE", "it takes 3 parameters")

    monkeypatch.setattr(client, "refuse_other_parameters", other)
    assert failure(lambda: device.time(CASE, plan(""))) == ("SIGNATURE", "it takes 3 parameters")
    assert device.prepare([CASE]) == {}


def test_what_is_launched_is_compiled_and_a_library_s_is_not(device: CudaDevice) -> None:
    made = CompiledBinary(OTHER.variant, b"naive", "gemm", Work.of(OTHER), source(OTHER))
    assert device.binary(OTHER) == made
    assert device.binary(synthetic.case("cublas")) is None


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


def test_two_threads_may_close_a_device(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    def close() -> None:
        time.sleep(0.1)
        closed.append("the worker begun ahead")

    monkeypatch.setattr(client, "Process", lambda *given: SimpleNamespace(close=close))
    device.ahead()
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(device.close), pool.submit(device.close)]:
            one.result()
    assert closed == ["the worker begun ahead"]


def test_worker_begun_ahead_draws_what_the_one_before_it_drew(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    device.prepare_inputs([OTHER])
    given: list[Any] = []

    def process(*what: Any) -> Any:
        given.extend(what)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(client, "Process", process)
    device.ahead()
    assert [work.problem for work in given[-1]] == [OTHER.problem]


def test_crash_while_compiling_blames_no_kernel(device: CudaDevice) -> None:
    os.kill(worker_of(device), 9)
    with pytest.raises(DeviceError, match=r"^(hello|compile): the worker process died"):
        device.prepare([CASE, OTHER])


def test_numbers_are_drawn_once_for_each_type_and_depth(device: CudaDevice) -> None:
    problems = [Problem(64, 64, 64), Problem(128, 32, 64), Problem(64, 64, 128)]
    asked: list[Any] = []
    device._ask = lambda *request: asked.append(request)  # type: ignore[method-assign]
    device.prepare_inputs([replace(case, problem=p) for case in (CASE, OTHER) for p in problems])
    ((what, works),) = asked
    assert (what, sorted(work.depth for work in works)) == ("prepare_inputs", [64, 128])
    assert pickle.loads(pickle.dumps(works)) == works


def test_a_launch_is_asked_for_the_output_that_is_looked_at(device: CudaDevice) -> None:
    asked: list[str] = []
    device._binary = lambda case: None  # type: ignore[assignment, method-assign, return-value]
    device._ask = lambda *request: asked.append(request[-1]) or [None]  # type: ignore[func-returns-value, method-assign]
    operation = replace(CASE.kernel.operation, looks_at="B", library=None)
    for kernel in (CASE.kernel, replace(CASE.kernel, operation=operation)):
        device.run(replace(CASE, kernel=kernel), {})
    assert asked == ["C", "B"]


def test_health_is_of_the_worker_and_of_nvml(device: CudaDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(what: str) -> Any:
        asked.append(what)
        return {"l2": {"gbps": 5.0}, "cycles": {"fma": 4.0}}

    monkeypatch.setattr(device, "_ask", ask)
    monkeypatch.setattr(device, "gpu", SimpleNamespace(settings=lambda: {"ecc": True}, others=sorted))
    assert device.health() == {"l2": {"gbps": 5.0}, "ecc": True, "others": []}
    assert device.health()
    assert asked == ["roofs"]


# Pairs


def test_case_is_timed_at_the_duty_cycle_of_its_kernel(device: CudaDevice) -> None:
    resting = replace(CASE, kernel=replace(CASE.kernel, duty=0.25))
    for case, duty in ((resting, 0.25), (OTHER, 1.0)):
        timed: Any = device.time(case, plan("echo"))
        paired: Any = device.pair(OTHER, case, ECHO)
        assert (timed[1].duty, paired[2].duty) == (duty, duty)


def test_pair_hands_over_both_binaries_each_with_its_own_launch(device: CudaDevice) -> None:
    shape = OTHER.kernel.shape_of(OTHER.config, OTHER.dtype)
    base = replace(OTHER, kernel=replace(OTHER.kernel, shape=replace(shape, threads=(16, 16))))
    answer: Any = device.pair(base, OTHER, ECHO)
    old, new, _, judged = answer
    assert (old.name, new.name, judged) == (f"{OTHER.variant} of the base", OTHER.variant, False)
    assert (old.work.launch, new.work.launch) == (base.launch, OTHER.launch)
    assert old.work.launch.block == (16, 16, 1) != new.work.launch.block
    assert old.work.problem == new.work.problem == OTHER.problem


def test_a_stored_binary_is_handed_over_with_its_launch_as_one_that_was_judged(device: CudaDevice) -> None:
    stored = StoredBinary("old", b"cubin", "gemm", replace(Work.of(OTHER), slope=2.0))
    resting = replace(ECHO, duty=0.5)
    answers: list[Any] = [device.pair(stored, new, resting) for new in (OTHER, stored)]
    for (base, new, given, judged), name, duty in zip(
        answers, (OTHER.variant, "old"), (1.0, 0.5), strict=True
    ):
        assert (base, new.name, judged) == (replace(stored, name="old of the base"), name, True)
        assert given.duty == duty  # the kernel's, or the plan's


# One of several GPUs


def test_the_worker_of_a_numbered_gpu_sees_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str | None, bool]] = []

    def main(connection: Any, times: bool, works: Any) -> None:
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
    monkeypatch.setattr(client, "NvmlGpu", NoGpuAtAll)
    monkeypatch.setattr(client, "_serve", fake_worker.serve_if_it_does_not_time)
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


def test_a_series_is_one_request_with_each_operand_once(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its launches, with the inputs of each, are in their order."""
    asked: list[Any] = []

    def ask(*request: Any) -> list[Any]:
        asked.append(request)
        return [*range(5)]

    inputs = make_inputs(CASE.kernel.operation, CASE.problem, CASE.dtype, "exact")
    cases = [replace(CASE, problem=replace(CASE.problem, alpha=float(number))) for number in range(5)]
    device.prepare(cases)
    with monkeypatch.context() as watched:
        watched.setattr(device, "_ask", ask)
        outputs: list[Any] = list(device.run_series(cases, [inputs] * 5))
    assert outputs == [0, 1, 2, 3, 4]
    (request,) = asked
    assert [work.problem.alpha for work in request[2]] == [0.0, 1.0, 2.0, 3.0, 4.0]
    received = pickle.loads(pickle.dumps(request))[3]
    assert len({id(given["A"]) for given in received}) == 1
    for name, array in inputs.items():
        np.testing.assert_array_equal(received[4][name], array)
