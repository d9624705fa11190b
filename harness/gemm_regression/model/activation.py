"""Activation functions of epilogues, with their effect on rounding errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gemm_regression.model.dtype import Array


@dataclass(frozen=True)
class Activation:
    """``apply`` is the function itself in float64; ``slope`` the largest absolute value of its derivative;
    ``rounding`` how many roundings of FP32, relative to |x|, its own evaluation may cost. ``exact``: of
    integers it gives integers, without rounding. ``keeps_nan``: of NaN it gives NaN, whatever instruction
    computes it. ``library`` is the name of cublasLt's epilogue with a bias, None where it has none.
    """

    name: str
    apply: Callable[[Array], Array]
    slope: float
    rounding: float
    exact: bool = False
    keeps_nan: bool = True
    library: str | None = None


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _gelu_erf(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))))


# CUDA's fmaxf gives 0 of (NaN, 0).
RELU = Activation(
    "relu", lambda x: np.maximum(x, 0.0), 1.0, 0.0, exact=True, keeps_nan=False, library="RELU_BIAS"
)
# D. Hendrycks and K. Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415, 2016: x·Φ(x), and its
# approximation by tanh, which is cublasLt's. The two differ by up to 4.8e-4. 1.13 is the largest slope of
# either.
GELU = Activation("gelu", _gelu, 1.13, 8.0, library="GELU_BIAS")
GELU_ERF = Activation("gelu_erf", _gelu_erf, 1.13, 8.0)
