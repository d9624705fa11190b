"""Stored measurements of a GPU model.

The format is pytest-benchmark's own JSON, ``baselines/<gpu>/NNNN_<date>.json``, the highest number being
the current one. It names the GPU and the software, never a host or a user, and whatever cannot be trusted
is refused with the reason. ``python -m harness baseline --help`` shows the commands.
"""

from harness.baselines.fields import BaselineError
from harness.baselines.merge import Run, load_run, merge_runs
from harness.baselines.store import Baseline, BaselineEntry, current, gpu_slug, load, prune, stored, write

__all__ = [
    "Baseline",
    "BaselineEntry",
    "BaselineError",
    "Run",
    "current",
    "gpu_slug",
    "load",
    "load_run",
    "merge_runs",
    "prune",
    "stored",
    "write",
]
