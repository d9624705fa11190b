"""Element types of operands that have not the dtype of the product: integers, packed ones, other floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from gemm_regression.model.problem import Array


@dataclass(frozen=True)
class Element:
    """``storage``: the NumPy dtype in memory. ``low``, ``high``: the integers that it holds; both 0 for
    floats. ``bits``: of each of the integers in a word of ``storage``; 0 if they are not packed. ``order``:
    the place of each in the word, the lowest bits being place 0; ``along``: what a word has several of, the
    numbers of a row (``columns``) or of a column (``rows``)."""

    name: str
    storage: np.dtype[Any]
    low: int = 0
    high: int = 0
    bits: int = 0
    order: tuple[int, ...] = ()
    along: Literal["rows", "columns"] = "columns"

    @property
    def integer(self) -> bool:
        return self.storage.kind in "iu"

    def words(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of storage of a matrix; a last word may not be full."""
        if not self.bits:
            return rows, columns
        per = len(self.order)
        return (-(-rows // per), columns) if self.along == "rows" else (rows, -(-columns // per))

    def pack(self, values: Array) -> Array:
        """Numbers (count, rows, columns) as they lie in memory, (count, …) of `words`."""
        if not self.bits:
            return values.astype(self.storage)
        lines = values.swapaxes(1, 2) if self.along == "rows" else values
        per, unsigned = len(self.order), np.dtype(f"u{self.storage.itemsize}")
        count, rows, columns = lines.shape
        full = np.zeros((count, rows, -(-columns // per) * per), np.int64)
        full[:, :, :columns] = lines
        fields = (full & ((1 << self.bits) - 1)).reshape(count, rows, -1, per)
        places = np.array(self.order, np.int64) * self.bits
        words = (fields << places).sum(axis=3).astype(unsigned).view(self.storage)
        return np.asarray(words.swapaxes(1, 2) if self.along == "rows" else words)


def _plain(name: str) -> Element:
    storage = np.dtype(getattr(ml_dtypes, name, name))
    if storage.kind not in "iu":
        return Element(name, storage)
    limits = np.iinfo(storage)
    return Element(name, storage, int(limits.min), int(limits.max))


def packed(
    bits: int,
    into: str = "uint8",
    order: Sequence[int] = (),
    along: Literal["rows", "columns"] = "columns",
    signed: bool = False,
) -> Element:
    """Integers of 1, 2 or 4 bits in words of a NumPy integer type. ``order``: the place of each number in
    its word; without it the first has the lowest bits. ``signed``: two's complement. AWQ's weights are
    ``packed(4, "int32", order=(0, 4, 1, 5, 2, 6, 3, 7))``, GPTQ's ``packed(4, "int32", along="rows")``.
    Raises ValueError, in one line, for an order that is none, or words that have no whole number of them."""
    storage = np.dtype(into)
    per = 8 * storage.itemsize // max(1, bits)
    order = tuple(order) or tuple(range(per))
    if bits not in (1, 2, 4) or storage.kind not in "iu":
        raise ValueError(f"packed({bits}, {into!r}): takes 1, 2 or 4 bits, and words of an integer type")
    if sorted(order) != list(range(per)):
        raise ValueError(f"packed({bits}, {into!r}): order must have each place from 0 to {per - 1} once")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    name = f"{'int' if signed else 'uint'}{bits}"
    return Element(name, storage, low, high, bits, order, along)


_PLAIN = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32")
_FP8 = ("float8_e4m3fn", "float8_e5m2")
ELEMENTS = {name: _plain(name) for name in (*_PLAIN, "int64", "uint64", *_FP8)}
ELEMENTS |= {"int4": packed(4, signed=True), "uint4": packed(4)}


def find_element(element: str | Element) -> Element:
    """By name, such as ``int8``, or packed two per byte ``uint4``. Raises ValueError, which lists them."""
    if isinstance(element, Element):
        return element
    if element not in ELEMENTS:
        raise ValueError(f"unknown element type {element!r}; known: {', '.join(ELEMENTS)}, and packed(...)")
    return ELEMENTS[element]


class Magnitude(Array):
    """Absolute values whose difference is their sum: a function of these gives the sum of the absolute values
    of all terms, also where it subtracts, such as a zero point."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        ufunc = {np.subtract: np.add, np.negative: np.positive}.get(ufunc, ufunc)
        plain = [one.view(np.ndarray) if isinstance(one, Magnitude) else one for one in inputs]
        if out is not None:
            more["out"] = tuple(one.view(np.ndarray) if isinstance(one, Magnitude) else one for one in out)
        found = getattr(ufunc, method)(*plain, **more)
        return found.view(Magnitude) if isinstance(found, np.ndarray) else found

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        found = super().__array_function__(func, types, args, kwargs)
        return found.view(Magnitude) if type(found) is np.ndarray else found


def magnitude(values: Array) -> Array:
    """The absolute values, as `Magnitude`."""
    return np.abs(values).view(Magnitude)
