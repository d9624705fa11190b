"""Which line of the .cu file an instruction comes from.

nvcc tells it with -lineinfo only, and the code it then makes is not always that without: what runs is the
latter, and its instructions are lined up with those of the former.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from gemm_regression.compiler.nvcc import compile_ptx, entry_symbol
from gemm_regression.compiler.tools import Nvcc
from gemm_regression.model import Config, DType, Kernel
from ptxsan import Instruction, parse
from ptxsan.frontend import Place


def source_lines(
    code: Sequence[Instruction],
    kernel: Kernel,
    config: Config,
    dtype: DType,
    arch: str,
    nvcc: Nvcc | None = None,
) -> dict[int, Place]:
    """PTX line of each instruction of a variant to its place in the .cu file, as far as the compiler names
    it.

    Raises CompileError and ToolchainError as ``compile_ptx`` does.
    """
    ptx = compile_ptx(kernel, config, dtype, arch, lines=True, nvcc=nvcc)
    symbol = entry_symbol(kernel, config, dtype, ptx)
    return dict(align(code, parse(ptx, symbol, kernel.source.name if kernel.source else "").code))


def align(code: Sequence[Instruction], told: Sequence[Instruction]) -> Iterator[tuple[int, Place]]:
    """(PTX line, place) of each instruction of ``code``; those that ``told`` has not are where
    the one before is."""
    ops, told_ops = [i.op for i in code], [i.op for i in told]
    lines = [Place()] * len(code)
    if ops == told_ops:
        lines = [i.source for i in told]
    else:
        for a, b, n in SequenceMatcher(None, ops, told_ops, autojunk=False).get_matching_blocks():
            lines[a : a + n] = [i.source for i in told[b : b + n]]
    last = Place()
    for instruction, line in zip(code, lines, strict=True):
        last = line or last
        yield instruction.line, last
