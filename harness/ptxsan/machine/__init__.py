"""From instructions to closures over the registers of a running kernel.

A register holds one NumPy array over all lanes, or a scalar where all lanes agree; arrays are never changed
in place. An instruction becomes a function of the active lanes (None for all of them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks import Site
from ptxsan.frontend import Address, Entry, Instruction, Name, Number, Operand, PtxError, Register, Vector
from ptxsan.lanes import Array, Mask
from ptxsan.machine.state import KernelState

Run = Callable[[Mask | None], None]
Read = Callable[[], Any]
Write = Callable[[Any, Mask | None], None]

# How a register of each type is stored, and how an instruction sees it.
WIDEST = np.dtype(np.complex128)  # 16 bytes, of which nothing is computed
STORED: dict[str, Any] = {
    "pred": np.dtype(bool),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
STORED |= {f"{sign}16": np.dtype(np.uint16) for sign in "bus"} | {"f16": np.dtype(np.uint16)}
STORED |= {f"{sign}32": np.dtype(np.int32) for sign in "bus"} | {"f16x2": np.dtype(np.int32)}
STORED |= {f"{sign}8": np.dtype(np.uint8) for sign in "bus"}
STORED |= {f"{sign}64": np.dtype(np.int64) for sign in "bus"}
SEEN: dict[str, Any] = {
    "pred": np.dtype(bool),
    "b8": np.dtype(np.uint8),
    "b128": WIDEST,
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
for _bits in (8, 16, 32, 64):
    SEEN[f"s{_bits}"] = np.dtype(f"i{_bits // 8}")
    SEEN[f"u{_bits}"] = SEEN[f"b{_bits}"] = np.dtype(f"u{_bits // 8}")


class Builder:
    """Operands of one kernel's instructions as functions that read and write registers."""

    def __init__(self, state: KernelState, entry: Entry) -> None:
        self.state, self.entry = state, entry
        self._slots = {name: i for i, name in enumerate(entry.registers)}
        self.initial: list[Any] = []
        for name, kind in entry.registers.items():
            if kind not in STORED:
                raise PtxError(f"register {name}: type .{kind} is not supported")
            self.initial.append(STORED[kind].type(0))
        self.sites: list[Site] = []
        self.remembering: list[Site] = []  # those that have patterns

    def site(self, instruction: Instruction) -> Site:
        site = Site(instruction, len(self.sites) + 1, remembering=self.remembering)
        self.sites.append(site)
        return site

    def forget(self) -> None:
        """What the accesses to shared memory were like."""
        for site in self.remembering:
            site.patterns.clear()
        self.remembering.clear()

    def slot(self, operand: Operand) -> int:
        """The register of an operand; constants get one of their own. Raises PtxError for anything else."""
        if isinstance(operand, Register):
            return self._slots[operand.name]
        raise PtxError(f"{operand} is not a register")

    def constant(self, value: Any) -> int:
        self.initial.append(value)
        return len(self.initial) - 1

    def kind(self, operand: Operand) -> str:
        """The declared type of a register."""
        return self.entry.registers[operand.name] if isinstance(operand, Register) else ""

    def read(self, operand: Operand, kind: str) -> Read:
        """The value of a register, an immediate or a name, seen as a type such as "s32"."""
        want = SEEN[kind]
        if isinstance(operand, Number):
            value = _immediate(operand, kind)
            return lambda: value
        if isinstance(operand, Name):
            return self._named(operand.text, want)
        registers, i = self.state.registers, self.slot(operand)
        stored = STORED[self.kind(operand)]
        if stored == want:
            return lambda: registers[i]
        if stored.itemsize == want.itemsize and bool not in (stored.type, want.type):
            return lambda: registers[i].view(want)
        if want.kind in "iu" and want.itemsize < stored.itemsize:
            return lambda: registers[i].astype(want)
        raise PtxError(f"register {operand} of type .{self.kind(operand)} cannot be read as .{kind}")

    def _named(self, name: str, want: Any) -> Read:
        state = self.state
        if (address := state.symbol(name)) is not None:
            constant = want.type(address)
            return lambda: constant
        if state.is_global(name):
            return lambda: state.global_address(name).astype(want)
        if state.known_special(name):
            return lambda: state.special(name).astype(want)
        raise PtxError(f"unknown name {name}")

    def write(self, operand: Operand) -> Write:
        """Sets a register in the active lanes, from a value of its width over all lanes."""
        registers = self.state.registers
        if isinstance(operand, Name) and operand.text == "_":
            return lambda value, mask: None
        i, stored = self.slot(operand), STORED[self.kind(operand)]

        def put(value: Any, mask: Mask | None) -> None:
            if value.dtype != stored:
                value = (
                    value.view(stored) if value.dtype.itemsize == stored.itemsize else value.astype(stored)
                )
            registers[i] = value if mask is None else np.where(mask.bits, value, registers[i])

        return put

    def write_active(self, operand: Operand, kind: str) -> Write:
        """Sets a register from values of the active lanes alone, (n,) as memory holds them."""
        if isinstance(operand, Name) and operand.text == "_":
            return lambda value, mask: None
        state, registers = self.state, self.state.registers
        i, stored, want = self.slot(operand), STORED[self.kind(operand)], SEEN[kind]

        def put(values: Any, mask: Mask | None) -> None:
            values = values.view(want)
            # A narrow load fills a wider register: by its sign, or by zeros.
            same = stored.itemsize == want.itemsize
            values = values.view(stored) if same else values.astype(stored)
            if mask is not None:
                merged = np.empty(state.lanes, stored)
                merged[:] = registers[i]
                merged[mask.index] = values
                values = merged
            registers[i] = values

        return put

    def address(self, operand: Operand) -> Read:
        """The address that [base + offset] names."""
        if not isinstance(operand, Address):
            raise PtxError(f"{operand} is not an address")
        if operand.base is None:
            value = np.int64(operand.offset)
            return lambda: value
        if isinstance(operand.base, Register):
            wide = self.kind(operand.base).endswith("64")
        else:
            wide = self.state.is_global(operand.base.text)
        signed = "s64" if wide else "s32"
        base = self.read(operand.base, signed)
        if not operand.offset:
            return base
        offset = SEEN[signed].type(operand.offset)
        last: list[Any] = [None, None]

        def add() -> Any:
            # The same base gives the same array, by which the checks know an access again.
            now = base()
            if now is not last[0]:
                last[0], last[1] = now, now + offset
            return last[1]

        return add


