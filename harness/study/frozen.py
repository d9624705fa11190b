"""When the rule of the gate was frozen: what was measured before it may have shaped it, and is told apart.

A change of what decides (harness/timing, harness/verdicts, harness/gate/pairing.py) thaws it: name the commit
of the change here, and all that was measured so far counts as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

COMMIT = (
    "80162277c994975897d4c55c6eb6f06bbf18bb99"  # of the freeze; empty: not frozen, all trials are from before
)
DATE = "2026-11-23T00:47:34+00:00"  # of that commit, ISO 8601 with its time zone


def after(head: Mapping[str, Any]) -> bool:
    """Whether a measurement with this ``datetime`` began after the freeze."""
    if not COMMIT:
        return False
    return datetime.fromisoformat(head["datetime"]) > datetime.fromisoformat(DATE)
