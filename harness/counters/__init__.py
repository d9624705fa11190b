"""What a launch asks of the hardware: requests, sectors, wavefronts, FLOP; needs nvcc and no GPU.

How it is counted: harness/devices/emulated/counters.py.
"""

from harness.counters.counts import PROBLEMS, Bytes, Counts, count, counted, expected_bytes

__all__ = ["PROBLEMS", "Bytes", "Counts", "count", "counted", "expected_bytes"]
