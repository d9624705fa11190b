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
from typing import Any

import ml_dtypes
import numpy as np

from gemm_regression.devices.work import odd, sparse
from gemm_regression.model import F32, Array, DType, Operation, Problem
from gemm_regression.model.elements import magnitude
from gemm_regression.oracle.numbers import (
    declared_error,
    own_numbers,
    product_of,
    unit_of,
    within_output,
    words_of,
)

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
    return _make(operation, replace(problem, alpha=1.0, beta=0.0), dtype, kind)[0]


@lru_cache(maxsize=64)
def _make(
    operation: Operation, p: Problem, dtype: DType, kind: str
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """The buffers, and the numbers in them that lie otherwise than they are used, (batch, rows, columns)."""
    rng = np.random.default_rng(zlib.crc32(f"{kind}/{dtype}/{p.id}".encode()))
    made, numbers, depth = {}, {}, max(1, operation.depth_of(p))
    for operand in operation.operands:
        storage = operand.storage(p, dtype)
        rows, columns = storage.rows, storage.columns
        shape = (storage.count, columns, rows) if storage.transposed else (storage.count, rows, columns)
        if operand.made:
            continue
        if operand.name in operation.outputs and operand != operation.result:
            made[operand.name] = storage.buffer(np.full(shape, _nothing(storage.dtype)), PAST_ROW)
            continue
        if operand.role != "output" and (operand.dtype or operand.values):
            numbers[operand.name] = own_numbers(rng, operand, p, dtype, kind)
            continue
        if operand.role == "multiplied":
            values = _multiplied(rng, shape, dtype, kind, depth, operand.name in _first_two(operation)[:1])
            values = _beside(rng, values) if kind == "off grid" else dtype.rounded(values)
        else:
            values = _added(rng, shape, kind, dtype)
        fill = PAST_ROW if operand == operation.result else _nothing(storage.dtype)
        made[operand.name] = storage.buffer(values, fill)
    usual = dict[str, Array]()
    if numbers:
        usual = {name: operation.storages(p, dtype)[name].matrices(made[name]) for name in made}
        within_output(operation, p, dtype, usual, numbers)
    for operand in (each for each in operation.operands if each.made or each.name in numbers):
        storage = operand.storage(p, dtype)
        if operand.made:
            words = words_of(operation, operand, p, {**usual, **numbers})
        else:
            words = operand.element.pack(numbers[operand.name]) if operand.element else numbers[operand.name]
        if not operand.hidden:
            made[operand.name] = storage.buffer(words, _nothing(storage.dtype))
    for values in made.values():
        values.setflags(write=False)
    return MappingProxyType(made), MappingProxyType(numbers)


def _nothing(dtype: np.dtype[np.generic]) -> float:
    """The value of elements that no kernel may read: NaN, or a conspicuous integer."""
    return 101 if dtype.kind in "iu" else float("nan")


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
    most = dtype.exact_sums // 4
    if dtype.output == np.float16:
        most = _FLOAT16_MAX // 3
    if dtype.adds_in_f16:
        most = _FLOAT16_INTEGERS // 3
    return int(max(1, min(15, ((most - 64) // depth) ** 0.5, 2**dtype.integer_bits - 1)))


def _first_two(operation: Operation) -> list[str]:
    given = (
        each for each in operation.operands if each.role == "multiplied" and not (each.hidden or each.made)
    )
    return [operand.name for operand in given if operand.drawn == "normal"][:2]


def with_planted(
    operation: Operation, p: Problem, dtype: DType, inputs: Mapping[str, Array], everything: bool = True
) -> dict[str, Array]:
    """With a NaN in a row of A, an infinity in another one, the same in columns of B, as long as some of the
    result stays finite; or, not ``everything``, with a NaN in A."""
    storages = operation.storages(p, dtype)
    buffers = {name: inputs[name].copy() for name in _first_two(operation)}
    found = (storages[name].matrices(buffers[name]) for name in buffers)
    first, *second = (matrices[len(matrices) // 2] for matrices in found)
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


def takes_nan(operation: Operation, dtype: DType) -> bool:
    """Whether a NaN in an operand has to reach the result."""
    activation = operation.activation
    kept = operation.keeps_nan and (activation is None or activation.keeps_nan)
    return kept and not dtype.integer and bool(_first_two(operation))


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
    inputs, numbers = _make(operation, replace(p, alpha=1.0, beta=0.0), dtype, kind)
    storages = operation.storages(p, dtype)
    words = {operand.name for operand in operation.operands if operand.made}
    words |= {*operation.outputs} - {operation.result.name}
    found = {n: s.matrices(inputs[n]) for n, s in storages.items() if n not in numbers and n not in words}
    if dtype.converts:
        multiplied = {o.name for o in operation.operands if o.role == "multiplied"}
        found |= {name: dtype.rounded(found[name]) for name in multiplied if name in found}
    found |= numbers
    return {name: values.astype(np.float64) for name, values in found.items()}


def planted_product(
    operation: Operation, p: Problem, dtype: DType, kind: str, given: Mapping[str, Array]
) -> Array:
    """The product of inputs of that kind `with_planted`."""
    storages, values = operation.storages(p, dtype), matrices(operation, p, dtype, kind)
    planted = {n: storages[n].matrices(given[n]).astype(np.float64) for n in _first_two(operation)}
    return product_of(operation, p, {**values, **planted})


def exactly_computed(operation: Operation, p: Problem, dtype: DType, kind: str) -> bool:
    """Whether every order of sums of these inputs has the same result, since all numbers are multiples
    of a power of two that is not too small beside the sum of all terms."""
    if not operation.own:
        return True
    if kind == "normal":
        return False
    unit = 1.0
    for values in _make(operation, replace(p, alpha=1.0, beta=0.0), dtype, kind)[1].values():
        unit *= min(1.0, unit_of(values))
    exact, terms = _products(operation, p, dtype, kind)
    if np.any(exact % unit):  # of what a table has for these numbers
        return False
    most = float(np.max(terms, initial=0.0))
    sums = 4 * max(1.0, abs(p.alpha)) * (most + _ADDEND)
    return sums < unit * operation.exact_sums(dtype)


def _products(operation: Operation, p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    """The product, and that of the absolute values, of inputs of that kind; (batch, m, n) in float64 each."""
    return _cached_products(operation, replace(p, alpha=1.0, beta=0.0), dtype, kind)


@lru_cache(maxsize=64)
def _cached_products(operation: Operation, p: Problem, dtype: DType, kind: str) -> tuple[Array, Array]:
    values = matrices(operation, p, dtype, kind)
    exact = product_of(operation, p, values)
    if operation.error is not None:
        return exact, np.abs(exact)
    terms = product_of(operation, p, {n: magnitude(v) for n, v in values.items()})
    return exact, np.asarray(terms)


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
    if dtype.integer and not operation.looks_at:
        return want
    return want.astype(operation.result.storage(problem, dtype).dtype).astype(np.float64)


def error_bound(operation: Operation, problem: Problem, dtype: DType, kind: str) -> Array:
    """Elementwise bound on |computed − exact|, (batch, m, n).

    γ_{K+2}·S with S = |alpha|·|A|·|B| + |beta|·|C|, one more in γ for each addend; of tensor cores with the
    roundoff of their adder; of an activation, that times its slope, and its own roundings; then the rounding
    of the result. Terms that a kernel may round once more add the dtype's roundoff times S. An operation that
    declares its error has that, and the rounding of the result.
    """
    p, output = problem, operation.result.storage(problem, dtype).dtype
    roundoff, spacing = (0.0, 0.0) if output.kind in "iu" else _rounding(output)
    absolute = {n: np.abs(v) for n, v in matrices(operation, p, dtype, kind).items()}
    product = _products(operation, p, dtype, kind)[1]
    s = operation.sums(replace(p, alpha=abs(p.alpha), beta=abs(p.beta)), product, absolute)
    added = sum(operand.role == "added" for operand in operation.operands)
    if operation.error is not None:
        values, want = matrices(operation, p, dtype, kind), reference(operation, p, dtype, kind)
        rounding = roundoff * np.abs(want) if output.itemsize < 4 else 0.0
        return np.asarray(declared_error(operation, p, values, want) + rounding + spacing)
    terms = operation.depth_of(p) + 2 + added
    accumulated = gamma(terms, operation.added_as(dtype).accumulate_roundoff)
    bound = (accumulated + operation.roundings * dtype.unit_roundoff) * s
    if operation.activation:
        sums = np.abs(_sums(operation, p, dtype, kind))
        rounding = operation.activation.rounding * F32.unit_roundoff
        bound = operation.activation.slope * bound + rounding * sums
    if dtype is not F32:
        bound = bound + roundoff * np.abs(reference(operation, p, dtype, kind))
    return np.asarray(bound + spacing)


def _rounding(output: np.dtype[Any]) -> tuple[float, float]:
    """The unit roundoff of a float type, and the spacing of its subnormal numbers."""
    of = ml_dtypes.finfo(output)  # type: ignore[no-untyped-call]
    return float(of.eps) / 2, float(of.smallest_subnormal)
