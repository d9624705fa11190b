"""Comparisons, and what is chosen by them (PTX ISA §9.7.6 and §9.7.7)."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Name, PtxError, Vector
from ptxsan.isa.memory import spaces, within
from ptxsan.lanes import Mask, first_of, full
from ptxsan.machine import FLOATS, SEEN, Builder, Run, items_of, only, parts, simple
from ptxsan.machine.memory import LOCAL
from ptxsan.machine.table import instruction

_COMPARE: dict[str, Any] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


_COMBINE: dict[str, Any] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(modifiers: list[str], kind: str) -> tuple[Any, Any]:
    """How values of a type are compared, and how the result is combined with a predicate; None where it is
    not."""
    name, *others = modifiers
    combine = next((_COMBINE[m] for m in others if m in _COMBINE), None)
    only([m for m in others if m not in _COMBINE], {"ftz"})
    compare = _compare(name, kind)
    if "ftz" not in others or kind not in ("f32", "f16"):
        return compare, combine
    return lambda a, b: compare(arith.flush(a), arith.flush(b)), combine


def _compare(name: str, kind: str) -> Any:
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if name.endswith("u") and kind in FLOATS:
        ordered = _COMPARE[name[:-1]]
        return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and kind in FLOATS:  # ordered: false where one is NaN
        return lambda a, b: (a < b) | (a > b)
    return _COMPARE[name]


def _sources(b: Builder, i: Instruction, kind: str) -> list[Any]:
    """What reads the first two sources: of two values a register as (lanes or 1, 2)."""
    if not kind.endswith("x2"):
        return [b.read(o, kind) for o in i.operands[1:3]]

    def pairs(read: Any) -> Any:
        element = SEEN[kind.removesuffix("x2")]
        return lambda: np.ascontiguousarray(np.atleast_1d(read())).view(element).reshape(-1, 2)

    return [pairs(b.read(o, "b32")) for o in i.operands[1:3]]


@instruction("9.7.6", "setp:2", "compares")
def _setp(b: Builder, i: Instruction, site: Site) -> Run:
    """The result and its opposite; of two values a register the result of each, the lower one first."""
    modifiers, kind = parts(i)
    compare, combine = _comparison(modifiers, kind.removesuffix("x2"))
    puts, (one, two), state = [b.write(o) for o in items_of(i.operands[0])], _sources(b, i, kind), b.state
    if len(puts) == 1 and not combine:
        (put,) = puts
        return lambda mask: put(compare(one(), two()), mask)
    third = b.read(i.operands[3], "pred") if combine else None

    def run(mask: Mask | None) -> None:
        result = compare(one(), two())
        both = (result, ~result)
        if kind.endswith("x2"):
            both = tuple(np.ascontiguousarray(np.broadcast_to(result, (state.lanes, 2)).T))
        other = third() if third else None
        for put, value in zip(puts, both, strict=False):
            put(combine(value, other) if combine else value, mask)

    return run


@instruction("9.7.6", "set:1", "compares")
def _set(b: Builder, i: Instruction, site: Site) -> Run:
    """set: 1.0, or all bits of an integer, where the comparison holds, else 0 (§9.7.6.1)."""
    _, *modifiers, kind, source = i.op.split(".")
    packed = source.endswith("x2")
    (compare, combine), to = _comparison(modifiers, source.removesuffix("x2")), SEEN[kind.removesuffix("x2")]
    if packed and kind in ("u32", "s32"):  # all bits of a half for each
        to = SEEN["u16"]
    elif packed and not kind.endswith("x2"):
        raise PtxError("not supported")
    yes = ~to.type(0) if to.kind in "iu" else to.type(1)
    put, (one, two) = b.write(i.operands[0]), _sources(b, i, source)
    third = b.read(i.operands[3], "pred") if combine else None

    def run(mask: Mask | None) -> None:
        holds = compare(one(), two())
        if third is not None:
            other = np.asarray(third())
            holds = combine(holds, other.reshape(-1, 1) if packed else other)
        found = np.where(holds, yes, to.type(0))
        put(np.ascontiguousarray(found).view(np.uint32)[:, 0] if packed else found, mask)

    return run


@instruction("9.7.6", "selp:3", "logic")
def _selp(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    return simple(b, i, kind, lambda one, two, choose: np.where(choose, one, two), kind, "pred")


@instruction("9.7.6", "slct:4")
def _slct(b: Builder, i: Instruction, site: Site) -> Run:
    """slct: a where c is not negative, else b; b where c is NaN. −0 is not negative."""
    *modifiers, kind, by = i.op.split(".")[1:]
    only(modifiers, {"ftz"} if by == "f32" else set())
    bits = f"b{8 * SEEN[kind].itemsize}"

    def choose(one: Any, two: Any, c: Any) -> Any:
        return np.where((arith.flush(c) if modifiers else c) >= 0, one, two)

    return simple(b, i, bits, choose, bits, by)


# call, of what comes with the device (PTX ISA §9.7.12.5): printf, and the end of an assertion.
#
# Functions of the module itself stand in the places of their calls (``ptxsan.frontend.body``).


_Read = Callable[[int, int], bytes]  # bytes at a generic address, so many, of a lane
_SPECIFIER = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|t|j|L)?([diouxXeEfFgGaAcspn%])")
_LONG = ("ll", "l", "z", "t", "j")


@instruction(
    "9.7.12",
    "call:5",
    "memory once",
    writes=0,
    note="functions of the same PTX, some calls deep within themselves; `vprintf`; no pointers, no heap",
)
def _call(b: Builder, i: Instruction, site: Site) -> Run:
    position = next(n for n, o in enumerate(i.operands) if not isinstance(o, Vector))
    callee = i.operands[position]
    if not isinstance(callee, Name):
        raise PtxError("a call through a pointer")
    name = callee.text
    given = [o for operand in i.operands[position + 1 :] for o in items_of(operand)]
    if name == "vprintf":
        return _printf(b, i.operands[:position], given, site)
    if name == "__assertfail":
        return _assertion(b, given, site)
    if name in ("malloc", "free"):
        raise PtxError(f"{name}: memory of the device's own heap is not supported")
    if name not in b.entry.functions:
        raise PtxError(f"{name} is a function that the PTX does not have")

    def too_deep(mask: Mask | None) -> None:
        what = f"calls {name}, which calls itself more often than is supported"
        raise Trap("unsupported", what, site, first_of(mask))

    return too_deep


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


def _text(read: _Read, address: int) -> str:
    """A string of C."""
    found = b""
    while len(found) < 4096 and (byte := read(address + len(found), 1)) != b"\0":
        found += byte
    return found.decode("utf-8", "replace")


def _printf(b: Builder, results: Any, given: list[Any], site: Site) -> Run:
    """Each lane prints for itself, the lanes in order; the result, which nobody looks at, is 0."""
    form, arguments = (_parameter(b, name, 8) for name in given)
    targets = [o for operand in results for o in items_of(operand)]
    at = b.state.symbol(targets[0].text) if targets and isinstance(targets[0], Name) else None
    state = b.state
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
