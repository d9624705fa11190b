"""What the parent sends to the worker and what comes back: plain picklable data, no declarations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.compiler.toolchain import arch, compile_options
from harness.devices import Inputs
from harness.model import Case, Launch, Problem
from harness.timing.plan import PairPlan, Plan


@dataclass(frozen=True)
class Build:
    """All that makes a binary. ``source`` None is cuBLAS on ``dtype``."""

    name: str
    dtype: str
    source: str | None
    entry: str
    options: tuple[str, ...]
    arch: str
    file: str = ""

    @classmethod
    def of(cls, case: Case, capability: tuple[int, int]) -> Build:
        kernel = case.kernel
        if kernel.source is None:
            return cls(case.variant, case.dtype.name, None, "", (), "")
        return cls(
            name=case.variant,
            dtype=case.dtype.name,
            source=kernel.source.read_text(encoding="utf-8"),
            entry=kernel.entry,
            options=compile_options(kernel, case.config, case.dtype),
            arch=arch(capability),
            file=kernel.source.name,
        )


@dataclass(frozen=True)
class Request:
    """One thing to do (hello, prepare, run, time, pair, once, resources, facts, stop), with the fields that
    it needs; of ``pair``, builds and launches of A and of B. The answer to hello, a worker's first, says that
    it is ready."""

    what: str
    builds: tuple[Build, ...] = ()
    launch: Launch | None = None
    problem: Problem | None = None
    inputs: Inputs | None = None
    plan: Plan | None = None
    launches: tuple[Launch, Launch] | None = None
    pair: PairPlan | None = None


@dataclass(frozen=True)
class Reply:
    """``value`` on success; else ``code`` and ``message`` of a DeviceError. After ``fatal`` the worker
    is gone: no CUDA context works any more in its process."""

    value: Any = None
    code: str = ""
    message: str = ""
    fatal: bool = False
