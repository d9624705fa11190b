"""kernel × dtype × config × problem."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_regression.model.config import Config
from gemm_regression.model.dtype import DType
from gemm_regression.model.kernel import Kernel, Launch, stage_name, variant_name
from gemm_regression.model.operation import Storage
from gemm_regression.model.parameters import Argument, arguments
from gemm_regression.model.problem import Problem


@dataclass(frozen=True)
class Case:
    """kernel × dtype × config × problem. Its id is the test id, the baseline key and the report row.

    ``chosen_for``: the case of a kernel that chooses, whose choice this is; it has the id of that case, so
    that the id does not depend on the choice."""

    kernel: Kernel
    dtype: DType
    config: Config
    problem: Problem
    chosen_for: Case | None = None

    @property
    def listed(self) -> Case:
        """The case of the suite: this one, or the one it was chosen for."""
        return self.chosen_for or self

    @property
    def choice(self) -> str:
        """What was chosen, such as ``tiled-tile32-pad0``; empty for a case that is no choice."""
        return stage_name(self.kernel, self.config) if self.chosen_for else ""

    @property
    def variant(self) -> str:
        """What is compiled: kernel, dtype and config, without the problem."""
        return variant_name(self.kernel, self.config, self.dtype)

    @property
    def id(self) -> str:
        return f"{self.listed.variant}-{self.problem.id}"

    @property
    def launch(self) -> Launch:
        return self.kernel.launch(self.config, self.dtype, self.problem)

    @property
    def flop(self) -> int:
        """Floating-point (or integer) operations of one launch."""
        return self.kernel.operation.flop(self.problem)

    def gflops(self, seconds: float) -> float:
        """GFLOPS = FLOP / seconds / 10⁹."""
        return self.flop / seconds / 1e9

    @property
    def storages(self) -> dict[str, Storage]:
        """The memory layout of each operand, by name."""
        return self.kernel.operation.storages(self.problem, self.dtype)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of a launch, in the order of the kernel's own parameters."""
        maps = self.kernel.maps_of(self.config, self.dtype)
        return arguments(self.kernel.signature, self.kernel.operation, self.problem, self.dtype, maps)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why the kernel does not accept this problem, one line per reason; empty if it does."""
        return self.kernel.refusals(self.config, self.problem)

    def __str__(self) -> str:
        return self.id
