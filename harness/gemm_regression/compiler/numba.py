"""Numba-CUDA as the frontend of a kernel: PTX of a Python function, without a GPU.

A matrix is a pointer, ``a[row * K + k]``, or an array, ``a[row, k]``, which is nine parameters: two objects
that own it, number and bytes of its elements, its address, its sizes, and its strides in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar

from gemm_regression.compiler.frontend import PythonKernel, Word, number_of, word_of
from gemm_regression.model import Config, DType


@dataclass(frozen=True)
class Numba(PythonKernel):
    """Compiles one function of a Python file, which need not be under ``@cuda.jit``. Its name is that of the
    entry in the PTX.

    Attributes:
        types: by Numba's names, pointers with a star: ``*{dtype} *{output} int32``; arrays with sizes, and
            with strides in elements if they need not be dense: ``A:{dtype}(M,K):(lda,1) C:{output}(M,N)``.
        constants: globals of the file, such as the shape of a shared array.
    """

    compiler: ClassVar[str] = "Numba"
    names: ClassVar[dict[str, str]] = {
        name: name for name in ("float16", "float32", "float64", "int8", "int32")
    }

    @property
    def parameters(self) -> str:
        """Those of the kernel, where ``types`` has the name of each. Raises ValueError."""
        words = [word_of(text) for text in self.types.split()]
        if unnamed := [text for text, word in zip(self.types.split(), words, strict=True) if not word.name]:
            raise ValueError(f"{unnamed[0]!r} has no name, as A:{{dtype}}(M,K) and M:int32 have")
        return ", ".join(_array(word) if word.shape else word.number for word in words)

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with Numba's own words where it does not compile."""
        return _compiled(self, source, config, dtype, arch)


def _array(word: Word) -> str:
    """The parameters of an array, as a declaration writes them."""
    name, shape = word.name, word.shape
    dense = ["*".join(shape[axis + 1 :]) or "1" for axis in range(len(shape))]
    steps = [f"{stride}*sizeof{name}" for stride in word.strides or dense]
    values = [*shape, *steps]
    more = (f"long long {name}_{i}={value}" for i, value in enumerate(values))
    count = f"long long {name}_count={'*'.join(shape)}, long long {name}_bytes=sizeof{name}"
    owners = f"void *{name}_owner=0, void *{name}_parent=0"
    return ", ".join([owners, count, name, *more])


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

    def kind(text: str) -> Any:
        _, name, sizes, strides = word_of(text)
        found = getattr(types, name.lstrip("*"), None)
        if found is None:
            raise ValueError(f"Numba: no type {name.lstrip('*')}")
        if sizes:
            return types.Array(found, len(sizes), "A" if strides else "C")
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
