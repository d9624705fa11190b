"""The CuTe DSL as the frontend of a kernel: PTX of what a host function launches, without a GPU.

A kernel takes a tensor as a struct by value: its address, the sizes that are not known when it is compiled
(int), and the strides that are not (long long).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, ClassVar, NamedTuple

from gemm_regression.compiler.frontend import PythonKernel, Value, Word, block_shape, one_entry, word_of
from gemm_regression.model import BlockShape, Config, DType

_THREADS = re.compile(r"\.reqntid (\d+)(?:, (\d+), (\d+))?")
# Where the compiled host code puts the shared memory of a launch: the third member of cudaLaunchConfig_t.
_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
_SHARED = re.compile(
    rf"(%\w+) = llvm\.getelementptr \S+\[0, 2\] : \S+ -> !llvm\.ptr, {_CONFIG}\s*llvm\.store (%\w+), \1 : i64"
)
_ALONE = Lock()  # the DSL compiles one function at a time


@dataclass(frozen=True)
class Cute(PythonKernel):
    """Compiles the one kernel that a host function of a Python file launches. The entry in the PTX has the
    host function's name.

    Attributes:
        types: of the host function's parameters, tensors with their layouts as CuTe writes them:
            ``A:{dtype}(M,K):(lda,1) C:{output}(M,N):(ldc%8,1) alpha:Float32``. With ``%8`` a stride is
            divided by 8, which a declaration has to require.
        constants: of its ``cutlass.Constexpr`` parameters.
        align: bytes that divide the address of each tensor, which a declaration has to require; 0: those of
            an element.
    """

    align: int = 0
    compiler: ClassVar[str] = "CuTe DSL"
    names: ClassVar[dict[str, str]] = {
        "float32": "Float32",
        "float16": "Float16",
        "bfloat16": "BFloat16",
        "float64": "Float64",
        "int8": "Int8",
        "int32": "Int32",
    }

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with the DSL's own words where it does not compile."""
        return _compiled(self, source, config, dtype, arch).ptx

    @property
    def parameters(self) -> str:
        """Those of the kernel, where the host function hands it what it was given, in this order. Raises
        ValueError."""
        return ", ".join(_parameter(_word(text)) for text in self.types.split())

    def shape(
        self, source: Path, tile: tuple[Value, Value], arch: str = "sm_90a"
    ) -> Callable[[Config, DType], BlockShape]:
        """What a block computes, for a declaration: ``tile`` is rows and columns of C; the threads and the
        shared memory are those of the launch in the host function."""

        def of(config: Config, dtype: DType) -> BlockShape:
            made = _compiled(self, source, config, dtype, arch)
            return block_shape(made.threads, tile, made.shared, config)

        return of


class _Made(NamedTuple):
    ptx: str
    threads: tuple[int, int, int]
    shared: int


def _parameter(word: Word) -> str:
    """As a declaration writes what a kernel takes for it."""
    if not word.shape:
        return word.number
    sizes = [f"int {size}" for size in word.shape if not size.isdigit()]
    strides = [f"long long {stride.split('%')[0]}" for stride in word.strides if not stride.isdigit()]
    return f"{{{', '.join([word.name, *sizes, *strides])}}}"


def _word(text: str) -> Word:
    """Raises ValueError."""
    word = word_of(text)
    if not word.name or len(word.shape) != len(word.strides):
        raise ValueError(f"{text!r} is no tensor or number such as A:{{dtype}}(M,K):(lda,1) or alpha:Float32")
    return word


def _parameters(function: Any) -> list[str]:
    """The names of those of a host function, without ``stream`` and those that have a default."""
    found = inspect.signature(function).parameters.values()
    return [one.name for one in found if one.name != "stream" and one.default is one.empty]


@lru_cache(1024)
def _compiled(how: Cute, source: Path, config: Config, dtype: DType, arch: str) -> _Made:
    try:
        import cutlass
        from cutlass import cute
        from cutlass.cute.runtime import make_fake_stream, make_fake_tensor
    except ImportError as error:
        raise ValueError(
            f"The CuTe DSL cannot be imported ({error}): pip install nvidia-cutlass-dsl"
        ) from None

    def argument(word: str) -> Any:
        """What stands for it while the function is compiled."""
        _, element, shape, strides = _word(word)
        kind = getattr(cutlass, element, None)
        if kind is None:
            raise ValueError(f"CuTe DSL: no type {element}")
        if not shape:
            return kind(0)
        sizes = [int(size) if size.isdigit() else cute.sym_int() for size in shape]
        steps = [
            int(step) if step.isdigit() else cute.sym_int64(int(step.partition("%")[2] or 1))
            for step in strides
        ]
        return make_fake_tensor(
            kind, tuple(sizes), stride=tuple(steps), assumed_align=how.align or kind.width // 8
        )

    with _ALONE, TemporaryDirectory(prefix="gemm-") as folder:
        function, constants, types = how.given(source, config, dtype, _parameters)
        arguments = [argument(word) for word in types.values()]
        named: dict[str, Any] = {**constants}
        if "stream" in inspect.signature(function).parameters:
            named["stream"] = make_fake_stream()
        options = f"--gpu-arch {arch} --keep-ptx --generate-line-info --dump-dir {folder}"
        with how.says():
            made = cute.compile(function, *arguments, **named, options=options)
            ptx, host = str(made.__ptx__), str(made.ir_module)
    return _read(how.function, ptx, host)


def _read(function: str, ptx: str, host: str) -> _Made:
    """Of the PTX and the compiled host code. Raises ValueError."""
    named, threads = one_entry(ptx, function), _THREADS.search(ptx)
    assert threads
    x, y, z = (int(size or 1) for size in threads.groups())
    stored = _SHARED.search(host)
    known = (
        re.findall(rf"{stored[2]} = llvm\.mlir\.constant\((\d+) : i64\)", host[: stored.start()])
        if stored
        else []
    )
    if not known:
        raise ValueError(f"CuTe DSL: the shared memory of {function} is not known when it is compiled")
    return _Made(named, (x, y, z), int(known[-1]))
