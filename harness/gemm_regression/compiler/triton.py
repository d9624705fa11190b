"""Triton as the frontend of a kernel: PTX of a function under ``@triton.jit``, without a GPU.

In the PTX two pointers to scratch memory follow the function's own parameters, which a declaration passes as
``void *scratch=0, void *profile=0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
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
from gemm_regression.model import BlockShape, Config, DType

_TYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "int8": "i8",
    "int32": "i32",
}


@dataclass(frozen=True)
class Triton:
    """Compiles one function of a Python file.

    Attributes:
        function: its name.
        types: of its parameters that are no constants, as Triton writes them: ``*{dtype} *{output} i32``.
            With ``:16`` a number, or an address, is divided by 16, which a declaration has to require.
        constants: of its ``tl.constexpr`` parameters, by name.
        warps, stages: ``num_warps`` and ``num_stages``.
    """

    function: str
    types: str
    constants: tuple[tuple[str, Value], ...] = ()
    warps: Value = 4
    stages: Value = 3

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with Triton's own words where it does not compile."""
        text: str = _compiled(self, source, config, dtype, arch).asm["ptx"]
        return text

    def ptxas(self, arch: str) -> Path | None:
        from triton.backends.nvidia.compiler import get_ptxas

        return Path(get_ptxas(number_of(arch)).path)

    def shape(
        self, source: Path, tile: tuple[Value, Value], arch: str = "sm_90a"
    ) -> Callable[[Config, DType], BlockShape]:
        """What a block computes, for a declaration: ``tile`` is rows and columns of C, and the shared memory
        is what Triton says of ``arch``."""

        def of(config: Config, dtype: DType) -> BlockShape:
            made = _compiled(self, source, config, dtype, arch).metadata
            rows, columns = (value_of(size, config) for size in tile)
            shared = int(made.shared)
            threads = (32 * int(made.num_warps), 1)
            return BlockShape(threads, (rows, columns), shared_bytes=shared, dynamic=True)

        return of


@lru_cache(1024)
def _compiled(how: Triton, source: Path, config: Config, dtype: DType, arch: str) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise ValueError("Triton is not installed: pip install triton") from None
    function = function_of(source, how.function)
    constants = {name: value_of(value, config) for name, value in how.constants}
    names = [name for name in function.arg_names if name not in constants]
    types = typed(how.function, names, types_of("Triton", how.types, dtype, _TYPES))
    signature = {name: kind.removesuffix(":16") for name, kind in types.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    divided = [function.arg_names.index(name) for name, kind in types.items() if kind.endswith(":16")]
    attrs = {(place,): [["tt.divisibility", 16]] for place in divided}
    unit = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": value_of(how.warps, config), "num_stages": value_of(how.stages, config)}
    target = GPUTarget("cuda", number_of(arch), 32)
    try:
        return triton.compile(unit, target=target, options=options)
    except Exception as error:  # of a user's program and of a compiler anything may come
        raise refused("Triton", error) from None