def _immediate(number: Number, kind: str) -> Any:
    want = SEEN[kind]
    if number.bits is not None:
        unsigned = np.dtype(f"u{want.itemsize}") if want.itemsize > 1 else np.dtype(np.uint8)
        return unsigned.type(number.bits & ((1 << 8 * want.itemsize) - 1)).view(want)
    if want.kind == "f" or kind in ("f16", "bf16"):
        return want.type(number.value)
    if kind == "pred":
        return np.bool_(number.value != 0)
    value = int(number.value) & ((1 << 8 * want.itemsize) - 1)
    return np.dtype(f"u{want.itemsize}").type(value).view(want)


def split(raw: Array, kind: str, count: int) -> list[Array]:
    """What memory gave, (n,) or (n, words), as ``count`` elements of a type, (n,) each."""
    want = SEEN[kind]
    if count == 1:
        return [raw if raw.ndim == 1 else np.ascontiguousarray(raw).view(want)[:, 0]]
    columns = np.ascontiguousarray(raw).reshape(len(raw), -1).view(want)
    return list(np.ascontiguousarray(columns.T))


def join(values: list[Array], width: int) -> Array:
    """Elements (n,) each as memory takes them: (n,) of up to 4 bytes in all, or (n, words)."""
    if len(values) == 1:
        raw = np.ascontiguousarray(values[0])
        return raw.view(f"u{width}") if width <= 4 else raw.view(np.uint32).reshape(-1, width // 4)
    rows = np.ascontiguousarray(np.stack(values, axis=1))
    raw = rows.view(f"u{min(width, 4)}")
    return raw[:, 0] if width <= 4 else raw


# What the modules of instructions share.


NARROW = frozenset({"f16", "bf16", "f16x2", "bf16x2"})
FLOATS = frozenset({"f32", "f64", "f16", "bf16"})


def words_of(i: Instruction) -> list[str]:
    return i.op.replace("::", "_").split(".")


def parts(i: Instruction) -> tuple[list[str], str]:
    """Modifiers between the first word and the type, and the type."""
    _, *modifiers, kind = words_of(i)
    return modifiers, kind


def items_of(operand: Operand) -> tuple[Operand, ...]:
    """Of a vector its items, else the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def simple(b: Builder, i: Instruction, kind: str, operation: Any, *more: str) -> Run:
    """d = operation(sources): the first of a kind, the others of ``more``, the last of which is that of all
    further ones."""
    kinds = (kind, *more)
    put = b.write(i.operands[0])
    reads = [b.read(o, kinds[min(j, len(more))]) for j, o in enumerate(i.operands[1:])]
    if len(reads) == 1:
        (one,) = reads
        return lambda mask: put(operation(one()), mask)
    if len(reads) == 2:
        one, two = reads
        return lambda mask: put(operation(one(), two()), mask)
    return lambda mask: put(operation(*(read() for read in reads)), mask)


def only(modifiers: list[str], allowed: set[str]) -> None:
    """Raises PtxError for a modifier that is not one of these."""
    if set(modifiers) - allowed:
        raise PtxError(f"modifiers {modifiers} are not supported")


def quiet(operation: Any) -> Any:
    """The operation of NumPy without its warnings and traps."""

    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return operation(*operands)

    return run
