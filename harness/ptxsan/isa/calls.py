"""call, of what comes with the device (PTX ISA §9.7.12.5): printf, the end of an assertion, malloc and free.

Functions of the module itself stand in the places of their calls (``ptxsan.frontend.body``).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Name, PtxError, Register, Vector
from ptxsan.isa.memory import spaces, within
from ptxsan.lanes import Array, Mask, first_of, full
from ptxsan.machine import Builder, Run, items_of
from ptxsan.machine.memory import LOCAL
from ptxsan.machine.table import instruction

_Read = Callable[[int, int], bytes]  # bytes at a generic address, so many, of a lane
_SPECIFIER = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|t|j|L)?([diouxXeEfFgGaAcspn%])")
_LONG = ("ll", "l", "z", "t", "j")


@instruction(
    "9.7.12",
    "call:5",
    "memory once",
    writes=0,
    note="functions of the same PTX, also through pointers, some calls deep within themselves; `vprintf`",
)
def _call(b: Builder, i: Instruction, site: Site) -> Run:
    position = next(n for n, o in enumerate(i.operands) if not isinstance(o, Vector))
    callee = i.operands[position]
    if isinstance(callee, Register):
        return _lost(b, callee, site)
    assert isinstance(callee, Name)
    name = callee.text
    given = [o for operand in i.operands[position + 1 :] for o in items_of(operand)]
    if name == "vprintf":
        return _printf(b, i.operands[:position], given, site)
    if name == "__assertfail":
        return _assertion(b, given, site)
    if name == "malloc":
        return _malloc(b, i.operands[:position], given, site)
    if name == "free":
        return _free(b, given, site)
    if name not in b.entry.functions:
        raise PtxError(f"{name} is a function that the PTX does not have")

    def too_deep(mask: Mask | None) -> None:
        what = f"calls {name}, which calls itself more often than is supported"
        raise Trap("unsupported", what, site, first_of(mask))

    return too_deep


def _lost(b: Builder, pointer: Register, site: Site) -> Run:
    """A call through a pointer that means none of the functions it may."""
    read = b.read(pointer, "s64")

    def run(mask: Mask | None) -> None:
        lane = first_of(mask)
        what = (
            f"calls through a pointer, 0x{int(full(read(), b.state.lanes)[lane]):x}, which is the address of"
        )
        raise Trap("bounds", f"{what} no function with these parameters", site, lane)

    return run


def _reader(b: Builder, site: Site, lane: int) -> _Read:
    """Reads memory of any state space for one lane."""
    state = b.state

    def read(address: int, size: int) -> bytes:
        bits = np.zeros(state.lanes, bool)
        bits[lane] = True
        mask, found = Mask(bits), b""
        for at in range(address, address + size):
            where = np.full(state.lanes, at, np.int64)
            ((_, space, _),) = spaces(where, mask)
            where = within(space, where)
            if space == "const":
                found += state.constant.load(site, where, 1, mask, state.lanes).tobytes()[:1]
                continue
            memory: Any = {"shared": state.shared, "local": state.local}.get(space, state.memory)
            found += memory.load(site, where, 1, mask).tobytes()[:1]
        return found

    return read


def _parameter(b: Builder, name: Any, size: int) -> Callable[[_Read], int]:
    """The number that a call passes in a variable of its own."""
    address = b.state.symbol(name.text) if isinstance(name, Name) else None
    if address is None:
        raise PtxError(f"{name} is no parameter of a call")
    local = address | LOCAL
    return lambda read: int.from_bytes(read(local, size), "little")


def _result(b: Builder, results: Any) -> int | None:
    """The address in local memory of the variable that takes a result."""
    targets = [o for operand in results for o in items_of(operand)]
    return b.state.symbol(targets[0].text) if targets and isinstance(targets[0], Name) else None


def _text(read: _Read, address: int) -> str:
    """A string of C."""
    found = b""
    while len(found) < 4096 and (byte := read(address + len(found), 1)) != b"\0":
        found += byte
    return found.decode("utf-8", "replace")


def _printf(b: Builder, results: Any, given: list[Any], site: Site) -> Run:
    """Each lane prints for itself, the lanes in order; the result, which nobody looks at, is 0."""
    form, arguments = (_parameter(b, name, 8) for name in given)
    at, state = _result(b, results), b.state
    texts: dict[int, str] = {}  # formats by their address: they do not change

    def run(mask: Mask | None) -> None:
        lanes = range(state.lanes) if mask is None else mask.index.tolist()
        for lane in lanes:
            if state.prints():
                read = _reader(b, site, lane)
                at_form = form(read)
                if at_form not in texts:
                    texts[at_form] = _text(read, at_form)
                state.say(lane, formatted(texts[at_form], arguments(read), read))
        if at is not None:
            count = full(np.int32(0), state.lanes if mask is None else len(mask.index))
            state.local.store(site, np.int64(at), 4, np.ascontiguousarray(count).view(np.uint32), mask)

    return run


def formatted(form: str, at: int, read: _Read) -> str:
    """What printf prints of arguments that lie from an address on, each aligned to its size."""

    def take(size: int) -> bytes:
        nonlocal at
        at = -(-at // size) * size + size
        return read(at - size, size)

    def replace(match: re.Match[str]) -> str:
        flags, width, precision, length, kind = match.groups()
        if kind == "%":
            return "%"
        if width == "*":
            width = str(int.from_bytes(take(4), "little", signed=True))
        if precision == "*":
            precision = str(int.from_bytes(take(4), "little", signed=True))
        spec = f"%{flags}{width or ''}{'.' + precision if precision is not None else ''}"
        if kind in "eEfFgGaA":
            value = struct.unpack("<d", take(8))[0]
            return str(value.hex() if kind in "aA" else f"{spec}{kind}" % value)
        if kind == "s":
            return f"{spec}s" % _text(read, int.from_bytes(take(8), "little"))
        if kind in "pn":
            address = int.from_bytes(take(8), "little")
            return f"0x{address:x}" if kind == "p" else ""
        number = int.from_bytes(take(8 if length in _LONG else 4), "little", signed=kind in "di")
        bits = {"hh": 8, "h": 16}.get(length or "")
        if bits:
            number = number % (1 << bits) - (1 << bits) * (kind in "di" and number >> bits - 1 & 1)
        return (
            f"{spec}c" % chr(number & 0xFF)
            if kind == "c"
            else f"{spec}{'d' if kind == 'u' else kind}" % number
        )

    return _SPECIFIER.sub(replace, form)


def _assertion(b: Builder, given: list[Any], site: Site) -> Run:
    message = _parameter(b, given[0], 8)

    def end(mask: Mask | None) -> None:
        lane = first_of(mask)
        read = _reader(b, site, lane)
        raise Trap("trap", f"fails the assertion {_text(read, message(read))}", site, lane)

    return end


# The device's own heap (CUDA C++ Programming Guide, "Dynamic Global Memory Allocation and Operations").


def _numbers(b: Builder, name: Any, site: Site) -> Callable[[Mask | None], Array]:
    """What the active lanes (n,) pass in a variable of 64 bits."""
    address, state = b.state.symbol(name.text) if isinstance(name, Name) else None, b.state
    if address is None:
        raise PtxError(f"{name} is no parameter of a call")
    where = np.int64(address)
    return lambda mask: np.ascontiguousarray(state.local.load(site, where, 8, mask)).view(np.int64)[:, 0]


def _malloc(b: Builder, results: Any, given: list[Any], site: Site) -> Run:
    """Each lane gets memory of its own, the lanes in order; 0 where there is none left."""
    sizes, at, state = _numbers(b, given[0], site), _result(b, results), b.state

    def run(mask: Mask | None) -> None:
        lanes = state.geometry.every if mask is None else mask.index
        heap, launch = state.memory.heap(), state.geometry.launch
        found = [
            heap.allocate(int(launch[lane]), size, state.geometry.describe(lane), site)
            for lane, size in zip(lanes.tolist(), sizes(mask).view(np.uint64).tolist(), strict=True)
        ]
        if at is not None:
            held = np.array(found, np.int64).view(np.uint32).reshape(-1, 2)
            state.local.store(site, np.int64(at), 8, held, mask)

    return run


def _free(b: Builder, given: list[Any], site: Site) -> Run:
    pointers, state = _numbers(b, given[0], site), b.state

    def run(mask: Mask | None) -> None:
        lanes = state.geometry.every if mask is None else mask.index
        for lane, pointer in zip(lanes.tolist(), pointers(mask).tolist(), strict=True):
            if pointer:
                state.memory.release(site, lane, pointer)

    return run
