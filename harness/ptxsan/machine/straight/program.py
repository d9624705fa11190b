"""A program of blocks.c: steps, where their values are kept, and what becomes of them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from ptxsan.machine.straight.translate import Step
from ptxsan.native.build import KINDS, Library

_CACHE = 64 * 1024  # bytes that the values of a strip may take
_STRIPS = (64, 1024)  # lanes


class _Fields(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("operations", "inputs", "values", "outputs", "loads", "strip")],
        *[(name, ctypes.c_void_p) for name in ("operation", "input", "size", "room", "output", "scratch")],
        *[(name, ctypes.c_void_p) for name in ("place", "step", "same", "made", "target")],
        *[(name, ctypes.c_void_p) for name in ("array_type", "empty")],
    ]


class Program:
    """Steps made ready to run. ``inputs`` are the registers of values from before, ``outputs`` those that
    get a value; ``strides`` the elements of each load."""

    def __init__(
        self,
        library: Library,
        steps: Sequence[Step],
        inputs: Mapping[int, int],
        outputs: Mapping[int, int],
        dtypes: Sequence[Any],
        strides: Sequence[int],
    ) -> None:
        used = {v for step in steps for v in step.operands} | set(outputs.values())
        before = [v for v in inputs if v in used]
        number = {v: i for i, v in enumerate([*before, *(step.result for step in steps)])}
        last = {v: at for at, step in enumerate(steps) for v in step.operands}
        made = {step.result: at for at, step in enumerate(steps)}
        last |= dict.fromkeys(outputs.values(), len(steps))
        sizes = {v: np.dtype(dtypes[v]).itemsize for v in number}
        rooms, count = _rooms(steps, {v: i for i, v in enumerate(before)}, last, sizes)
        self.inputs = [inputs[v] for v in before]
        size = list(sizes.values())
        room = [rooms[v] for v in number]
        operation = []
        for step in steps:
            if step.load >= 0:
                source = [step.load, strides[step.load], step.element]
            else:
                source = [number[v] for v in step.operands]
                source += source[:1] * (3 - len(source))
            operation.append([step.code, number[step.result], *source])
        output: list[list[int]] = []
        seen: dict[int, int] = {}
        passed = set(outputs.values())
        of_slot = {inputs[v]: v for v in before}
        for k, (slot, value) in enumerate(outputs.items()):
            old = of_slot.get(slot)
            # Its old array may be written over once nothing reads it any more.
            over = value in made and (old is None or (old not in passed and last.get(old, -1) <= made[value]))
            kind = KINDS.index(np.dtype(dtypes[value]))
            output.append(
                [slot, number[value], kind, int(over), seen.setdefault(value, k) if value in seen else -1]
            )
            seen.setdefault(value, k)
        strip = _strip(sum(size))
        counts = (len(steps), len(before), len(number), len(output), len(strides), strip)
        rows = [list(chain(*operation)), self.inputs, size, room, list(chain(*output))]
        # The scratch, and of each value and output what a run fills in.
        filled_of = [count * strip * 8, *[8 * len(number)] * 3, *[8 * len(output)] * 2]
        # Kept, as the structure has their addresses alone.
        self._held = np.array(list(chain(*rows)), np.int32), np.zeros(sum(filled_of) + 64, np.uint8)
        numbers, filled = (array.__array_interface__["data"][0] for array in self._held)
        filled += -filled % 64
        pointers = [
            *_one_after_another(numbers, [4 * len(each) for each in rows]),
            *_one_after_another(filled, filled_of),
        ]
        self._fields = _Fields(*counts, *pointers, id(np.ndarray), id(np.empty))
        self._run, self._library = library.run, library
        self._at = ctypes.addressof(self._fields)

    def run(self, registers: list[Any], lanes: int, bits: Any, loaded: list[Any]) -> None:
        wrong = self._run(self._at, registers, self._library.arguments(lanes), bits, loaded, lanes, None)
        if wrong == -2:
            self.run(registers, lanes, np.ascontiguousarray(bits), loaded)
        elif wrong:
            raise AssertionError(
                f"register {self.inputs[wrong - 1]} holds {registers[self.inputs[wrong - 1]]!r}"
            )


def _one_after_another(start: int, sizes: Sequence[int]) -> list[int]:
    """Where pieces of so many bytes begin."""
    return list(accumulate(sizes[:-1], initial=start))


def _rooms(
    steps: Sequence[Step], before: Mapping[int, int], last: Mapping[int, int], size: Mapping[int, int]
) -> tuple[dict[int, int], int]:
    """Where each value is kept: a room is free again after a value's last use, and at once for a result of
    the same width."""
    rooms = dict(before)
    count, free = len(before), list[int]()
    for at, step in enumerate(steps):
        done = [v for v in dict.fromkeys(step.operands) if last[v] == at and v not in before]
        alike = [rooms[v] for v in done if size[v] == size[step.result]]
        free += alike
        if free:
            rooms[step.result] = free.pop()
        else:
            rooms[step.result], count = count, count + 1
        free += [rooms[v] for v in done if size[v] != size[step.result]]
        if step.result not in last:
            free.append(rooms[step.result])
    return rooms, count


def _strip(size: int) -> int:
    """Lanes at a time, of so many bytes each."""
    low, high = _STRIPS
    while high > low and high * size > _CACHE:
        high //= 2
    return high
