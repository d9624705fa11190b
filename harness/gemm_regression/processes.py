"""Processes that answer one thing after another, as CUDA devices and the checks of a run have them: what dies
or hangs there costs one answer.

Imports nothing that imports NumPy, which reads how many threads it may use when it is imported."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENDED_SECONDS = 10.0  # a pipe breaks before the exit code is known


class Died(Exception):
    """The process is gone; the message is ``exit code 7``."""


class Process:
    """Runs ``serve(connection, *given)`` in a process of its own, which Python ends with this one if it is a
    ``daemon``; only others may have processes themselves. With ``one_thread`` it multiplies matrices in one
    thread, not in as many as there are cores, unless the environment says how many."""

    def __init__(
        self, serve: Callable[..., None], *given: Any, daemon: bool = True, one_thread: bool = False
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        does = theirs, one_thread, pickle.dumps((serve, given))
        self._process = context.Process(target=_begin, args=does, daemon=daemon)
        self._process.start()
        self.pid = int(self._process.pid or 0)
        theirs.close()

    def ask(self, what: Any, limit: float | None = None) -> Any:
        """The answer. Raises Died, and TimeoutError if there is none within ``limit`` seconds."""
        self.tell(what)
        return self.answer(limit)

    def tell(self, what: Any) -> None:
        with contextlib.suppress(OSError):  # whoever waits for an answer is told
            self._pipe.send(what)

    def answer(self, limit: float | None = None) -> Any:
        """What it says next. Raises as `ask`."""
        try:
            if self._pipe.poll(limit):
                return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_ENDED_SECONDS)
            raise Died(f"exit code {self._process.exitcode}") from None
        raise TimeoutError

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def close(self, seconds: float = 0.0) -> None:
        """Gives it so many seconds to end by itself."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join(_ENDED_SECONDS)
        self._pipe.close()


def _begin(connection: Connection, one_thread: bool, does: bytes) -> None:
    """What the process does first. Its variables are set here: threads of its parent read the parent's."""
    for name in _THREADS if one_thread else ():
        os.environ.setdefault(name, "1")
    serve, given = pickle.loads(does)
    serve(connection, *given)
