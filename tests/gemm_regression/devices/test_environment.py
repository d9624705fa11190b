"""The GPU as a made-up NVML shows it, and what is said where something is missing."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression import devices
from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import NoDevice, open_cuda
from gemm_regression.devices.cuda import environment
from gemm_regression.devices.cuda.environment import NvmlGpu, driver_refusal

UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
OTHER_UUID = "GPU-ffffffff-89ab-cdef-0123-456789abcdef"


class NVMLError(Exception):
    """As pynvml has it."""


# What is the same for both GPUs.
ANSWERS: dict[str, Any] = {
    **{"Init": None, "DeviceGetCount": 2, "SystemGetCudaDriverVersion": 13000, "DeviceGetTemperature": 40},
    **{"SystemGetDriverVersion": "999.1", "SystemGetProcessName": b"/usr/bin/train"},
    **{"DeviceGetMemoryInfo": SimpleNamespace(total=1024 << 20), "DeviceGetVbiosVersion": b"96.00"},
    **{"DeviceGetCudaComputeCapability": (9, 0), "DeviceGetEccMode": (1, 1), "DeviceGetMigMode": (0, 0)},
    **{"DeviceGetEnforcedPowerLimit": 700_000, "DeviceGetPowerManagementDefaultLimit": 750_000},
    **{"DeviceGetPowerUsage": 300_000, "DeviceGetApplicationsClock": 900, "DeviceGetClockInfo": 1500},
    **{"DeviceGetCurrentClocksEventReasons": 0x04, "DeviceGetCurrentClocksThrottleReasons": 0x08},
}


class MadeUpNvml:
    """Two GPUs; functions named in ``refuses`` are not supported by this board."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.processes: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlDeviceGetHandleByIndex":
            return self._by_index
        if name == "nvmlDeviceGetHandleByUUID":
            return self._by_uuid
        answers: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetName": lambda gpu: f"Test GPU {1000 + gpu}",
            "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1000 * kind,
            "nvmlDeviceGetUUID": lambda gpu: f"GPU-{gpu}",
            "nvmlDeviceGetComputeRunningProcesses": lambda gpu: self.processes,
        }
        if name in self.refuses:
            return self._refuse
        return answers[name] if name in answers else lambda *_: ANSWERS[name.removeprefix("nvml")]

    def _refuse(self, *args: Any) -> Any:
        raise NVMLError("Not Supported")

    def _by_index(self, index: int) -> int:
        if index not in (0, 1):
            raise NVMLError("Invalid Argument")
        return index

    def _by_uuid(self, uuid: str) -> int:
        if uuid not in (UUID, OTHER_UUID):
            raise NVMLError("Not Found")
        return (UUID, OTHER_UUID).index(uuid)


