"""The Device protocol: where a case runs."""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from gemm_regression.hints import install
from gemm_regression.model import Array, Case, Finding, Resources
from gemm_regression.timing.plan import Measurement, PairPlan, Plan
from gemm_regression.timing.samples import PairedSamples

if TYPE_CHECKING:
    from gemm_regression.compiler.units import ModuleSource
    from gemm_regression.devices.cuda.client import CudaDevice
    from gemm_regression.devices.cuda.environment import GpuInfo
    from gemm_regression.devices.emulated import EmulatedDevice
    from gemm_regression.devices.work import StoredBinary

# Buffers as the kernel sees them, by operand: each of ``Storage.shape``, including padding.
Inputs = Mapping[str, Array]


@dataclass(frozen=True)
class Outputs:
    """``result``: the output buffer after the launch, of ``Storage.shape``; ``violations``: what the device
    detected; ``complete``: False if a violation stopped the launch, so that ``result`` is meaningless;
    ``notes``: what is no error: undefined in CUDA C++ but not in PTX, or undefined and without effect;
    ``sources``: files that violations may name beside the kernel's own, such as what a frontend made."""

    result: Array
    violations: tuple[Finding, ...] = ()
    complete: bool = True
    notes: tuple[Finding, ...] = ()
    sources: tuple[Path, ...] = ()


class DeviceError(Exception):
    """A case did not run to completion. ``code`` is stable (ILLEGAL_ADDRESS, HANG, OUT_OF_MEMORY,
    COMPILE_ERROR, SIGNATURE, LAUNCH_FAILED, ELEMENT_TYPE, WORKER_DIED, NO_START), the message one line with
    CUDA's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Device(Protocol):
    """Runs a case on its inputs. Raises DeviceError; a device that raised stays usable."""

    name: str

    def run(self, case: Case, inputs: Inputs) -> Outputs: ...

    def close(self) -> None: ...


@runtime_checkable
class BatchDevice(Protocol):
    """A device that can run several launches of one variant together, which differ only in data, alpha and
    beta.

    Each launch costs it much, and two of the same input never differ: it is given fewer of them.
    """

    def run_all(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]: ...


@runtime_checkable
class SeriesDevice(Protocol):
    """A device in another process, which is asked once for several launches of one variant."""

    def run_series(self, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]: ...


def run_all(device: Device, cases: Sequence[Case], inputs: Sequence[Inputs]) -> list[Outputs]:
    """The outputs of several launches of one variant, run together if the device can."""
    if isinstance(device, BatchDevice):
        return device.run_all(cases, inputs)
    if isinstance(device, SeriesDevice):
        return device.run_series(cases, inputs)
    return [device.run(case, given) for case, given in zip(cases, inputs, strict=True)]


Step = Callable[[str], None]


class Restartable(Protocol):
    """A device whose timings run in a process of its own."""

    def restart(self) -> None:
        """The next timing runs in a new process."""

    def ahead(self) -> None:
        """Before a `restart` that is likely: begins with the new process, as far as the GPU does not notice.
        Again: nothing more."""


class TimingDevice(Restartable, Protocol):
    """A device with a clock. Raises DeviceError."""

    def time(self, case: Case, plan: Plan) -> Measurement: ...


class PairingDevice(Restartable, Protocol):
    """A device that times two builds alternately, each of a case or a binary that is there. Raises
    DeviceError; its code begins with BASE_ if the base's side failed."""

    def pair(self, base: Case | StoredBinary, case: Case | StoredBinary, plan: PairPlan) -> PairedSamples: ...

    def binary(self, case: Case) -> StoredBinary | None:
        """What is timed of a case, without the GPU; None for a library."""


