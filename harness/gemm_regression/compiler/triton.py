"""Triton as the frontend of a kernel: PTX of a function under ``@triton.jit``, without a GPU.

In the PTX two pointers to scratch memory follow the function's own parameters, which a declaration passes as
``void *scratch=0, void *profile=0``.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gemm_regression.model import BlockShape, Config, DType

Value = int | str  # a number, or a parameter of the config
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

        return Path(get_ptxas(_number(arch)).path)

    def shape(
        self, source: Path, tile: tuple[Value, Value], arch: str = "sm_90a"
    ) -> Callable[[Config, DType], BlockShape]:
        """What a block computes, for a declaration: ``tile`` is rows and columns of C, and the shared memory
        is what Triton says of ``arch``."""

        def of(config: Config, dtype: DType) -> BlockShape:
            made = _compiled(self, source, config, dtype, arch).metadata
            rows, columns = (_value(size, config) for size in tile)
            shared = int(made.shared)
            threads = (32 * int(made.num_warps), 1)
            return BlockShape(threads, (rows, columns), shared_bytes=shared, dynamic=True)

        return of


def _value(value: Value, config: Config) -> int:
    return config[value] if isinstance(value, str) else value


@lru_cache(1024)
def _compiled(how: Triton, source: Path, config: Config, dtype: DType, arch: str) -> Any:
    try:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
    except ImportError:
        raise ValueError("Triton is not installed: pip install triton") from None
    function = getattr(_module(source), how.function, None)
    if function is None:
        raise ValueError(f"{source.name} has no function {how.function}")
    constants = {name: _value(value, config) for name, value in how.constants}
    names = [name for name in function.arg_names if name not in constants]
    given = how.types.format(dtype=_name(dtype.storage), output=_name(dtype.output)).split()
    if len(given) != len(names):
        raise ValueError(f"{how.function} has {len(names)} parameters ({', '.join(names)}), not {len(given)}")
    types = dict(zip(names, given, strict=True))
    signature = {name: kind.removesuffix(":16") for name, kind in types.items()}
    signature |= dict.fromkeys(constants, "constexpr")
    divided = [function.arg_names.index(name) for name, kind in types.items() if kind.endswith(":16")]
    attrs = {(place,): [["tt.divisibility", 16]] for place in divided}
    unit = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attrs)
    options = {"num_warps": _value(how.warps, config), "num_stages": _value(how.stages, config)}
    target = GPUTarget("cuda", _number(arch), 32)
    try:
        return triton.compile(unit, target=target, options=options)
    except Exception as error:  # of a user's program and of a compiler anything may come
        raise ValueError(f"Triton: {' '.join(str(error).split())}") from None


def _number(arch: str) -> int:
    return int(arch.strip("sm_af"))


def _name(dtype: Any) -> str:
    if dtype.name not in _TYPES:
        raise ValueError(f"Triton: no type for {dtype.name}; known: {', '.join(_TYPES)}")
    return _TYPES[dtype.name]


@lru_cache(64)
def _module(source: Path) -> Any:
    """The Python file, run once under a name of its own. Raises ValueError."""
    name = f"_gemm_triton_{source.stem}"
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise ValueError(f"{source} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(f"{source.name}: {type(error).__name__}: {error}") from None
    return module
