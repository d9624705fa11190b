"""What a GPU gave of each probe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("recorded.json")


def recorded() -> dict[str, Any]:
    """Provenance, and findings by the probe's id; no probes before the first recording."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {"probes": {}}
