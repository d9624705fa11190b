"""The messages between parent and worker: plain picklable data, no declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_regression.compiler.nvcc import unit_of
from gemm_regression.compiler.tools import CompileError, arch
from gemm_regression.devices import DeviceError, Inputs
from gemm_regression.devices.stored import StoredBinary
from gemm_regression.devices.work import Work
from gemm_regression.model import Array, Case
from gemm_regression.timing.plan import PairPlan, Plan


@dataclass(frozen=True)
class Build:
    """All that makes a binary. ``source`` None is cuBLAS on ``dtype``. ``source`` includes copies of the
    kernel's own files, in the folders ``own``; ``include`` are the folders that are searched, ``entry``
    is the function's name in C++; ``failure`` why there is nothing to compile. With a ``cubin`` nothing is
    compiled: ``entry`` is the symbol in it."""

    name: str
    dtype: str
    source: str | None
    entry: str
    options: tuple[str, ...]
    arch: str
    file: str = ""
    include: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    failure: str = ""
    cubin: bytes = b""

    @classmethod
    def given(cls, stored: StoredBinary) -> Build:
        """A binary that is there."""
        return cls(stored.name, stored.work.dtype.name, "", stored.symbol, (), "", cubin=stored.cubin)

    @classmethod
    def of(cls, case: Case, capability: tuple[int, int]) -> Build:
        kernel = case.kernel
        if kernel.is_dispatcher:
            raise ValueError(f"{case.id}: nothing was chosen for it")
        if kernel.source is None:
            return cls(case.variant, case.dtype.name, None, "", (), "")
        name, dtype, file, sm = case.variant, case.dtype.name, kernel.source.name, arch(capability)
        try:
            unit = unit_of(kernel, case.config, case.dtype)
            unit.sources.write()
        except CompileError as error:
            return cls(name, dtype, "", "", (), sm, file, failure=str(error))
        include, own = unit.sources.include, unit.sources.copies
        return cls(name, dtype, unit.text, unit.entry, unit.all_options, sm, file, include, own)


@dataclass(frozen=True)
class Request:
    """One thing to do (hello, prepare, binary, prepare_inputs, run, time, pair, once, resources, facts,
    roofs, health, stop), with the fields that it needs; of ``pair``, builds and works of A and of B; of
    ``run`` the works and ``inputs`` of each launch, and the ``workspace`` before every one of them. The
    answer to hello, a worker's first, says that it is ready."""

    what: str
    builds: tuple[Build, ...] = ()
    works: tuple[Work, ...] = ()
    inputs: tuple[Inputs, ...] = ()
    workspace: Array | None = None
    plan: Plan | None = None
    pair: PairPlan | None = None


# Error codes for CUDA's errors; any of them may leave the context unusable.
_CODES = (
    ("illegal memory access", "ILLEGAL_ADDRESS"),
    ("misaligned address", "MISALIGNED_ADDRESS"),
    ("out of memory", "OUT_OF_MEMORY"),
    ("out of resources", "LAUNCH_FAILED"),
    ("invalid argument", "LAUNCH_FAILED"),
)


class Lost(DeviceError):
    """The context is lost with it."""


@dataclass(frozen=True)
class Reply:
    """``value`` on success; else ``code`` and ``message`` of a DeviceError. After ``fatal`` the worker
    is gone: no CUDA context works any more in its process."""

    value: Any = None
    code: str = ""
    message: str = ""
    fatal: bool = False

    @classmethod
    def of(cls, error: Exception) -> Reply:
        """What CUDA's own error is to the parent."""
        text = " ".join(str(error).split())
        code = next((code for words, code in _CODES if words in text), "LAUNCH_FAILED")
        # Out of memory and a refused launch leave the context whole; anything asynchronous does not.
        fatal = code not in ("OUT_OF_MEMORY", "LAUNCH_FAILED") or "failed" in text
        return cls(code=code, message=text, fatal=fatal)
