"""kernel × dtype × config × problem."""

from __future__ import annotations

from dataclasses import dataclass

from harness.model.config import Config
from harness.model.dtype import DType
from harness.model.kernel import Kernel, Launch, variant_name
from harness.model.problem import Problem


@dataclass(frozen=True)
class Case:
    """kernel × dtype × config × problem. Its id is the test id, the baseline key and the report row."""

    kernel: Kernel
    dtype: DType
    config: Config
    problem: Problem

    @property
    def variant(self) -> str:
        """The compiled thing: kernel, dtype and config, without the problem."""
        return variant_name(self.kernel, self.config, self.dtype)

    @property
    def id(self) -> str:
        return f"{self.variant}-{self.problem.id}"

    @property
    def launch(self) -> Launch:
        return self.kernel.launch(self.config, self.dtype, self.problem)

    def __str__(self) -> str:
        return self.id
