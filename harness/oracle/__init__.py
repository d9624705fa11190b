"""Correctness: inputs, references, error bounds, the first mismatch. Pure NumPy; knows no operation by
name.
"""

from harness.oracle.inputs import make_inputs
from harness.oracle.reference import error_bound, gamma, reference
from harness.oracle.verify import SCALES, Examined, Finding, examine, verify

__all__ = [
    "SCALES",
    "Examined",
    "Finding",
    "error_bound",
    "examine",
    "gamma",
    "make_inputs",
    "reference",
    "verify",
]
