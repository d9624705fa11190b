"""Kernels as people write them, judged by a declaration alone: what they read, assert and print."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import (
    F32,
    BlockShape,
    Case,
    Config,
    Constraints,
    Finding,
    Kernel,
    Problem,
    find_dtype,
)
from gemm_regression.oracle.verify import examine, verify

BLOCK = BlockShape((8, 8), (8, 8))
PARAMETERS = "int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C"
KERNELS = Path(__file__).parent / "kernels"
PLAIN = (KERNELS / "gemm.cu").read_text(encoding="utf-8")

pytestmark = pytest.mark.compile


def case_of(folder: Path, source: str, takes: Constraints) -> Case:
    file = folder / "gemm.cu"
    file.write_text(source)
    kernel = Kernel("gemm", file, "gemm<8>", BLOCK, parameters=PARAMETERS, constraints=takes)
    return Case(kernel, F32, Config(), Problem(13, 11, 9))


def found(folder: Path, source: str, takes: Constraints) -> list[Finding]:
    return verify(EmulatedDevice(), case_of(folder, source, takes))


def test_reading_c_where_beta_is_0_is_found_unless_the_declaration_says_so(tmp_path: Path) -> None:
    source = PLAIN.replace("BEFORE", "")
    assert [finding.check for finding in found(tmp_path, source, Constraints())] == ["uninit", "unwritten"]
    assert found(tmp_path, source, Constraints(finite_c=True)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assert(blockDim.x == BLOCK);", ""),
        (
            "assert(M % BLOCK == 0);",
            "thread (0, 0, 0) of block (0, 0, 0) fails the assertion M % BLOCK == 0 at gemm.cu:6",
        ),
        ('if (row == 3) printf("%d of %d\\n", column, N);', ""),
    ],
)
def test_assertions_and_printf_of_a_kernel(tmp_path: Path, text: str, said: str) -> None:
    source = "#include <cassert>\n#include <cstdio>\n" + PLAIN.replace("BEFORE", text)
    findings = found(tmp_path, source, Constraints(finite_c=True))
    assert [finding.check for finding in findings] == ["trap"] * bool(said)
    assert all(said in finding.message for finding in findings)


def test_what_a_kernel_prints_is_a_note(tmp_path: Path) -> None:
    line = 'if (row == 3 && column < 2) printf("column %d of %d\\n", column, N);'
    source = "#include <cstdio>\n" + PLAIN.replace("BEFORE", line)
    seen = examine(EmulatedDevice(), case_of(tmp_path, source, Constraints(finite_c=True)))
    assert list(seen.findings) == []
    told = {note.message for note in seen.notes if note.check == "printf"}
    assert "prints 'column 0 of 11', the first of 2 lines" in told


def half(file: str, dtype: str, parameters: str, problem: Problem) -> list[Finding]:
    kernel = Kernel("half", KERNELS / file, "gemm", BLOCK, "", (find_dtype(dtype),), parameters=parameters)
    kernel = replace(kernel, constraints=Constraints(finite_c=True))
    return verify(EmulatedDevice(), Case(kernel, kernel.dtypes[0], Config(), problem))


@pytest.mark.parametrize(("dtype", "checks"), [("f16acc16_f16", []), ("f16_f16", ["exact"])])
def test_sums_in_half_are_found_unless_the_dtype_says_so(dtype: str, checks: list[str]) -> None:
    parameters = "const __half *A, const __half *B, __half *C, int M, int N, int K"
    findings = half("half_sums.cu", dtype, parameters, Problem(61, 53, 137))
    assert [finding.check for finding in findings] == checks


def test_scalars_that_are_half() -> None:
    parameters = PARAMETERS.replace("float", "__half")
    assert half("half_scalars.cu", "f16_f16", parameters, Problem(13, 11, 9, alpha=2, beta=-1)) == []


def test_more_static_shared_memory_than_ptxas_takes_is_an_error(tmp_path: Path) -> None:
    big = "__shared__ float tile[64][SIZE]; tile[threadIdx.y][threadIdx.x] = M; __syncthreads();"
    source = PLAIN.replace("BEFORE", big + "if (tile[threadIdx.y][threadIdx.x] < 0) return;")
    takes = Constraints(finite_c=True)
    assert found(tmp_path, source.replace("SIZE", "192"), takes) == []
    with pytest.raises(DeviceError, match="65536 bytes of static shared memory, 49152 at most"):
        found(tmp_path, source.replace("SIZE", "256"), takes)
