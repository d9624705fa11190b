"""Correctness: inputs, references, error bounds, the first mismatch. Pure NumPy; knows no operation by
name.
"""

from gemm_regression.oracle.reference import error_bound, gamma, make_inputs, reference
from gemm_regression.oracle.verify import SCALES, Examined, examine, verify

__all__ = [
    "SCALES",
    "Examined",
    "error_bound",
    "examine",
    "gamma",
    "make_inputs",
    "reference",
    "verify",
]
