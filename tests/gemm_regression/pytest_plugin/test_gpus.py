"""Several GPUs in one run: each case is judged once, by the baseline of its GPU, and it is said which."""

from __future__ import annotations

import dataclasses
import re
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from gemm_regression.cli.common import gpu_numbers
from gemm_regression.devices import DeviceError
from gemm_regression.model import Case
from gemm_regression.pytest_plugin import session as run_session
from gemm_regression.run import ahead as processes
from gemm_regression.run.ahead import Ahead
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice, VerifiedDevice, slowed
from tests.gemm_regression.rig import EVERY, KERNELS_FILE, RECORDED, SLOW, SUITE_FILE, Outcome, Rig, named
from tests.gemm_regression.rig import EVERY_KERNEL as KERNELS
from tests.gemm_regression.run import test_checkers
from tests.gemm_regression.simulated import SimulatedDevice
from tests.gemm_regression.synthetic import scaled

CheckedBy = Callable[..., list[Any]]
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


@pytest.fixture
def checked_by(monkeypatch: pytest.MonkeyPatch) -> CheckedBy:
    """Devices whose cases processes check, two for each."""

    def prepared(opens: str, *devices: Any) -> list[Any]:
        monkeypatch.setattr(processes, "_FEW", 0)
        monkeypatch.setattr(processes, "_processes", lambda mib: 2)
        monkeypatch.setattr(processes, "open_cuda", getattr(test_checkers, opens))
        for number, device in enumerate(devices):
            device.index, device.time_limit = number, 60.0
        return list(devices)

    return prepared


@pytest.mark.parametrize(
    ("opens", "count", "lost"), [("open_numbered", 1, 0), ("open_numbered", 2, 0), ("open_the_first", 2, 2)]
)
def test_correctness_is_checked_by_processes_of_each_gpu(
    rig: Rig, checked_by: CheckedBy, opens: str, count: int, lost: int
) -> None:
    """Two for a GPU; where none starts, each costs a case, and the others do the rest."""
    devices = checked_by(opens, *several(count))
    outcome = rig.run(KERNELS_FILE, *KERNELS[:4], "-k", "test_kernel", device=devices)
    checked = {name for name in outcome.junit if name.startswith("test_kernel[")}
    assert len(checked) > 10
    crashed = {name for name in checked & set(outcome.failures) if "CRASHED" in outcome.failures[name]}
    assert len(crashed) == lost
    assert checked - crashed <= outcome.passed
    assert outcome.status == bool(lost)


@pytest.mark.parametrize(
    ("cores", "mib", "count"),
    [
        (64, [143_000], 12),
        (64, [143_000] * 2, 6),  # of a host as many as of one GPU
        (16, [8192], 2),
        (64, [143_000] * 4, 3),
        (512, [143_000] * 16, 2),
        (16, [143_000], 8),
        (16, [143_000] * 2, 4),
        (64, [143_000, 24_000], 3),
        (2, [8_000], 2),
    ],
)
def test_how_many_processes_check_on_each_gpu(
    monkeypatch: pytest.MonkeyPatch, cores: int, mib: list[int], count: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(cores))
    assert processes._processes(mib) == count


def test_cases_are_timed_before_they_are_checked_where_the_files_are_in_that_order(
    rig: Rig, checked_by: CheckedBy
) -> None:
    """The processes that check have ended then; it was they who failed."""
    outcome = rig.run(KERNELS_FILE, "--kernel", SLOW, device=checked_by("open_numbered", VerifiedDevice()))
    assert len(outcome.green) > len(RECORDED[SLOW]) + 1


@pytest.mark.parametrize("count", [1, 2])
def test_timing_begins_when_all_is_checked_and_not_when_all_of_that_is_reported(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, checked_by: CheckedBy, count: int
) -> None:
    devices = checked_by("open_numbered", *(VerifiedDevice() for _ in range(count)))
    begun, checked, reported = threading.Event(), Ahead.checked, list[bool]()

    def timed(case: Case, plan: Any, time: Any) -> Measurement:
        begun.set()
        measured: Measurement = time(case, plan)
        return measured

    def late(*given: Any) -> Any:
        found = checked(*given)
        reported.append(begun.wait(0 if False in reported else 20))
        return found

    for device in devices:
        device.time = partial(timed, time=device.time)
    monkeypatch.setattr(Ahead, "checked", late)
    assert named(*RECORDED[SLOW]) < _both(rig, *KERNELS[:4], device=devices).green
    assert len(reported) > 10
    assert all(reported)


def test_while_one_gpu_checks_the_others_of_its_model_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, checked_by: CheckedBy, tmp_path: Path
) -> None:
    devices = checked_by("open_after", *several(2))
    monkeypatch.setenv("GEMM_TEST_TIMED", str(tmp_path / "timed"))
    checked, checkers, ended, both = Ahead.checked, list[Any](), list[bool](), threading.Event()

    def noted(ahead: Ahead, *given: Any) -> Any:
        checkers.extend(ahead.checkers)
        return checked(ahead, *given)

    def timed(number: int, time: Any, case: Case, plan: Any) -> Measurement:
        if number:
            both.wait(20 if (tmp_path / "timed").exists() else 0)  # something is left for the other one
            (tmp_path / "timed").touch()
        else:
            ended.append(not any(one._process for one in checkers))
            both.set()
        measured: Measurement = time(case, plan)
        return measured

    for number, device in enumerate(devices):
        device.time = partial(timed, number, device.time)
    monkeypatch.setattr(Ahead, "checked", noted)
    outcome = _both(rig, *KERNELS, device=devices)
    assert named(*EVERY) < outcome.green
    assert set(judged_by(outcome).values()) == {0, 1}
    assert ended
    assert all(ended)  # a GPU is not timed while it checks
    assert {one.board.number for one in checkers} == {0}


