"""From a build to something that can be launched: PyCUDA's SourceModule, and the library with the same
interface; the arguments of a launch as PyCUDA packs them, tensor maps included."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pycuda.compiler
import pycuda.driver as cuda

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import compile_error
from gemm_regression.compiler.objects import symbol_of
from gemm_regression.compiler.sources import listed_in, refuse_others
from gemm_regression.compiler.tools import CompileError, ToolchainError, alone, cache_dir
from gemm_regression.devices import DeviceError
from gemm_regression.devices.cuda.library import Library
from gemm_regression.devices.cuda.protocol import Build
from gemm_regression.devices.work import Work
from gemm_regression.model import Argument, DType, Resources, Storage

# struct's letters for the kinds of arguments, and their bytes; a half is handed over by its bits.
_PACKED = {
    "i32": ("i", 4),
    "i64": ("q", 8),
    "f32": ("f", 4),
    "f64": ("d", 8),
    "f16": ("H", 2),
    "bf16": ("H", 2),
    "p64": ("P", 8),
    "bytes[128]": ("128s", 128),
}
_ELEMENTS = {
    "float32": "FLOAT32",
    "float64": "FLOAT64",
    "float16": "FLOAT16",
    "bfloat16": "BFLOAT16",
    "int8": "UINT8",
    "int16": "UINT16",
    "int32": "INT32",
}


def pack(
    work: Work, at: Mapping[str, int], offsets: Callable[[], Sequence[int]]
) -> tuple[list[str], list[Any]]:
    """The formats of the parameters, for PyCUDA's ``prepare``, and their values. ``offsets`` gives where each
    lies, in bytes; asked only where struct's own alignment does not tell, for tensor maps.

    Raises DeviceError for a matrix that no tensor map can describe.
    """
    values = [_value(argument, work, at) for argument in work.arguments]
    if not any(argument.map for argument in work.arguments):
        return [_PACKED[argument.kind][0] for argument in work.arguments], values
    formats, end = [], 0
    for argument, start in zip(work.arguments, offsets(), strict=True):
        letter, size = _PACKED[argument.kind]
        formats.append(f"{start - end}x{letter}" if start > end else letter)
        end = start + size
    return formats, values


def _value(argument: Argument, work: Work, at: Mapping[str, int]) -> Any:
    if argument.map:
        return _tensor_map(argument, work.storages[argument.buffer], at[argument.buffer])
    if argument.kind == "p64":
        return at[argument.buffer]
    if argument.kind == "f16":
        return int(np.float16(argument.value).view(np.uint16))
    if argument.kind == "bf16":
        return int(ml_dtypes.bfloat16(argument.value).view(np.uint16))
    return argument.value


def _tensor_map(argument: Argument, storage: Storage, address: int) -> bytes:
    """The 128 bytes of a CUtensorMap over the rows of storage (the driver's cuTensorMapEncodeTiled)."""
    from cuda.bindings import driver

    assert argument.map is not None
    remedy = "declare what it takes: constraints=Constraints(multiples=...)"
    try:
        extents, strides, box = argument.map.dimensions(storage)
    except ValueError as error:
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer}: {error}; {remedy}") from None
    swizzles = driver.CUtensorMapSwizzle
    swizzle = {
        0: swizzles.CU_TENSOR_MAP_SWIZZLE_NONE,
        32: swizzles.CU_TENSOR_MAP_SWIZZLE_32B,
        64: swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        128: swizzles.CU_TENSOR_MAP_SWIZZLE_128B,
    }
    if storage.dtype.name not in _ELEMENTS:
        text = f"no tensor map of {argument.buffer}: its elements are {storage.dtype.name}"
        raise DeviceError("LAUNCH_FAILED", f"{text}, and known are {', '.join(_ELEMENTS)}")
    element = "TFLOAT32" if argument.map.tf32 else _ELEMENTS[storage.dtype.name]
    status, made = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        len(extents),
        address,
        [driver.cuuint64_t(n) for n in extents],
        [driver.cuuint64_t(n) for n in strides],
        [driver.cuuint32_t(n) for n in box],
        [driver.cuuint32_t(1)] * len(extents),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle[argument.map.swizzle],
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        text = f"leading dimension {storage.ld} and boxes of {argument.map.box} ({status.name})"
        raise DeviceError("LAUNCH_FAILED", f"no tensor map of {argument.buffer} with {text}; {remedy}")
    return np.array([int(word) for word in made.opaque], np.uint64).tobytes()


