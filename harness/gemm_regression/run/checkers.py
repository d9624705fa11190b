"""Whether cases are correct, by several processes at once.

The oracle takes longer than the GPU, and one Python process has one core for it; so each GPU gets processes
of its own, each with a device, a CUDA context and its own copy of the project.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gemm_regression.devices import Device, DeviceError
from gemm_regression.devices.pool import Died, Process
from gemm_regression.model import Case, Config
from gemm_regression.project.loader import load
from gemm_regression.run.checked import Checked, check, failed
from gemm_regression.run.timed import Board

_STOP_SECONDS = 20.0


class CheckPlace:
    """What checks cases on one GPU, with the device of this process; ``works``: whether the last attempt had
    an answer."""

    def __init__(self, board: Board) -> None:
        self.board, self.works = board, True

    def ready(self) -> None:
        """Waits until it can check: a case that is taken before waits, too, and another could have it."""

    def check(self, case: Case) -> Checked:
        return check(self.board.gpu, case)  # type: ignore[arg-type]  # a GPU that runs cases


class Checker(CheckPlace):
    """One process of a GPU, for the kernels of the project at ``root``; it ``opens`` its device. A process
    that dies costs the case at hand, and is replaced."""

    def __init__(self, board: Board, root: Path, opens: Callable[[], Device]) -> None:
        super().__init__(board)
        self._serves = root, opens
        self._process: Process | None = None
        self._ended = self._starts = False

    def start(self) -> None:
        """Begins; does not wait until it is ready."""
        if self._process is None and not self._ended:
            with _one_thread():
                self._process = Process(_serve, *self._serves, daemon=False)
            self.works, self._starts = False, True

    def ready(self) -> None:
        """After `start`; a process that dies meanwhile costs the next case."""
        if self._process is not None and self._starts:
            with contextlib.suppress(Died):
                self._process.answer()
            self._starts = False

    def check(self, case: Case) -> Checked:
        """As `checked.check`. Raises RuntimeError for what the oracle raises."""
        self.start()
        self.ready()
        if self._process is None or self._ended:
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", f"{case.id}: the run has ended"))
        named = case.kernel.name, case.dtype.name, dict(case.config), case.problem  # a declaration stays here
        try:
            found = self._process.ask(named)
        except Died as died:
            said = f"{case.variant}: the process that checks it died ({died})"
            self._process.close()
            self._process = None
            return failed(case.id, case.kernel, DeviceError("WORKER_DIED", said))
        self.works = True
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, Checked)
        return replace(found, name=case.id, kernel=case.kernel)

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
        while (named := connection.recv()) is not None:
            name, dtype_name, config, problem = named
            dtype = next(each for each in kernels[name].dtypes if each.name == dtype_name)
            connection.send(_checked(device, Case(kernels[name], dtype, Config(**config), problem)))
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