class Gpu(TimingDevice, PairingDevice, Protocol):
    """An open GPU: ``info`` is from NVML."""

    info: GpuInfo

    def start(self) -> None:
        """The process that uses the GPU, ahead of the first question."""

    def prepare(self, cases: Iterable[Case], step: Step = ...) -> dict[str, str]:
        """Compiles; the errors by variant. ``step`` is called with the name of each variant."""

    def prepare_inputs(self, cases: Iterable[Case]) -> None:
        """Makes ahead what cases are timed on, and the code that `roofs` needs, as far as the GPU does not
        notice."""

    def resources(self, case: Case) -> Resources | None:
        """What the binary of a case needs; None for a library."""

    def facts(self) -> dict[str, Any]:
        """What the worker knows of libraries, as ``machine_info`` tells it."""

    def roofs(self) -> dict[str, Any]:
        """What it can do at most: GFLOPS by dtype, GB/s by memory, and latencies in cycles."""

    def health(self) -> dict[str, Any]:
        """Whether it is as it should be: the rates of its `roofs`; the power limit and its default in W, ECC,
        MIG; and ``others``, as `busy` says."""

    def busy(self) -> list[str]:
        """Other processes that use it, as text."""

    def abandon(self) -> None:
        """From another thread: whatever it does, and whatever it is asked later, fails at once."""

    def close(self) -> None: ...


class NoDevice(Exception):
    """There is no device; the message says in one line what is missing."""


def _environment() -> Any:
    """The module that asks NVML. Raises NoDevice without its package."""
    if importlib.util.find_spec("pynvml") is None:
        raise NoDevice(f"nvidia-ml-py is not installed; install it with `{install('gpu')}`")
    from gemm_regression.devices.cuda import environment

    return environment


def has_gpu() -> bool:
    """Whether the driver shows a GPU; opens nothing."""
    try:
        _environment().NvmlGpu()
    except NoDevice:
        return False
    return True


def count_gpus() -> int:
    """How many GPUs this process sees. Raises NoDevice."""
    return int(_environment().count())


def open_cuda(time_limit: float, index: int | None = None, times: bool = True) -> CudaDevice:
    """The cuda device: the first visible GPU, or number ``index`` of them, which its worker then sees alone.
    ``times``: whether anything is to be timed. Raises NoDevice without a GPU, its packages, a compiler
    or a suitable driver."""
    environment = _environment()
    from gemm_regression.compiler.tools import ToolchainError, find_nvcc
    from gemm_regression.devices.cuda.client import CudaDevice

    device = CudaDevice(time_limit, index, times)
    for module, package in (("cuda", "cuda-bindings"), ("nvmath", "nvmath-python")):
        if importlib.util.find_spec(module) is None:
            raise NoDevice(
                f"there is a GPU, but {package} is not installed; install it with `{install('gpu')}`"
            )
    try:
        refusal = environment.driver_refusal(device.info.cuda_driver, find_nvcc().version)
    except ToolchainError as error:
        raise NoDevice(str(error)) from None
    if refusal:
        raise NoDevice(refusal)
    return device


def sources_of(cases: Sequence[Case], capability: tuple[int, int]) -> list[ModuleSource]:
    """What a worker compiles for these cases; what is wrong with one says so when it is run."""
    from gemm_regression.devices.cuda.client import source_for

    sources: list[ModuleSource] = []
    for case in {case.variant: case for case in cases if case.kernel.by_nvcc}.values():
        with contextlib.suppress(DeviceError):
            sources.append(source_for(case, capability))
    return sources


def compile_ahead(cases: Sequence[Case], capability: tuple[int, int]) -> None:
    """Compiles into this machine's caches what the cuda device will load, over all cores and without a GPU,
    in a process of its own, which alone imports what launches. What does not compile says so when run."""
    if importlib.util.find_spec("cuda") is None or not cases:
        return
    sources = sources_of(cases, capability)
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as process,
        contextlib.suppress(ImportError, BrokenProcessPool),  # no driver here: the workers compile
    ):
        process.submit(_compile_all, sources).result()


def _compile_all(sources: Sequence[ModuleSource]) -> None:
    from gemm_regression.devices.cuda.source_module import compile_all

    compile_all(sources)


def open_emulated(
    arch: str, strict: bool = False, time_limit: float = math.inf, by_source: bool = True
) -> EmulatedDevice:
    """The emulated device, compiling for an architecture such as "sm_90a"; if ``strict``, its notes are
    violations; a case takes ``time_limit`` seconds, or hangs; without ``by_source`` findings name lines of
    the PTX alone. Raises NoDevice without nvcc."""
    from gemm_regression.compiler.tools import ToolchainError, find_nvcc
    from gemm_regression.devices.emulated import EmulatedDevice

    try:
        find_nvcc()
    except ToolchainError as error:
        raise NoDevice(str(error)) from None
    return EmulatedDevice(arch, by_source=by_source, strict=strict, time_limit=time_limit)
