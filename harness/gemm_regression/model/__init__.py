"""The types of the suite's API: kernels, configs, dtypes, problems, cases. They are immutable, and need
neither CUDA nor files.

This module defines a case (a kernel, a dtype, a config and a problem) and its id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter

from gemm_regression.model import expressions
from gemm_regression.model.arguments import Argument as Argument
from gemm_regression.model.arguments import TensorMap as TensorMap
from gemm_regression.model.arguments import integer
from gemm_regression.model.dtypes import BF16 as BF16
from gemm_regression.model.dtypes import DTYPES as DTYPES
from gemm_regression.model.dtypes import E4M3 as E4M3
from gemm_regression.model.dtypes import E4M3_BF16 as E4M3_BF16
from gemm_regression.model.dtypes import F16 as F16
from gemm_regression.model.dtypes import F16_ACC16 as F16_ACC16
from gemm_regression.model.dtypes import F32 as F32
from gemm_regression.model.dtypes import S8 as S8
from gemm_regression.model.dtypes import TF32 as TF32
from gemm_regression.model.dtypes import DType as DType
from gemm_regression.model.dtypes import find_dtype as find_dtype
from gemm_regression.model.dtypes import with_output as with_output
from gemm_regression.model.elements import Element as Element
from gemm_regression.model.elements import packed as packed
from gemm_regression.model.kernel import BlockShape as BlockShape
from gemm_regression.model.kernel import Constraints as Constraints
from gemm_regression.model.kernel import Finding as Finding
from gemm_regression.model.kernel import Kernel as Kernel
from gemm_regression.model.kernel import Launch as Launch
from gemm_regression.model.kernel import Resources as Resources
from gemm_regression.model.kernel import Waiver as Waiver
from gemm_regression.model.kernel import Workspace as Workspace
from gemm_regression.model.operation import GELU as GELU
from gemm_regression.model.operation import GEMM as GEMM
from gemm_regression.model.operation import GEMM_BATCHED as GEMM_BATCHED
from gemm_regression.model.operation import GEMM_BIAS_GELU as GEMM_BIAS_GELU
from gemm_regression.model.operation import GEMM_BIAS_RELU as GEMM_BIAS_RELU
from gemm_regression.model.operation import RELU as RELU
from gemm_regression.model.operation import Activation as Activation
from gemm_regression.model.operation import Operand as Operand
from gemm_regression.model.operation import Operation as Operation
from gemm_regression.model.operation import gemm as gemm
from gemm_regression.model.operation import gemm_bias as gemm_bias
from gemm_regression.model.parameters import Config as Config
from gemm_regression.model.parameters import Rule as Rule
from gemm_regression.model.parameters import Space as Space
from gemm_regression.model.parameters import Values as Values
from gemm_regression.model.parameters import values_of
from gemm_regression.model.problem import INT_MAX as INT_MAX
from gemm_regression.model.problem import Array as Array
from gemm_regression.model.problem import Problem as Problem
from gemm_regression.model.problem import Storage as Storage
from gemm_regression.model.problem import find_problem as find_problem


@dataclass(frozen=True)
class CaseId:
    """The parts of a case's id, ``gemm-f32-tile32-pad0-64x64x64``: the names of kernel and dtype, the label
    of the config, and the id of the problem. A variant has no problem. A library has no config."""

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
        """What is compiled, such as ``gemm-f32-tile32-pad0``."""
        return "-".join(filter(None, (self.kernel, self.dtype, self.config)))

    @property
    def stage(self) -> str:
        """Kernel and config without the dtype, such as ``gemm-tile32-pad0``."""
        return "-".join(filter(None, (self.kernel, self.config)))

    def __str__(self) -> str:
        return "-".join(filter(None, (self.variant, self.problem)))


def variant_name(kernel: Kernel, config: Config, dtype: DType) -> str:
    """The name of a variant, such as ``gemm-f32-tile32-pad0``."""
    return CaseId(kernel.name, dtype.name, config.label).variant


def stage_name(kernel: Kernel, config: Config) -> str:
    """Kernel and config without the dtype, such as ``gemm-tile32-pad0``."""
    return CaseId(kernel.name, config=config.label).stage


@dataclass(frozen=True)
class Case:
    """A kernel, a dtype, a config and a problem. Its id is the test id, the baseline key and the report row.

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
        """What was chosen, such as ``gemm-tile32-pad0``; empty for a case that is no choice."""
        return self.parts.stage if self.chosen_for else ""

    @property
    def variant(self) -> str:
        """What is compiled: kernel, dtype and config, without the problem."""
        return self.parts.variant

    @cached_property
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

    @property
    def work(self) -> int:
        """What its speed is of: FLOP, or bytes, as the operation's ``unit`` says."""
        operation = self.kernel.operation
        return operation.compulsory_bytes(self.problem, self.dtype) if operation.unit == "GB/s" else self.flop

    def gflops(self, seconds: float) -> float:
        """GFLOPS = FLOP / seconds / 10⁹; GB/s where the operation has that unit."""
        return self.work / seconds / 1e9

    @cached_property
    def storages(self) -> Mapping[str, Storage]:
        """The memory layout of each operand, by name."""
        return self.kernel.operation.storages(self.problem, self.dtype)

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        """The arguments of a launch, in the order of the kernel's own parameters. Raises ValueError if a
        tensor map is missing, or is to round to TF32 what is not FP32."""
        storages, maps = self.storages, self.kernel.maps_of(self.config, self.dtype)
        scalar = {"int32": "i32", "float64": "f64"}.get(self.dtype.scalar.name, "f32")
        values = values_of(self.kernel.operation, self.problem, self.dtype)
        made = list[tuple[int, Argument]]()
        for parameter in self.kernel.signature:
            name, means, kind = parameter.name, parameter.means, parameter.kind or scalar
            if kind == "bytes[128]":
                operand = means.removeprefix("map")
                if operand not in maps:
                    raise ValueError(f"parameter {name}: no tensor map is declared for {operand}")
                if maps[operand].tf32 and (held := storages[operand].dtype).name != "float32":
                    what = f"rounds FP32 elements, and those of {operand} are {held}"
                    remedy = "write tf32=(dtype == TF32)"
                    raise ValueError(f"parameter {name}: a tensor map with tf32=True {what}: {remedy}")
                one = Argument(name, kind, buffer=operand, map=maps[operand])
            elif kind == "p64" and parameter.roles:
                one = Argument(name, kind, buffer=means)
            else:
                value = expressions.parse(means).value(values)
                one = Argument(name, kind, integer(name, kind, int(value)) if kind[0] == "i" else value)
            made.append((parameter.struct, one))
        found = list[Argument]()
        for struct, group in groupby(made, itemgetter(0)):
            members = [one for _, one in group]
            found += [Argument.struct(*members)] if struct else members
        return tuple(found)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why the kernel does not accept this problem, one line per reason; empty if it does."""
        own = self.kernel.refusals(self.config, self.problem)
        return own if self.dtype.scalar.kind == "f" else (*own, *self._cut_scalars())

    def _cut_scalars(self) -> Iterator[str]:
        """Alpha and beta that would lose their fraction, since they are passed as integers."""
        passed = {one.means for one in self.kernel.signature if (one.kind or "i32")[0] == "i"}
        for name in ("alpha", "beta"):
            value = getattr(self.problem, name)
            if (name in passed or not self.kernel.compiled) and value != int(value):
                yield f"{name} {value:g} is no integer, and {self.dtype} passes it as one"

    def __str__(self) -> str:
        return self.id