def _both(rig: Rig, *more: str, device: Any) -> Outcome:
    """Checks first, then times; the rig's own order is the other one."""
    shutil.copy(rig.root / SUITE_FILE, rig.root / "tests" / "test_timed.py")
    (rig.root / SUITE_FILE).write_text("")
    return rig.run(KERNELS_FILE, "tests/test_timed.py", *more, device=device)


def test_where_a_failed_check_ends_the_run_nothing_is_timed(rig: Rig, checked_by: CheckedBy) -> None:
    (device,) = checked_by("open_wrong", VerifiedDevice())
    assert len(_both(rig, *KERNELS[:4], "-x", device=device).red) == 1
    assert not device.attempts


def test_ctrl_c_between_check_and_timing_leaves_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, checked_by: CheckedBy
) -> None:
    (device,) = checked_by("open_numbered", VerifiedDevice())
    begun, ended, before = threading.Event(), threading.Event(), threading.active_count()

    def timed(case: Case, plan: Any) -> Measurement:
        begun.set()
        ended.wait(60)
        raise DeviceError("WORKER_DIED", "the run has ended")

    def interrupted(*given: Any) -> Any:
        begun.wait(60)
        raise KeyboardInterrupt

    device.time, device.abandon = timed, ended.set
    first = [Ahead.checked]
    monkeypatch.setattr(Ahead, "checked", lambda *of: (first.pop() if first else interrupted)(*of))
    assert _both(rig, *KERNELS[:4], device=device).status == 2
    assert ended.is_set()
    assert threading.active_count() <= before + 1


def test_ctrl_c_waits_for_no_process_that_is_not_ready(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, checked_by: CheckedBy
) -> None:
    (device,) = checked_by("open_never_ready", VerifiedDevice())

    def interrupted(ahead: Ahead, device: Any, case: Case) -> Any:
        ahead._checks = ahead.begin_checks()
        raise KeyboardInterrupt

    monkeypatch.setattr(Ahead, "checked", interrupted)
    began = time.monotonic()
    assert _both(rig, *KERNELS[:4], device=device).status == 2
    assert time.monotonic() - began < 60
    assert not device.attempts


def test_what_does_not_compile_is_not_given_to_a_process(rig: Rig, checked_by: CheckedBy) -> None:
    """Each would compile it again."""
    (device,) = checked_by("open_nothing", *several(1))

    def prepare(cases: Any, step: Any = None) -> dict[str, str]:
        return {case.variant: "error: no such thing" for case in cases}

    device.prepare = prepare
    device.run = Mock(side_effect=DeviceError("COMPILE_ERROR", "error: no such thing"))
    outcome = rig.run(KERNELS_FILE, *KERNELS[:2], "-k", "test_kernel", device=[device])
    assert outcome.red == outcome.junit.keys()
    assert all("no such thing" in text for text in outcome.failures.values())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("3", "no GPU 2; there are 2 GPUs, 0 to 1"),
        ("0,2", "no GPU 2; there are 2 GPUs"),
        ("0,0", "names a GPU twice"),
        ("some", "must be all, a number of GPUs such as 2, or their numbers, such as 0,2"),
        ("-1", "must be all"),
        (",", "must be all"),
        ("", "must be all"),
    ],
)
def test_gpus_that_are_not_there_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        gpu_numbers(text, 2)


def test_gpus_without_a_gpu_and_with_xdist_are_refused(rig: Rig) -> None:
    assert rig.run("--gpus=all", device="no driver").refusal == "--gpus all: no driver"
    assert rig.run("--gpus=all", "--device=emulated").refusal == "--gpus all: --device emulated"
    said = "--gpus spreads the cases over the GPUs by itself; run without -n"
    assert rig.run("--gpus=all", "-n2").refusal == said


def test_a_busy_gpu_of_several_is_named(rig: Rig) -> None:
    devices = several(2)
    devices[1].others = ["pid 4711 (train, 512 MiB)"]
    refusal = rig.run(*KERNELS, device=devices).refusal
    assert "GPU 1, board 00000001, is in use by pid 4711" in refusal


class Opened(SimulatedDevice):
    """A GPU that was opened by its number."""

    closed, like = False, None

    def __init__(self, number: int | None) -> None:
        super().__init__()
        self.index = number
        capability = (8, 0) if number == 2 else self.info.capability  # the last is another architecture
        self.info = dataclasses.replace(self.info, board=f"0000000{number}", capability=capability)

    def close(self) -> None:
        self.closed = True

    def compiles_like(self, other: Any) -> None:
        self.like = other


def test_the_gpus_that_were_asked_for_are_opened_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_session, "open_cuda", lambda limit, number=None: Opened(number))
    monkeypatch.setattr(run_session, "count_gpus", lambda: 3)
    cleanups: list[Any] = []

    def opened(text: str | None) -> list[Any]:
        option = SimpleNamespace(gpus=text, time_limit=60.0)
        config: Any = SimpleNamespace(option=option, add_cleanup=cleanups.append)
        return run_session.open_gpus(config)

    found = opened("all")
    assert [device.index for device in found] == [0, 1, 2]
    assert [device.like for device in found] == [None, found[0], None]
    for close in cleanups:
        close()
    assert all(device.closed for device in found)
    assert [device.index for device in opened(None)] == [None]
    with pytest.raises(ValueError, match="no GPU 7"):
        opened("0,7")
