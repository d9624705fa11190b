"""The machine of a run: judged once, when all cases are timed, by a test that every run with a timed case
has."""

from __future__ import annotations

import contextlib

import pytest

from gemm_regression.cli.session import KEY, Session
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.traffic import Known
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.model import Case
from gemm_regression.report.machine import machine_lines
from gemm_regression.run.boards import Board, judge_board

NAME = "test_machine"


def machines(session: Session) -> dict[Board, MachineVerdict]:
    """The verdict on each GPU that timed a case; judged at the first call."""
    if session.machines is None:
        known = Known()
        with contextlib.suppress(StoreError):  # what bounds a case is then not known
            known = Known.of(session.project.baselines)
        session.machines = {}
        for board in session.boards:
            results = [r for r in session.results if session.judged_on[r.case.id] is board]
            if results:
                session.machines[board] = judge_board(board, results, known)
    return session.machines


@pytest.fixture
def gemm_machine(request: pytest.FixtureRequest) -> list[str]:
    """What is not as it should be, a line for each GPU; empty where all is, or drift is allowed."""
    session = request.config.stash[KEY]
    judged = machines(session)
    if not session.policy.fail_on_drift:
        return []
    return [line for board, v in judged.items() if v.failed for line in lines_of(session, board, v)]


def lines_of(session: Session, board: Board, verdict: MachineVerdict) -> list[str]:
    """What is said of a machine, with its GPU where there are several."""
    first, *more = machine_lines(verdict)
    return [f"GPU {board.label}: {first}" if len(session.boards) > 1 else first, *more]


@pytest.mark.gpu
def test_machine(gemm_machine: list[str]) -> None:
    """The machine is what it should be: asked once a run, after its cases, of each GPU that timed any."""
    if gemm_machine:
        pytest.fail("\n".join(gemm_machine), pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whichever timed cases were chosen, the machine is asked for after them."""
    session, option = config.stash[KEY], config.option
    timed = [item for item in items if isinstance(_timed(item), Case)]
    module = timed[-1].getparent(pytest.Module) if timed else None
    if module is None or session.gpu is None or option.benchmark_skip:
        return
    name = f"{NAME}[{option.shard}]" if option.shard else NAME  # each part has a machine of its own
    items.append(pytest.Function.from_parent(module, name=name, callobj=test_machine))


def _timed(item: pytest.Item) -> object:
    return getattr(getattr(item, "callspec", None), "params", {}).get("timed_case")
