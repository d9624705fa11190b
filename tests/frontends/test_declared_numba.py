"""A kernel that Numba-CUDA compiles as the declaration of a project: judged as those that nvcc compiles."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.compiler.numba import Numba
from gemm_regression.compiler.nvcc import compile_cubin, compile_ptx
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import BF16, F32, BlockShape, Case, Config, DType, Kernel, Problem
from gemm_regression.oracle import verify
from tests.frontends.rig import Without

pytest.importorskip("numba_cuda")
SOURCE = Path(__file__).with_name("numba_pointers.py")
MATMUL = Numba("matmul", types="*{dtype} *{dtype} *{output} int32 int32 int32", constants=(("TILE", "TILE"),))
KERNEL = Kernel(
    "matmul",
    SOURCE,
    entry="matmul",
    frontend=MATMUL,
    shape=lambda config, dtype: BlockShape((config["TILE"],) * 2, (config["TILE"],) * 2),
    parameters="A, B, C, int M, int N, int K",
    dtypes=(F32,),
    configs=(Config(TILE=16), Config(TILE=8)),
)
BARRIER = r"bar(?:rier)?\.sync"
PROBLEMS = (Problem(40, 50, 30), Problem(1, 1, 1), Problem(33, 17, 0), Problem(32, 48, 64))


def findings(kernel: Kernel, problem: Problem) -> list[str]:
    case = Case(kernel, F32, kernel.configs[0], kernel.narrowed(problem))
    return [str(found) for found in verify(EmulatedDevice(), case)]


@pytest.mark.parametrize("config", KERNEL.configs, ids=lambda config: config.label)
def test_a_numba_kernel_is_right(config: Config) -> None:
    device = EmulatedDevice()
    for problem in PROBLEMS:
        assert verify(device, Case(KERNEL, F32, config, KERNEL.narrowed(problem))) == []


def test_each_barrier_that_is_missing_is_found_at_a_line_of_python() -> None:
    ptx = compile_ptx(KERNEL, KERNEL.configs[0], F32, "sm_90a")
    barriers = len(re.findall(BARRIER, ptx))
    assert barriers >= 2
    for barrier in range(barriers):
        found = findings(replace(KERNEL, frontend=Without(MATMUL, BARRIER, barrier)), PROBLEMS[3])
        assert any(one.startswith("race") and "numba_pointers.py:" in one for one in found), (barrier, found)


def test_a_mistake_is_found_at_its_line_of_python(tmp_path: Path) -> None:
    text = SOURCE.read_text(encoding="utf-8")
    at = "if row < m and column < n:"
    source = tmp_path / "mine.py"
    source.write_text(text.replace(at, "if row < m:"), encoding="utf-8")
    line = 2 + text[: text.index(at)].count("\n")
    found = findings(replace(KERNEL, source=source), PROBLEMS[0])
    assert any(f"mine.py:{line}" in one for one in found), found


def test_what_is_launched_on_a_gpu_is_made_of_the_same_ptx() -> None:
    made = compile_cubin(KERNEL, KERNEL.configs[0], F32, "sm_90a")
    assert made.symbol == "matmul"
    assert made.resources.shared_bytes >= 2 * 4 * 16 * 16


def test_what_numba_refuses_is_told_in_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("TILE = 1\n\ndef matmul(a, b, c, m, n, k):\n    c[0] = nothing\n", encoding="utf-8")
    for change, said in (
        ({"types": "*{dtype}"}, "has 6 parameters (a, b, c, m, n, size), not 1"),
        ({"types": "*{dtype} *{dtype} *{output} int32 int32 int33"}, "Numba: no type int33"),
        ({"function": "nothing"}, "has no function nothing"),
        ({"constants": (("SIZE", 8),)}, "has no global SIZE"),
    ):
        kernel = replace(KERNEL, frontend=replace(MATMUL, **change))
        refuses(kernel, F32, said)
    refuses(replace(KERNEL, dtypes=(BF16,)), BF16, "Numba: no type for bfloat16")
    refuses(replace(KERNEL, source=wrong), F32, "Numba: ")


def refuses(kernel: Kernel, dtype: DType, said: str) -> None:
    with pytest.raises(CompileError, match=re.escape(said)) as caught:
        compile_ptx(kernel, kernel.configs[0], dtype, "sm_90a")
    assert "\n" not in str(caught.value)


ARRAYS = Numba("product", "A:{dtype}(M,K):(lda,1) B:{dtype}(K,N) C:{output}(M,N):(ldc,1) alpha:float32")
OF_ARRAYS = Kernel(
    "product",
    SOURCE.with_name("numba_arrays.py"),
    entry="product",
    frontend=ARRAYS,
    shape=BlockShape((8, 8), (8, 8)),
    grid=lambda shape, p: (-(-p.m // 8), -(-p.n // 8), 1),
    parameters=ARRAYS.parameters,
    dtypes=(F32,),
)


def test_arrays_have_their_strides_in_bytes() -> None:
    for problem in (Problem(40, 50, 30, alpha=2, lda=33, ldc=60), Problem(1, 1, 1), Problem(9, 17, 0)):
        case = Case(OF_ARRAYS, F32, OF_ARRAYS.configs[0], OF_ARRAYS.narrowed(problem))
        assert (case.problem.lda, case.problem.ldc) == (problem.lda, problem.ldc)
        assert verify(EmulatedDevice(), case) == []
    for dtype, size in ((F32, 4), (BF16, 2)):
        made = replace(case, dtype=dtype, problem=Problem(40, 50, 30, lda=33)).arguments
        values = [argument.buffer or argument.value for argument in made]
        assert values[:9] == [0, 0, 1200, size, "A", 40, 30, 33 * size, size]
        assert values[9:18] == [0, 0, 1500, size, "B", 30, 50, 50 * size, size]


def test_arrays_with_other_strides_are_found_wrong() -> None:
    elements = replace(OF_ARRAYS, parameters=ARRAYS.parameters.replace("lda*sizeofA", "lda"))
    assert findings(elements, PROBLEMS[0])


def test_what_has_no_name_has_no_parameters() -> None:
    with pytest.raises(ValueError, match=r"'\*\{dtype\}' has no name"):
        assert MATMUL.parameters
    refuses(
        replace(OF_ARRAYS, frontend=replace(ARRAYS, types="A:{dtype}[M,K] B C alpha")),
        F32,
        "is no type such as",
    )
