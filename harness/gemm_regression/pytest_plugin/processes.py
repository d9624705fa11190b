"""The processes that check and time on GPUs."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence

from gemm_regression.devices.work import EXACT
from gemm_regression.run.ahead import Ahead
from gemm_regression.run.checkers import Checker, Setup, close_all

_FEW = 50  # cases that are checked before other processes have started
# Processes that check, on all GPUs of a host: oracle and copies take longer than the launches, but the driver
# makes one context after another, 0.2 s each on H200s, whichever GPU it is on, and ends them so, 0.08 s each.
_MOST = 12
_MEMORY = 6 << 10  # MiB of the GPU for each: a context, and what its worker allocates at once


def start(session: Ahead) -> None:
    """Starts the processes that time, while cases are selected and tests collected."""
    for board in session.boards:
        _warming(session, lambda b: b.works, board)


def warm_up(session: Ahead, to_verify: int) -> None:
    """Starts the processes that check, unless there are few cases. Under a sanitizer, whose report is one
    process's, this process checks."""
    numbered = all(hasattr(board.gpu, "index") for board in session.boards)
    if to_verify > _FEW and numbered and not os.environ.get(EXACT):
        root, infos = session.project.root, [board.gpu.info for board in session.boards]
        count = _processes([info.memory_mib for info in infos])
        each = [(b, Setup(root, (b.gpu.time_limit, b.gpu.index, False))) for b in session.boards]  # type: ignore[attr-defined]
        session.checkers = [Checker(board, setup) for _ in range(count) for board, setup in each]
        atexit.register(_end, session.checkers)  # Python waits for them at its end.
        _warming(session, _begin, session.warming[:], session.checkers)


def _warming(session: Ahead, do: Callable[..., object], *given: object) -> None:
    session.warming.append(threading.Thread(target=do, args=given, daemon=True))
    session.warming[-1].start()


def _begin(warming: Sequence[threading.Thread], checkers: Sequence[Checker]) -> None:
    """What is to be timed is allocated first, so that it lies where it always does."""
    for thread in warming:
        thread.join()
    for checker in checkers:
        checker.start()


def _end(checkers: Sequence[Checker]) -> None:
    """At once, also those that have not begun yet."""
    for checker in checkers:
        checker.abandon()
    close_all(checkers)


def _processes(mib: Sequence[int]) -> int:
    """How many check on each of the GPUs with so much memory. One waits for its worker, so the two keep about
    one core busy; the other half of the cores is for the tests and the driver."""
    of_host = min(_MOST, len(os.sched_getaffinity(0)) // 2)
    return max(2, min(of_host // len(mib), min(mib) // _MEMORY))
