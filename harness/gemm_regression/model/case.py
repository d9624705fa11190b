"""kernel × dtype × config × problem, and the id of that: written and read here alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemm_regression.model.config import Config
from gemm_regression.model.dtype import DType
from gemm_regression.model.kernel import Kernel, Launch
from gemm_regression.model.operation import Storage
from gemm_regression.model.parameters import Argument, arguments
from gemm_regression.model.problem import Problem


@dataclass(frozen=True)
class CaseId:
    """The parts of a case's id, ``tiled-f32-tile32-pad0-64x64x64``: the names of kernel and dtype, the label
    of the config, the id of the problem. Those of a variant have no problem; those of a library no config."""

    kernel: str
    dtype: str = ""
    config: str = ""
    problem: str = ""

    @classmethod
    def parse(cls, text: str) -> CaseId:
        """The inverse of ``str``. Of a text that is no id, parts that are not there are empty."""
        variant, *problem = re.split(r"-(?=\d+x\d+x\d+)", text, maxsplit=1)
        return cls(*variant.split("-", 2), **dict(zip(["problem"], problem, strict=False)))

    @property
    def variant(self) -> str:
        """What is compiled, such as ``tiled-f32-tile32-pad0``."""
        return "-".join(filter(None, (self.kernel, self.dtype, self.config)))

    @property
    def stage(self) -> str:
        """Kernel and config without the dtype, such as ``tiled-tile32-pad0``."""
        return "-".join(filter(None, (self.kernel, self.config)))

    def __str__(self) -> str:
        return "-".join(filter(None, (self.variant, self.problem)))


def variant_name(kernel: Kernel, config: Config, dtype: DType) -> str:
    """The name of a variant, such as ``tiled-f32-tile32-pad0``."""
    return CaseId(kernel.name, dtype.name, config.label).variant


def stage_name(kernel: Kernel, config: Config) -> str:
    """Kernel and config without the dtype, such as ``tiled-tile32-pad0``."""
    return CaseId(kernel.name, config=config.label).stage


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
        return self.parts.variant

    @property
    def parts(self) -> CaseId:
        """What runs; of a choice, not what it was chosen for."""
        return CaseId(self.kernel.name, self.dtype.name, self.config.label, self.problem.id)

    @property
    def id(self) -> str:
        return str(self.listed.parts)

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
