"""Which line of the .cu file an instruction comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.compiler.nvcc import compile_ptx
from harness.compiler.static.compiled import variants_of
from harness.devices.emulated.device import EmulatedDevice
from harness.devices.emulated.lines import align
from harness.model import Case, Problem
from harness.oracle import verify
from harness.ptx import Instruction, parse
from tests.ladder import LADDER, find_kernel
from tests.mutants import Mutant, build

# As nvcc writes it with -lineinfo.
TOLD = """
.version 9.0
.target sm_90a
.address_size 64
.visible .entry tiny(.param .u32 n)
{
    .reg .b32 %r<4>;
    .loc 1 10 5
    mov.u32 %r1, 1;
    .loc 1 34 5, function_name $L__info_string0, inlined_at 1 11 9
    mov.u32 %r2, 2;
    .loc 2 120 1, function_name $L__info_string1, inlined_at 1 12 9
    mov.u32 %r3, 3;
    .loc 1 0 9
    mov.u32 %r1, 4;
    .loc 3 7 7
    ret;
}
    .file 1 "tiny.cu"
    .file 2 "cuda_fp16.hpp"
    .section .debug_str
    {
$L__info_string0:
.b8 95,90,53
.b8 0
    }
"""


def test_a_line_is_that_of_the_cu_file() -> None:
    """Of a function of the file its own; of a header the line that calls it; else the one before."""
    assert [i.source for i in parse(TOLD, "tiny").code] == [10, 34, 12, 12, 12]


def code(*ops: tuple[str, int]) -> list[Instruction]:
    return [Instruction(op, (), None, line, source, op) for line, (op, source) in enumerate(ops, 100)]


def test_code_that_differs_is_lined_up() -> None:
    plain = code(("ld", 0), ("mov", 0), ("fma", 0), ("st", 0))
    told = code(("ld", 1), ("fma", 2), ("add", 3), ("st", 4))
    assert list(align(plain, told)) == [(100, 1), (101, 1), (102, 2), (103, 4)]


@pytest.mark.compile
@pytest.mark.parametrize(
    ("name", "op", "text"),
    [
        # The one variant whose code is another with -lineinfo.
        ("warp_tiled-f32-tile64x64x16-warp32x32-thread8x4-stages3", "fma", "sum["),
        ("wmma-f16-tile64x64x32-warp32x32", "wmma.mma", "mma_sync"),
    ],
)
def test_instructions_of_a_variant_are_where_the_file_has_them(name: str, op: str, text: str) -> None:
    kernel, config, dtype = variants_of("sm_90a", LADDER)[name]
    lines = EmulatedDevice().lines(Case(kernel, dtype, config, Problem(1, 1, 1)))
    assert kernel.source
    source = kernel.source.read_text().splitlines()
    assert 0 < min(lines.values()) <= max(lines.values()) <= len(source)
    code = parse(compile_ptx(kernel, config, dtype, "sm_90a"), kernel.entry).code
    found = [source[lines[i.line] - 1] for i in code if i.op.startswith(op)]
    assert sum(text in line for line in found) > 0.9 * len(found) > 0


@pytest.mark.compile
def test_a_violation_names_the_line(tmp_path: Path) -> None:
    mutant = Mutant("far", "naive", "", (("B[(size_t)k * ldb + col]", "B[(size_t)k * ldb + col + 9999999]"),))
    kernel = build(mutant, tmp_path)
    case = Case(find_kernel("naive"), kernel.dtypes[0], kernel.configs[0], Problem(4, 4, 4))
    finding = verify(EmulatedDevice(), Case(kernel, case.dtype, case.config, case.problem))[0]
    assert finding.check == "bounds"
    assert "at far.cu:25 (PTX line " in finding.message
