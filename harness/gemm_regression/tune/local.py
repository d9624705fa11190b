"""Tuning with the one device of this process: a GPU, or the emulated device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gemm_regression.baselines.provenance import machine_of
from gemm_regression.compiler.tools import arch
from gemm_regression.devices import open_cuda, open_emulated
from gemm_regression.model import Config, DType, Kernel, Problem
from gemm_regression.tune.evaluating import Emulated, Evaluator, Job, Measured, OnGpu, confirmed
from gemm_regression.tune.stored import Evaluation, Failed


class OneDevice:
    """See `tune.Gpus`."""

    count = 1
    device_name: str
    capability: tuple[int, int]
    machine: Mapping[str, Any]

    def __init__(self) -> None:
        self._evaluator: Evaluator | None = None

    def evaluator(self, problem: Problem) -> Evaluator:
        raise NotImplementedError

    def begin(self, problem: Problem) -> None:
        self._evaluator = self.evaluator(problem)

    def results(self, jobs: Iterator[Job]) -> Iterator[tuple[int, Measured]]:
        assert self._evaluator is not None
        for place, config in jobs:
            yield place, self._evaluator.evaluate(config)

    def confirmed(self, configs: Sequence[Config]) -> tuple[list[Evaluation], list[Failed], float | None]:
        assert isinstance(self._evaluator, OnGpu)
        return confirmed(self._evaluator, configs)


class OneGpu(OneDevice):
    """The first visible GPU. Raises NoDevice."""

    def __init__(self, kernel: Kernel, dtype: DType, objective: str, time_limit: float) -> None:
        super().__init__()
        self.device = open_cuda(time_limit)
        self.device_name, self.capability = self.device.info.name, self.device.info.capability
        self.machine = machine_of(self.device)
        self._kernel, self._dtype, self._objective = kernel, dtype, objective

    def evaluator(self, problem: Problem) -> OnGpu:
        return OnGpu(self.device, self._kernel, self._dtype, problem, self._objective)

    def close(self) -> None:
        self.device.close()


class OneEmulated(OneDevice):
    """The emulated device, for a GPU of this compute capability. Raises NoDevice without a compiler."""

    machine: Mapping[str, Any] = {}

    def __init__(self, kernel: Kernel, dtype: DType, capability: tuple[int, int], time_limit: float) -> None:
        super().__init__()
        self.capability, self.device_name = capability, f"emulated {arch(capability)}"
        self._device = open_emulated(arch(capability), time_limit=time_limit, by_source=False)
        self._kernel, self._dtype = kernel, dtype

    def evaluator(self, problem: Problem) -> Emulated:
        return Emulated(self._device, self._kernel, self._dtype, problem)

    def close(self) -> None:
        self._device.close()
