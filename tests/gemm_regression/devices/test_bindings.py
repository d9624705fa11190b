"""Launches without PyCUDA: what the driver is asked for, by one whose device memory is the host's."""

from __future__ import annotations

import ctypes
import importlib
import struct
import sys
from collections.abc import Iterator
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_regression.compiler import objects, tools
from gemm_regression.compiler.nvcc import compile_cubin
from gemm_regression.compiler.units import source_of
from gemm_regression.devices import DeviceError
from gemm_regression.model import F32, Config, Kernel
from tests.gemm_regression.compiler.test_sources import HEADER, KERNEL, single

MODULES = ("bindings", "bindings_compiler", "backend", "source_module")


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class Names:
    """Constants that are their names."""

    def __getattr__(self, name: str) -> str:
        return name


class Driver(ModuleType):
    """``asked``: calls without a meaning here; ``refuses``: what a call answers."""

    CUresult = Result
    CUdevice_attribute = CUfunction_attribute = Names()
    CU_MEMHOSTALLOC_DEVICEMAP = 2

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.held: dict[int, Any] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.refuses: dict[str, Result] = {}
        self.launched: list[tuple[Any, int]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*given: Any) -> tuple[Any, ...]:
            self.asked.append((name, *given))
            return (self.refuses.get(name, Result.CUDA_SUCCESS), 7)

        return call

    def CUlaunchConfig(self) -> Any:
        return SimpleNamespace()

    def cuGetErrorString(self, status: Result) -> tuple[Result, bytes]:
        return Result.CUDA_SUCCESS, status.name.lower().replace("_", " ").encode()

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if "cuMemAlloc" in self.refuses:
            return (self.refuses["cuMemAlloc"], 0)
        made = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(made)] = made
        return Result.CUDA_SUCCESS, ctypes.addressof(made)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        assert flags == self.CU_MEMHOSTALLOC_DEVICEMAP
        return self.cuMemAlloc(size)

    def cuMemFree(self, at: int) -> tuple[Any, ...]:
        del self.held[at]
        return (Result.CUDA_SUCCESS,)

    cuMemFreeHost = cuMemFree

    def cuMemcpyHtoD(self, to: int, source: int, size: int) -> tuple[Any, ...]:
        ctypes.memmove(to, source, size)
        return (Result.CUDA_SUCCESS,)

    cuMemcpyDtoH = cuMemcpyHtoD

    def cuMemsetD8(self, to: int, value: int, count: int) -> tuple[Any, ...]:
        ctypes.memset(to, value, count)
        return (Result.CUDA_SUCCESS,)

    def cuEventQuery(self, event: Any) -> tuple[Any, ...]:
        return (self.refuses.get("cuEventQuery", Result.CUDA_SUCCESS),)

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> tuple[Any, ...]:
        self.launched.append((config, parameters))
        self.seen = self.read(parameters)
        return (Result.CUDA_SUCCESS,)

    def read(self, parameters: int) -> Any:
        """What is at a launch's parameters, which live no longer than the call."""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made, package, bindings = Driver(), ModuleType("cuda"), ModuleType("cuda.bindings")
    bindings.driver = made  # type: ignore[attr-defined]
    package.bindings = bindings  # type: ignore[attr-defined]
    for module in (package, bindings, made):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for name in ("pycuda", "pycuda.driver", "pycuda.compiler"):  # as where it is not installed
        monkeypatch.delitem(sys.modules, name, raising=False)

    class NoPyCuda:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name.startswith("pycuda"):
                raise ModuleNotFoundError(f"No module named {name!r}", name="pycuda")

    monkeypatch.setattr(sys, "meta_path", [NoPyCuda(), *sys.meta_path])
    return made


@pytest.fixture
def modules(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    full = [f"gemm_regression.devices.cuda.{name}" for name in MODULES]
    for name in full:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**dict(zip(MODULES, map(importlib.import_module, full), strict=True)))
    package = sys.modules["gemm_regression.devices.cuda"]
    for name in MODULES:  # those that know this driver
        del sys.modules[f"{package.__name__}.{name}"]
        delattr(package, name)


@pytest.fixture
def cuda(modules: Any) -> Any:
    assert modules.backend.cuda is modules.bindings
    assert modules.backend.compiler is modules.bindings_compiler
    return modules.bindings


