"""A cubin as the source of a kernel: what is known of it, on which device it runs, what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.cubin import parameters
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx, core_of, refusal
from gemm_regression.compiler.static import figures
from gemm_regression.compiler.tools import CompileError, pinned_tools
from gemm_regression.devices import DeviceError, sources_of
from gemm_regression.devices.cuda import client
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.report.wording import checked_text
from gemm_regression.run.checked import NOT_EMULATED, check

pytestmark = pytest.mark.compile

# Each with what the compiler may not do without: local memory, named barriers, static shared memory.
SOURCE = """
template <int TILE>
__global__ void gemm(int M, int N, int K, const float* A, const float* B, float* C) {
    __shared__ float tile[TILE * TILE];
    float kept[40];
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    for (int k = 0; k < K; k++) {
        kept[k * N % 40] = k;
        tile[threadIdx.y * TILE + threadIdx.x] = kept[k * M % 40];
        asm volatile("bar.sync 3, 256;" ::: "memory");
        if (row < M && column < N) C[row * N + column] += A[row * K + k] * B[k * N + column] + tile[k % TILE];
    }
}
template __global__ void gemm<16>(int, int, int, const float*, const float*, float*);
template __global__ void gemm<8>(int, int, int, const float*, const float*, float*);
"""
PARAMETERS = "M, N, K, A, B, C"
SHAPE = BlockShape((16, 16), (16, 16))
PROBLEM = Problem(20, 30, 40)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Kernel, Kernel]:
    """A kernel in CUDA C++, and its binary as the source of another."""
    folder = tmp_path_factory.mktemp("cubin")
    source, binary = folder / "gemm.cu", folder / "gemm.cubin"
    source.write_text(SOURCE, encoding="utf-8")
    kernel = Kernel("mine", source, "gemm<16>", SHAPE, parameters=PARAMETERS)
    binary.write_bytes(compile_cubin(kernel, Config(), F32, "sm_90a").cubin)
    return kernel, replace(kernel, source=binary)


def case(kernel: Kernel) -> Case:
    return Case(kernel, F32, Config(), PROBLEM)


def test_a_binary_has_the_figures_that_its_compiler_told(compiled: tuple[Kernel, Kernel]) -> None:
    of_source, of_binary = (compile_cubin(kernel, Config(), F32, "sm_90a") for kernel in compiled)
    assert (of_binary.cubin, of_binary.symbol) == (of_source.cubin, of_source.symbol)
    assert of_binary.resources == of_source.resources
    assert of_binary.figures == of_source.figures
    assert of_binary.figures.local_bytes >= 160
    assert (of_binary.figures.shared_bytes, of_binary.figures.barriers) == (1024, 4)
    places = parameters(of_binary.cubin, of_binary.symbol)
    assert [tuple(place) for place in places] == [(0, 4), (4, 4), (8, 4), (16, 8), (24, 8), (32, 8)]


@pytest.mark.parametrize("arch", ["sm_80", "sm_100", "sm_120"])
def test_another_architecture_has_its_own_figures(compiled: tuple[Kernel, Kernel], arch: str) -> None:
    kernel, of_binary = compiled
    made = compile_cubin(kernel, Config(), F32, arch)
    assert of_binary.source
    binary = of_binary.source.with_name(f"{arch}.cubin")
    binary.write_bytes(made.cubin)
    assert compile_cubin(replace(of_binary, source=binary), Config(), F32, arch).figures == made.figures


def test_its_metrics_are_those_of_its_source(compiled: tuple[Kernel, Kernel]) -> None:
    pinned_tools()
    of_source, of_binary = (figures(kernel, Config(), F32, "sm_90a") for kernel in compiled)
    assert of_binary.instruction_mix["total"] > 50
    assert of_binary == of_source


def test_without_a_gpu_it_is_not_emulated_and_says_so_in_a_line(compiled: tuple[Kernel, Kernel]) -> None:
    done = check(EmulatedDevice(), case(compiled[1]))
    assert done.outcome == NOT_EMULATED
    assert checked_text(done) == (
        "NOT_EMULATED: mine needs a GPU: mine-f32: gemm.cubin is a binary, which has no PTX to execute"
    )
    with pytest.raises(CompileError, match=r"gemm\.cubin is a binary, which has no PTX"):
        compile_ptx(compiled[1], Config(), F32, "sm_90a")
    assert core_of(compiled[1], Config(), F32, "sm_90a") == "cuda"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("M, N, long long K, A, B, C", "parameter 3 is i64 K, 8 bytes, but the kernel takes 4 bytes"),
        ("A, M, N, K, B, C", "parameter 1 is p64 A, 8 bytes, but the kernel takes 4 bytes"),
        ("M, N, K, A, B, C, beta", "the kernel takes 6 parameters, not 7 (M, N, K, A, B, C, beta)"),
    ],
)
def test_other_parameters_are_refused_on_both_devices(
    compiled: tuple[Kernel, Kernel], parameters: str, said: str
) -> None:
    of = case(replace(compiled[1], parameters=parameters))
    assert refusal((of.kernel, of.config, of.dtype), "sm_90a", of.arguments) == said
    for device in (EmulatedDevice().run, lambda of, _: client.refuse_other_parameters(of, "sm_90a")):
        with pytest.raises(DeviceError, match=re.escape(said)) as caught:
            device(of, {})
        assert caught.value.code == "SIGNATURE"


def test_on_a_gpu_the_worker_gets_the_binary_itself(compiled: tuple[Kernel, Kernel]) -> None:
    """And nothing is compiled for it ahead."""
    made = client._without_nvcc(case(compiled[1]), "sm_90a")
    assert compiled[1].source
    assert not isinstance(made, DeviceError)
    assert made[0] == compiled[1].source.read_bytes()
    assert made[2] is None
    assert [one.name for one in sources_of([*map(case, compiled)], (9, 0))] == ["mine-f32"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entry": "gemm<32>"}, r"there is no __global__ function named gemm<32>; compiled functions: gemm<"),
        ({"entry": "gemm"}, r"several __global__ functions are named gemm; choose one: gemm<"),
        ({"source": Path("none.cubin")}, r"cannot read .*none\.cubin: No such file or directory"),
    ],
)
def test_what_is_refused_is_told_in_one_line(
    compiled: tuple[Kernel, Kernel], change: dict[str, Any], said: str
) -> None:
    refuses(replace(compiled[1], **change), "sm_90a", said)


def test_a_binary_of_another_architecture_or_a_part_of_one_is_refused(
    compiled: tuple[Kernel, Kernel], tmp_path: Path
) -> None:
    only = (
        r"gemm\.cubin is for sm_90, not for sm_80: declare min_capability=\(9, 0\), max_capability=\(9, 0\)"
    )
    refuses(compiled[1], "sm_80", only)
    assert compiled[1].source
    whole, part = compiled[1].source.read_bytes(), tmp_path / "part.cubin"
    for content in (b"", whole[:2000], b"text\n" * 100, whole[:0x12] + b"\x3e\0" + whole[0x14:]):
        part.write_bytes(content)
        refuses(
            replace(compiled[1], source=part), "sm_90a", r"part\.cubin is no cubin, or only a part of one"
        )


def refuses(kernel: Kernel, arch: str, said: str) -> None:
    with pytest.raises(CompileError, match=said) as caught:
        compile_cubin(kernel, Config(), F32, arch)
    assert "\n" not in str(caught.value)
