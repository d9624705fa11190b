"""Triton as the frontend of a kernel: PTX of a function under ``@triton.jit``, without a GPU.

In the PTX two pointers to scratch memory follow the function's own parameters, which a declaration passes as
``void *scratch=0, void *profile=0``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from gemm_regression.compiler.frontend import PythonKernel, Value, block_shape, number_of, value_of
from gemm_regression.model import BlockShape, Config, DType


@dataclass(frozen=True)
class Triton(PythonKernel):
    """Compiles one function of a Python file.

    Attributes:
        types: as Triton writes them: ``*{dtype} *{output} i32``. With ``:16`` a number, or an address, is
            divided by 16, which a declaration has to require.
        constants: of its ``tl.constexpr`` parameters.
        warps, stages: ``num_warps`` and ``num_stages``.
    """

    warps: Value = 4
    stages: Value = 3
    compiler: ClassVar[str] = "Triton"
    names: ClassVar[dict[str, str]] = {
        "float32": "fp32",
        "float16": "fp16",
        "bfloat16": "bf16",
        "float64": "fp64",
        "int8": "i8",
        "int32": "i32",
    }

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
            return block_shape((32 * int(made.num_warps), 1, 1), tile, int(made.shared), config)

        return of


def jitted(function: Any) -> Any:
    """A function under ``@triton.jit`` without what is above that, such as ``@triton.autotune``; None of
    anything else."""
    while type(function).__name__ in ("Autotuner", "Heuristics"):
        function = function.fn
    return function if type(function).__name__ == "JITFunction" else None


@lru_cache(1024)
def _compiled(how: Triton, source: Path, config: Config, dtype: DType, arch: str) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise ValueError("Triton is not installed: pip install triton") from None

    def parameters(of: Any) -> list[str]:
        if (kernel := jitted(of)) is None:
            raise ValueError(f"{source.name}: {how.function} is not under @triton.jit")
        return list(kernel.arg_names)

    function, constants, types = how.given(source, config, dtype, parameters)
    function = jitted(function)
    signature = {name: kind.removesuffix(":16") for name, kind in types.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    divided = [function.arg_names.index(name) for name, kind in types.items() if kind.endswith(":16")]
    attrs = {(place,): [["tt.divisibility", 16]] for place in divided}
    unit = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": value_of(how.warps, config), "num_stages": value_of(how.stages, config)}
    with how.says():
        return triton.compile(unit, target=GPUTarget("cuda", number_of(arch), 32), options=options)
