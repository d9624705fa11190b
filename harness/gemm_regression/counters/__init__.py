"""Memory counters of a launch: requests, sectors, wavefronts, FLOP; needs nvcc and no GPU.

How they are counted: harness/ptxsan/machine/counters.py.
"""

from gemm_regression.counters.counts import PROBLEMS, Bytes, Counts, count, counted, expected_bytes

__all__ = ["PROBLEMS", "Bytes", "Counts", "count", "counted", "expected_bytes"]
