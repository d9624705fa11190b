"""Numba-CUDA as the frontend of a kernel: PTX of a Python function, without a GPU.

Matrices are pointers, ``a[row * K + k]``: an array of two dimensions would be nine parameters, of which no
declaration can state the strides in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from gemm_regression.compiler.frontend import (
    Value,
    function_of,
    number_of,
    refused,
    typed,
    types_of,
    value_of,
)
from gemm_regression.model import Config, DType

_TYPES = {name: name for name in ("float16", "float32", "float64", "int8", "int32")}


@dataclass(frozen=True)
class Numba:
    """Compiles one function of a Python file, which need not be under ``@cuda.jit``.

    Attributes:
        function: its name, and that of the entry in the PTX.
        types: of its parameters, by Numba's names, pointers with a star: ``*{dtype} *{output} int32``.
        constants: globals of the file that a config sets, such as the shape of a shared array, by name.
    """

    function: str
    types: str
    constants: tuple[tuple[str, Value], ...] = ()

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with Numba's own words where it does not compile."""
        return _compiled(self, source, config, dtype, arch)

    def ptxas(self, arch: str) -> Path | None:
        """nvcc's: Numba brings none."""
        return None


@lru_cache(1024)
def _compiled(how: Numba, source: Path, config: Config, dtype: DType, arch: str) -> str:
    try:
        from numba import cuda, types
    except ImportError as error:
        raise ValueError(f"Numba-CUDA cannot be imported ({error}): pip install numba-cuda") from None
    function = function_of(source, how.function)
    function = getattr(function, "py_func", function)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if absent := [name for name, _ in how.constants if name not in function.__globals__]:
        raise ValueError(f"{source.name} has no global {absent[0]}, which the declaration sets")
    constants = {name: value_of(value, config) for name, value in how.constants}
    made = FunctionType(function.__code__, function.__globals__ | constants, how.function)
    given = typed(how.function, names, types_of("Numba", how.types, dtype, _TYPES))

    def kind(name: str) -> Any:
        found = getattr(types, name.lstrip("*"), None)
        if found is None:
            raise ValueError(f"Numba: no type {name.lstrip('*')}")
        return types.CPointer(found) if name.startswith("*") else found

    signature = types.void(*map(kind, given.values()))
    named = {"abi_name": how.function}
    try:
        text, _ = cuda.compile_ptx(
            made, signature, lineinfo=True, cc=divmod(number_of(arch), 10), abi_info=named
        )
    except Exception as error:  # of a user's program and of a compiler anything may come
        raise refused("Numba", error) from None
    return str(text)
