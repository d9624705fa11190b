"""From a case and a device to a verdict on its correctness, in this process or in several at once.

The oracle takes longer than the GPU, and one Python process has one core for it; so each GPU gets processes
of its own, each with a device, a CUDA context and its own copy of the project. Knows neither pytest nor CUDA.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gemm_regression.devices import Device, DeviceError
from gemm_regression.judge.vocabulary import WRONG, Outcome, VerdictKind, failed_on_device
from gemm_regression.model import Case, Config, Finding, Kernel, Waiver
from gemm_regression.oracle import examine
from gemm_regression.processes import Died, Process
from gemm_regression.project.loader import load
from gemm_regression.run.timed import Board


def unused(
    declared: Mapping[str, Sequence[Waiver]],
    used: Mapping[str, Collection[str]],
    planned: Mapping[str, Collection[str]],
    done: Collection[str],
) -> list[tuple[str, Waiver]]:
    """Kernel and waiver of those that matched no finding.

    By kernel: ``declared`` waivers; those ``used``, as text; the ids of all cases ``planned`` for it, which
    the whole suite has. A kernel of which not all cases are ``done`` is not judged: one of the others may be
    the case in point.
    """
    return [
        (kernel, waiver)
        for kernel, waivers in declared.items()
        if planned.get(kernel) and set(planned[kernel]) <= set(done)
        for waiver in waivers
        if str(waiver) not in used.get(kernel, ())
    ]


UNSUPPORTED = "UNSUPPORTED"  # the interpreter does not support an instruction
CORRECT = Outcome(VerdictKind.PASS, "CORRECT")
NOT_EMULATED = Outcome(VerdictKind.NOT_EMULATED, UNSUPPORTED)
REFUSED = Outcome(VerdictKind.REFUSED, "NOT_TAKEN")


@dataclass(frozen=True)
class Checked:
    """The result of checking a case, or a variant.

    Attributes:
        name: its id.
        kernel: its kernel.
        outcome: the verdict.
        findings: the oracle's.
        reasons: why the device could not run it, or the kernel does not accept it; one line each.
        notes: what the device remarks on, which is no error.
        waived: the waivers of the kernel's declaration that findings were accepted by.
    """

    name: str
    kernel: Kernel
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    notes: tuple[Finding, ...] = ()
    waived: tuple[Waiver, ...] = ()


def check(device: Device, case: Case) -> Checked:
    """Runs a case on the oracle's inputs. A failure of the device is an outcome, not an exception."""
    kernel = case.kernel
    if case.refusals:
        return Checked(case.id, kernel, REFUSED, reasons=case.refusals)
    try:
        examined = examine(device, case)
    except DeviceError as error:
        return failed(case.id, kernel, error)
    findings, outcome = examined.findings, CORRECT
    if findings:
        outcome = WRONG
        if kernel.features and {finding.check.upper() for finding in findings} == {UNSUPPORTED}:
            outcome = NOT_EMULATED
    return Checked(case.id, kernel, outcome, findings, notes=examined.notes, waived=examined.waived)


def failed(name: str, kernel: Kernel, error: DeviceError) -> Checked:
    """The verdict if the device failed. An unsupported instruction is accepted for a kernel that declares
    features; without them it fails, so that the kernel does not count as checked."""
    lacking = error.code == UNSUPPORTED and kernel.features
    outcome = NOT_EMULATED if lacking else failed_on_device(error.code)
    return Checked(name, kernel, outcome, reasons=(str(error),))


# In processes

_STOP_SECONDS = 20.0


class CheckPlace:
    """What checks cases on one GPU, with the device of this process; ``works``: whether the last attempt had
    an answer."""

    def __init__(self, board: Board) -> None:
        self.board, self.works = board, True

    def ready(self) -> None:
        """Waits until it can check: a case that is taken before waits, too, and another could have it."""

    def each(self, cases: Iterable[Case]) -> Iterator[tuple[Case, Checked | Exception]]:
        """The cases in order, as `check`, or what the oracle raised."""
        for case in cases:
            yield case, _attempt(self.board.gpu, case)  # type: ignore[arg-type]  # a GPU that runs cases


