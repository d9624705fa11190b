"""The GPU as reported by NVML: identity, settings, other processes, current clocks.

NVML needs no CUDA context, so the parent process can query it without touching the device.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import pynvml as nvml

from gemm_regression.devices import NoDevice
from gemm_regression.timing.samples import Telemetry


def _maybe(call: Callable[..., Any], *args: Any) -> Any:
    """None if this board or driver does not answer."""
    with contextlib.suppress(nvml.NVMLError):
        return call(*args)
    return None


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class GpuInfo:
    """Provenance of a measurement. No host name, no serial number, no user name.

    ``board`` distinguishes boards of a model: eight digits of the SHA-256 of NVML's UUID.
    """

    name: str
    memory_mib: int
    capability: tuple[int, int]
    driver: str
    cuda_driver: str
    power_limit_w: float | None
    max_sm_clock_mhz: int | None
    max_memory_clock_mhz: int | None
    applications_sm_clock_mhz: int | None
    ecc: bool | None
    mig: bool | None
    board: str | None = None
    vbios: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "capability": ".".join(map(str, self.capability))}


def _initialise() -> None:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise NoDevice(f"no NVIDIA driver responds (NVML: {error})") from None
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # CUDA is to count GPUs as NVML does, not by speed.


def _named() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names, up to the first that names none, as CUDA reads it; None if it is not
    set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return names[: next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))]


def count() -> int:
    """How many GPUs this process sees. Raises NoDevice if no driver responds."""
    _initialise()
    names = _named()
    return int(nvml.nvmlDeviceGetCount()) if names is None else len(names)


class NvmlGpu:
    """GPU number ``index`` of those visible to this process; ``visible_as`` is the name by which another
    process sees it alone. Raises NoDevice in one line."""

    def __init__(self, index: int = 0) -> None:
        _initialise()
        names = _named()
        try:
            if names is not None and not names:
                raise NoDevice("CUDA_VISIBLE_DEVICES hides every GPU from this process")
            name = (names[index] if index < len(names) else f"number {index}") if names else str(index)
            if name.startswith(("GPU-", "MIG-")):
                self.handle = nvml.nvmlDeviceGetHandleByUUID(name)
            else:
                self.handle = nvml.nvmlDeviceGetHandleByIndex(int(name))
        except (nvml.NVMLError, ValueError) as error:
            raise NoDevice(f"NVML finds no GPU {name!r} ({error})") from None
        self.visible_as = name

    def info(self) -> GpuInfo:
        """Its identity and settings. Raises NoDevice if NVML does not provide them."""
        try:
            return self._info()
        except nvml.NVMLError as error:
            raise NoDevice(f"NVML finds a GPU but does not provide its properties ({error})") from None

    def _info(self) -> GpuInfo:
        h = self.handle
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        limit = _maybe(nvml.nvmlDeviceGetEnforcedPowerLimit, h)
        ecc = _maybe(nvml.nvmlDeviceGetEccMode, h)
        mig = _maybe(nvml.nvmlDeviceGetMigMode, h)
        uuid, vbios = _maybe(nvml.nvmlDeviceGetUUID, h), _maybe(nvml.nvmlDeviceGetVbiosVersion, h)
        return GpuInfo(
            name=_text(nvml.nvmlDeviceGetName(h)),
            memory_mib=int(nvml.nvmlDeviceGetMemoryInfo(h).total) >> 20,
            capability=tuple(nvml.nvmlDeviceGetCudaComputeCapability(h)),
            driver=_text(nvml.nvmlSystemGetDriverVersion()),
            cuda_driver=f"{cuda // 1000}.{cuda % 1000 // 10}",
            power_limit_w=None if limit is None else limit / 1000,
            max_sm_clock_mhz=_maybe(nvml.nvmlDeviceGetMaxClockInfo, h, nvml.NVML_CLOCK_SM),
            max_memory_clock_mhz=_maybe(nvml.nvmlDeviceGetMaxClockInfo, h, nvml.NVML_CLOCK_MEM),
            applications_sm_clock_mhz=_maybe(nvml.nvmlDeviceGetApplicationsClock, h, nvml.NVML_CLOCK_SM),
            ecc=None if ecc is None else bool(ecc[0]),
            mig=None if mig is None else bool(mig[0]),
            board=None if uuid is None else hashlib.sha256(_text(uuid).encode()).hexdigest()[:8],
            vbios=None if vbios is None else _text(vbios),
        )

    def settings(self) -> dict[str, Any]:
        """What an administrator may have set, now: the power limit and its default in W, ECC, MIG; None where
        this board does not say."""
        info, default = self.info(), _maybe(nvml.nvmlDeviceGetPowerManagementDefaultLimit, self.handle)
        return {
            "power_limit_w": info.power_limit_w,
            "default_power_limit_w": None if default is None else default / 1000,
            "ecc": info.ecc,
            "mig": info.mig,
        }

    def look(self) -> Telemetry:
        """Clock, power, temperature and clock-event reasons now."""
        h = self.handle
        reasons = _maybe(nvml.nvmlDeviceGetCurrentClocksEventReasons, h)
        if reasons is None:
            reasons = _maybe(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, h)
        power = _maybe(nvml.nvmlDeviceGetPowerUsage, h)
        return Telemetry(
            sm_clock_mhz=float(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
            power_w=float("nan") if power is None else power / 1000,
            temperature_c=float(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
            reasons=int(reasons or 0),
        )

    def others(self, ours: frozenset[int]) -> list[str]:
        """Other processes that compute on this GPU, as ``pid 123 (name, 456 MiB)``."""
        found = []
        for process in _maybe(nvml.nvmlDeviceGetComputeRunningProcesses, self.handle) or []:
            if process.pid not in ours:
                name = _maybe(nvml.nvmlSystemGetProcessName, process.pid)
                memory = f"{process.usedGpuMemory >> 20} MiB" if process.usedGpuMemory else "memory unknown"
                found.append(
                    f"pid {process.pid} ({os.path.basename(_text(name)) if name else '?'}, {memory})"
                )
        return found


def driver_refusal(cuda_driver: str, nvcc: str) -> str | None:
    """Why this driver cannot run binaries of this compiler, or None. Versions as in ``13.0``.

    A driver runs binaries of its own CUDA major version and older ones (CUDA compatibility guide).
    """
    if int(cuda_driver.split(".")[0]) >= int(nvcc.split(".")[0]):
        return None
    return (
        f"the driver is too old: it runs CUDA {cuda_driver}, nvcc is {nvcc}; "
        f"update the driver, or set CUDA_HOME to a CUDA {cuda_driver} toolkit"
    )
