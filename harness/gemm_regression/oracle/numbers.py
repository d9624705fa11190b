"""Numbers of operands whose declaration says how they are drawn: integers, scales, floats of another type.

A scale that is constant, or a power of another one, hides a scale of the wrong group. So neighbours along
either axis differ, and scales and their transpose do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gemm_regression.model import Array, DType, Operand, Operation, Problem
from gemm_regression.model.elements import magnitude


class OperationError(ValueError):
    """A function of an operation that fails on a problem, or does not return what it has to. One line."""


def product_of(operation: Operation, p: Problem, values: Mapping[str, Array]) -> Array:
    """The product of these values, (batch, rows, columns) of the result. Raises OperationError."""
    given = _with_sizes(operation, p, values)
    return _called("product", operation, p, lambda: operation.product(given))


def declared_error(operation: Operation, p: Problem, values: Mapping[str, Array], want: Array) -> Array:
    """The bound that the operation declares, of the shape of the result. Raises OperationError."""
    assert operation.error is not None
    error, given = operation.error, _with_sizes(operation, p, values)
    found = _called("error", operation, p, lambda: np.broadcast_to(error(given, want), want.shape))
    if not np.isfinite(found).all():
        raise OperationError(f"{operation.name}: error is not finite on {operation.told(p) or p.id}")
    return found


def words_of(operation: Operation, operand: Operand, p: Problem, values: Mapping[str, Array]) -> Array:
    """The words of an operand that is made of others. Raises OperationError."""
    assert operand.made is not None
    made, given = operand.made, _with_sizes(operation, p, values)
    return _called(f"made of {operand.name}", operation, p, lambda: made(given), operand)


def _with_sizes(operation: Operation, p: Problem, values: Mapping[str, Array]) -> dict[str, Any]:
    return {**values, **operation.named(p)}


def _called(
    what: str,
    operation: Operation,
    p: Problem,
    function: Callable[[], Array],
    operand: Operand | None = None,
) -> Array:
    """What a function of the operation returns, of the shape of this operand, else of the result."""
    shape = (operand or operation.result).shape(p)
    on = operation.told(p) or p.id
    try:
        with np.errstate(all="ignore"):
            found = np.asanyarray(function())
    except Exception as error:  # a user's function may raise anything
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        remedy = "mend it, or declare what the kernel takes: constraints=Constraints(multiples=...)"
        raise OperationError(f"{operation.name}: {what} fails on {on}: {said}; {remedy}") from None
    if found.shape != shape:
        text = f"{operation.name}: {what} returns the shape {found.shape} on {on}, not {shape}"
        raise OperationError(text)
    return found


_POWERS = 5  # of two among exact scales: prime, so that steps of 1 and 2 along the axes do not repeat soon
_LARGEST = 2.0**14  # of a sum in an FP16 output
_SMALL = 7  # the largest integer in a float that is multiplied exactly


def own_numbers(rng: np.random.Generator, operand: Operand, p: Problem, dtype: DType, kind: str) -> Array:
    """(count, rows, columns) of numbers that the operand's type holds, of a kind of input: small integers and
    powers of two for sums that are exact, else any."""
    shape = operand.shape(p)
    if operand.drawn == "integers":
        low, high = operand.range(p)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    storage = operand.element.storage if operand.element else operand.storage(p, dtype).dtype
    if operand.drawn == "scale":
        if kind == "normal":
            return rng.uniform(0.5, 2.0, shape).astype(storage).astype(np.float64)
        count, row, column = np.indices(shape)
        return np.asarray(2.0 ** -((row + 2 * column + 3 * count + 1) % _POWERS))
    if kind == "normal":
        return rng.standard_normal(shape).astype(storage).astype(np.float64)
    return rng.integers(-_SMALL, _SMALL + 1, shape).astype(np.float64)


def within_output(
    operation: Operation, p: Problem, dtype: DType, usual: Mapping[str, Array], numbers: dict[str, Array]
) -> None:
    """Divides the first scale by a power of two, so that the result of ``usual`` operands and ``numbers`` is
    finite in an output of 16 bits."""
    scale = next((operand for operand in operation.operands if operand.drawn == "scale"), None)
    if scale is None or operation.error is not None or dtype.output.itemsize != 2:
        return
    values = {name: magnitude(v.astype(np.float64)) for name, v in usual.items()}
    values |= {name: magnitude(v) for name, v in numbers.items()}
    most = float(np.max(product_of(operation, p, values), initial=0.0))
    if most > _LARGEST:
        storage = scale.element.storage if scale.element else dtype.storage
        smaller = numbers[scale.name] * 2.0 ** -math.ceil(math.log2(most / _LARGEST))
        numbers[scale.name] = smaller.astype(storage).astype(np.float64)


def unit_of(values: Array) -> float:
    """The largest power of two that all of these are multiples of, at most 1."""
    unit = 1.0
    while unit > 2.0**-60 and (values != np.rint(values / unit) * unit).any():
        unit /= 2
    return unit