def test_a_broken_pycuda_is_not_passed_over(
    driver: Driver, modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there, and lacks a module of its own."""

    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name.startswith("pycuda"):
                raise ModuleNotFoundError("No module named 'pytools'", name="pytools")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ModuleNotFoundError, match="pytools"):
        importlib.reload(modules.backend)


def test_memory_goes_there_and_back(cuda: Any, driver: Driver) -> None:
    numbers = np.arange(6, dtype=np.float32).reshape(2, 3)
    there = cuda.to_device(numbers.T)  # in rows, whatever its strides
    assert cuda.from_device(there, (3, 2), np.float32).tolist() == numbers.T.tolist()
    cuda.memset_d8(there, 0xFF, 4)
    assert np.isnan(cuda.from_device(int(there), 1, np.float32)[0])
    with pytest.raises(ValueError, match="contiguous"):
        cuda.memcpy_dtoh(np.empty((4, 4), np.float32)[:, :2], there)
    del there
    assert not driver.held
    freed = cuda.mem_alloc(8)
    freed.free()
    freed.free()


def test_a_page_locked_flag_has_an_address_on_the_device(cuda: Any, driver: Driver) -> None:
    flag = cuda.pagelocked_zeros(1, np.uint32, mem_flags=cuda.host_alloc_flags.DEVICEMAP)
    assert (flag.tolist(), flag.base.get_device_pointer()) == ([0], 7)
    (at,) = driver.held
    flag[0] = 5
    assert ctypes.c_uint32.from_address(at).value == 5
    del flag
    assert not driver.held


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Result.CUDA_ERROR_OUT_OF_MEMORY, MemoryError),
        (Result.CUDA_ERROR_NO_BINARY_FOR_GPU, "LogicError"),
        (Result.CUDA_ERROR_ILLEGAL_ADDRESS, "Error"),
    ],
)
def test_a_refusal_says_what_and_why(cuda: Any, driver: Driver, status: Result, kind: Any) -> None:
    """An error of an earlier launch is not blamed on a binary that is loaded later."""
    driver.refuses["cuMemAlloc"] = status
    with pytest.raises(cuda.Error, match=r"^cuMemAlloc failed: cuda error") as refused:
        cuda.mem_alloc(8)
    assert isinstance(refused.value, getattr(cuda, kind) if isinstance(kind, str) else kind)
    assert isinstance(refused.value, cuda.LogicError) is (kind == "LogicError")


def test_an_event_that_has_not_come_is_no_error(cuda: Any, driver: Driver) -> None:
    event = cuda.Event()
    assert event.query()
    driver.refuses["cuEventQuery"] = Result.CUDA_ERROR_NOT_READY
    assert not event.query()
    driver.refuses["cuEventQuery"] = Result.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(cuda.Error, match="cuEventQuery failed"):
        event.query()


def test_parameters_lie_where_the_kernel_reads_them(cuda: Any, driver: Driver) -> None:
    """Each in its native alignment; and a tensor map, of 64 bytes' alignment, where its padding says."""

    def read(parameters: int) -> list[bytes]:
        at = (ctypes.c_uint64 * 4).from_address(parameters)
        return [ctypes.string_at(where, size) for where, size in zip(at, (4, 8, 128, 2), strict=True)]

    driver.read = read  # type: ignore[method-assign]
    function, stream = cuda.module_from_buffer(b"cubin").get_function("f"), cuda.Stream()
    call = function.prepare(["i", "P", "48x128s", "H"]).prepared_async_call
    call((2, 3), (32, 1, 1), stream, -1, 1 << 40, b"m" * 128, 0x3C00, shared_size=64)
    assert driver.seen == [struct.pack("i", -1), struct.pack("P", 1 << 40), b"m" * 128, b"\x00\x3c"]
    assert cuda.parameter_starts(["i", "P", "48x128s", "H"]) == [0, 8, 64, 192]
    assert cuda.parameter_starts("PiQ") == [0, 8, 16]
    ((config, _),) = driver.launched
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (2, 3, 1)
    assert (config.blockDimX, config.sharedMemBytes, config.hStream) == (32, 64, stream.handle)


def test_scalars_of_numpy_and_allocations_are_parameters(cuda: Any, driver: Driver) -> None:
    def read(parameters: int) -> tuple[Any, ...]:
        at = (ctypes.c_uint64 * 3).from_address(parameters)
        return tuple(
            struct.unpack(f, ctypes.string_at(a, n))[0] for f, a, n in zip("ifP", at, (4, 4, 8), strict=True)
        )

    driver.read = read  # type: ignore[method-assign]
    there = cuda.mem_alloc(8)
    function = cuda.module_from_buffer(b"cubin").get_function("f")
    function(np.int32(-3), np.float32(0.5), there, block=(8, 1, 1), grid=(1, 1))
    assert driver.seen == (-3, 0.5, int(there))
    assert driver.launched[0][0].hStream == 0
    driver.read = lambda parameters: parameters  # type: ignore[method-assign]
    function.prepare("").prepared_call((1, 1), (1, 1, 1))
    assert driver.seen == 0  # no parameters


@pytest.mark.compile
class TestSourceModule:
    def test_it_is_compiled_once(
        self, cuda: Any, modules: Any, driver: Driver, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The same machine code as that which is checked without a GPU, from a cache the second time."""
        kernel = single(tmp_path, HEADER + KERNEL)
        source = source_of(kernel, Config(), F32, "sm_90a")
        made = modules.source_module.compile_source(source)
        want = compile_cubin(kernel, Config(), F32, "sm_90a")
        assert made[1] == want.symbol
        assert objects.code(*made) == objects.code(want.cubin, want.symbol)
        monkeypatch.setattr(tools, "said", lambda *command, **more: pytest.fail("nvcc runs again"))
        modules.source_module.source_module(source)
        (loaded,) = (given for name, *given in driver.asked if name == "cuModuleLoadData")
        assert loaded == [made[0]]

    def test_an_error_has_the_lines_of_nvcc(self, cuda: Any, modules: Any, tmp_path: Any) -> None:
        kernel: Kernel = single(tmp_path, "wrong")
        with pytest.raises(DeviceError, match=r"does not compile(.|\n)*error:"):
            modules.source_module.compile_source(source_of(kernel, Config(), F32, "sm_90a"))
