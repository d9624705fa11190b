"""What the GPUs of a run do ahead of the tests that wait for it: all are checked, then all are timed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar

import pytest

from gemm_regression.cli.session import KEY, Session
from gemm_regression.devices import Device, DeviceError
from gemm_regression.model import Case
from gemm_regression.run.boards import Board, Done, LostError, Spread
from gemm_regression.run.checked import Checked, check
from gemm_regression.run.checkers import Checks, InThisProcess, close_all
from gemm_regression.run.timed import Result

T = TypeVar("T")

_ONE_LOADS = 4  # one of so many processes that check loads the library
_PATIENCE = 3.0  # seconds, of a run that ends, for what it is at


def checked(
    session: Session, device: Device, case: Case, items: Sequence[pytest.Item]
) -> tuple[Board | None, Checked]:
    """Whether a case is correct, and the GPU that it ran on, if there are several. The first call begins with
    all of ``items``."""
    several = len(session.boards) > 1
    if session.checked is None:
        if not several and not session.checkers:
            return None, check(device, case)
        session.checked = _checks(session, items)
        _time_afterwards(session, items)
    elif case.id not in session.checked and (timed := _begun(session)):  # once more
        timed.settle()
        board = next(board for board in session.boards if case.id in board.verified)
        return board if several else None, check(board.gpu, case)  # type: ignore[arg-type]  # as below
    place, found = session.checked.result(case.id)
    return place.board if several else None, found


def _checks(session: Session, items: Sequence[pytest.Item]) -> Spread[Checks, Checked]:
    _end_warming(session)
    _draw(session, items)
    places: list[Checks] = [*session.checkers] or [InThisProcess(board) for board in session.boards]

    def work(place: Checks, names: Iterator[str], done: Done[Checked]) -> None:
        place.ready()
        for name in names:
            case = place.board.verified[name]
            if case.variant in session.compile_errors:  # which each process would find again
                done(name, check(place.board.gpu, case))  # type: ignore[arg-type]  # a GPU that runs cases
                continue
            done(name, place.check(case))
            if not place.works:
                spread.retire(place)

    # To load the library takes a process as long as to start: some do, and its cases come first.
    loads = places[: max(2 * len(session.boards), len(places) // _ONE_LOADS)]  # of each GPU as many

    def takes(place: Checks, name: str) -> bool:
        case = place.board.verified.get(name)
        return case is not None and (not case.kernel.library or place in loads)

    library = {n for board in session.boards for n, case in board.verified.items() if case.kernel.library}
    spread: Spread[Checks, Checked] = Spread(places, work, takes)
    spread.begin(sorted(_names(items, "verify_case"), key=lambda name: name not in library))
    return spread


def _draw(session: Session, items: Sequence[pytest.Item]) -> None:
    """While others check, the processes that time make the numbers that cases are timed on."""
    names = _names(items, "timed_case")

    def drawn(board: Board) -> None:
        with contextlib.suppress(DeviceError):
            board.gpu.prepare_inputs([board.timed[name] for name in names if name in board.timed])

    for board in session.boards if session.checkers and names else ():
        session.warming.append(threading.Thread(target=drawn, args=(board,), daemon=True))
        session.warming[-1].start()


def _time_afterwards(session: Session, items: Sequence[pytest.Item]) -> None:
    """As soon as all is checked the GPUs begin to time: pytest takes as long to report thousands of checks as
    the GPUs for them. Not where a failed check ends the run, or where other tests use a GPU before."""
    names, option = _names(items, "timed_case"), items[0].config.option
    untimed = option.benchmark_skip or option.benchmark_disable or option.maxfail
    if session.checkers and names and not untimed and not any(map(_uses_a_gpu, items)):
        checked = session.checked
        assert checked is not None

        def work() -> Spread[Board, Result]:
            checked.finish()
            if checked.closing:
                raise LostError("the run has ended")
            return _timing(session, names)

        session.timing = _in_background(work)


def _begun(session: Session) -> Spread[Board, Result] | None:
    """What is timed, if that was begun; waits until it is."""
    if session.timed is None and session.timing is not None:
        session.timed = session.timing.result()
    return session.timed


def _in_background(work: Callable[[], T]) -> Future[T]:
    with_time = ThreadPoolExecutor(1)
    future = with_time.submit(work)
    with_time.shutdown(wait=False)
    return future


def judged(session: Session, case: Case, items: Sequence[pytest.Item]) -> tuple[Board, Result]:
    """The result of a timed case, and the GPU that judged it. The first call begins with all of ``items``."""
    if not any(case.id in board.timed for board in session.boards):
        session.boards[0].timed[case.id] = case  # of a project's own test
    timed = session.timed = _begun(session) or _timing(session, _names(items, "timed_case"))
    board, result = timed.result(case.id)
    session.judged_on[case.id] = board
    return board, result


def _timing(session: Session, names: Sequence[str]) -> Spread[Board, Result]:
    boards = session.boards

    if session.judging:
        session.says("what has changed")
    changed = {name for board in boards for name in (board.changed(names) if session.judging else ())}
    if changed:
        session.says(f"compiling what {len(changed)} changed cases are compared with")

    def judge(board: Board, names: Iterator[str], done: Done[Result]) -> None:
        def told(name: str, result: Result) -> None:
            # A GPU that no process starts on any more would fail all that it is given, one after another.
            if result.evidence.error and len(boards) > 1 and not board.works:
                spread.retire(board)
            done(name, result)

        _look_at_health(board)
        board.judge(names, told, session.policy, session.plan, session.says, session.judging, len(changed))

    _end_checks(session)
    spread: Spread[Board, Result] = Spread(boards, judge, _takes(session), partial(_kin, session))
    spread.begin(names)
    session.orphaned = _in_background(lambda: session.orphans)  # the GPUs are busy, this process waits
    return spread


def _look_at_health(board: Board) -> None:
    """What the GPU can do before anything is timed, once; one that cannot tell fails with its first case."""
    if not board.health:
        with contextlib.suppress(DeviceError):
            board.health = board.gpu.health()


def _kin(session: Session, name: str) -> object:
    """Cases of one problem and element type are timed on the same data."""
    case = next(board.timed[name] for board in session.boards if name in board.timed)
    return case.problem, case.dtype


def _takes(session: Session) -> Any:
    """A GPU takes a case that is legal on it, and that its baseline has, if any GPU's has it."""

    def stored(board: Board, name: str) -> bool:
        return name in board.timed and board.baseline is not None and board.baseline.entry(name) is not None

    def takes(board: Board, name: str) -> bool:
        return name in board.timed and (
            not session.judging or stored(board, name) or not any(stored(b, name) for b in session.boards)
        )

    return takes


