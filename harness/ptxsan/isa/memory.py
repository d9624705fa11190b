"""Loads, stores and asynchronous copies (PTX ISA §9.7.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import (
    Address,
    Instruction,
    Name,
    Number,
    Operand,
    PtxError,
    Register,
    parameter_bytes,
    size_of,
)
from ptxsan.lanes import Array, Mask, first_of, full
from ptxsan.machine import SEEN, STORED, Builder, Read, Run, items_of, join, parts, split, words_of
from ptxsan.machine.memory import CONSTANT, LOCAL, SHARED, SLOT, divide, together
from ptxsan.machine.memory.ordered import Strength
from ptxsan.machine.table import instruction

_UNIT, _MOST_BULK = 8, 1 << 24  # bytes, of st.bulk
_SPACE = LOCAL.bit_length() - 1  # address bits below the state space of a generic address


def space_of(modifiers: list[str]) -> str:
    for space in ("global", "shared", "local", "param", "const"):
        if any(m == space or m.startswith(space + "_") for m in modifiers):
            return space
    return "generic"


_SPACES = {LOCAL >> _SPACE: "local", SHARED >> _SPACE: "shared", CONSTANT >> _SPACE: "const"}


def within(space: str, where: Array) -> Array:
    """A generic address in its state space."""
    return where if space == "global" else where & np.int64((1 << _SPACE) - 1)


def spaces(where: Array, mask: Mask | None) -> list[tuple[Any, str, Mask | None]]:
    """Of a generic address: the lanes of each state space, as places among the active ones, and mask."""
    kinds = (where if mask is None else where[mask.index]) >> _SPACE
    if (kinds == kinds[0]).all():
        return [(slice(None), _SPACES.get(int(kinds[0]), "global"), mask)]
    return [(at, _SPACES.get(int(kinds[at[0]]), "global"), part) for at, part in divide(kinds, mask)]


def accessors(b: Builder, modifiers: list[str], site: Site, address: Any, width: int) -> tuple[Any, Any]:
    """(load, store) of an instruction's state space: load(mask), store(values, mask)."""
    state, space, how = b.state, space_of(modifiers), Strength.of(modifiers)
    if space == "param":
        raise PtxError("not supported")

    def parts_of(mask: Mask | None) -> list[tuple[Any, str, Any, Mask | None]]:
        """The active lanes by state space: their places among them, its name, addresses, mask."""
        where = address()
        if space != "generic":
            return [(slice(None), space, where, mask)]
        where = full(where, state.lanes)
        return [(at, name, within(name, where), part) for at, name, part in spaces(where, mask)]

    def load_of(name: str, where: Any, mask: Mask | None) -> Array:
        if name == "global":
            return state.memory.load(site, where, width, mask, how=how)
        if name == "const":
            return state.constant.load(site, where, width, mask, state.lanes)
        if name == "shared":
            return state.shared.load(site, where, width, mask, how)
        return state.local.load(site, where, width, mask)

    def load(mask: Mask | None) -> Array:
        return together([(at, load_of(name, where, part)) for at, name, where, part in parts_of(mask)])

    def store(values: Array, mask: Mask | None) -> None:
        for at, name, where, part in parts_of(mask):
            if name == "const":
                raise Trap("bounds", "writes constant memory", site, first_of(part))
            if name == "local":
                state.local.store(site, where, width, values[at], part)
            else:
                memory = state.memory if name == "global" else state.shared
                memory.store(site, where, width, values[at], part, how)

    return load, store


