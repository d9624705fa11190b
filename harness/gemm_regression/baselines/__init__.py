"""Stored baselines: the binaries of cases, and the figures that boards of a GPU model measured of them.

Figures are JSON Lines, ``baselines/<gpu>/figures.jsonl``, appended and never rewritten; what is current is
derived from them. They name the GPU and the software, never a host or a user, and whatever cannot be trusted
is refused with the reason. ``python -m gemm_regression baseline --help`` shows the commands.
"""

from gemm_regression.baselines.merge import load_run as load_run
from gemm_regression.baselines.merge import merge_runs as merge_runs
from gemm_regression.baselines.records import BaselineEntry as BaselineEntry
from gemm_regression.baselines.records import BaselineError as BaselineError
from gemm_regression.baselines.records import gpu_slug as gpu_slug
from gemm_regression.baselines.store import Baseline as Baseline
from gemm_regression.baselines.store import append as append
from gemm_regression.baselines.store import binary as binary
from gemm_regression.baselines.store import current as current
from gemm_regression.baselines.store import derived as derived
from gemm_regression.baselines.store import history as history
from gemm_regression.baselines.store import load_binary as load_binary
from gemm_regression.baselines.store import prune as prune
from gemm_regression.baselines.store import prune_binaries as prune_binaries
from gemm_regression.baselines.store import stored as stored
