"""TileLang as the frontend of a kernel: PTX of the CUDA C++ that it makes of a function, without a GPU.

That CUDA C++ does not name the lines of Python: findings name its own lines, and the cache keeps it (folder
``tilelang``).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from gemm_regression.compiler import tools
from gemm_regression.compiler.frontend import PythonKernel, Value, block_shape, one_entry
from gemm_regression.files import write_whole
from gemm_regression.model import BlockShape, Config, DType, TensorMap
from ptxsan import PtxError
from ptxsan.native import cache_dir
from ptxsan.nvcc import compile_file

_SWIZZLES = (0, 32, 64, 128)  # bytes, as CUtensorMapSwizzle numbers them


@dataclass(frozen=True)
class TileLang(PythonKernel):
    """Compiles the one kernel of a function of a Python file that returns a ``T.prim_func``, or that is under
    ``@tilelang.jit``. The entry in the PTX has that function's name. Its parameters are those of the CUDA
    C++, which depend on the architecture: on one with TMA tensors may be tensor maps, ``mapA``.

    Attributes:
        types: the values of the function's parameters that are no constants, such as ``{dtype} {output}``;
            the last ones may be left to their defaults.
        constants: of its other parameters.
        sizes: those of its parameters, or of its ``T.const``, that the launch is given, such as ``M N K``.
    """

    sizes: str = ""
    compiler: ClassVar[str] = "TileLang"
    names: ClassVar[dict[str, str]] = {
        name: name for name in ("float32", "float16", "bfloat16", "float64", "int8", "int32")
    }

    def ptx(self, source: Path, config: Config, dtype: DType, arch: str) -> str:
        """Raises ValueError, with TileLang's or nvcc's own words where it does not compile."""
        made = _lowered(self, source, config, dtype, arch)
        return _compiled(made.cuda, made.flags, self.function, source.stem, arch)

    def shape(
        self, source: Path, tile: tuple[Value, Value], arch: str = "sm_90a"
    ) -> Callable[[Config, DType], BlockShape]:
        """What a block computes, for a declaration: ``tile`` is rows and columns of C; the threads and the
        shared memory are TileLang's."""

        def of(config: Config, dtype: DType) -> BlockShape:
            made = _lowered(self, source, config, dtype, arch)
            static = _static(self.ptx(source, config, dtype, arch))
            return block_shape(made.threads, tile, made.shared, config, static)

        return of

    def maps(self, source: Path, arch: str = "sm_90a") -> Callable[[Config, DType], Mapping[str, TensorMap]]:
        """Its tensor maps, for a declaration."""
        return lambda config, dtype: _lowered(self, source, config, dtype, arch).maps


class _Lowered(NamedTuple):
    cuda: str
    threads: tuple[int, int, int]
    shared: int
    maps: dict[str, TensorMap]
    flags: tuple[str, ...]  # of nvcc


@lru_cache(1024)
def _lowered(how: TileLang, source: Path, config: Config, dtype: DType, arch: str) -> _Lowered:
    try:
        import tilelang
    except ImportError as error:
        raise ValueError(f"TileLang cannot be imported ({error}): pip install tilelang") from None
    sizes = {name: tilelang.language.dynamic(name) for name in how.sizes.split()}

    def parameters(function: Any) -> list[str]:
        signature = getattr(function, "signature", None) or inspect.signature(function)
        tensors = getattr(getattr(function, "func", None), "tensor_args", {})
        known = {*tensors, *sizes, *(name for name, _ in how.constants)}
        names = [name for name in signature.parameters if name not in known]
        rest = names[len(how.types.split()) :]
        defaults = all(signature.parameters[name].default is not inspect.Parameter.empty for name in rest)
        return names[: -len(rest)] if rest and defaults else names

    function, constants, types = how.given(source, config, dtype, parameters)
    target = {"kind": "cuda", "arch": arch}
    passes, flags = (getattr(function, said, None) for said in ("pass_configs", "compile_flags"))
    passes = {getattr(key, "value", key): value for key, value in (passes or {}).items()}
    context = tilelang.tvm.transform.PassContext
    with how.says(), context(opt_level=3, config=passes), tilelang.tvm.target.Target(target):
        # A call of what is under @tilelang.jit would launch it.
        made = getattr(function, "get_tir", function)(**types, **constants, **sizes)
        made = tilelang.lower(made, target=target)
        kernels = [of.attrs for _, of in made.device_mod.functions.items()]
        if len(kernels) != 1:
            raise ValueError(f"{how.function} has {len(kernels)} kernels; only one can be judged")
        x, y, z = (int(kernels[0]["thread_extent"][f"threadIdx.{axis}"]) for axis in "xyz")
        shared = int(kernels[0].get("dyn_shared_memory_buf", 0))
        maps = dict[str, TensorMap]()
        for _, host in made.host_mod.functions.items():
            for given in (host.attrs or {}).get("tma_descriptor_args", {}).values():
                maps[str(given[4].name)] = _map(given)
        flags = (flags,) if isinstance(flags, str) else tuple(flags or ())
        return _Lowered(str(made.kernel_source), (x, y, z), shared, maps, flags)


def _map(given: Any) -> TensorMap:
    """Of the arguments for cuTensorMapEncodeTiled, which follow two of TileLang's: element type, rank,
    address, extents, strides, box and element strides, interleave, swizzle. Raises ValueError."""
    if int(given[3]) != 2:
        raise ValueError(f"the tensor map of {given[4].name} has {given[3]} axes; only 2 can be declared")
    columns, rows = int(given[9]), int(given[10])
    return TensorMap((rows, columns), _SWIZZLES[int(given[14])])


@lru_cache(1024)
def _compiled(cuda: str, flags: tuple[str, ...], function: str, stem: str, arch: str) -> str:
    import tilelang

    home = Path(tilelang.__file__).parent
    try:
        of = [tilelang.__version__, tools.find_nvcc().version, tools.flags(), arch, flags, function, cuda]
    except tools.ToolchainError as error:
        raise ValueError(str(error)) from None
    entry = tools.cache_entry(["tilelang", *of])
    digest = hashlib.sha256(f"{tilelang.__version__} {cuda}".encode()).hexdigest()[:16]
    file = cache_dir() / "tilelang" / digest / f"{stem}.cu"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, cuda)  # where findings name its lines
    if kept := tools.load_entry(entry):
        return kept[0].decode()
    include = [f"-I{home / folder}" for folder in ("src", "3rdparty/cutlass/include")]
    try:
        ptx = one_entry(compile_file(file, arch, flags=[*include, *flags]), function)
    except PtxError as error:
        raise ValueError(str(error)) from None
    tools.store_entry(entry, ptx.encode(), "")
    return ptx


def _static(ptx: str) -> int:
    """Bytes of static shared memory, up to where the dynamic begins."""
    end = 0
    for align, size in re.findall(r"^\s*\.shared \.align (\d+) \.b8 \S+\[(\d+)\];", ptx, re.MULTILINE):
        end = -(-end // int(align)) * int(align) + int(size)
    dynamic = re.search(r"\.extern \.shared \.align (\d+)", ptx)
    return -(-end // int(dynamic[1])) * int(dynamic[1]) if dynamic else end
