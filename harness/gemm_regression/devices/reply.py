"""What a process with a CUDA context answers, and what its errors are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_regression.devices import DeviceError

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