class Checker(CheckPlace):
    """One process of a GPU, for the kernels of the project at ``root``; it ``opens`` its device. A process
    that dies costs the case at hand, and is replaced. While it checks one case, it has the next, so that it
    never waits for this process, where pytest runs."""

    def __init__(self, board: Board, root: Path, opens: Callable[[], Device]) -> None:
        super().__init__(board)
        self._serves = root, opens
        self._process: Process | None = None
        self._ended = self._starts = False
        self._numbers = count()
        self._told: list[int] = []  # numbers of what it has been asked, and not answered

    def start(self) -> None:
        """Begins; does not wait until it is ready."""
        if self._process is None and not self._ended:
            self._process = Process(_serve, *self._serves, daemon=False, one_thread=True)
            self.works, self._starts = False, True

    def ready(self) -> None:
        """After `start`; a process that dies meanwhile costs the next case."""
        if self._process is not None and self._starts:
            with contextlib.suppress(Died):
                self._process.answer()
            self._starts = False

    def each(self, cases: Iterable[Case]) -> Iterator[tuple[Case, Checked | Exception]]:
        """As `CheckPlace.each`; RuntimeError for what the oracle raised there."""
        asked: list[Case] = []
        if self._told:  # who asked is gone
            self._lose()
        for case in chain(cases, [None]):
            asked += [case] if case else []
            self._tell(asked)
            # Of a process that may be gone nothing waits.
            while asked and (case is None or len(asked) > 1 or not self.works):
                one = asked.pop(0)
                yield one, self._answer(one)
                self._tell(asked)

    def _tell(self, asked: Sequence[Case]) -> None:
        """The process, in order, of those that it does not have."""
        for case in asked[len(self._told) :]:
            self.start()
            self.ready()
            if self._process is None or self._ended:
                return
            named = case.kernel.name, case.dtype.name, dict(case.config), case.problem  # no declaration
            self._told.append(next(self._numbers))
            self._process.tell((self._told[-1], named))

    def _answer(self, case: Case) -> Checked | Exception:
        """What it says of the first case that it has been told."""
        if self._process is None or not self._told:
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", f"{case.id}: the run has ended"))
        try:
            number, found = self._process.answer()
        except Died as died:
            said = f"{case.variant}: the process that checks it died ({died})"
            self._lose()
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", said))
        self.works = True
        first = self._told.pop(0)
        assert number == first, f"{case.id}: the answer is another case's"
        return replace(found, name=case.id, kernel=case.kernel) if isinstance(found, Checked) else found

    def _lose(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process = None
        self._told.clear()

    def stop(self) -> None:
        """Tells the process to end, at once if it is not ready; does not wait for it."""
        self._ended = True
        if (process := self._process) is not None:
            process.terminate() if self._starts else process.tell(None)

    def abandon(self) -> None:
        """From another thread: ends the process at once; what it checks now, and all later, fails."""
        self._ended = True
        if (process := self._process) is not None:
            process.terminate()

    def close(self) -> None:
        """Waits until the process has ended and the GPU's memory is given back."""
        self.stop()
        if self._process is not None:
            self._process.close(_STOP_SECONDS)
            self._process = None


def abandon_all(checkers: Sequence[Checker]) -> None:
    """At once, also those that have not begun yet."""
    for checker in checkers:
        checker.abandon()
    close_all(checkers)


def close_all(checkers: Sequence[Checker]) -> None:
    for checker in checkers:
        checker.stop()
    for checker in checkers:
        checker.close()


def _serve(connection: Connection, root: Path, opens: Callable[[], Any]) -> None:
    """What the process does, until it is told to stop or nobody is left to tell it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends it.
    kernels = {kernel.name: kernel for kernel in load(root).kernels}
    device = opens()

    def end(number: int, frame: Any) -> None:
        device.abandon()
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        with contextlib.suppress(DeviceError):  # its process starts before there is a case
            getattr(device, "start", lambda: None)()
        connection.send("ready")
        while (asked := connection.recv()) is not None:
            number, (name, dtype_name, config, problem) = asked
            dtype = next(each for each in kernels[name].dtypes if each.name == dtype_name)
            found = _attempt(device, Case(kernels[name], dtype, Config(**config), problem))
            nameless: dict[str, Any] = {"kernel": None}  # a declaration stays where it is
            connection.send((number, replace(found, **nameless) if isinstance(found, Checked) else found))
    except (EOFError, OSError):
        pass
    finally:
        device.close()


def _attempt(device: Device, case: Case) -> Checked | Exception:
    try:
        return check(device, case)
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")
