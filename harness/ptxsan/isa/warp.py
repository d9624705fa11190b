"""Within a warp, and fences (PTX ISA §9.7.9 and §9.7.13)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import ptxsan.rounding as arith
from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Operand, PtxError
from ptxsan.isa.memory import space_of, spaces, within
from ptxsan.lanes import WARP, Array, Mask, first_of, full
from ptxsan.machine import FLOATS, NARROW, SEEN, Builder, Read, Run, Write, items_of, parts
from ptxsan.machine.memory import Change, together
from ptxsan.machine.memory.ordered import Strength
from ptxsan.machine.table import instruction

_BIT = np.uint32(1) << np.arange(WARP, dtype=np.uint32)


def _active(mask: Mask | None, lanes: int) -> Array:
    """The active lanes of each warp, (warps, 32) bool."""
    return (np.ones(lanes, bool) if mask is None else mask.bits).reshape(-1, WARP)


@instruction("9.7.13", "bar.warp:2", "members once", writes=0)
def _warp_barrier(b: Builder, i: Instruction, site: Site) -> Run:
    """bar.warp.sync. Who waits for whom, here and below, and what that orders is in warps.py."""
    if i.op != "bar.warp.sync":
        raise PtxError("not supported")
    return lambda mask: None


@instruction("9.7.9", "shfl:6", "move memory warp members")
def _shfl(b: Builder, i: Instruction, site: Site) -> Run:
    """shfl.sync: the value of another lane, and whether that lane is within the segment. Of a lane that does
    not execute it, the value is undefined."""
    mode = i.op.split(".")[2]
    puts = [b.write(item) for item in items_of(i.operands[0])]
    value, by, clamp = (b.read(o, "u32") for o in i.operands[1:4])
    state = b.state

    def run(mask: Mask | None) -> None:
        lane = np.arange(state.lanes) % WARP
        c, offset = (full(read(), state.lanes).astype(np.int64) for read in (clamp, by))
        offset &= 31
        segment, bound = (c >> 8) & 31, c & 31
        first = lane & segment
        last = first | (bound & ~segment & 31)
        source = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}.get(
            mode, first | (offset & ~segment)
        )
        inside = source >= last if mode == "up" else source <= last
        index = np.arange(state.lanes) - lane + np.where(inside, source, lane)
        result = full(value(), state.lanes)[index]
        there = state.geometry.living if mask is None else mask.bits
        if there is not None and (absent := there & ~there[index]).any():
            result = state.undefined.absent(site, result, absent, "a lane of its warp that takes no part")
        for put, each in zip(puts, (result, inside), strict=False):
            put(each, mask)

    return run


@instruction("9.7.13", "vote:9", "logic warp members")
def _vote(b: Builder, i: Instruction, site: Site) -> Run:
    """vote.sync over the active lanes of each warp; CUTLASS has the mode first, vote.ballot.sync."""
    words = i.op.split(".")
    (mode,) = {"all", "any", "uni", "ballot"}.intersection(words[1:3] if "sync" in words else ())
    put, source = b.write(i.operands[0]), b.read(i.operands[1], "pred")
    state = b.state

    def run(mask: Mask | None) -> None:
        active = _active(mask, state.lanes)
        said = full(source(), state.lanes).reshape(-1, WARP) & active
        every, some = (said | ~active).all(axis=1), said.any(axis=1)
        result = {"all": every, "any": some, "uni": every | ~some, "ballot": (said * _BIT).sum(axis=1)}[mode]
        put(np.repeat(result.astype(np.uint32) if mode == "ballot" else result, WARP), mask)

    return run


@instruction("9.7.13", "redux:12", "warp members")
def _redux(b: Builder, i: Instruction, site: Site) -> Run:
    """redux.sync over the active lanes of each warp; of floats min and max, which a lane may take part in
    twice."""
    _, _, operation, *modifiers, kind = i.op.split(".")
    put, source, state = b.write(i.operands[0]), b.read(i.operands[1], kind.replace("b", "u")), b.state
    reduce = OPERATIONS[operation] if operation != "add" else np.add
    extremum = arith.of_float32(arith.extremum(operation, modifiers)) if kind == "f32" else None

    def run(mask: Mask | None) -> None:
        values = full(source(), state.lanes).reshape(-1, WARP)
        active = _active(mask, state.lanes)
        if extremum is not None:
            one = values[np.arange(len(values)), active.argmax(axis=1)]
            found = one
            for lane in range(WARP):
                found = extremum(found, np.where(active[:, lane], values[:, lane], one))
            put(np.repeat(found, WARP), mask)
            return
        limits = np.iinfo(values.dtype)
        idle = {"min": limits.max, "max": limits.min, "and": -1 if kind == "s32" else limits.max}
        held = np.where(active, values, values.dtype.type(idle.get(operation, 0)))
        put(np.repeat(reduce.reduce(held, axis=1, dtype=values.dtype), WARP), mask)

    return run


@instruction("9.7.13", "match:10", "warp members")
def _match(b: Builder, i: Instruction, site: Site) -> Run:
    """match.any and match.all: which active lanes of the warp hold the same value."""
    mode, kind = i.op.split(".")[1], i.op.split(".")[-1]
    puts, source = [b.write(item) for item in items_of(i.operands[0])], b.read(i.operands[1], kind)
    state = b.state

    def run(mask: Mask | None) -> None:
        values = full(source(), state.lanes).reshape(-1, WARP)
        active = _active(mask, state.lanes)
        same = (values[:, :, None] == values[:, None, :]) & active[:, None, :]
        found = (same * _BIT).sum(axis=2, dtype=np.uint32)
        if mode == "all":
            everybody = (active * _BIT).sum(axis=1, dtype=np.uint32)[:, None]
            alike = ((found == everybody) | ~active).all(axis=1, keepdims=True)
            puts[0](np.where(alike, everybody, 0).astype(np.uint32).repeat(WARP, axis=1).ravel(), mask)
            if len(puts) > 1:
                puts[1](alike.repeat(WARP, axis=1).ravel(), mask)
        else:
            puts[0](found.ravel(), mask)

    return run


@instruction("9.7.13", "activemask:11")
def _activemask(b: Builder, i: Instruction, site: Site) -> Run:
    put, state = b.write(i.operands[0]), b.state
    return lambda mask: put(
        np.repeat((_active(mask, state.lanes) * _BIT).sum(axis=1, dtype=np.uint32), WARP), mask
    )


@instruction("9.7.19", "trap:4", "once", writes=0)
def _trap(b: Builder, i: Instruction, site: Site) -> Run:
    """trap, which __trap() and a failed assert() are."""

    def run(mask: Mask | None) -> None:
        raise Trap("trap", "stops the launch by trap", site, first_of(mask))

    return run


@instruction("9.7.13", "membar:4 fence:4", writes=0)
def _fence(b: Builder, i: Instruction, site: Site) -> Run:
    """membar and fence: those of GPU or system scope order what other blocks see."""
    words, state = set(i.op.split(".")[1:]), b.state
    if words & {"proxy", "mbarrier_init"}:
        return lambda mask: None
    wide = bool(words & {"gpu", "sys", "gl"})
    return lambda mask: state.fence(mask, wide)


@instruction(
    "9.7.9", "prefetch:15 prefetchu:15 applypriority:16 discard:17", writes=0, note="a hint: does nothing"
)
@instruction("9.7.19", "nanosleep:2", "once", writes=0, note="a hint: does nothing")
@instruction("9.7.19", "pmevent:3", writes=0, note="does nothing")
def _nothing(b: Builder, i: Instruction, site: Site) -> Run:
    """Hints: there is nothing to fetch or to wait for."""
    return lambda mask: None


@instruction("9.7.13", "griddepcontrol:13", "once", writes=0)
def _grid_dependence(b: Builder, i: Instruction, site: Site) -> Run:
    """griddepcontrol.launch_dependents lets others begin; .wait is for those that this launch depends on."""
    state = b.state
    waits = i.op == "griddepcontrol.wait"
    return lambda mask: state.memory.wait_for_grids(mask) if waits else None


# Atomic operations (PTX ISA §9.7.13.5 f.).


OPERATIONS: dict[str, Any] = {
    "add": lambda old, v: old + v,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "inc": lambda old, bound: np.where(old >= bound, old.dtype.type(0), old + old.dtype.type(1)),
    "dec": lambda old, bound: np.where((old == 0) | (old > bound), bound, old - old.dtype.type(1)),
    "exch": lambda old, v: v,
    "cas": lambda old, compare, v: np.where(old == compare, v, old),
}
_WIDE, _ALL = ("u32", "s32", "u64", "s64"), ("b32", "b64", "u32", "s32", "u64", "s64")
# The types of those that are not of floats.
_KINDS = {
    **dict.fromkeys(("add", "min", "max"), _WIDE),
    **dict.fromkeys(("and", "or", "xor"), _ALL),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "exch": (*_ALL, "f32", "f64"),
    "cas": ("b16", "u16", *_ALL),
}
_OF_FLOATS: dict[str, Any] = {"add": np.add, "min": arith.minimum, "max": arith.maximum}


@instruction("9.7.13", "atom:5", "memory atomic", note="not on local memory")
@instruction("9.7.13", "red:6", "memory atomic", writes=0, note="not on local memory")
def _atom(b: Builder, i: Instruction, site: Site) -> Run:
    """One lane after another, in their order; of a vector one element after another."""
    modifiers, kind = parts(i)
    returns = i.op.startswith("atom")
    name = next((m for m in modifiers if m in OPERATIONS), "")
    space, seen = space_of(modifiers), "b32" if kind.endswith("16x2") else kind
    operands = list(i.operands[:-1] if "L2_cache_hint" in modifiers else i.operands)
    operation = _operation(name, kind, space)
    width = SEEN[seen].itemsize
    targets, wide = items_of(operands.pop(0)) if returns else (), kind == "b128"
    puts = [b.write_active(target, "b64" if wide else seen) for target in targets]
    address = b.address(operands[0])
    of_elements = [tuple(operands[1:])] if wide else list(zip(*map(items_of, operands[1:]), strict=True))
    sources = [[_pair(b, o) if wide else b.read(o, seen) for o in given] for given in of_elements]
    if wide and puts:
        puts = [_put_pair(puts)]
    if space not in ("global", "shared", "generic") or (returns and len(puts) != len(sources)):
        raise PtxError("not supported")
    state, how, dtype = b.state, Strength.of(modifiers, atomic=True), SEEN[seen]

    def run(mask: Mask | None) -> None:
        where = full(address(), state.lanes)
        _aligned(where, width * len(sources), mask, site)
        for j, reads in enumerate(sources):
            values = [full(read(), state.lanes) for read in reads]
            if mask is not None:
                values = [value[mask.index] for value in values]

            def change(at: int, old: Array, values: list[Array] = values) -> Array:
                new = operation(old.view(dtype), *(value[at : at + 1] for value in values))
                return np.asarray(new, dtype).view(old.dtype)

            before = update(b, site, space, where + j * width, width, mask, change, how)
            if puts:
                puts[j](before, mask)

    return run


def _pair(b: Builder, operand: Operand) -> Read:
    """A register of 128 bits, of two of 64, as one word."""
    halves, state = [b.read(half, "b64") for half in items_of(operand)], b.state
    return lambda: np.stack([full(half(), state.lanes) for half in halves], axis=1).view(SEEN["b128"])[:, 0]


def _put_pair(puts: list[Write]) -> Write:
    def put(values: Array, mask: Mask | None) -> None:
        for one, half in zip(
            puts, np.ascontiguousarray(values.view(np.uint64).reshape(-1, 2).T), strict=True
        ):
            one(half, mask)

    return put


def _aligned(where: Array, width: int, mask: Mask | None, site: Site) -> None:
    active = where if mask is None else where[mask.index]
    if (active & (width - 1)).any():
        i = int(np.argmax((active & (width - 1)) != 0))
        what = f"has an atomic on {width} bytes that are not aligned to them"
        raise Trap("misaligned", what, site, first_of(mask, i))


def update(
    b: Builder,
    site: Site,
    space: str,
    where: Array,
    width: int,
    mask: Mask | None,
    change: Change,
    how: Strength,
) -> Array:
    """Words of ``width`` bytes changed one after another, at addresses (lanes,) of a state space; what was
    there before, (n,) unsigned."""
    state = b.state
    if space == "shared":
        return state.shared.update(site, where, width, mask, change, how)
    if space == "global":
        return state.memory.update(site, where, width, mask, change, how)
    found = []
    for at, target, part in spaces(where, mask):
        if target not in ("global", "shared"):
            raise Trap("unsupported", f"an atomic on {target} memory", site, first_of(part))
        one = change if part is mask else partial(_at_places, change, at)
        found.append((at, update(b, site, target, within(target, where), width, part, one, how)))
    return together(found)


def _at_places(change: Change, places: Array, n: int, old: Array) -> Array:
    """A change for the n-th of some of the active lanes."""
    return change(int(places[n]), old)


def _operation(name: str, kind: str, space: str) -> Any:
    """A function of what is there and of the operands. Raises PtxError for one that PTX has not."""
    if kind == "b128" and name in ("exch", "cas"):
        return OPERATIONS[name] if name == "exch" else _compare_and_swap
    if kind in _KINDS.get(name, ()):
        return OPERATIONS[name]
    if name not in _OF_FLOATS or kind not in FLOATS | NARROW or (kind in ("f32", "f64") and name != "add"):
        raise PtxError("not supported")
    if kind == "f64":
        return np.add
    if kind == "f32":
        # To global memory, subnormal numbers count as zeros (§9.7.13.5).
        add = arith.of_float32(np.add)
        return add if space == "shared" else arith.flushing(add)
    return _of_halves(name, SEEN[kind.removesuffix("x2")])


def _compare_and_swap(old: Array, compare: Array, v: Array) -> Array:
    """By all bits of 128."""
    return v if old.tobytes() == compare.tobytes() else old


def _of_halves(name: str, dtype: Any) -> Any:
    """Of one or two float16 or bfloat16 a word, each rounded for itself."""
    operation = _OF_FLOATS[name]

    def run(old: Array, v: Array) -> Array:
        with np.errstate(all="ignore"):
            one, other = (np.ascontiguousarray(w).view(dtype).astype(np.float64) for w in (old, v))
            return np.asarray(arith.round_narrow(operation(one, other), dtype)).view(old.dtype)

    return run
