"""What the worker uses of pycuda.driver, by the same names, on NVIDIA's cuda-bindings.

As in PyCUDA a call that the driver refuses raises Error, whose text says which and why; allocations and
modules live as long as they are held, and streams wait for the default stream."""

from __future__ import annotations

import builtins
import contextlib
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda.bindings import driver

from gemm_regression.model import Array

_ASYNCHRONOUS = 700  # from this CUresult on an earlier launch may have failed, not the call


class Error(Exception):
    """The driver refused a call."""


class LogicError(Error):
    """What was asked for is wrong: a binary of another architecture, say."""


class MemoryError(Error, builtins.MemoryError):
    """Not enough of it on the device."""


class CompileError(Error):
    """nvcc's."""

    def __init__(self, stdout: str, stderr: str) -> None:
        super().__init__("nvcc compilation failed")
        self.stdout, self.stderr = stdout, stderr


def _call(name: str, *given: Any) -> Any:
    """What a function of the driver returns. Raises Error."""
    status, *made = getattr(driver, name)(*given)
    if status != driver.CUresult.CUDA_SUCCESS:
        number, (_, text) = int(status), driver.cuGetErrorString(status)
        kind = Error if number >= _ASYNCHRONOUS else LogicError
        if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            kind = MemoryError
        raise kind(f"{name} failed: {text.decode() if text else number}")
    return made[0] if len(made) == 1 else tuple(made)


def _give_back(name: str, what: Any) -> None:
    """At the end of an object; its context may be gone, and the module `driver` with it."""
    with contextlib.suppress(Error, AttributeError, TypeError):
        _call(name, what)


def _named(kind: str, prefix: str, *names: str) -> Any:
    """Constants, by the names that PyCUDA has of them."""
    return SimpleNamespace(**{name: getattr(getattr(driver, kind), prefix + name) for name in names})


device_attribute = _named(
    "CUdevice_attribute",
    "CU_DEVICE_ATTRIBUTE_",
    *("L2_CACHE_SIZE", "MULTIPROCESSOR_COUNT", "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH"),
    *("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"),
)
function_attribute = _named(
    "CUfunction_attribute",
    "CU_FUNC_ATTRIBUTE_",
    *("MAX_DYNAMIC_SHARED_SIZE_BYTES", "NUM_REGS", "SHARED_SIZE_BYTES", "LOCAL_SIZE_BYTES"),
)
host_alloc_flags = SimpleNamespace(DEVICEMAP=driver.CU_MEMHOSTALLOC_DEVICEMAP)


def init() -> None:
    _call("cuInit", 0)


class Device:
    def __init__(self, number: int) -> None:
        self._device = _call("cuDeviceGet", number)

    def get_attribute(self, attribute: Any) -> int:
        return int(_call("cuDeviceGetAttribute", attribute, self._device))

    def compute_capability(self) -> tuple[int, int]:
        of = device_attribute
        major, minor = of.COMPUTE_CAPABILITY_MAJOR, of.COMPUTE_CAPABILITY_MINOR
        return self.get_attribute(major), self.get_attribute(minor)

    def retain_primary_context(self) -> Context:
        return Context(self._device)


class Context:
    """A device's primary one."""

    def __init__(self, device: Any) -> None:
        self._device, self._context = device, _call("cuDevicePrimaryCtxRetain", device)

    @staticmethod
    def get_device() -> Device:
        return Device(int(_call("cuCtxGetDevice")))

    def push(self) -> None:
        _call("cuCtxPushCurrent", self._context)

    def pop(self) -> None:
        """For good: it is given back."""
        _call("cuCtxPopCurrent")
        _call("cuDevicePrimaryCtxRelease", self._device)


# Memory


class DeviceAllocation:
    def __init__(self, size: int) -> None:
        self._at = 0
        self._at = int(_call("cuMemAlloc", size))

    def __int__(self) -> int:
        return self._at

    def free(self) -> None:
        at, self._at = self._at, 0
        if at:
            _call("cuMemFree", at)

    def __del__(self) -> None:
        if self._at:
            _give_back("cuMemFree", self._at)


class HostAllocation:
    """Page-locked, which NumPy takes for an array's base."""

    def __init__(self, size: int, type: np.dtype[Any], flags: int) -> None:
        self._at = int(_call("cuMemHostAlloc", size * type.itemsize, flags))
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": type.str,
            "data": (self._at, False),
        }

    def get_device_pointer(self) -> int:
        return int(_call("cuMemHostGetDevicePointer", self._at, 0))

    def __del__(self) -> None:
        if hasattr(self, "_at"):
            _give_back("cuMemFreeHost", self._at)


def pagelocked_zeros(size: int, dtype: Any, mem_flags: int) -> Array:
    """Its ``base`` has the device's pointer."""
    made = np.asarray(HostAllocation(size, np.dtype(dtype), mem_flags))
    made[:] = 0
    return made


mem_alloc = DeviceAllocation


def mem_get_info() -> tuple[int, int]:
    """Free bytes, and all."""
    free, total = _call("cuMemGetInfo")
    return int(free), int(total)


def memset_d8(to: Any, value: int, count: int) -> None:
    _call("cuMemsetD8", int(to), value, count)


