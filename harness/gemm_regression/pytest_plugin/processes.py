"""The processes that check and time on GPUs, which start while cases are selected and tests collected."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from gemm_regression.cli.common import KERNELS
from gemm_regression.devices.work import EXACT
from gemm_regression.pytest_plugin.session import Session
from gemm_regression.run.checkers import Checker, Setup, close_all

_FEW = 50  # cases that are checked before other processes have started
# Processes that check, on all GPUs of a host: oracle and copies take longer than the launches, but the driver
# makes one context after another, 0.2 s each on H200s, whichever GPU it is on, and ends them so, 0.08 s each.
_MOST = 12
_MEMORY = 6 << 10  # MiB of the GPU for each: a context, and what its worker allocates at once


def start(session: Session) -> None:
    """Starts the processes that time, while cases are selected and tests collected."""
    for board in session.boards:
        session.warming.append(threading.Thread(target=lambda b: b.works, args=(board,), daemon=True))
        session.warming[-1].start()


def ahead(config: pytest.Config, session: Session) -> None:
    """Starts the processes that check before it is known what there is to check, where nobody chose: they
    take as long as selecting and collecting. Not where something else uses a GPU: their own would hide it."""
    o, project = config.option, session.project
    chosen = o.kernel or o.config or o.shape or o.keyword or o.verify_timed or o.collectonly
    everything = any(Path(given).name in (KERNELS, project.tests.name) for given in config.args)
    variants = sum(len(kernel.dtypes) * len(kernel.declared) for kernel in project.kernels)
    chosen = chosen or getattr(o, "lf", False)  # without pytest's cache there is no such option
    if everything and not chosen and variants > _FEW and not any(b.gpu.busy() for b in session.boards):
        warm_up(session, variants)
        session.free = bool(session.checkers)


def warm_up(session: Session, to_verify: int) -> None:
    """Starts the processes that check, unless there are few cases or they were started. Under a sanitizer,
    whose report is one process's, this process checks."""
    if session.checkers:
        if to_verify <= _FEW:
            _end(session.checkers)
            session.checkers = []
        return
    numbered = all(hasattr(board.gpu, "index") for board in session.boards)
    if to_verify > _FEW and numbered and not os.environ.get(EXACT):
        root, infos = session.project.root, [board.gpu.info for board in session.boards]
        count = _processes([info.memory_mib for info in infos])
        each = [(b, Setup(root, (b.gpu.time_limit, b.gpu.index))) for b in session.boards]  # type: ignore[attr-defined]
        session.checkers = [Checker(board, setup) for _ in range(count) for board, setup in each]
        atexit.register(_end, session.checkers)  # Python waits for them at its end.
        for checker in session.checkers:
            checker.start()
        session.warming.append(
            threading.Thread(target=_go_on, args=(session.warming[:], session.checkers), daemon=True)
        )
        session.warming[-1].start()


def _go_on(warming: Sequence[threading.Thread], checkers: Sequence[Checker]) -> None:
    """What is to be timed is allocated first, so that it lies where it always does."""
    for thread in warming:
        thread.join()
    for checker in checkers:
        checker.go_on()


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
