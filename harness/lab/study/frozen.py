"""When the rule of the gate was frozen. Earlier measurements may have influenced the rule, so they are
reported separately.

After a change of the rule (timing/, judge/ and run/pairing.py in harness/gemm_regression), name its commit
here: all earlier measurements then count as before the freeze.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

# Of the freeze; empty: not frozen, all trials are from before.
COMMIT = "538a00b829cb01656a50acb49b7a7905add45e50"
DATE = "2026-11-23T06:51:02+00:00"  # of that commit, ISO 8601 with its time zone


def after(head: Mapping[str, Any]) -> bool:
    """Whether a measurement with this ``datetime`` began after the freeze."""
    if not COMMIT:
        return False
    return datetime.fromisoformat(head["datetime"]) > datetime.fromisoformat(DATE)
