"""Inputs that each reveal one kind of error, and buffers for them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import ml_dtypes
import numpy as np

from gemm_regression.devices.work import odd, sparse
from gemm_regression.model import Array, DType, Operation, Problem

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
    made = {}
    multiplied = 0
    for operand in operation.operands:
        storage = operand.storage(p, dtype)
        rows, columns = storage.rows, storage.columns
        shape = (storage.count, columns, rows) if storage.transposed else (storage.count, rows, columns)
        if operand.role == "multiplied":
            values = _multiplied(rng, shape, operation, p, dtype, kind, multiplied)
            held = _beside(rng, values) if kind == "off grid" else dtype.rounded(values)
            made[operand.name] = storage.buffer(held, _nothing(dtype.storage))
            multiplied += 1
        else:
            values = _added(rng, shape, kind, dtype)
            fill = PAST_ROW if operand.role == "result" else _nothing(dtype.output)
            made[operand.name] = storage.buffer(values, fill)
    for buffer in made.values():
        buffer.setflags(write=False)
    return MappingProxyType(made)


def _nothing(dtype: np.dtype[np.generic]) -> float:
    """The value of elements that no kernel may read: NaN, or a conspicuous integer."""
    return 101 if dtype.kind == "i" else float("nan")


def _multiplied(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    operation: Operation,
    p: Problem,
    dtype: DType,
    kind: str,
    number: int,
) -> Array:
    depth = max(1, int(getattr(p, operation.depth)))
    if dtype.integer:
        low, high = (100, 127) if kind == "probe" else (-127, 127)
        return rng.integers(low, high + 1, shape).astype(np.float32)
    if kind in ("exact", "off grid"):
        limit = _integer_limit(depth, dtype)
        return rng.integers(-limit, limit + 1, shape).astype(np.float32)
    if kind == "normal":
        return rng.standard_normal(shape, np.float32)
    if number == 0:
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
    room = (_FLOAT32_INTEGERS // 4 - 64) // depth
    if dtype.output == np.float16:
        room = min(room, (_FLOAT16_MAX // 3 - 64) // depth)
    if dtype.adds_in_f16:
        room = min(room, (_FLOAT16_INTEGERS // 3 - 64) // depth)
    return int(max(1, min(15, room**0.5, 2**dtype.integer_bits - 1)))
