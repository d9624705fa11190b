"""The conditions of a kernel that its parameters alone decide: which of its paths a launch takes.

A backward slice (M. Weiser, Program Slicing, 1984) of the kernel's predicates, restricted to what is computed
once from parameters and constants. The slice is a kernel of its own, so that thousands of launches are
evaluated as one batch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ptxsan.frontend import Entry, Instruction, Register, register_names
from ptxsan.frontend.parser import parse
from ptxsan.kernel import PreparedKernel
from ptxsan.lanes import Array
from ptxsan.machine.memory.buffer import Buffer
from ptxsan.machine.memory.global_memory import GlobalMemory

_PURE = {"mov", "add", "sub", "mul", "mad", "and", "or", "xor", "not", "shl", "shr", "cvt", "cvta", "setp"}
_PURE |= {"selp", "min", "max", "rem", "div", "neg", "abs", "bfe", "bfi", "lop3", "popc", "clz", "prmt"}
_NO_RESULT = {"st", "bra", "bar", "barrier", "red", "ret", "exit", "cp", "mbarrier", "fence", "membar"}
_NO_RESULT |= {"wgmma", "prefetch", "trap", "call", "setmaxnreg", "griddepcontrol", "stmatrix", "discard"}
_SPECIAL = re.compile(
    r"%(n?tid|n?ctaid|cluster|is_|[a-z]*(laneid|warpid|smid|gridid|lanemask|clock|timer|envreg|smem))"
)
_BATCH = 1000  # launches, of 1024 that addresses tell apart


class Conditions:
    """Those of a kernel. ``lines``: for each the PTX line of its first use."""

    def __init__(self, entry: Entry) -> None:
        slice_, predicates = _slice(entry)
        self.lines = tuple(predicates.values())
        self._kernel = PreparedKernel(parse(_text(entry, slice_, list(predicates)), "slice", ""), "")

    def of(self, launches: Sequence[Sequence[Any]]) -> Array:
        """Which of them hold: (launches, conditions) bool. ``launches``: the parameters of each."""
        rows = [np.zeros((0, len(self.lines)), bool)]
        for start in range(0, len(launches) if self.lines else 0, _BATCH):
            batch = launches[start : start + _BATCH]
            fresh = [np.zeros((1, len(self.lines)), np.uint32) for _ in batch]
            out = Buffer("out", 0, fresh, writable=True)
            given = [[*parameters, np.int64(out.address(i))] for i, parameters in enumerate(batch)]
            self._kernel.run((1, 1, 1), (1, 1, 1), 0, given, GlobalMemory([out]), 1_000_000)
            rows += [out.values(i) != 0 for i in range(len(batch))]
        return np.concatenate(rows) if self.lines else np.zeros((len(launches), 0), bool)


def _slice(entry: Entry) -> tuple[list[Instruction], dict[str, int]]:
    """What computes the predicates, and these with the lines of their first uses elsewhere."""
    written = Counter(register for i in entry.code for register in _results(i))
    known: dict[str, Instruction] = {}
    paths: list[Instruction] = []  # predicates that have other values on other paths
    for i in entry.code:
        results = _results(i)
        pure = i.op.split(".")[0] in _PURE or i.op.startswith("ld.param")
        once = all(written[r] == 1 and r.startswith("%") for r in results)
        alike = pure and not i.guard and not _SPECIAL.search(i.text)
        if results and alike and known.keys() >= set(register_names(i.operands[1:])):
            if once:
                known |= dict.fromkeys(results, i)
            elif i.op.startswith("setp") and len(results) == 1:
                paths.append(_renamed(i, f"%path{len(paths)}"))
    predicates: dict[str, int] = {}
    for i in entry.code:
        if not any(known.get(register) is i for register in _results(i)):
            used = [*([i.guard[0]] if i.guard else []), *register_names(i.operands)]
            for register in used:
                if register in known and entry.registers.get(register) == "pred":
                    predicates.setdefault(register, i.line)
    for i in paths:
        known[_results(i)[0]] = i
        predicates[_results(i)[0]] = i.line
    needed, kept = set(predicates), []
    for i in reversed(list(dict.fromkeys(known.values()))):
        if needed.intersection(_results(i)):
            kept.append(i)
            needed.update(register_names(i.operands[1:]))
    return kept[::-1], predicates


def _renamed(i: Instruction, register: str) -> Instruction:
    """The same comparison with another result."""
    text = f"{i.op} {register},{i.text.partition(',')[2]}"
    return replace(i, operands=(Register(register), *i.operands[1:]), text=text)


def _results(i: Instruction) -> list[str]:
    return [] if i.op.split(".")[0] in _NO_RESULT else register_names(i.operands[:1])


def _text(entry: Entry, code: Sequence[Instruction], predicates: Sequence[str]) -> str:
    def lines() -> Iterator[str]:
        yield f".version 9.0\n.target {entry.target}\n.address_size 64"
        parameters = [_parameter(name, kind) for name, kind in entry.parameters]
        yield f".visible .entry slice({', '.join([*parameters, '.param .u64 out'])})\n{{"
        for register in dict.fromkeys(r for i in code for r in _results(i)):
            yield f".reg .{entry.registers.get(register, 'pred')} {register};"
        yield ".reg .b64 %out; .reg .b32 %holds;\nld.param.u64 %out, [out];"
        yield from (f"{i.text};" for i in code)
        for number, predicate in enumerate(predicates):
            yield f"selp.u32 %holds, 1, 0, {predicate};\nst.global.u32 [%out+{4 * number}], %holds;"
        yield "ret;\n}\n"

    return "\n".join(lines())


def _parameter(name: str, kind: str) -> str:
    of, bracket, size = kind.partition("[")
    return f".param .align 64 .{of} {name}[{size}" if bracket else f".param .{kind} {name}"