def memset_d32_async(to: Any, value: int, count: int, stream: Stream) -> None:
    _call("cuMemsetD32Async", int(to), value, count, stream.handle)


def memcpy_htod(to: Any, what: Array) -> None:
    what = np.ascontiguousarray(what)
    _call("cuMemcpyHtoD", int(to), what.ctypes.data, what.nbytes)


def memcpy_dtoh(to: Array, address: Any) -> None:
    """Raises ValueError for an array with gaps."""
    if not to.flags.c_contiguous:
        raise ValueError("a copy from the device needs a contiguous array")
    _call("cuMemcpyDtoH", to.ctypes.data, int(address), to.nbytes)


def memcpy_dtod_async(to: Any, source: Any, size: int, stream: Stream) -> None:
    _call("cuMemcpyDtoDAsync", int(to), int(source), size, stream.handle)


def to_device(what: Array) -> DeviceAllocation:
    made = mem_alloc(max(1, what.nbytes))
    if what.nbytes:
        memcpy_htod(made, what)
    return made


def from_device(address: Any, shape: Any, dtype: Any) -> Array:
    made = np.empty(shape, dtype)
    memcpy_dtoh(made, address)
    return made


# Order and time


class Stream:
    def __init__(self) -> None:
        self._stream = _call("cuStreamCreate", 0)
        self.handle = int(self._stream)

    def synchronize(self) -> None:
        _call("cuStreamSynchronize", self.handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            _give_back("cuStreamDestroy", self.handle)


class Event:
    def __init__(self) -> None:
        self._event = _call("cuEventCreate", 0)

    def record(self, stream: Stream) -> None:
        _call("cuEventRecord", self._event, stream.handle)

    def query(self) -> bool:
        """Whether it has come. Raises Error."""
        (status,) = driver.cuEventQuery(self._event)
        if status == driver.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _call("cuEventQuery", self._event)
        return True

    def synchronize(self) -> None:
        _call("cuEventSynchronize", self._event)

    def time_till(self, end: Event) -> float:
        """In ms."""
        return float(_call("cuEventElapsedTime", self._event, end._event))

    def __del__(self) -> None:
        if hasattr(self, "_event"):
            _give_back("cuEventDestroy", self._event)


# Modules


class Module:
    def __init__(self, cubin: bytes) -> None:
        self._module = _call("cuModuleLoadData", cubin)

    def get_function(self, name: str) -> Function:
        return Function(self, _call("cuModuleGetFunction", self._module, name.encode()))

    def __del__(self) -> None:
        if hasattr(self, "_module"):
            _give_back("cuModuleUnload", self._module)


module_from_buffer = Module


class Function:
    """Of a ``module``, which lives as long; ``prepare`` says of what kinds its parameters are."""

    def __init__(self, module: Module, function: Any) -> None:
        self._module, self._function = module, function
        self._format, self._starts = struct.Struct(""), np.empty(0, np.uint64)

    def _attribute(self, attribute: Any) -> int:
        return int(_call("cuFuncGetAttribute", attribute, self._function))

    @property
    def num_regs(self) -> int:
        return self._attribute(function_attribute.NUM_REGS)

    @property
    def shared_size_bytes(self) -> int:
        return self._attribute(function_attribute.SHARED_SIZE_BYTES)

    @property
    def local_size_bytes(self) -> int:
        return self._attribute(function_attribute.LOCAL_SIZE_BYTES)

    def set_attribute(self, attribute: Any, value: int) -> None:
        _call("cuFuncSetAttribute", self._function, attribute, value)

    def prepare(self, format: str | Sequence[str]) -> Function:
        """``format``: struct's letters, a parameter each; one may have pad bytes before it."""
        self._format = struct.Struct("".join(format))
        self._starts = np.array(parameter_starts(format), np.uint64)
        return self

    def prepared_async_call(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        stream: Stream | None,
        *given: Any,
        shared_size: int = 0,
    ) -> None:
        held = np.frombuffer(bytearray(self._format.pack(*given)) or bytearray(1), np.uint8)
        at = self._starts + np.uint64(held.ctypes.data)  # the driver reads them before it returns
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = (*block, 1, 1)[:3]
        config.sharedMemBytes, config.hStream = shared_size, stream.handle if stream else 0
        _call("cuLaunchKernelEx", config, self._function, at.ctypes.data if at.size else 0, 0)

    def prepared_call(self, grid: Sequence[int], block: Sequence[int], *given: Any) -> None:
        """On the default stream."""
        self.prepared_async_call(grid, block, None, *given)

    def __call__(self, *given: Any, block: Sequence[int], grid: Sequence[int]) -> None:
        """With scalars of NumPy and allocations, on the default stream."""
        letters = [g.dtype.char if isinstance(g, np.generic) else "P" for g in given]
        values = [g.item() if isinstance(g, np.generic) else int(g) for g in given]
        self.prepare(letters).prepared_call(grid, block, *values)


def parameter_starts(format: str | Sequence[str]) -> list[int]:
    """Where each parameter lies in what struct packs, in bytes, each in its native alignment."""
    starts, before = list[int](), ""
    for letter in format:
        before += letter
        own = letter.rpartition("x")[2]
        starts.append(struct.calcsize(before) - struct.calcsize(own))
    return starts
