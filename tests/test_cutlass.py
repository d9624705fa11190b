"""Kernels written with CuTe: others' headers found, compiled and kept, and what is made of them right.

They stand for anyone's project: two files that include a header beside them, which includes CUTLASS's, 150
files in a folder that the declaration names. CUTLASS comes from PyPI, as the dependency group `cutlass`.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler import nvcc
from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.sources import closure
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices import Device
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F16, F32, BlockShape, Case, Config, Kernel, Problem
from gemm_regression.oracle import verify
from gemm_regression.timing.plan import Plan

pytestmark = pytest.mark.compile

HERE = Path(__file__).with_name("cutlass")
TILES = Config(TILE_M=64, TILE_N=64, TILE_K=16)
SGEMM = Kernel(
    name="cute_sgemm",
    source=HERE / "cute_sgemm.cu",
    entry="cute_sgemm<{TILE_M}, {TILE_N}, {TILE_K}>",
    shape=BlockShape(threads=(256, 1), tile=(64, 64)),
    configs=(TILES,),
    flags=("--expt-relaxed-constexpr",),
)
HGEMM = replace(
    SGEMM,
    name="cute_hgemm",
    source=HERE / "cute_hgemm.cu",
    entry="tensor_cores::gemm<tensor_cores::half, {TILE_M}, {TILE_N}, {TILE_K}>",
    dtypes=(F16,),
    shape=BlockShape(threads=(128, 1), tile=(64, 64)),
    min_capability=(8, 0),
)
# Whole tiles; and no edge a whole one, in several blocks and steps along K.
PROBLEMS = (Problem(64, 64, 32), Problem(67, 130, 41, alpha=3.0, beta=2.0))


@pytest.fixture(scope="module")
def cutlass() -> Path:
    """The folder of CUTLASS's headers."""
    spec = find_spec("cutlass_library")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (folder := Path(place) / "source" / "include").is_dir():
            return folder
    pytest.skip("CUTLASS's headers are not installed: pip install --group cutlass")


def findings(kernel: Kernel, device: Device, problem: Problem) -> list[str]:
    return [str(finding) for finding in verify(device, Case(kernel, kernel.dtypes[0], TILES, problem))]


@pytest.mark.turns
@pytest.mark.parametrize(
    ("kernel", "symbol", "instruction"),
    [
        (SGEMM, "_Z10cute_sgemmILi64ELi64ELi16EEv", "fma.rn.f32"),
        (HGEMM, "_ZN12tensor_cores4gemmIN7cutlass6half_tELi64ELi64ELi16EEEv", "mma.sync.aligned.m16n8k16"),
    ],
)
def test_a_kernel_of_cute_is_right(
    kernel: Kernel,
    symbol: str,
    instruction: str,
    cutlass: Path,
    emulated: EmulatedDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = replace(kernel, include=(cutlass,))
    for problem in PROBLEMS:
        assert findings(kernel, emulated, problem) == []
    monkeypatch.setattr(nvcc, "_run_nvcc", lambda *_: pytest.fail("compiled again"))
    ptx = compile_ptx(kernel, TILES, kernel.dtypes[0], "sm_90a")
    assert entry_symbol(kernel, TILES, kernel.dtypes[0], ptx).startswith(symbol)
    assert instruction in ptx


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", [SGEMM, HGEMM], ids=lambda kernel: kernel.name)
def test_a_kernel_of_cute_is_right_on_a_gpu_and_timed(kernel: Kernel, cutlass: Path, device: Any) -> None:
    kernel = replace(kernel, include=(cutlass,))
    for problem in PROBLEMS:
        assert findings(kernel, device, problem) == []
    measured = device.time(Case(kernel, kernel.dtypes[0], TILES, Problem(1000, 1000, 1000)), Plan())
    assert measured.cublas_ratio > 0


def test_the_closure_holds_the_headers_of_cutlass(cutlass: Path) -> None:
    files = closure(replace(SGEMM, include=(cutlass,)))
    assert files[0] == HERE / "cute_sgemm.cu"
    assert {HERE / "views.cuh", cutlass / "cute" / "tensor.hpp", cutlass / "cute" / "layout.hpp"} < set(files)
    assert all(path.is_relative_to(cutlass) or path.is_relative_to(HERE) for path in files)


@pytest.mark.turns
def test_a_lost_edge_is_caught(cutlass: Path, emulated: EmulatedDevice, tmp_path: Path) -> None:
    """Also when it is lost in the header."""
    for name in ("cute_sgemm.cu", "views.cuh"):
        text = (HERE / name).read_text()
        (tmp_path / name).write_text(text.replace("inside(at(i)) ? source(i)", "true ? source(i)"))
    assert "true ? source(i)" in (tmp_path / "views.cuh").read_text()
    kernel = replace(SGEMM, source=tmp_path / "cute_sgemm.cu", include=(cutlass,))
    (first, *_) = findings(kernel, emulated, PROBLEMS[1])
    assert first.startswith("bounds: ")
    assert "past the end of A" in first
    assert "at cute_sgemm.cu:49 in views.cuh:" in first  # the line that calls the header's function


def test_without_the_headers_it_is_one_line() -> None:
    with pytest.raises(CompileError) as caught:
        compile_ptx(SGEMM, TILES, F32, "sm_90a")
    assert caught.value.message.startswith(
        "cute_sgemm f32 tile64x64x16: views.cuh:4 includes cute/tensor.hpp, which was not found"
    )