_READ: set[Path] = set()  # lists of which this process knows that all in them may be read

for _name in os.environ.keys() - tools.environment().keys():
    del os.environ[_name]  # PyCUDA gives nvcc those of this process


class Loaded:
    """A kernel in this context, ready to be launched for any problem. Raises DeviceError if its build does
    not compile, or has no such entry."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._cubin, self._symbol = image_of(build)
        try:
            module = cuda.module_from_buffer(self._cubin) if build.cubin else _source_module(build)
            self.function = module.get_function(self._symbol)
        except cuda.LogicError as error:  # of another architecture, say
            raise DeviceError("LAUNCH_FAILED", f"{build.name}: its binary does not load: {error}") from None
        self._dynamic = 0

    def another(self) -> Loaded:
        """The same binary, loaded once more: its code lies elsewhere."""
        return Loaded(replace(self._build, cubin=self._cubin, entry=self._symbol))

    @cached_property
    def resources(self) -> Resources:
        f = self.function
        return Resources(
            registers=int(f.num_regs),
            shared_bytes=int(f.shared_size_bytes) + self._dynamic,
            local_bytes=int(f.local_size_bytes),
            cubin_sha256=hashlib.sha256(self._cubin).hexdigest(),
        )

    @cached_property
    def _offsets(self) -> tuple[int, ...]:
        return objects.parameter_offsets(self._cubin, self._symbol)

    def bind(self, work: Work, at: Mapping[str, int]) -> Callable[[Any], None]:
        """A function that enqueues the launch on a stream, with the operands at these addresses."""
        launch = work.launch
        if launch.dynamic_shared != self._dynamic:
            self._dynamic = launch.dynamic_shared
            self.function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, self._dynamic)
        format, args = pack(work, at, lambda: self._offsets)
        self.function.prepare(format)
        call, shared = self.function.prepared_async_call, launch.dynamic_shared
        grid, block = launch.grid, launch.block
        return lambda stream: call(grid, block, stream, *args, shared_size=shared)


def _list(build: Build) -> Path:
    """Where nvcc lists the files that it reads. The name is among the options by which PyCUDA finds a cubin
    again; it has what PyCUDA leaves out, the options in variables."""
    of = (build.source, build.options, build.include, build.arch, tools.flags())
    return cache_dir() / "pycuda" / f"{hashlib.sha256(repr(of).encode()).hexdigest()}.d"


def _arguments(build: Build) -> dict[str, Any]:
    listed = _list(build)
    listed.parent.mkdir(parents=True, exist_ok=True)
    return {
        "nvcc": str(tools.find_nvcc().path),
        "options": [*build.options, *listed_in(str(listed))],
        "include_dirs": list(build.include),
        "no_extern_c": True,
        "arch": build.arch,
        "cache_dir": str(listed.parent),
    }


def image_of(build: Build) -> tuple[bytes, str]:
    """The cubin that is launched, and the symbol of its entry. Needs no context. Raises DeviceError
    COMPILE_ERROR."""
    if build.cubin:
        return build.cubin, build.entry
    try:
        cubin = compile_cached(build)
        return cubin, symbol_of(build.entry, objects.symbols(cubin), build.name)
    except (CompileError, ToolchainError) as error:
        raise DeviceError("COMPILE_ERROR", str(error)) from None


def compile_cached(build: Build) -> bytes:
    """The cubin, from SourceModule's own disk cache or the compiler. Needs no context.

    Raises DeviceError COMPILE_ERROR with the compiler's own lines, or for a file that may not be read.
    """
    if build.failure:
        raise DeviceError("COMPILE_ERROR", f"{build.name}: {build.failure}")
    listed = _list(build)
    try:
        with alone(listed):
            cubin: bytes = pycuda.compiler.compile(build.source, **_arguments(build))
            if not (_is_whole(cubin) and listed.is_file()):
                cubin = pycuda.compiler.compile(build.source, **{**_arguments(build), "cache_dir": False})
            if listed not in _READ:
                refuse_others(build.name, listed, build.own, tools.find_nvcc())
                _READ.add(listed)
    except cuda.CompileError as error:
        raise DeviceError("COMPILE_ERROR", _compiler_lines(build, error)) from None
    except (CompileError, ToolchainError) as error:
        raise DeviceError("COMPILE_ERROR", str(error)) from None
    return cubin


def _is_whole(cubin: bytes) -> bool:
    """PyCUDA writes its cache in place: a process killed while writing leaves half a binary behind."""
    try:
        objects.symbols(cubin)
    except objects.DAMAGE:
        return False
    return True


def _compiler_lines(build: Build, error: Any) -> str:
    """The compiler's messages, with the file names of the kernel's author."""
    said = [text for text in (error.stdout, error.stderr) if text] or [str(error)]
    text = "\n".join(t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in said)
    return str(compile_error(f"{build.name}: {build.file}", build.entry, text))


def _source_module(build: Build) -> Any:
    try:
        return pycuda.compiler.SourceModule(build.source, **_arguments(build))
    except cuda.CompileError as error:
        raise DeviceError("COMPILE_ERROR", _compiler_lines(build, error)) from None
    except cuda.Error:
        # Half a binary in the cache, as above.
        return pycuda.compiler.SourceModule(build.source, **{**_arguments(build), "cache_dir": False})


def compile_all(builds: Sequence[Build]) -> dict[str, str]:
    """Compiles in parallel over the machine's cores; returns the error of each build that failed."""

    def one(build: Build) -> str:
        try:
            compile_cached(build)
        except DeviceError as error:
            return str(error)
        return ""

    work = [b for b in builds if b.source is not None and not b.cubin]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {b.name: error for b, error in zip(work, pool.map(one, work), strict=True) if error}


