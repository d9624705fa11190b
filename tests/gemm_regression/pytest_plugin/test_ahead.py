"""What GPUs do ahead of whoever waits for it: processes check, and others time meanwhile."""

from __future__ import annotations

import dataclasses
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
from gemm_regression.run.timed import Board
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import VerifiedDevice
from tests.gemm_regression.pytest_plugin.test_gpus import judged_by, several
from tests.gemm_regression.rig import EVERY, KERNELS_FILE, RECORDED, SLOW, SUITE_FILE, Outcome, Rig, named
from tests.gemm_regression.rig import EVERY_KERNEL as KERNELS
from tests.gemm_regression.run import test_checkers
from tests.gemm_regression.simulated import SimulatedDevice

CheckedBy = Callable[..., list[Any]]
CHECKS_PASS = {"test_no_orphans", "test_machine"}


@pytest.fixture
def checked_by(monkeypatch: pytest.MonkeyPatch) -> CheckedBy:
    """Devices whose cases processes check, two for each."""

    def prepared(opens: str, *devices: Any) -> list[Any]:
        monkeypatch.setattr(processes, "_FEW", 0)
        monkeypatch.setattr(processes, "_processes", lambda mib, most: 2)
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
    assert processes._processes(mib, 12) == count
    assert processes._processes(mib, 8) == max(2, min(count, 8 // len(mib)))


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
        reported.append(begun.wait(0 if False in reported else 60))
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


def test_checks_do_not_wait_for_the_worker_of_a_gpu_that_only_times(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, checked_by: CheckedBy
) -> None:
    """A driver makes one context after another."""
    devices = checked_by("open_numbered", *(VerifiedDevice() for _ in range(2)))
    reported, checked, before = threading.Event(), Ahead.checked, list[bool]()

    def noted(*given: Any) -> Any:
        found = checked(*given)
        reported.set()
        return found

    def facts() -> dict[str, Any]:
        before.append(reported.wait(20))
        return {}

    devices[1].facts = facts
    monkeypatch.setattr(Ahead, "checked", noted)
    assert named(*RECORDED[SLOW]) < _both(rig, *KERNELS[:4], device=devices).green
    assert before[:1] == [True]


def test_the_health_of_a_gpu_is_looked_at_once_by_whoever_asks() -> None:
    begun, going, looks = threading.Event(), threading.Event(), list[int]()

    def health() -> dict[str, Any]:
        looks.append(1)
        begun.set()
        going.wait(20)
        return {"f32": {"gflops": 66000.0}}

    board = Board(0, SimpleNamespace(health=health))
    threads = [threading.Thread(target=board.look_at_health) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(20)
    threads[1].join(0.1)
    going.set()
    for thread in threads:
        thread.join()
    assert (len(looks), board.health["f32"]["gflops"]) == (1, 66000.0)


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
