"""The reference result, and the error bound for a correct kernel.

γₙ = n·u/(1 − n·u) is that of Higham, Accuracy and Stability of Numerical Algorithms (2nd ed.), §3.1; the
bound of an inner product §3.5; the truncating adder of tensor cores is measured in Fasi, Higham, Mikaitis
and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330 (2021).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import ml_dtypes
import numpy as np

from gemm_regression.devices.work import odd, sparse
from gemm_regression.model import F32, Array, DType, Operation, Problem

_FLOAT32_INTEGERS = 2**24  # integers below are exact in FP32, and so is every partial sum
_FLOAT16_INTEGERS = 2**11
_FLOAT16_MAX = 65504
_PRODUCT = 2.0**-24  # the unit of a product of probes of 16 bits: the smallest FP16 number
_ADDEND = 15  # the largest integer in added operands and in C
PAST_ROW = 77.0  # the value in the padding of the result's buffer


def make_inputs(operation: Operation, problem: Problem, dtype: DType, kind: str) -> Mapping[str, Array]:
    """A buffer of ``Storage.shape`` for each operand, of a ``kind``: exact, off grid, normal or probe.

    ``exact``: small integers. ``off grid``: FP32 numbers whose nearest TF32 numbers are these integers, which
    a kernel has to round. ``normal``: standard normal on the dtype's grid. ``probe``: odd integers of 13 bits
    (fewer where the dtype holds fewer) times {0, ±1}: exact in FP32 and in the dtype, wrong in any lower
    precision; of FP16 and BF16 in units of the smallest subnormal number; of integer dtypes large ones of one
    sign, whose long sums FP32 does not hold. What lies beside the elements is NaN in inputs, where reading it
    would show, and 77 in the result.
    """
    return _make(operation, replace(problem, alpha=1.0, beta=0.0), dtype, kind)


@lru_cache(maxsize=64)
def _make(operation: Operation, p: Problem, dtype: DType, kind: str) -> Mapping[str, Array]:
    rng = np.random.default_rng(zlib.crc32(f"{kind}/{dtype}/{p.id}".encode()))
    made, depth = {}, max(1, int(getattr(p, operation.depth)))
    for operand in operation.operands:
        storage = operand.storage(p, dtype)
        rows, columns = storage.rows, storage.columns
        shape = (storage.count, columns, rows) if storage.transposed else (storage.count, rows, columns)
        if operand.role == "multiplied":
            values = _multiplied(rng, shape, dtype, kind, depth, operand.name == _first_two(operation)[0])
            values = _beside(rng, values) if kind == "off grid" else dtype.rounded(values)
        else:
            values = _added(rng, shape, kind, dtype)
        fill = PAST_ROW if operand.role == "result" else _nothing(storage.dtype)
        made[operand.name] = storage.buffer(values, fill)
        made[operand.name].setflags(write=False)
    return MappingProxyType(made)


def _nothing(dtype: np.dtype[np.generic]) -> float:
    """The value of elements that no kernel may read: NaN, or a conspicuous integer."""
    return 101 if dtype.kind == "i" else float("nan")


def _multiplied(
    rng: np.random.Generator, shape: tuple[int, int, int], dtype: DType, kind: str, depth: int, first: bool
) -> Array:
    if dtype.integer:
        low, high = (100, 127) if kind == "probe" else (-127, 127)
        return rng.integers(low, high + 1, shape).astype(np.float32)
    if kind in ("exact", "off grid"):
        limit = _integer_limit(depth, dtype)
        return rng.integers(-limit, limit + 1, shape).astype(np.float32)
    if kind == "normal":
        return rng.standard_normal(shape, np.float32)
    if first:
        held = _FLOAT16_INTEGERS if dtype.adds_in_f16 else _FLOAT16_MAX
        narrow = dtype.output == np.float16
        values = odd(rng, shape, dtype, max(1, held // (2 * depth)) if narrow else 1 << 12)
        return np.asarray(values * np.float32(_smallest(dtype.storage)))
    units = _PRODUCT / _smallest(dtype.storage) if dtype.storage.itemsize == 2 else 1.0
    return np.asarray(sparse(rng, shape, min(0.9, 1024 / depth)) * np.float32(units))


def _smallest(dtype: np.dtype[np.generic]) -> float:
    """The smallest subnormal number of a type of 16 bits, 1 for others."""
    return float(ml_dtypes.finfo(dtype).smallest_subnormal) if dtype.itemsize == 2 else 1.0  # type: ignore[no-untyped-call]


def _beside(rng: np.random.Generator, values: Array) -> Array:
    """FP32 numbers whose nearest TF32 numbers these are: off by up to a quarter of the spacing below them,
    half of them towards zero, where cutting bits off gives another."""
    _, exponent = np.frexp(values)
    off = rng.uniform(0.2, 0.9, values.shape) * rng.choice([-1.0, 1.0], values.shape)
    return np.asarray(values + off * np.ldexp(np.sign(values), exponent - 13), np.float32)


def _added(rng: np.random.Generator, shape: tuple[int, int, int], kind: str, dtype: DType) -> Array:
    if kind in ("exact", "off grid") or (dtype.integer and kind == "normal"):
        return rng.integers(-_ADDEND, _ADDEND + 1, shape).astype(np.float32)
    if kind == "normal":
        return rng.standard_normal(shape, np.float32)
    return np.zeros(shape, np.float32)


def _integer_limit(depth: int, dtype: DType) -> int:
    """Largest |a| and |b| for which alpha·Σab + beta·c + bias stays exact with |alpha|, |beta| ≤ 3, and, in
    an output that holds less, finite.
    """
    most = _FLOAT32_INTEGERS // 4
    if dtype.output == np.float16:
        most = _FLOAT16_MAX // 3
    if dtype.adds_in_f16:
        most = _FLOAT16_INTEGERS // 3
    return int(max(1, min(15, ((most - 64) // depth) ** 0.5, 2**dtype.integer_bits - 1)))


def _first_two(operation: Operation) -> list[str]:
    return [operand.name for operand in operation.operands if operand.role == "multiplied"][:2]


def with_planted(
    operation: Operation, p: Problem, dtype: DType, inputs: Mapping[str, Array], everything: bool = True
) -> dict[str, Array]:
    """With a NaN in a row of A, an infinity in another one, the same in columns of B, as long as some of the
    result stays finite; or, not ``everything``, with a NaN in A."""
    storages = operation.storages(p, dtype)
    buffers = {name: inputs[name].copy() for name in _first_two(operation)}
    first, *second = (storages[name].matrices(buffers[name])[p.batch // 2] for name in buffers)
    (m, k), one = first.shape, not everything
    if m > 1 or one:
        first[m // 2, k // 2] = np.nan
    if m > 2 and not one:
        first[0, k - 1] = np.inf
    for b in () if one else second:
        k, n = b.shape
        if n > 1:
            b[k - 1, n // 2] = np.nan
        if n > 2:
            b[0, 0] = -np.inf
    return {**inputs, **buffers}


def planted_text(operation: Operation, p: Problem, dtype: DType, given: Mapping[str, Array]) -> str:
    """What is not finite among the inputs, as text."""
    storages = operation.storages(p, dtype)
    found = []
    for name in _first_two(operation):
        values = storages[name].matrices(given[name]).astype(np.float64)
        for at in np.argwhere(~np.isfinite(values)):
            place = tuple(int(i) for i in at)
            found.append(f"{shown(values[place])} in {name}{storages[name].element(*place)}")
    return ", ".join(found)


def shown(value: float) -> str:
    return f"{value:g}" if value == value else "NaN"


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


def _products(operation: Operation, p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    """The product, and that of the absolute values, of inputs of that kind; (batch, m, n) in float64 each."""
    return _cached_products(operation, replace(p, alpha=1.0, beta=0.0), dtype, kind)


@lru_cache(maxsize=64)
def _cached_products(operation: Operation, p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    values = matrices(operation, p, dtype, kind)
    return operation.product(values), operation.product({n: np.abs(v) for n, v in values.items()})


def _sums(operation: Operation, p: Problem, dtype: DType, kind: str) -> Array:
    product, _ = _products(operation, p, dtype, kind)
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
    absolute = {n: np.abs(v) for n, v in matrices(operation, p, dtype, kind).items()}
    magnitude = _products(operation, p, dtype, kind)[1]
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
    return np.asarray(bound + _output_spacing(dtype))


def _output_spacing(dtype: DType) -> float:
    """The spacing of the output's subnormal numbers, 0 for integers."""
    return 0.0 if dtype.integer else float(ml_dtypes.finfo(dtype.output).smallest_subnormal)  # type: ignore[no-untyped-call]
