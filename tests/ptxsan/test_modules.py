"""ptxsan.load: kernels of one module in order on one memory, and arrays of other libraries."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import nvcc

KERNELS = Path(__file__).parent / "kernels"
CODE = """
__constant__ float weights[4] = {1, 2, 3, 4};
__device__ int launches;

extern "C" __global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) launches += 1;
    if (i < n) y[i] = weights[i % 4] * x[i];
}
extern "C" __global__ void shift(const float* y, float* z, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) z[i] = y[(i + 1) % n] + launches;
}
template <int N> __global__ void fill(float* y) { y[threadIdx.x] = N; }
template __global__ void fill<3>(float*);
"""
X = np.arange(64, dtype=np.float32)


COMPILED = cache(nvcc.read)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ptxsan.Module:
    """A new one; nvcc runs once for all."""
    monkeypatch.setattr(nvcc, "read", lambda source, *how: COMPILED(source, how[0], (), (), *how[3:]))
    return ptxsan.load(CODE)


pytestmark = pytest.mark.compile


def test_a_kernel_reads_what_the_one_before_it_wrote(module: ptxsan.Module) -> None:
    y, z = ptxsan.device_array(64), ptxsan.device_array(64)
    first = module.kernel("scale")[2, 32](X, y, 64)
    assert first.clean
    assert first.names == ("x", "y", "n")
    assert module.kernel("shift")[2, 32](y, z, 64).clean
    scaled = X * np.tile(np.array([1, 2, 3, 4], np.float32), 16)
    assert np.array_equal(y.copy_to_host(), scaled)
    assert np.array_equal(z.copy_to_host(), np.roll(scaled, -1) + 1)


def test_what_no_launch_wrote_stays_uninitialised(module: ptxsan.Module) -> None:
    y = ptxsan.device_array(64)
    assert module.kernel("scale")[1, 32](X, y, 32).clean
    assert list(y.initialised) == [True] * 32 + [False] * 32
    with pytest.raises(ptxsan.PtxError, match=r"element \(32,\) of the array was never written"):
        y.copy_to_host()
    result = module.kernel("shift")[2, 32](y, np.zeros(64, np.float32), 64)
    assert [h.check for h in result.hazards] == ["uninit"]


def test_an_array_given_twice_is_one_array() -> None:
    code = (
        'extern "C" __global__ void k(float* x, float* y) '
        "{ float v = x[threadIdx.x ^ 1]; y[threadIdx.x] = v; }\n"
    )
    x = ptxsan.to_device(X[:32])
    result = ptxsan.load(code).kernel()[1, 32](x, x)
    assert np.array_equal(x.values, result.arrays[0])
    assert np.array_equal(x.values, X[:32].reshape(-1, 2)[:, ::-1].ravel())


def test_variables_are_written_by_the_host_and_kept_by_launches(module: ptxsan.Module) -> None:
    module.set("weights", np.array([5, 6], np.float32))
    kernel = module.kernel("scale")
    result = kernel[1, 8](X, ptxsan.Empty(8), 8)
    assert np.array_equal(result.arrays[1], X[:8] * np.tile(np.array([5, 6, 3, 4], np.float32), 2))
    kernel[1, 8](X, ptxsan.Empty(8), 8)
    assert list(module.get("launches", np.int32)) == [2]
    module.set("launches", np.int32(7))
    assert kernel[1, 8](X, ptxsan.Empty(8), 8).clean
    assert list(module.get("launches", np.int32)) == [8]
    module.set("weights", np.array([1], np.float32))
    assert kernel[1, 8](X, ptxsan.Empty(8), 8).arrays[1][4] == 4


def test_an_instance_of_a_template_by_its_name_in_cpp(module: ptxsan.Module) -> None:
    assert (module.kernel("fill<3>")[1, 8](ptxsan.Empty(8)).arrays[0] == 3).all()
    assert (module.kernel("fill<4>")[1, 8](ptxsan.Empty(8)).arrays[0] == 4).all()


class Exported:
    """As torch's tensors on a CPU."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class OnGpu:
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"data": (1, False), "shape": (8,), "typestr": "<f4", "version": 3}


def test_arrays_of_other_libraries(module: ptxsan.Module) -> None:
    result = module.kernel("scale")[1, 8](Exported(X), ptxsan.Empty(8), 8)
    assert result.arrays[1][3] == 12
    with pytest.raises(ptxsan.PtxError, match=r"^OnGpu is on a GPU: copy it to the host first$"):
        module.kernel("scale")[1, 8](OnGpu(), ptxsan.Empty(8), 8)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda m: m.kernel("nope"), r"there is no entry nope; the entries are: .*scale"),
        (lambda m: m.kernel("scale")[4], r"scale\[grid, block\] or scale\[grid, block, shared\]"),
        (lambda m: m.kernel("scale")[0, 32], r"grid 0: one to three extents of at least 1"),
        (lambda m: m.set("nope", X), r"no variables nope; the module has: .*weights"),
        (lambda m: m.set("weights", X), r"weights has 16 bytes, 256 given"),
        (lambda m: m.get("nope"), r"no variables nope"),
    ],
)
def test_mistakes_are_one_line(module: ptxsan.Module, mistake: Any, message: str) -> None:
    with pytest.raises(ptxsan.PtxError, match=message) as caught:
        mistake(module)
    assert "\n" not in str(caught.value)


# Programmatic dependent launch (PTX ISA §9.7.13.13)

DEPENDENT = Path(__file__).with_name("kernels") / "dependent.cu"


def dependent(
    *defines: str, dependent: bool = True, n: int = 128, twice: bool = False
) -> ptxsan.LaunchResult:
    """The second launch, which reads what the first one wrote of 128 elements."""
    module = ptxsan.load(DEPENDENT, defines=defines)
    x, z = np.ones(128, np.float32), ptxsan.device_array(128)
    y = ptxsan.to_device(np.zeros(128, np.float32))
    module.kernel("first")[2, 64](x, y, n)
    if twice:  # a launch between the two that may also begin early, and touches nothing of y
        module.kernel("first")[2, 64](x, z, 128, dependent=True)
    return module.kernel("second")[2, 64](x, y, z, dependent=dependent)


@pytest.mark.parametrize("defines", [(), ("ONE_WAITS",)])
def test_a_dependent_launch_that_waits(defines: tuple[str, ...]) -> None:
    result = dependent(*defines)
    assert (result.hazards, result.notes) == ((), ())
    assert list(result.arrays[2]) == [3] * 128


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize(
    "defines", [("NO_WAIT",), ("EARLY",), ("ONE_WAITS", "NO_BARRIER"), ("ONE_WAITS", "EARLY")]
)
def test_a_dependent_launch_that_does_not_wait(defines: tuple[str, ...], twice: bool) -> None:
    found = [h for h in dependent(*defines, twice=twice).hazards if " y[" in h.message]
    assert [h.check for h in found] == ["race"]
    assert (
        "which the launch before wrote, with no griddepcontrol.wait before at dependent.cu:"
        in found[0].message
    )


def test_what_need_not_wait() -> None:
    """A launch that depends on no other; one of which the launch before wrote nothing that it reads."""
    assert dependent("NO_WAIT", dependent=False).clean
    assert dependent("NO_WAIT", n=0).clean
