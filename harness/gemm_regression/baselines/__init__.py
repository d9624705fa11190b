"""Stored baselines: the binaries of cases, and the figures that boards of a GPU model measured of them.

Figures are JSON Lines, ``baselines/<gpu>/figures.jsonl``, appended and never rewritten; what is current is
derived from them. They name the GPU and the software, never a host or a user, and whatever cannot be trusted
is refused with the reason. ``python -m gemm_regression baseline --help`` shows the commands.
"""

from gemm_regression.baselines.merge import load_run, merge_runs
from gemm_regression.baselines.records import BaselineEntry, BaselineError, gpu_slug
from gemm_regression.baselines.store import (
    Baseline,
    append,
    binary,
    current,
    derived,
    history,
    load_binary,
    prune,
    prune_binaries,
    stored,
)

__all__ = [
    "Baseline",
    "BaselineEntry",
    "BaselineError",
    "append",
    "binary",
    "current",
    "derived",
    "gpu_slug",
    "history",
    "load_binary",
    "load_run",
    "merge_runs",
    "prune",
    "prune_binaries",
    "stored",
]
