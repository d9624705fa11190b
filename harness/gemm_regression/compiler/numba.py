"""Numba-CUDA as the frontend of a kernel: PTX of a Python function, without a GPU.

Matrices are pointers, ``a[row * K + k]``: an array of two dimensions would be nine parameters, of which no
declaration can state the strides in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

from gemm_regression.compiler.frontend import PythonKernel, number_of
from gemm_regression.model import Config, DType


@dataclass(frozen=True)
class Numba(PythonKernel):
    """Compiles one function of a Python file, which need not be under ``@cuda.jit``. Its name is that of the
    entry in the PTX.

    Attributes:
        types: by Numba's names, pointers with a star: ``*{dtype} *{output} int32``.
        constants: globals of the file, such as the shape of a shared array.
    """

    compiler: ClassVar[str] = "Numba"
    names: ClassVar[dict[str, str]] = {
        name: name for name in ("float16", "float32", "float64", "int8", "int32")
    }

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with Numba's own words where it does not compile."""
        return _compiled(self, source, config, dtype, arch)


@lru_cache(1024)
def _compiled(how: Numba, source: Path, config: Config, dtype: DType, arch: str) -> str:
    try:
        from numba import cuda, types
    except ImportError as error:
        raise ValueError(f"Numba-CUDA cannot be imported ({error}): pip install numba-cuda") from None

    def parameters(function: Any) -> tuple[str, ...]:
        code = getattr(function, "py_func", function).__code__
        found: tuple[str, ...] = code.co_varnames[: code.co_argcount]
        return found

    def kind(name: str) -> Any:
        found = getattr(types, name.lstrip("*"), None)
        if found is None:
            raise ValueError(f"Numba: no type {name.lstrip('*')}")
        return types.CPointer(found) if name.startswith("*") else found

    function, constants, given = how.given(source, config, dtype, parameters)
    function = getattr(function, "py_func", function)
    if absent := [name for name in constants if name not in function.__globals__]:
        raise ValueError(f"{source.name} has no global {absent[0]}, which the declaration sets")
    made = FunctionType(function.__code__, function.__globals__ | constants, how.function)
    signature = types.void(*map(kind, given.values()))
    named = {"abi_name": how.function}
    with how.says():
        text, _ = cuda.compile_ptx(
            made, signature, lineinfo=True, cc=divmod(number_of(arch), 10), abi_info=named
        )
        return str(text)
