"""A kernel of TileLang as the declaration of a project, where that package is installed: it is large."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.tilelang import TileLang
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import BF16, F16, F32, Case, Config, Constraints, DType, Kernel, Problem, Waiver
from gemm_regression.oracle import Examined, examine, verify
from tests.frontends.rig import Without

pytest.importorskip("tilelang")
SOURCE = Path(__file__).with_name("tilelang_matmul.py")
MATMUL = TileLang(
    "matmul",
    types="{dtype} {output}",
    constants=(("rows", "TILE_M"), ("columns", "TILE_N"), ("depth", 32)),
)
HOPPER = Kernel(
    "matmul",
    SOURCE,
    entry="matmul",
    frontend=MATMUL,
    shape=MATMUL.shape(SOURCE, ("TILE_M", "TILE_N")),
    maps=MATMUL.maps(SOURCE),
    parameters="mapA, mapB, C, K, M, N",
    dtypes=(F16, BF16),
    configs=(Config(TILE_M=64, TILE_N=64), Config(TILE_M=128, TILE_N=64)),
    constraints=Constraints(
        multiples=dict.fromkeys(("n", "k", "lda", "ldb", "A", "B"), 8), at_least={"m": 1, "k": 1}
    ),
    min_capability=(9, 0),
    max_capability=(9, 0),
)
AMPERE = replace(
    HOPPER,
    shape=MATMUL.shape(SOURCE, ("TILE_M", "TILE_N"), "sm_80"),
    maps=None,
    parameters="A, B, C, K, M, N",
    constraints=Constraints(multiples={"n": 8, "k": 8, "A": 8, "B": 8}),
    max_capability=(99, 9),
)
PRODUCT = TileLang(
    "product",
    types="{dtype}",
    constants=(("rows", "TILE_M"), ("columns", "TILE_N"), ("depth", 16)),
    sizes="M N K",
)
JIT = replace(
    AMPERE,
    name="product",
    entry="product",
    frontend=PRODUCT,
    shape=PRODUCT.shape(SOURCE, ("TILE_M", "TILE_N")),
)
PROBLEMS = (Problem(1, 8, 8), Problem(136, 136, 72))


def findings(kernel: Kernel, arch: str, dtype: DType, config: Config, problem: Problem) -> list[str]:
    case = Case(kernel, dtype, config, kernel.narrowed(problem))
    return [str(found) for found in verify(EmulatedDevice(arch), case)]


@pytest.mark.parametrize("dtype", HOPPER.dtypes, ids=str)
@pytest.mark.parametrize("config", HOPPER.configs, ids=lambda config: config.label)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_kernel_for_sm_80_is_right(dtype: DType, config: Config, problem: Problem) -> None:
    assert findings(AMPERE, "sm_80", dtype, config, problem) == []


MISSED = r"barrier: thread \(32, 0, 0\) .* a slower thread would miss its own at tilelang_matmul\.cu:"


@pytest.mark.parametrize("dtype", HOPPER.dtypes, ids=str)
@pytest.mark.parametrize("config", HOPPER.configs, ids=lambda config: config.label)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_a_kernel_for_sm_90a_is_right_but_for_warps_that_only_wait(
    dtype: DType, config: Config, problem: Problem
) -> None:
    """All four warps of the producer wait for a free stage, and one thread of the first copies: nothing keeps
    the others from falling behind."""
    found = findings(HOPPER, "sm_90a", dtype, config, problem)
    assert found
    assert [one for one in found if not re.match(MISSED, one)] == []


def test_a_waiver_names_a_line_of_the_cuda_that_tilelang_made() -> None:
    """And removes that finding alone: one of another check at the same line stays."""
    line = "mbarrier[((step & 1) + 2)].wait((((step & 3) >> 1) ^ 1));"
    waived = replace(HOPPER, waived=(Waiver("barrier", line, "its warps run alike"),))
    case = Case(waived, F16, HOPPER.configs[0], waived.narrowed(PROBLEMS[0]))
    assert examine(EmulatedDevice(), case) == Examined(waived=waived.waived)
    planted = replace(waived, frontend=Without(MATMUL, r"bar(?:rier)?\.sync"))
    found = findings(planted, "sm_90a", F16, HOPPER.configs[0], PROBLEMS[0])
    assert {one.partition(":")[0] for one in found} == {"race"}


def test_a_function_under_jit_is_compiled_as_it_says(tmp_path: Path) -> None:
    """By its passes no warp only copies, by TMA; its flags are nvcc's; its sizes are those of a launch."""
    assert JIT.shape_of(JIT.configs[0], F16).threads == (128, 1, 1)
    for problem in PROBLEMS:
        assert findings(JIT, "sm_90a", F16, JIT.configs[0], problem) == []
    source, text = tmp_path / "flags.py", SOURCE.read_text(encoding="utf-8")
    source.write_text(
        text.replace("@tilelang.jit(", '@tilelang.jit(compile_flags="--none", '), encoding="utf-8"
    )
    with pytest.raises(CompileError, match=r"nvcc.*--none"):
        compile_ptx(replace(JIT, source=source), JIT.configs[0], F16, "sm_90a")


def test_a_product_of_fp32_is_one_in_tf32() -> None:
    (found, *_) = findings(replace(AMPERE, dtypes=(F32,)), "sm_80", F32, AMPERE.configs[0], PROBLEMS[1])
    assert found.startswith("bound: ")


def test_a_barrier_that_is_missing_is_found_at_a_line_of_the_cuda_that_tilelang_made() -> None:
    without = Without(MATMUL, r"bar(?:rier)?\.sync", 0)
    found = findings(replace(AMPERE, frontend=without), "sm_80", F16, AMPERE.configs[0], PROBLEMS[1])
    assert any(re.search(r"^race.* at matmul\.cu:\d+", one.replace("tilelang_", "")) for one in found), found


def test_what_is_launched_on_a_gpu_is_made_of_the_same_ptx() -> None:
    for kernel, arch in ((HOPPER, "sm_90a"), (AMPERE, "sm_80")):
        made, shape = (
            compile_cubin(kernel, kernel.configs[0], F16, arch),
            kernel.shape_of(kernel.configs[0], F16),
        )
        assert made.symbol == "matmul"
        assert (made.figures.shared_bytes, shape.dynamic_bytes) == (shape.static_bytes, 2 * 2 * 2 * 64 * 32)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"types": "{dtype}"}, "has 2 parameters (dtype, output), not 1"),
        ({"types": "float17 {output}"}, "TileLang: "),
        ({"function": "nothing"}, "has no function nothing"),
    ],
)
def test_what_is_refused_is_told_in_one_line(change: dict[str, Any], said: str) -> None:
    kernel = replace(HOPPER, frontend=replace(MATMUL, **change))
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        compile_ptx(kernel, HOPPER.configs[0], F16, "sm_90a")
    assert "\n" not in str(caught.value)
