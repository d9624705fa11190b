"""From instructions to the programs of blocks.c.

Instructions that follow each other become a segment: first what its loads need as addresses, then the loads'
own checks, then everything else, strip by strip. Each result is a value of its own, so that only registers
that are read later on are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ptxsan.frontend import (
    Address,
    Instruction,
    Name,
    Number,
    Operand,
    Register,
    Vector,
    register_names,
    size_of,
)
from ptxsan.machine import STORED, Builder
from ptxsan.native.source import CODES, GATHER, OPERATIONS

_SEEN_AS = {"uint8_t": "pred", "float": "f32"} | {f"uint{n}_t": f"u{n}" for n in (16, 32, 64)}
_SEEN_AS |= {f"int{n}_t": f"s{n}" for n in (32, 64)}
_PLAIN = {"global", "shared", "nc", "ca", "cg", "cs", "lu", "v2", "v4"}  # words of a load without an order


@dataclass(frozen=True)
class Load:
    """A load of ``count`` elements of ``size`` bytes: its base ``address`` is a value, or a number."""

    instruction: Instruction
    space: str
    address: int | None
    offset: int
    size: int
    count: int


@dataclass
class Step:
    """An operation, or an element of a load: its value, and those it is made of."""

    code: int
    result: int
    operands: tuple[int, ...]
    load: int = -1
    element: int = 0


@dataclass
class Segment:
    """Instructions as steps. Values are numbered; ``slots`` are the registers of those from before,
    ``sizes`` and ``kinds`` of all. ``last`` is what each register holds in the end."""

    steps: list[Step] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    dtypes: list[Any] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)
    _before: dict[int, int] = field(default_factory=dict)
    _made_by: dict[int, Step] = field(default_factory=dict)

    def value(self, slot: int, dtype: Any) -> int:
        """What a register holds now."""
        if slot in self.last:
            return self.last[slot]
        if slot not in self._before:
            self._before[slot] = self._new(dtype)
            self.slots[self._before[slot]] = slot
        return self._before[slot]

    def _new(self, dtype: Any) -> int:
        self.dtypes.append(dtype)
        return len(self.dtypes) - 1

    def add(self, code: int, slot: int, dtype: Any, operands: Sequence[int]) -> None:
        self._put(Step(code, self._new(dtype), tuple(operands)), slot)

    def load(self, load: Load, targets: Sequence[tuple[int, Any]]) -> None:
        self.loads.append(load)
        for element, (slot, dtype) in enumerate(targets):
            step = Step(GATHER[load.size], self._new(dtype), (), len(self.loads) - 1, element)
            self._put(step, slot)

    def _put(self, step: Step, slot: int) -> None:
        self.steps.append(step)
        self._made_by[step.result] = step
        self.last[slot] = step.result

    def before_loads(self, value: int) -> bool:
        """Whether a value depends on nothing that the segment loads."""
        step = self._made_by.get(value)
        return step is None or (step.load < 0 and all(self.before_loads(v) for v in step.operands))

    def addresses(self) -> set[int]:
        """The values that the addresses of loads are made of, within the segment."""
        found: set[int] = set()
        todo = [load.address for load in self.loads if load.address is not None]
        while todo:
            value = todo.pop()
            if value not in found and value in self._made_by:
                found.add(value)
                todo += self._made_by[value].operands
        return found


@cache
def _words(op: str) -> tuple[str, ...]:
    return tuple(op.replace("::", ".").split("."))


class Translator:
    """Of the instructions of one kernel that touch no ``watched`` register."""

    def __init__(self, b: Builder, register: Callable[[Any], int], watched: Set[str]) -> None:
        self._b, self._register, self._watched = b, register, watched
        self._constants: dict[tuple[str, bytes], int] = {}
        self._targets: dict[int, tuple[Operand, ...]] = {}  # by instruction

    def target(self, i: Instruction) -> tuple[Operand, ...]:
        """The registers that an instruction certainly writes, where it may be part of a segment."""
        if (found := self._targets.get(id(i))) is None:
            first, found = i.operands[:1], ()
            watched = self._watched and not self._watched.isdisjoint(register_names(i.operands))
            if i.guard is None and not watched and self._fits(i):
                found = first[0].items if isinstance(first[0], Vector) else first
            self._targets[id(i)] = found
        return found

    def add(self, segment: Segment, i: Instruction) -> bool:
        """Adds an instruction; False if it can be no part of this segment."""
        words = i.op.split(".")
        if words[0] == "ld":
            return self._load(segment, i, words)
        target = self._slot(i.operands[0])
        if words[0] in ("mov", "cvta"):
            value = self._value(segment, i.operands[1], self._stored(i.operands[0]), words[-1])
            if segment.dtypes[value] == self._stored(i.operands[0]):
                segment.last[target] = value
                return True
            code = CODES[f"copy.{segment.dtypes[value].itemsize}"]
            segment.add(code, target, self._stored(i.operands[0]), [value])
            return True
        operation = OPERATIONS[i.op]
        operands = [
            self._value(segment, operand, None, _SEEN_AS[kind])
            for operand, kind in zip(i.operands[1:], operation.operands, strict=True)
        ]
        segment.add(CODES[i.op], target, self._stored(i.operands[0]), operands)
        return True

    def _load(self, segment: Segment, i: Instruction, words: list[str]) -> bool:
        source = i.operands[1]
        assert isinstance(source, Address)
        targets = self.target(i)
        base = None
        if isinstance(source.base, Register):
            base = segment.value(self._slot(source.base), self._stored(source.base))
            if not segment.before_loads(base):
                return False
        offset = source.offset
        if isinstance(source.base, Name):
            offset += self._b.state.symbol(source.base.text) or 0
        space = "shared" if "shared" in words else "global"
        load = Load(i, space, base, offset, size_of(words[-1]), len(targets))
        segment.load(load, [(self._slot(t), self._stored(t)) for t in targets])
        return True

    # What an instruction is made of

    def _fits(self, i: Instruction) -> bool:
        words, operands = _words(i.op), i.operands
        if words[0] == "ld":
            return self._fits_load(words, operands)
        if words[0] == "mov":
            return len(operands) == 2 and all(self._plain(o, size_of(words[-1])) for o in operands)
        if words[0] == "cvta":
            return "global" in words and all(self._plain(o, 8) for o in operands)
        operation = OPERATIONS.get(i.op)
        if operation is None or len(operands) != 1 + len(operation.operands):
            return False
        return all(map(self._plain, operands, operation.sizes))

    def _fits_load(self, words: Sequence[str], operands: Sequence[Operand]) -> bool:
        if len(operands) != 2 or not {"global", "shared"} & set(words) or set(words[1:-1]) - _PLAIN:
            return False
        target, source = operands
        items = target.items if isinstance(target, Vector) else (target,)
        if size_of(words[-1]) not in GATHER or not isinstance(source, Address):
            return False
        if isinstance(source.base, Register):
            wide = self._stored(source.base).itemsize == (4 if "shared" in words else 8)
        else:
            wide = isinstance(source.base, Name) and "shared" in words
            wide = wide and self._b.state.symbol(source.base.text) is not None  # type: ignore[union-attr]
        return wide and all(isinstance(o, Register) and self._plain(o, size_of(words[-1])) for o in items)

    def _plain(self, operand: Operand, size: int) -> bool:
        """A register of this size, an immediate, or the address of a variable."""
        if isinstance(operand, Register):
            return bool(self._stored(operand).itemsize == size)
        if isinstance(operand, Name):
            return self._b.state.symbol(operand.text) is not None
        return isinstance(operand, Number)

    def _slot(self, operand: Operand) -> int:
        return self._b.slot(operand)

    def _stored(self, operand: Operand) -> Any:
        return STORED[self._b.kind(operand)]

    def _value(self, segment: Segment, operand: Operand, dtype: Any, kind: str) -> int:
        if isinstance(operand, Register):
            return segment.value(self._slot(operand), self._stored(operand))
        constant = self._b.read(operand, kind)()
        constant = constant.view(dtype or STORED[kind])
        key = (constant.dtype.str, constant.tobytes())
        if key not in self._constants:
            self._constants[key] = self._register(constant)
        return segment.value(self._constants[key], constant.dtype)
