"""Several GPUs in one run: each case is judged once, by the baseline of its GPU, and it is said which."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from itertools import groupby
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.model import Case
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice, slowed
from tests.gemm_regression.rig import EVERY, RECORDED, SLOW, Outcome, Rig, named
from tests.gemm_regression.rig import EVERY_KERNEL as KERNELS
from tests.gemm_regression.synthetic import scaled

CHECKS_PASS = {"test_no_orphans", "test_machine"}


class Slow(ReplayDevice):
    """Takes a while, so that another can take the next case."""

    def time(self, case: Case, plan: Any) -> Measurement:
        time.sleep(0.01)
        return super().time(case, plan)


def slow(number: int, change: Callable[..., Measurement] | None = None, **info: Any) -> Any:
    return Slow(3, change, board=f"0000000{number}", **info)


def several(count: int = 2, change: Callable[..., Measurement] | None = None) -> list[Any]:
    return [slow(number, change) for number in range(count)]


def judged_by(outcome: Outcome) -> dict[str, int]:
    return {case: bench["extra_info"]["gpu"] for case, bench in outcome.timed.items()}


@pytest.mark.parametrize("count", [2, 4])
def test_cases_are_spread_and_each_is_judged_once(rig: Rig, count: int) -> None:
    devices = several(count)
    outcome = rig.run(*KERNELS, device=devices)
    assert outcome.green == named(*EVERY) | CHECKS_PASS
    by = judged_by(outcome)
    assert set(by) == set(EVERY)
    assert len(set(by.values())) > 1
    for case, gpu in by.items():
        info = outcome.timed[case]["extra_info"]
        assert (info["board"], info["verdict"]) == (devices[gpu].info.board, "PASS")
        assert str(gpu) in outcome.row(case)[-2:]
        properties = {
            p.get("name"): p.get("value") for p in outcome.junit[f"test_performance[{case}]"].iter("property")
        }
        assert properties["gpu"] == f"{gpu}, board 0000000{gpu}"
    assert {f"gpu {n}: " in outcome.text for n in range(count)} == {True}
    assert outcome.json["gpus"].keys() == {str(n) for n in range(count)}
    machines = outcome.json["gemm_machines"]
    assert sum(sum(machine["checked"]) for machine in machines.values()) == len(EVERY)
    assert {machine["kind"] for machine in machines.values()} == {"PASS"}


def test_what_has_not_changed_is_timed_problem_by_problem(rig: Rig) -> None:
    """The data of each is made once."""
    (device,), timed = several(1), list[str]()
    time = device.time

    def noted(case: Case, plan: Any) -> Measurement:
        timed.append(case.problem.id)
        measured: Measurement = time(case, plan)
        return measured

    device.time = noted
    assert rig.run(*KERNELS, device=device).green
    assert len([problem for problem, _ in groupby(timed)]) == len(set(timed)) < len(timed)


def test_pairs_are_done_in_both_processes_before_anything_is_timed_alone(rig: Rig) -> None:
    """So a GPU that is done with its own takes of the others."""
    (device,), did = several(1, slowed(1.02, SLOW)), list[str]()
    pair, time = device.pair, device.time

    def paired(*given: Any) -> Any:
        did.append("pair")
        return pair(*given)

    def timed(*given: Any) -> Measurement:
        did.append("time")
        measured: Measurement = time(*given)
        return measured

    device.pair, device.time = paired, timed
    outcome = rig.run(*KERNELS, device=device)
    assert outcome.red == named(*RECORDED[SLOW])
    assert device.restarts > 1
    assert did == sorted(did)
    assert set(did) == {"pair", "time"}


def test_a_changed_case_is_paired_on_one_gpu_in_both_processes(rig: Rig) -> None:
    devices = several(2, slowed(1.03, SLOW))
    outcome = rig.run(*KERNELS, device=devices)
    assert outcome.red == named(*RECORDED[SLOW])
    by = judged_by(outcome)
    for case in RECORDED[SLOW]:
        assert case not in devices[by[case]].attempts
        assert outcome.timed[case]["extra_info"]["evidence"]["paired"]["second"]
        assert case not in {name for name, _ in devices[1 - by[case]].asked}
    assert all("in a second process" in message for message in outcome.failures.values())


def test_each_board_is_judged_by_its_own_baseline(rig: Rig) -> None:
    """The second board is 5 % slower than the first, and so is its baseline."""
    first = rig.stored.entries.values()
    rig.store(first, board="00000000")
    rig.store((scaled(entry, 1.05) for entry in first), board="00000001")
    slower = slowed(1.05, edited=False)
    outcome = rig.run(*KERNELS, device=[slow(0), slow(1, slower)])
    assert outcome.green
    assert set(judged_by(outcome).values()) == {0, 1}
    machines = outcome.json["gemm_machines"].values()
    assert {(machine["reason"], machine["checked"][1]) for machine in machines} == {("AS_STORED", 0)}
    devices = [slow(0, slower), slow(1)]  # the other way about
    assert "GPU 0, board 00000000: MACHINE: DRIFTED" in rig.run(*KERNELS, device=devices).text


def test_two_models_have_a_baseline_each_and_cases_go_where_there_is_one(rig: Rig) -> None:
    half = [entry for case, entry in rig.stored.entries.items() if case in EVERY[: len(EVERY) // 2]]
    rig.store(half, name="NVIDIA H100")
    outcome = rig.run(*KERNELS, device=[slow(0), slow(1, name="NVIDIA H100")])
    assert outcome.green
    by = judged_by(outcome)
    assert set(by) == set(EVERY)
    assert {by[case] for case in EVERY[len(EVERY) // 2 :]} == {0}
    assert 1 in by.values()
    assert f"baseline: nvidia-h100, {len(half)} cases" in outcome.text


def _dies(devices: list[Any], number: int, forever: bool, code: str) -> threading.Event:
    """The second case fails on GPU ``number``, and if ``forever`` no process starts on it again."""
    dead, device = threading.Event(), devices[number]
    timing, facts, counted = device.time, device.facts, [0]

    def timed(case: Case, plan: Any) -> Measurement:
        counted[0] += 1
        if counted[0] == 2 or (forever and dead.is_set()):
            dead.set()
            raise DeviceError(code, f"{case.variant}: {code}")
        m: Measurement = timing(case, plan)
        return m

    def probed() -> dict[str, Any]:
        if forever and dead.is_set():
            raise DeviceError("NO_START", "the worker process was not ready within 120 s")
        known: dict[str, Any] = facts()
        return known

    def after_it(time: Callable[..., Measurement]) -> Callable[..., Measurement]:
        def waiting(case: Case, plan: Any) -> Measurement:
            dead.wait(0.05)  # else the others may leave it too few cases to come to that one
            return time(case, plan)

        return waiting

    device.time, device.facts = timed, probed
    for other in devices:
        if other is not device:
            other.time = after_it(other.time)
    return dead


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    ("code", "forever"), [("WORKER_DIED", False), ("WORKER_DIED", True), ("HANG", False)]
)
def test_a_worker_that_dies_on_one_gpu_costs_one_case(rig: Rig, code: str, forever: bool, count: int) -> None:
    devices = several(count)
    dead = _dies(devices, 1, forever, code)
    outcome = rig.run(*KERNELS, device=devices)
    assert dead.is_set()
    (failed,) = outcome.red
    assert re.match(f"Failed: CRASHED: .*: {code}", outcome.failures[failed])
    assert outcome.passed == named(*EVERY) - {failed} | CHECKS_PASS


def test_a_gpu_taken_by_another_process_is_named_and_no_case_is_blamed(rig: Rig) -> None:
    devices = several(2)

    def taken(case: Case, m: Measurement, attempt: int) -> Measurement:
        devices[1].others.append("pid 4711 (train, 512 MiB)")
        return m

    devices[1]._change = taken
    outcome = rig.run(*KERNELS, device=devices)
    assert outcome.red == {"test_machine"}
    message = outcome.failures["test_machine"]
    assert re.search("GPU 1, board 00000001: MACHINE: AMBIGUOUS OTHER_PROCESSES(.|\n)*pid 4711", message)
    assert "GPU 0" not in message


def test_selection_stop_at_first_and_last_failed(rig: Rig) -> None:
    assert len(rig.run(*KERNELS, "-x", device=several(2, slowed(1.03, SLOW))).red) == 1
    assert threading.active_count() < 10
    assert rig.run(*KERNELS, "--lf", device=several()).green & named(*EVERY) <= named(*RECORDED[SLOW])
    assert rig.run(*KERNELS, "-k", SLOW, device=several()).green == named(*RECORDED[SLOW]) | {"test_machine"}


def test_ctrl_c_ends_it(rig: Rig) -> None:
    devices = several(2)
    devices[0].time = Mock(side_effect=KeyboardInterrupt)
    outcome = rig.run(*KERNELS, device=devices)
    assert outcome.status == 2
    assert "KeyboardInterrupt" in outcome.text
