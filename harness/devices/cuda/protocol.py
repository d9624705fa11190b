"""The messages between parent and worker: plain picklable data, no declarations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.compiler.errors import CompileError
from harness.compiler.nvcc import unit_of
from harness.compiler.tools import arch
from harness.devices import Inputs
from harness.devices.workspace import sizes
from harness.model import Argument, Array, Case, DType, Launch, Problem, Storage
from harness.timing.plan import PairPlan, Plan


@dataclass(frozen=True)
class Build:
    """All that makes a binary. ``source`` None is cuBLAS on ``dtype``. ``source`` includes copies of the
    kernel's own files, in the folders ``own``; ``include`` are the folders that are searched, ``entry``
    is the function's name in C++; ``failure`` why there is nothing to compile."""

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

    @classmethod
    def of(cls, case: Case, capability: tuple[int, int]) -> Build:
        kernel = case.kernel
        if kernel.chooses:
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
class Work:
    """A launch for a problem: what the worker needs of a case besides its build.

    ``storages`` of the operands by name, ``roles`` of each as `Operand` has them; ``workspace`` bytes of it
    and how many of them are zero; ``library``, ``linear`` and ``depth`` as of the operation; ``product``
    whether it is plain A·B, so that C·x = A·(B·x); ``slope`` of its activation;
    ``finite_c`` as of what the kernel takes.
    """

    problem: Problem
    dtype: DType
    operation: str
    launch: Launch
    arguments: tuple[Argument, ...]
    storages: Mapping[str, Storage]
    roles: Mapping[str, str]
    workspace: tuple[int, int]
    library: str | None
    product: bool
    exact: bool
    depth: int
    slope: float
    finite_c: bool = False

    @classmethod
    def of(cls, case: Case) -> Work:
        operation, p = case.kernel.operation, case.problem
        activation = operation.activation
        return cls(
            problem=p,
            dtype=case.dtype,
            operation=operation.name,
            launch=case.launch,
            arguments=() if case.kernel.library else case.arguments,
            storages=case.storages,
            roles={operand.name: operand.role for operand in operation.operands},
            workspace=sizes(case),
            library=operation.library,
            product=operation.plain_product,
            # With an epilogue cublasLt rounds more than once into FP16 and BF16.
            exact=(activation is None or activation.exact)
            and not (operation.library and case.dtype.output.itemsize < 4),
            depth=int(getattr(p, operation.depth)),
            slope=activation.slope if activation else 1.0,
            finite_c=case.kernel.takes.finite_c,
        )

    @property
    def result(self) -> str:
        """The output operand."""
        return next(name for name, role in self.roles.items() if role == "result")

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes from a 256-byte boundary to the start of each operand."""
        return {name: storage.start * storage.dtype.itemsize for name, storage in self.storages.items()}

    def __hash__(self) -> int:
        return hash((self.problem, self.dtype.name, self.operation, self.launch, self.arguments))


@dataclass(frozen=True)
class Request:
    """One thing to do (hello, prepare, draw, run, time, pair, once, resources, facts, stop), with the fields
    that it needs; of ``pair``, builds and works of A and of B; of ``run`` the works and ``inputs`` of each
    launch, and the ``workspace`` before every one of them. The answer to hello, a worker's first, says that
    it is ready."""

    what: str
    builds: tuple[Build, ...] = ()
    works: tuple[Work, ...] = ()
    inputs: tuple[Inputs, ...] = ()
    workspace: Array | None = None
    plan: Plan | None = None
    pair: PairPlan | None = None


@dataclass(frozen=True)
class Reply:
    """``value`` on success; else ``code`` and ``message`` of a DeviceError. After ``fatal`` the worker
    is gone: no CUDA context works any more in its process."""

    value: Any = None
    code: str = ""
    message: str = ""
    fatal: bool = False
