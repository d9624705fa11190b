"""A launch as data: what a device needs of a case besides its binary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemm_regression.devices.workspace import sizes
from gemm_regression.model import Argument, Case, DType, Launch, Problem, Storage


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
            finite_c=case.kernel.constraints.finite_c,
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