def _names(items: Sequence[pytest.Item], parameter: str) -> list[str]:
    """The ids of the cases that tests have as this parameter."""
    found = (getattr(getattr(item, "callspec", None), "params", {}).get(parameter) for item in items)
    return list(dict.fromkeys(case.id for case in found if isinstance(case, Case)))


def _end_warming(session: Session) -> None:
    for thread in session.warming:
        thread.join()


def _end_checks(session: Session) -> None:
    """Nothing else uses a GPU while it is timed."""
    _end_warming(session)
    if session.checked:
        session.checked.finish()
        for checker in session.checkers:
            checker.stop()
        session.checked.settle()
    close_all(session.checkers)
    session.checkers = []  # What is checked later is checked by those that time.


@pytest.fixture
def checks(
    request: pytest.FixtureRequest, device: Device, gemm_record: Callable[[str, object], None]
) -> Callable[[Case], Checked]:
    """Whether a case is correct; of several GPUs, the test records which one it ran on."""

    def of(case: Case) -> Checked:
        board, found = checked(request.config.stash[KEY], device, case, request.session.items)
        if board:
            gemm_record("gpu", board.label)
        return found

    return of


def _uses_a_gpu(item: pytest.Item) -> bool:
    """Whether a test does so by itself."""
    fixtures = getattr(item, "fixturenames", ())
    return "device" in fixtures and "verify_case" not in fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Another test that uses a GPU waits for what is done on it."""
    session = item.config.stash[KEY]
    unknown = session.checked is None and "verify_case" in getattr(item, "fixturenames", ())
    if _uses_a_gpu(item) or unknown:
        if timed := _begun(session):
            timed.settle()
        if session.checked:
            session.checked.settle()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    """Nothing more is begun in a run that ends early, and no process stays."""
    state = session.config.stash[KEY]

    def stop() -> None:
        for checker in state.checkers:
            checker.abandon()
        for board in state.boards:
            board.gpu.abandon()

    if state.checked is not None:
        state.checked.closing = True
        for checker in state.checkers:  # Nobody waits for one that is not ready.
            checker.stop()
        state.checked.close(stop)
    if state.timing is not None:
        if not wait([state.timing], _PATIENCE).done:
            stop()
        with contextlib.suppress(BaseException):  # which a test has raised, if it was asked for
            state.timed = state.timing.result()
    if state.timed is not None:
        state.timed.close(stop)
    close_all(state.checkers)
    # What is asked at the end is asked of the first of each model. It takes a while to give memory back.
    first = {board.slug: board for board in reversed(state.boards)}
    for board in state.boards:
        if board is not first[board.slug]:
            threading.Thread(target=board.gpu.close).start()
    return (yield)
