"""Correctness: inputs, references, error bounds, the first mismatch. Pure NumPy; knows no operation by
name.
"""

from harness.oracle.inputs import make_inputs
from harness.oracle.reference import error_bound, gamma, reference
from harness.oracle.verify import SCALES, Finding, verify

__all__ = ["SCALES", "Finding", "error_bound", "gamma", "make_inputs", "reference", "verify"]
