"""What the commands that hold a GPU have in common."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


def end_on_sigterm() -> None:
    """SIGTERM ends the process in order, as Ctrl-C does: workers are stopped, worktrees removed."""
    signal.signal(signal.SIGTERM, _end)


def _end(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def busy_text(gpu: str, others: Sequence[str]) -> str:
    """Why nothing is timed where ``others`` compute on the GPU, in one line."""
    return f"{gpu} is in use by {'; '.join(others)}: timing would mean nothing. Stop it, or pass --allow-busy"
