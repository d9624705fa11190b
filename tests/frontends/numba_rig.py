"""Numba-CUDA functions as PTX, without a GPU, and their launches in ptxsan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import cuda, from_dtype, types

import ptxsan


def type_of(argument: Any) -> Any:
    """What Numba takes an argument for: a C-contiguous array, or a number."""
    if isinstance(argument, np.ndarray | ptxsan.Empty):
        empty = np.empty(argument.shape, argument.dtype)
        return types.Array(from_dtype(empty.dtype), empty.ndim, "C")
    return from_dtype(argument.dtype)


def compiled(kernel: Callable[..., None], arguments: Any, arch: int) -> str:
    """PTX for arguments such as these, for an architecture such as 90."""
    signature = types.void(*map(type_of, arguments))
    text, _ = cuda.compile_ptx(kernel, signature, lineinfo=True, cc=divmod(arch, 10))
    return str(text)


def passed(argument: Any) -> list[Any]:
    """An argument as a kernel gets it: of an array its parent, its counts, its address, shape and strides."""
    if not isinstance(argument, np.ndarray | ptxsan.Empty):
        return [argument]
    one = np.empty(argument.shape, argument.dtype)
    none = [np.uint64(0)] * 2  # the objects that own the array
    sizes = map(np.int64, (one.size, one.itemsize))
    return [*none, *sizes, argument, *map(np.int64, one.shape), *map(np.int64, one.strides)]


def run(text: str, grid: Any, block: Any, *arguments: Any) -> ptxsan.LaunchResult:
    """A launch of PTX; its arrays by the numbers of the arguments as they are here."""
    given = [passed(argument) for argument in arguments]
    result = ptxsan.run(text, grid=grid, block=block, arguments=[value for each in given for value in each])
    starts = np.cumsum([0, *map(len, given)])
    arrays = {i: result.arrays[start + 4] for i, start in enumerate(starts[:-1]) if len(given[i]) > 1}
    return replace(result, arrays=arrays)
