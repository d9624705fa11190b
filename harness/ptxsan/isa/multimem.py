"""Memory of several GPUs through one address (PTX ISA §9.7.9.14): an access to a multicast object is one to
each of its replicas. The other GPUs' kernels do not run; what they have written is in their replicas.

In which order values are added is unspecified; here it is that of the replicas.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, PtxError, size_of
from ptxsan.lanes import Array, Mask, first_of, full
from ptxsan.machine import SEEN, Builder, Read, Run, items_of, join, parts, split
from ptxsan.machine.memory.buffer import BUFFER
from ptxsan.machine.memory.ordered import Strength
from ptxsan.machine.table import instruction

_NOTE = "not compared with a chip"
_INTEGERS = {
    **dict.fromkeys(("add", "min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64")),
}
_REALS = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
_REALS |= {"f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}
_FUNCTIONS: dict[str, Any] = {
    **{"add": np.add, "min": np.minimum, "max": np.maximum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor},
}


class _Form:
    """An instruction by its words: what is done, in which type, and how strongly."""

    def __init__(self, i: Instruction) -> None:
        modifiers, self.kind = parts(i)
        self.name = next((m for m in modifiers if m in _FUNCTIONS), "")
        self.how = Strength.of(modifiers)
        self.wide = "acc_f32" in modifiers
        halves = {"f16x2": "b32", "bf16x2": "b32", "f16": "b16", "bf16": "b16"}
        self.seen = halves.get(self.kind, self.kind)
        real = self.kind in _REALS and self.name in ("add", "min", "max")
        other = self.wide and (self.name != "add" or self.kind not in halves)
        if other or (self.name and not real and self.kind not in _INTEGERS[self.name]):
            raise PtxError("no type of the PTX ISA")
        if size_of(self.seen) < 2:
            raise PtxError("not supported")

    def reduce(self, one: Array, other: Array) -> Array:
        """Of values as registers hold them."""
        of = _REALS.get(self.kind, SEEN[self.seen])
        a, b = (np.ascontiguousarray(v).view(of) for v in (one, other))
        with np.errstate(all="ignore"):
            found = np.asarray(_FUNCTIONS[self.name](a, b)).astype(of)
        return np.asarray(found.view(one.dtype))

    def reduce_all(self, values: list[Array]) -> Array:
        """Of one value of each replica; ``.acc::f32`` rounds once, after the last."""
        if not self.wide:
            return reduce(self.reduce, values)
        of = _REALS[self.kind]
        with np.errstate(all="ignore"):
            found = reduce(np.add, [np.ascontiguousarray(v).view(of).astype(np.float32) for v in values])
            return np.asarray(found.astype(of).view(values[0].dtype))


def _replicas(b: Builder, address: Read, site: Site, mask: Mask | None) -> list[Array]:
    """The addresses of the lanes in each replica."""
    where = full(address(), b.state.lanes)
    active = where if mask is None else where[mask.index]
    number = (int(active[0]) >> BUFFER) - 1
    bases = b.state.memory.multicast.get(number)
    if bases is None or (active >> BUFFER != number + 1).any():
        raise Trap("bounds", f"0x{int(active[0]):x} is in no multicast object", site, first_of(mask))
    return [where + np.int64(base - ((number + 1) << BUFFER)) for base in bases]


@instruction("9.7.9", "multimem.ld_reduce:14", "memory", note=_NOTE)
def _ld_reduce(b: Builder, i: Instruction, site: Site) -> Run:
    form, items = _Form(i), items_of(i.operands[0])
    if not form.name:
        raise PtxError("takes an operation")
    puts, address = [b.write_active(item, form.seen) for item in items], b.address(i.operands[1])
    width = size_of(form.seen) * len(items)

    def run(mask: Mask | None) -> None:
        found = []
        for where in _replicas(b, address, site, mask):
            raw = b.state.memory.load(site, where, width, mask, how=form.how)
            found.append(split(raw, form.seen, len(items)))
        for put, *values in zip(puts, *found, strict=True):
            put(form.reduce_all(values), mask)

    return run


@instruction("9.7.9", "multimem.st:14", "move", writes=0, note=_NOTE)
def _st(b: Builder, i: Instruction, site: Site) -> Run:
    form, items, address = _Form(i), items_of(i.operands[1]), b.address(i.operands[0])
    reads, width = [b.read(item, form.seen) for item in items], size_of(form.seen) * len(items)

    def run(mask: Mask | None) -> None:
        values = [full(read(), b.state.lanes) for read in reads]
        if mask is not None:
            values = [value[mask.index] for value in values]
        for where in _replicas(b, address, site, mask):
            b.state.memory.store(site, where, width, join(values, width), mask, form.how)

    return run


@instruction("9.7.9", "multimem.red:14", "memory atomic", writes=0, note=_NOTE)
def _red(b: Builder, i: Instruction, site: Site) -> Run:
    form, items, address = _Form(i), items_of(i.operands[1]), b.address(i.operands[0])
    reads, width, state = [b.read(item, form.seen) for item in items], size_of(form.seen), b.state

    def run(mask: Mask | None) -> None:
        for n, read in enumerate(reads):
            values = full(read(), state.lanes)
            values = values if mask is None else values[mask.index]

            def change(at: int, old: Array, values: Array = values) -> Array:
                held = np.ascontiguousarray(values[at : at + 1]).view(old.dtype)
                return form.reduce(old, held)

            for where in _replicas(b, address, site, mask):
                state.memory.update(site, where + np.int64(n * width), width, mask, change, form.how)

    return run
