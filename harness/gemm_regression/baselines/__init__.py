"""Stored baselines: the binaries of cases, and the figures that boards of a GPU model measured of them.

Figures are JSON Lines, ``baselines/<gpu>/figures.jsonl``, appended and never rewritten; what is current is
derived from them. They name the GPU and the software, never a host or a user, and whatever cannot be trusted
is refused with the reason. ``python -m gemm_regression baseline --help`` shows the commands.
"""

from gemm_regression.baselines.entries import Baseline, BaselineEntry, gpu_slug
from gemm_regression.baselines.fields import BaselineError
from gemm_regression.baselines.merge import Run, load_run, merge_runs
from gemm_regression.baselines.store import (
    append,
    binary,
    current,
    derived,
    history,
    keep_binary,
    load_binary,
    prune,
    prune_binaries,
    stored,
)

__all__ = [
    "Baseline",
    "BaselineEntry",
    "BaselineError",
    "Run",
    "append",
    "binary",
    "current",
    "derived",
    "gpu_slug",
    "history",
    "keep_binary",
    "load_binary",
    "load_run",
    "merge_runs",
    "prune",
    "prune_binaries",
    "stored",
]