Installed = Callable[..., MadeUpNvml]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """Puts a made-up NVML in the place of the real one."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")

    def install(*refuses: str) -> MadeUpNvml:
        made_up = MadeUpNvml(*refuses)
        monkeypatch.setattr(environment, "nvml", made_up)
        return made_up

    return install


def test_what_an_administrator_may_have_set(nvml: Installed) -> None:
    nvml()
    settings = {"power_limit_w": 700.0, "default_power_limit_w": 750.0, "ecc": True, "mig": False}
    assert NvmlGpu().settings() == settings
    nvml("nvmlDeviceGetPowerManagementDefaultLimit", "nvmlDeviceGetEccMode")
    assert NvmlGpu().settings() == {**settings, "default_power_limit_w": None, "ecc": None}


def test_facts_of_a_gpu(nvml: Installed) -> None:
    nvml()
    assert NvmlGpu().info().as_dict() == {
        "name": "Test GPU 1000",
        "memory_mib": 1024,
        "capability": "9.0",
        "driver": "999.1",
        "cuda_driver": "13.0",
        "power_limit_w": 700.0,
        "max_sm_clock_mhz": 1000,
        "max_memory_clock_mhz": 2000,
        "applications_sm_clock_mhz": 900,
        "ecc": True,
        "mig": False,
        "board": hashlib.sha256(b"GPU-0").hexdigest()[:8],  # not the UUID itself
        "vbios": "96.00",
    }


def test_what_a_board_does_not_tell_is_none(nvml: Installed) -> None:
    asked = ("EnforcedPowerLimit", "EccMode", "MigMode", "UUID", "VbiosVersion")
    nvml(*(f"nvmlDeviceGet{name}" for name in asked))
    info = NvmlGpu().info()
    assert (info.power_limit_w, info.ecc, info.mig, info.board, info.vbios) == (None,) * 5


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["Test GPU 1000", "Test GPU 1001"]),
        ("1,0", ["Test GPU 1001", "Test GPU 1000"]),
        (f"{OTHER_UUID}, {UUID}", ["Test GPU 1001", "Test GPU 1000"]),
        (" 1 , 0", ["Test GPU 1001", "Test GPU 1000"]),
        (UUID, ["Test GPU 1000"]),
        ("1", ["Test GPU 1001"]),
        ("1,-1,0", ["Test GPU 1001"]),  # as CUDA reads it
        ("", []),
    ],
)
def test_each_visible_gpu_by_its_number(
    nvml: Installed, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    nvml()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.count_gpus() == len(names)
    gpus = [NvmlGpu(index) for index in range(len(names))]
    assert [gpu.info().name for gpu in gpus] == names
    # By default CUDA counts the fastest GPU first, NVML by the bus: the two must mean the same one.
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    for gpu, name in zip(gpus, names, strict=True):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu.visible_as)  # what its worker sees
        assert NvmlGpu().info().name == name
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible if visible is not None else "0,1")
    with pytest.raises(devices.NoDevice):
        NvmlGpu(len(names))


@pytest.mark.parametrize(
    ("visible", "said"),
    [
        ("", "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("-1", "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("7", "NVML finds no GPU '7'"),
        ("first", "NVML finds no GPU 'first'"),
        ("GPU-none", "NVML finds no GPU 'GPU-none'"),
    ],
)
def test_gpu_that_is_not_there(
    nvml: Installed, monkeypatch: pytest.MonkeyPatch, visible: str, said: str
) -> None:
    nvml()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(devices.NoDevice, match=said) as refused:
        NvmlGpu()
    assert "\n" not in str(refused.value)


def test_others_are_those_that_are_not_ours(nvml: Installed) -> None:
    made_up = nvml()
    gpu = NvmlGpu()
    assert gpu.others(frozenset()) == []
    memory = {11: 456 << 20, 12: None}
    made_up.processes = [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in memory.items()]
    assert gpu.others(frozenset([11, 12])) == []
    assert gpu.others(frozenset([12])) == ["pid 11 (train, 456 MiB)"]
    nvml("nvmlSystemGetProcessName").processes = made_up.processes
    assert gpu.others(frozenset([11])) == ["pid 12 (?, memory unknown)"]


@pytest.mark.parametrize(
    ("refuses", "reasons"),
    [
        ((), 0x04),
        (("nvmlDeviceGetCurrentClocksEventReasons",), 0x08),
        (("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), 0),
    ],
    ids=["new name", "old name", "neither"],
)
def test_look_at_the_running_gpu(nvml: Installed, refuses: tuple[str, ...], reasons: int) -> None:
    nvml(*refuses)
    look = NvmlGpu().look()
    assert (look.sm_clock_mhz, look.power_w, look.temperature_c, look.reasons) == (1500, 300, 40, reasons)


@pytest.mark.parametrize(
    ("driver", "runs"), [("13.0", True), ("13.2", True), ("14.0", True), ("12.9", False), ("9.2", False)]
)
def test_driver_runs_binaries_of_its_own_major_version(driver: str, runs: bool) -> None:
    said = driver_refusal(driver, "13.0.88")
    assert (said is None) is runs
    assert runs or f"the driver is too old: it runs CUDA {driver}, nvcc is 13.0.88" in str(said)


# What open_cuda says


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch, nvml: Installed) -> Callable[[str], None]:
    """Everything is there but one module."""
    nvml()
    monkeypatch.setattr(
        tools, "find_nvcc", lambda: SimpleNamespace(version="13.0.88", path="/usr/local/bin/nvcc")
    )

    def without(missing: str) -> None:
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == missing else SimpleNamespace()
        )

    return without


@pytest.mark.parametrize("missing", ["nothing", "pycuda"])
def test_all_is_there(lacks: Callable[[str], None], missing: str) -> None:
    lacks(missing)
    device = open_cuda(5.0)
    assert (device.info.name, device.time_limit) == ("Test GPU 1000", 5.0)
    device.close()


def _refused(said: str) -> None:
    with pytest.raises(NoDevice, match=said) as refused:
        devices.open_cuda(60.0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("module", "package"),
    [("pynvml", "nvidia-ml-py"), ("cuda", "cuda-bindings"), ("nvmath", "nvmath-python")],
)
def test_missing_package_is_named(lacks: Callable[[str], None], module: str, package: str) -> None:
    lacks(module)
    _refused(rf"{package} is not installed; install it with `pip install --group gpu`")


def test_missing_or_newer_compiler(lacks: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ToolchainError("no nvcc in PATH")

    lacks("nothing")
    monkeypatch.setattr(tools, "find_nvcc", missing)
    _refused("^no nvcc in PATH$")
    monkeypatch.setattr(tools, "find_nvcc", lambda: SimpleNamespace(version="14.1"))
    _refused("the driver is too old: it runs CUDA 13.0, nvcc is 14.1")


@pytest.mark.parametrize("refuses", ["nvmlInit", "nvmlDeviceGetName"])
def test_gpu_that_does_not_answer(lacks: Callable[[str], None], nvml: Installed, refuses: str) -> None:
    lacks("nothing")
    nvml(refuses)
    _refused("Not Supported")
