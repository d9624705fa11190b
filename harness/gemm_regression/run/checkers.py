"""Whether cases are correct, by several processes at once.

The oracle takes longer than the GPU, and one Python process has one core for it; so each GPU gets processes
of its own, each with a device, a CUDA context and its own copy of the project.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from gemm_regression.devices import Device, DeviceError
from gemm_regression.model import Case, Config, Problem
from gemm_regression.project.loader import load
from gemm_regression.run.boards import Board
from gemm_regression.run.checked import Checked, check, failed

_STOP_SECONDS = 20.0
_GO_ON = "go on"


@dataclass(frozen=True)
class Setup:
    """What a process needs: the project's folder ``root``, and how to open the device: ``opens``,
    ``module:name``, is called with ``arguments``."""

    root: Path
    arguments: tuple[Any, ...]
    opens: str = "gemm_regression.devices:open_to_check"


@dataclass(frozen=True)
class _Named:
    """A case without its declaration, which does not travel between processes."""

    kernel: str
    dtype: str
    config: dict[str, Any]
    problem: Problem


class CheckPlace(Protocol):
    """What checks cases on one GPU: ``works`` whether the last attempt had an answer."""

    board: Board
    works: bool

    def ready(self) -> None:
        """Waits until it can check: a case that is taken before waits, too, and another could have it."""

    def check(self, case: Case) -> Checked: ...


class InThisProcess:
    """With the device of this process."""

    works = True

    def __init__(self, board: Board) -> None:
        self.board = board

    def ready(self) -> None:
        pass

    def check(self, case: Case) -> Checked:
        return check(self.board.gpu, case)  # type: ignore[arg-type]  # a GPU that runs cases


class Checker:
    """One process of a GPU. A process that dies costs the case at hand, and is replaced."""

    def __init__(self, board: Board, setup: Setup) -> None:
        self.board, self.works, self._setup = board, True, setup
        self._process: Any = None
        self._pipe: Any = None
        self._ended = self._starts = False

    def start(self) -> None:
        """Begins, with all but what allocates memory of the GPU; does not wait until it is ready."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._setup))
        with _one_thread():
            self._process.start()
        theirs.close()
        self.works = False

    def go_on(self) -> None:
        """After `start`: with that, too, before there is a case."""
        with contextlib.suppress(OSError):
            self._starts = True
            self._pipe.send(_GO_ON)

    def ready(self) -> None:
        """After `go_on`; a process that dies meanwhile costs the next case."""
        if self._starts:
            with contextlib.suppress(EOFError, OSError):
                self._pipe.recv()
            self._starts = False

    def check(self, case: Case) -> Checked:
        """As `checked.check`. Raises RuntimeError for what the oracle raises."""
        if self._ended:
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", f"{case.id}: the run has ended"))
        if self._process is None:
            self.start()
        self.ready()
        named = _Named(case.kernel.name, case.dtype.name, dict(case.config), case.problem)
        try:
            self._pipe.send(named)
            found = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_STOP_SECONDS)
            died = f"{case.variant}: the process that checks it died (exit code {self._process.exitcode})"
            self._forget()
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", died))
        self.works = True
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Checked)
        return replace(found, name=case.id, kernel=case.kernel)

    def stop(self) -> None:
        """Tells the process to end, at once if it is not ready; does not wait for it."""
        self._ended = True
        if self._process is not None and self._starts:
            self._process.terminate()
        elif self._process is not None:
            with contextlib.suppress(OSError):
                self._pipe.send(None)

    def abandon(self) -> None:
        """From another thread: ends the process at once; what it checks now, and all later, fails."""
        self._ended = True
        if (process := self._process) is not None:
            process.terminate()

    def close(self) -> None:
        """Waits until the process has ended and the GPU's memory is given back."""
        self.stop()
        if self._process is not None:
            self._process.join(_STOP_SECONDS)
            self._forget()

    def _forget(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._process = None


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_starting = threading.Lock()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Processes started meanwhile multiply matrices in one thread each, not in as many as there are cores.
    NumPy reads it when it is imported, before anything of ours runs there."""
    with _starting:
        unset = [name for name in _THREADS if name not in os.environ]
        os.environ.update(dict.fromkeys(unset, "1"))
        try:
            yield
        finally:
            for name in unset:
                del os.environ[name]


def close_all(checkers: Sequence[Checker]) -> None:
    for checker in checkers:
        checker.stop()
    for checker in checkers:
        checker.close()


def _serve(connection: Connection, setup: Setup) -> None:
    """What the process does, until it is told to stop or nobody is left to tell it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the parent ends it.
    module, _, name = setup.opens.partition(":")
    kernels = {kernel.name: kernel for kernel in load(setup.root).kernels}
    device = getattr(import_module(module), name)(*setup.arguments)

    def end(number: int, frame: Any) -> None:
        device.abandon()
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    ahead, start = (getattr(device, name, lambda: None) for name in ("ahead", "start"))
    ahead()
    try:
        while (named := connection.recv()) is not None:
            if named == _GO_ON:
                with contextlib.suppress(DeviceError):  # its first process starts while others compile
                    start()
                connection.send(_GO_ON)
                continue
            kernel = kernels[named.kernel]
            dtype = next(each for each in kernel.dtypes if each.name == named.dtype)
            connection.send(_checked(device, Case(kernel, dtype, Config(**named.config), named.problem)))
    except (EOFError, OSError):
        pass
    finally:
        device.close()


def _checked(device: Device, case: Case) -> Checked | Exception:
    """The result, as far as it travels."""
    try:
        return replace(check(device, case), kernel=None)  # type: ignore[arg-type]
    except Exception as error:
        return RuntimeError(f"{type(error).__name__}: {error}")
