"""The reference result, and the error bound for a correct kernel.

γₙ = n·u/(1 − n·u) is that of Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), §3.1; the
bound of an inner product §3.5; the truncating adder of tensor cores is measured in Fasi, Higham, Mikaitis
and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330 (2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import ml_dtypes
import numpy as np

from gemm_regression.model import F32, Array, DType, Operation, Problem
from gemm_regression.oracle.inputs import make_inputs


def gamma(n: int, u: float) -> float:
    """γₙ = n·u/(1 − n·u). Raises ValueError if n·u is 1 or more, where no bound holds."""
    if n * u >= 1:
        raise ValueError(f"gamma({n}, {u}): n·u must be below 1")
    return n * u / (1 - n * u)


def matrices(operation: Operation, p: Problem, dtype: DType, kind: str) -> Mapping[str, Array]:
    """The operands of a kind of input as they are multiplied, (batch, rows, columns) in float64."""
    inputs = make_inputs(operation, p, dtype, kind)
    storages = operation.storages(p, dtype)
    found = {name: storages[name].matrices(inputs[name]) for name in storages}
    if dtype.converts:
        multiplied = {o.name for o in operation.operands if o.role == "multiplied"}
        found |= {name: dtype.rounded(found[name]) for name in multiplied}
    return {name: values.astype(np.float64) for name, values in found.items()}


@lru_cache(maxsize=64)
def _products(operation: Operation, p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    """The product, and that of the absolute values, of inputs of that kind; (batch, m, n) in float64 each."""
    values = matrices(operation, p, dtype, kind)
    return operation.product(values), operation.product({n: np.abs(v) for n, v in values.items()})


def _plain(p: Problem) -> Problem:
    return replace(p, alpha=1.0, beta=0.0)


def _sums(operation: Operation, p: Problem, dtype: DType, kind: str) -> Array:
    product, _ = _products(operation, _plain(p), dtype, kind)
    return operation.sums(p, product, matrices(operation, p, dtype, kind))


def reference(operation: Operation, problem: Problem, dtype: DType, kind: str) -> Array:
    """The result in float64, (batch, m, n)."""
    sums = _sums(operation, problem, dtype, kind)
    return operation.activation.apply(sums) if operation.activation else sums


def exact_result(operation: Operation, problem: Problem, dtype: DType, kind: str) -> Array:
    """The reference, rounded once to the output type, as float64: exact sums must equal it bit for bit."""
    want = reference(operation, problem, dtype, kind)
    return want if dtype.integer else want.astype(dtype.output).astype(np.float64)


def error_bound(operation: Operation, problem: Problem, dtype: DType, kind: str) -> Array:
    """Elementwise bound on |computed − exact|, (batch, m, n).

    γ_{K+2}·S with S = |alpha|·|A|·|B| + |beta|·|C|, one more in γ for each addend; of tensor cores with the
    roundoff of their adder; of an activation, that times its slope, and its own roundings; then the rounding
    of the result.
    """
    p = problem
    _, magnitude = _products(operation, _plain(p), dtype, kind)
    absolute = {n: np.abs(v) for n, v in matrices(operation, p, dtype, kind).items()}
    s = operation.sums(replace(p, alpha=abs(p.alpha), beta=abs(p.beta)), magnitude, absolute)
    added = sum(operand.role == "added" for operand in operation.operands)
    terms = int(getattr(p, operation.depth)) + 2 + added
    bound = gamma(terms, dtype.accumulate_roundoff) * s
    if operation.activation:
        sums = np.abs(_sums(operation, p, dtype, kind))
        rounding = operation.activation.rounding * F32.unit_roundoff
        bound = operation.activation.slope * bound + rounding * sums
    if dtype is not F32:
        bound = bound + dtype.output_roundoff * np.abs(reference(operation, p, dtype, kind))
    return np.asarray(bound + _smallest(dtype))


def _smallest(dtype: DType) -> float:
    """The spacing of the output's subnormal numbers, 0 for integers."""
    return 0.0 if dtype.integer else float(ml_dtypes.finfo(dtype.output).smallest_subnormal)  # type: ignore[no-untyped-call]