def _probe(arch: str, file: str, entry: str) -> Build:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return Build(file.removesuffix(".cu"), "", text, entry, ("-std=c++17", "-O3"), arch, file)


def load_probe(arch: str, file: str = "probe.cu", entry: str = "gate") -> Any:
    """The harness's own device code as a module: probe.cu, or another file beside it."""
    with warnings.catch_warnings():  # ptxas tells of each wgmma.fence that it adds
        warnings.simplefilter("ignore")
        return _source_module(_probe(arch, file, entry))


def compile_probe(arch: str, file: str, entry: str) -> None:
    """Into the cache, ahead of `load_probe`, which says what is wrong."""
    with warnings.catch_warnings(), contextlib.suppress(DeviceError):
        warnings.simplefilter("ignore")
        compile_cached(_probe(arch, file, entry))


class Kernels:
    """By build. Raises DeviceError for what cannot be compiled or loaded."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Build, str], Loaded] = {}
        self._libraries: dict[DType, Library] = {}

    def get(self, build: Build, dtype: DType, slot: str = "") -> Loaded | Library:
        """What to launch: a kernel, or the library."""
        return self.library(dtype) if build.source is None else self.load(build, slot)

    def library(self, dtype: DType) -> Library:
        if dtype not in self._libraries:
            self._libraries[dtype] = Library(dtype)
        return self._libraries[dtype]

    def load(self, build: Build, slot: str = "") -> Loaded:
        """The build in this context; in another slot, a copy of its own."""
        if (build, slot) not in self._loaded:
            self._loaded[build, slot] = Loaded(build)
        return self._loaded[build, slot]
