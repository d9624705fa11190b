"""CuTe DSL functions as PTX, without a GPU, and their arguments in ptxsan."""

from __future__ import annotations

from typing import Any

import cutlass
import numpy as np
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor

import ptxsan

TYPES = {"float32": cutlass.Float32, "float16": cutlass.Float16}


def compiled(function: Any, arguments: Any, arch: str, folder: Any, dynamic: bool = False) -> str:
    """PTX of the kernel that a host function launches with arguments such as these, for an architecture such
    as "90a". ``dynamic``: of any shape. ``folder``: for the compiler's files."""
    given = [argument(each, dynamic) for each in arguments]
    options = f"--gpu-arch sm_{arch} --keep-ptx --generate-line-info --dump-dir {folder}"
    return str(cute.compile(function, *given, options=options).__ptx__)


def argument(value: Any, dynamic: bool) -> Any:
    """A number, or what stands for a row-major array while it is compiled."""
    if not isinstance(value, np.ndarray | ptxsan.Empty):
        return cutlass.Float32(float(value))
    shape = value.shape if isinstance(value.shape, tuple) else (value.shape,)
    sizes = tuple(cute.sym_int() for _ in shape) if dynamic else shape
    order = tuple(reversed(range(len(shape))))
    kind = TYPES[np.dtype(value.dtype).name]
    return make_fake_compact_tensor(kind, sizes, stride_order=order, assumed_align=16)


def struct(array: Any) -> tuple[Any, ...]:
    """A row-major array of one or two axes with its shape and strides, as kernels of any shape take it."""
    shape = array.shape if isinstance(array.shape, tuple) else (array.shape,)
    return array, *map(np.int32, shape), *map(np.int64, shape[1:])
