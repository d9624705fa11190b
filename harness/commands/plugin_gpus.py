"""What is timed ahead of the tests that wait for it, by all GPUs of the run."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import pytest

from harness.commands.session import KEY, Session
from harness.gate.boards import Board
from harness.gate.spread import Done, Spread
from harness.gate.timed import Result
from harness.model import Case


def judged(session: Session, case: Case, items: Sequence[pytest.Item]) -> tuple[Board, Result]:
    """The result of a timed case, and the GPU that judged it. The first call begins with all of ``items``."""
    if session.timed is None:

        def judge(board: Board, names: Iterator[str], done: Done[Result]) -> None:
            board.judge(names, done, session.policy, session.plan, session.says)

        session.timed = Spread(session.boards, judge, lambda board, name: name in board.timed)
        session.timed.begin([name for item in items if (name := _timed(item))])
    if not any(case.id in board.timed for board in session.boards):
        session.boards[0].timed[case.id] = case  # of a project's own test
    return session.timed.result(case.id)


def _timed(item: pytest.Item) -> str:
    """The id of the case that a test times, or an empty string."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get("timed_case")
    return case.id if isinstance(case, Case) else ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Another test that uses the GPU waits for what is timed on it."""
    session = item.config.stash[KEY]
    if session.timed and "device" in getattr(item, "fixturenames", ()):
        session.timed.settle()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    """Nothing more is begun in a run that ends early."""
    if timed := session.config.stash[KEY].timed:
        timed.close()
    return (yield)
