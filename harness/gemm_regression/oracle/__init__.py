"""Correctness: inputs, references, error bounds, the first mismatch. Pure NumPy; knows no operation by
name.
"""

from gemm_regression.oracle.reference import gamma as gamma
from gemm_regression.oracle.reference import make_inputs as make_inputs
from gemm_regression.oracle.reference import reference as reference
from gemm_regression.oracle.verify import Examined as Examined
from gemm_regression.oracle.verify import examine as examine
from gemm_regression.oracle.verify import verify as verify
