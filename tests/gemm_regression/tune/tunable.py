"""A project with one small kernel that has a search space, and a GPU of the tests' own to tune it on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_regression.devices import DeviceError, Inputs, Outputs
from gemm_regression.model import Case, Space
from gemm_regression.timing.plan import Measurement, Plan
from gemm_regression.tune.stored import Evaluation, Tuned
from tests.gemm_regression.fakes import NumpyDevice
from tests.gemm_regression.simulated import MHZ, SimulatedDevice
from tests.gemm_regression.synthetic import measurement

FLOP = 2 * 4096**3
MACHINE = {
    "name": "NVIDIA H200",
    "capability": "9.0",
    "driver": "580",
    "cuda_driver": "13.0",
    "nvcc": "13.0.88",
}

SOURCE = """\
#ifndef STEP
#define STEP 1
#endif
static_assert(SIZE != 24, "SIZE: not 24");
extern "C" __global__ void gemm_one(int M, int N, int K, float alpha, const float* A, int lda,
                                    const float* B, int ldb, float beta, float* C, int ldc)
{
    const int row = blockIdx.y * SIZE + threadIdx.y, col = blockIdx.x * SIZE + threadIdx.x;
    if (row >= M || col >= N) return;
    float sum = 0.0f;
    constexpr int step = STEP;
#pragma unroll step
    for (int k = 0; k < K; ++k) sum += A[(size_t)row * lda + k] * B[(size_t)k * ldb + col];
    float* c = &C[(size_t)row * ldc + col];
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
"""

DECLARATIONS = """\
from gemm_regression.model import F32, BlockShape, Config, Kernel, Rule, Space

def shape(config, dtype):
    return BlockShape(threads=(config["SIZE"], config["SIZE"]), tile=(config["SIZE"], config["SIZE"]))

KERNELS = (
    Kernel(
        name="one",
        source="one.cu",
        entry="gemm_one",
        configs=(Config(SIZE=16),),
        shape=shape,
        space=Space(
            axes={"SIZE": (8, 16, 24, 32, 64), "STEP": (1, 4)},
            rules=(Rule("SIZE 8 in steps of one", lambda v: v["SIZE"] > 8 or v["STEP"] > 1),),
            defaults={"STEP": 1},
        ),
    ),
    Kernel(name="two", source="one.cu", entry="gemm_one", configs=(Config(SIZE=16),), shape=shape),
    Kernel(name="three", source="one.cu", entry="gemm_one", shape=shape, space=Space(axes={}),
           configs=(Config(SIZE=16),)),
)
"""


def project(root: Path) -> Path:
    """Writes the project into a folder."""
    (root / "kernels").mkdir(parents=True)
    (root / "pyproject.toml").write_text("[tool.gemm-regression]\n")
    (root / "kernels" / "__init__.py").write_text(DECLARATIONS)
    (root / "kernels" / "one.cu").write_text(SOURCE)
    return root


@dataclass(eq=False)
class FakeGpu(SimulatedDevice):
    """Right, and a launch takes ``microseconds`` by label of the config; ``fails``: the code of a DeviceError
    by label; ``wrong`` labels add one to the result; ``before`` is called before each timing."""

    microseconds: Mapping[str, float] = field(default_factory=dict)
    fails: Mapping[str, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    timed: list[str] = field(default_factory=list)
    before: Callable[[FakeGpu, Plan], None] = lambda gpu, plan: None

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        outputs = NumpyDevice().run(case, inputs)
        if case.config.label in self.wrong:
            outputs.result[...] += 1
        return outputs

    def time(self, case: Case, plan: Plan) -> Measurement:
        label = case.config.label
        self.before(self, plan)
        self.timed.append(label)
        if label in self.fails:
            raise DeviceError(self.fails[label], f"{case.id}: it failed")
        seconds, library = 1e-6 * self.microseconds.get(label, 10.0), (9e-6,) if plan.reference else ()
        return measurement(seconds, plan.min_rounds, reference_seconds=library, sm_clock_mhz=MHZ)


def tuned(evaluations: Iterable[Evaluation], space: Space, **more: Any) -> Tuned:
    """These evaluations of a space, on an H200 unless ``more`` says otherwise."""
    given: dict[str, Any] = {
        "gpu": "nvidia-h200",
        "machine_info": MACHINE,
        "commit_info": {"id": "a" * 40, "dirty": False, "time": "2026-11-21T20:00:00+00:00"},
        "datetime": "2026-11-21T20:00:00+00:00",
        "kernel": "warp_tiled",
        "dtype": "f32",
        "problem": "4096x4096x4096",
        "flop": FLOP,
        "objective": "gflops",
        "strategy": "brute_force",
        "seconds": 12.3,
        "axes": space.axes,
        "defaults": space.defaults,
        "evaluations": tuple(evaluations),
    }
    return Tuned(**(given | more))
