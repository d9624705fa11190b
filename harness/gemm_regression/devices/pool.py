"""Processes that answer one thing after another, as CUDA devices and the checks of a run have them: what dies
or hangs there costs one answer."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemm_regression.devices import DeviceError

_ENDED_SECONDS = 10.0  # a pipe breaks before the exit code is known


class Died(Exception):
    """The process is gone; the message is ``exit code 7``."""


class Process:
    """Runs ``serve(connection, *given)`` in a process of its own, which Python ends with this one if it is a
    ``daemon``; only others may have processes themselves."""

    def __init__(self, serve: Callable[..., None], *given: Any, daemon: bool = True) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *given), daemon=daemon)
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


# Error codes for CUDA's errors; any of them may leave the context unusable.
_CODES = (
    ("illegal memory access", "ILLEGAL_ADDRESS"),
    ("misaligned address", "MISALIGNED_ADDRESS"),
    ("out of memory", "OUT_OF_MEMORY"),
    ("out of resources", "LAUNCH_FAILED"),
    ("invalid argument", "LAUNCH_FAILED"),
)


class Lost(DeviceError):
    """The context is lost with it."""


@dataclass(frozen=True)
class Reply:
    """``value`` on success; else ``code`` and ``message`` of a DeviceError. After ``fatal`` the worker
    is gone: no CUDA context works any more in its process."""

    value: Any = None
    code: str = ""
    message: str = ""
    fatal: bool = False

    @classmethod
    def of(cls, error: Exception) -> Reply:
        """What CUDA's own error is to the parent."""
        text = " ".join(str(error).split())
        code = next((code for words, code in _CODES if words in text), "LAUNCH_FAILED")
        # Out of memory and a refused launch leave the context whole; anything asynchronous does not.
        fatal = code not in ("OUT_OF_MEMORY", "LAUNCH_FAILED") or "failed" in text
        return cls(code=code, message=text, fatal=fatal)