@instruction("9.7.9", "ld:8 ld.global.nc:9 ldu:10", "move memory")
def _ld(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    items, source = items_of(i.operands[0]), i.operands[1]  # a third one is a cache policy
    if space_of(modifiers) == "param":
        return _ld_param(b, items, source, kind, site)
    puts = [b.write_active(item, kind) for item in items]
    aligned, addresses, width = _at_once(b, source, size_of(kind) * len(items), site)
    loads, count = [accessors(b, modifiers, site, a, width)[0] for a in addresses], width // size_of(kind)

    def run(mask: Mask | None) -> None:
        aligned(mask)
        for j, load in enumerate(loads):
            for put, values in zip(puts[j * count :], split(load(mask), kind, count), strict=False):
                put(values, mask)

    return run


def _at_once(b: Builder, operand: Operand, width: int, site: Site) -> tuple[Run, list[Read], int]:
    """Of an access: what traps where it is not aligned; the addresses, and the bytes at each. Of 32 bytes, of
    sm_100 and later, two of 16, which see to the alignment of no more than that."""
    address, state = b.address(operand), b.state
    if width <= 16:
        return lambda mask: None, [address], width

    def aligned(mask: Mask | None) -> None:
        odd = full(address(), state.lanes) & (width - 1) != 0
        if (odd if mask is None else odd & mask.bits).any():
            lane = int(np.argmax(odd if mask is None else odd & mask.bits))
            raise Trap("misaligned", f"{width}-byte access is not aligned to {width} bytes", site, lane)

    return aligned, [address, lambda: address() + np.int64(width // 2)], width // 2


def _ld_param(b: Builder, items: Sequence[Operand], source: Operand, kind: str, site: Site) -> Run:
    """A parameter that is a number, as a whole; of one that is a struct the bytes at an offset."""
    assert isinstance(source, Address)
    if isinstance(source.base, Register):
        return _ld_indexed(b, items, source, kind, site)
    assert isinstance(source.base, Name)
    name, offset, state = source.base.text, source.offset, b.state
    parameters, width = dict(b.entry.parameters), size_of(kind)
    size, whole = (
        parameter_bytes(parameters.get(name, "")),
        name in parameters and not offset and len(items) == 1,
    )
    if not (0 <= offset <= size - width * len(items) if size else whole):
        raise PtxError(f"no parameter {name}+{offset}")
    if not size:
        put = b.write(items[0])
        return lambda mask: put(state.parameters[name], mask)
    puts = [b.write(item) for item in items]
    # A narrow load fills a wider register: by its sign, or by zeros.
    stored = [STORED[b.kind(item)] for item in items]

    def run(mask: Mask | None) -> None:
        held = state.parameters[name]
        for j, (put, register) in enumerate(zip(puts, stored, strict=True)):
            at = offset + j * width
            field = np.ascontiguousarray(held[..., at : at + width]).view(SEEN[kind])[..., 0]
            put(field if field.dtype.itemsize == register.itemsize else field.astype(register), mask)

    return run


def _ld_indexed(b: Builder, items: Sequence[Operand], source: Operand, kind: str, site: Site) -> Run:
    """Of a parameter that is a struct, at an address in a register: an array in it is indexed."""
    puts = [b.write_active(item, kind) for item in items]
    address, state, parameters = b.address(source), b.state, b.entry.parameters
    width, sizes = size_of(kind) * len(items), [parameter_bytes(kind) for _, kind in parameters]

    def run(mask: Mask | None) -> None:
        where = full(address(), state.lanes).astype(np.int64)
        lanes = np.arange(state.lanes) if mask is None else mask.index
        where = where[lanes]
        numbers, offsets = (where >> SLOT) - 1, where & ((1 << SLOT) - 1)
        found = np.zeros((len(lanes), width), np.uint8)
        for number in np.unique(numbers):
            of_this = numbers == number
            at, size = offsets[of_this], sizes[number] if 0 <= number < len(sizes) else 0
            if (at + width > size).any():
                lane = int(lanes[of_this][np.argmax(at + width > size)])
                what = f"reads {width} bytes of a parameter past its {size} bytes"
                raise Trap("bounds", what, site, lane)
            held = np.broadcast_to(state.parameters[parameters[number][0]], (state.lanes, size))
            found[of_this] = held[lanes[of_this][:, None], at[:, None] + np.arange(width)]
        raw = found.view(f"u{min(width, 4)}")
        for put, values in zip(puts, split(raw[:, 0] if width <= 4 else raw, kind, len(items)), strict=True):
            put(values, mask)

    return run


@instruction("9.7.9", "st:11", "move", writes=0)
def _st(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    items, state = items_of(i.operands[1]), b.state
    # Bits are stored, whatever they mean; a narrow store takes the low ones of a register.
    reads = [b.read(item, f"b{8 * size_of(kind)}") for item in items]
    aligned, addresses, width = _at_once(b, i.operands[0], size_of(kind) * len(items), site)
    stores, count = [accessors(b, modifiers, site, a, width)[1] for a in addresses], width // size_of(kind)

    def run(mask: Mask | None) -> None:
        aligned(mask)
        values = [full(read(), state.lanes) for read in reads]
        if mask is not None:
            values = [value[mask.index] for value in values]
        for j, store in enumerate(stores):
            store(join(values[j * count : (j + 1) * count], width), mask)

    return run


@instruction("9.7.9", "st.bulk:13", "move", writes=0)
def _st_bulk(b: Builder, i: Instruction, site: Site) -> Run:
    """Zeros, 8 bytes at a time, to the block's own shared memory."""
    modifiers, state = words_of(i)[2:], b.state
    _, count, value = i.operands
    if not isinstance(value, Number) or value.value:
        raise PtxError("sets bytes to 0 alone")
    at, size = b.address(i.operands[0]), b.read(count, "u64")
    first = [0]
    _, store = accessors(b, modifiers, site, lambda: at() + np.int64(first[0]), _UNIT)

    def run(mask: Mask | None) -> None:
        sizes = full(size(), state.lanes)
        active = np.ones(state.lanes, bool) if mask is None else mask.bits
        wrong = active & ((sizes % _UNIT != 0) | (sizes > _MOST_BULK))
        if space_of(modifiers) == "generic":
            kinds = full(at(), state.lanes) >> _SPACE
            wrong |= active & (kinds != SHARED >> _SPACE)
        if wrong.any():
            lane = int(np.argmax(wrong))
            what = f"sets {int(sizes[lane])} bytes: it takes multiples of {_UNIT} up to 2²⁴, in shared memory"
            raise Trap("bounds", what, site, lane)
        for first[0] in range(0, int(sizes[active].max(initial=0)), _UNIT):
            part = Mask(active & (sizes > first[0]))
            store(np.zeros((part.count, _UNIT // 4), np.uint32), part)

    return run


# cp.async and its groups (PTX ISA §9.7.9.25.3).
@instruction("9.7.9", "cp.async.ca:25.3.1 cp.async.cg:25.3.1", "move memory", writes=0)
def _copy(b: Builder, i: Instruction, site: Site) -> Run:
    """From global to shared memory, 4, 8 or 16 bytes (.cg: 16): with a fourth operand, a number, only so many
    of them and zeros for the rest; where it is a predicate that is set, zeros alone."""
    state, words, operands = b.state, i.op.split("."), list(i.operands)
    if words[2:3] not in (["ca"], ["cg"]) or not isinstance(operands[2], Number):
        raise PtxError("not supported")
    if any(word.endswith("cache_hint") for word in words):
        operands.pop()
    width = int(operands[2].value)
    if width not in ((16,) if words[2] == "cg" else (4, 8, 16)):
        raise PtxError(f"{width} bytes")
    to, of = b.address(operands[0]), b.address(operands[1])
    size: Read | None = None
    if len(operands) > 3 and b.kind(operands[3]) == "pred":
        ignored = b.read(operands[3], "pred")
        size = lambda: np.where(ignored(), 0, width)  # noqa: E731
    elif len(operands) > 3:
        size = b.read(operands[3], "u32")

    def run(mask: Mask | None) -> None:
        if size is None:
            values = state.memory.load(site, of(), width, mask, "copy")
        else:
            values = _partial(b, site, of(), size(), width, mask)
        # Both ends are one instruction: the patterns are of its shared-memory side.
        state.shared.copy(site, to(), width, values, mask)

    return run


def _partial(b: Builder, site: Site, address: Array, size: Array, width: int, mask: Mask | None) -> Array:
    """The first ``size`` bytes, (lanes,), zeros for the rest: as (n,) or (n, words). Only those are read."""
    lanes, memory = b.state.lanes, b.state.memory
    active = np.ones(lanes, bool) if mask is None else mask.bits
    size = np.where(active, np.minimum(full(size, lanes), width), 0).astype(np.int64)
    octets = np.zeros((lanes, width), np.uint8)
    if (whole := size == width).any():
        chosen = memory.load(site, address, width, Mask(whole), "copy")
        octets[whole] = np.ascontiguousarray(chosen).view(np.uint8).reshape(-1, width)
    for at in range(width if (part := (size > 0) & ~whole).any() else 0):
        if (read := part & (size > at)).any():
            octets[read, at] = memory.load(site, address + at, 1, Mask(read), "copy")
    words = octets.view(np.uint32)[active]
    return words[:, 0] if width == 4 else words


@instruction(
    "9.7.9",
    "cp.async.commit_group:25.3.2 cp.async.wait_group:25.3.3 cp.async.wait_all:25.3.3",
    "move memory once",
    writes=0,
)
def _group(b: Builder, i: Instruction, site: Site) -> Run:
    state, action = b.state, i.op.split(".")[2]
    if action == "commit_group":
        return lambda mask: state.shared.commit(mask)
    if action == "wait_group":
        groups = i.operands[0]
        assert isinstance(groups, Number)
        return lambda mask: state.shared.wait(int(groups.value), mask)

    def all_of_them(mask: Mask | None) -> None:
        state.shared.commit(mask)
        state.shared.wait(0, mask)

    return all_of_them
