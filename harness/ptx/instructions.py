"""What each instruction does: a table from its first word to a function that makes it ready to run.

Meanings are those of the PTX ISA, version 9.0, §9.7. One more instruction is one more function here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from harness.ptx import arithmetic as arith
from harness.ptx.builder import SEEN, STORED, Builder, Run, join, split
from harness.ptx.hazards import Site, Trap
from harness.ptx.lanes import WARP, Array, Mask, full
from harness.ptx.memory import LOCAL, SHARED, divide
from harness.ptx.parser import Address, Instruction, Name, Number, Operand, PtxError, Vector, size_of

Make = Callable[[Builder, Instruction, Site], Run]
TABLE: dict[str, Make] = {}


def instruction(*names: str) -> Callable[[Make], Make]:
    def enter(make: Make) -> Make:
        TABLE.update(dict.fromkeys(names, make))
        return make

    return enter


def parts(i: Instruction) -> tuple[list[str], str]:
    """Modifiers between the first word and the type, and the type."""
    words = i.op.replace("::", "_").split(".")
    return words[1:-1], words[-1]


def _simple(b: Builder, i: Instruction, kind: str, operation: Any) -> Run:
    """d = operation(sources), all of one type."""
    put, reads = b.write(i.operands[0]), [b.read(o, kind) for o in i.operands[1:]]
    if len(reads) == 1:
        (one,) = reads
        return lambda mask: put(operation(one()), mask)
    if len(reads) == 2:
        one, two = reads
        return lambda mask: put(operation(one(), two()), mask)
    return lambda mask: put(operation(*(read() for read in reads)), mask)


# Arithmetic

_FLOATS = {"f32", "f64", "f16", "bf16"}
_FLOAT_OPERATIONS: dict[str, Any] = {
    "add": arith.add32,
    "sub": arith.sub32,
    "mul": arith.mul32,
    "div": arith.div32,
    "min": arith.min32,
    "max": arith.max32,
}
_INTEGER_OPERATIONS: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.minimum,
    "max": np.maximum,
    "div": arith.divide,
    "rem": arith.remainder,
}
_DOUBLE_OPERATIONS: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


@instruction("add", "sub", "min", "max", "div", "rem")
def _arithmetic(b: Builder, i: Instruction, site: Site) -> Run:
    base = i.op.split(".")[0]
    modifiers, kind = parts(i)
    if kind == "f32":
        _only(modifiers, {"rn"})
        return _simple(b, i, kind, _FLOAT_OPERATIONS[base])
    if kind == "f64":
        _only(modifiers, {"rn"})
        return _simple(b, i, kind, _quiet(_DOUBLE_OPERATIONS[base]))
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        _only(modifiers, {"rn"})
        return _narrow(b, i, kind, {"add": np.add, "sub": np.subtract}[base])
    _only(modifiers, set())
    return _simple(b, i, kind, _INTEGER_OPERATIONS[base])


@instruction("mul")
def _mul(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if kind == "f32":
        _only(modifiers, {"rn"})
        return _simple(b, i, kind, arith.mul32)
    if kind == "f64":
        _only(modifiers, {"rn"})
        return _simple(b, i, kind, _quiet(np.multiply))
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        _only(modifiers, {"rn"})
        return _narrow(b, i, kind, np.multiply)
    return _simple(b, i, kind, _PRODUCTS[modifiers[0]])


@instruction("mad")
def _mad(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    if kind in _FLOATS:
        return _fma(b, i, site)
    product: Any = _PRODUCTS[modifiers[0]]
    wide = f"{kind[0]}{2 * int(kind[1:])}" if modifiers[0] == "wide" else kind
    put, one, two = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    three = b.read(i.operands[3], wide)
    return lambda mask: put(product(one(), two()) + three(), mask)


def _wide_product(a: Any, b: Any) -> Any:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return a.astype(wide) * b.astype(wide)


_PRODUCTS: dict[str, Any] = {"lo": np.multiply, "hi": arith.high_product, "wide": _wide_product}


@instruction("fma")
def _fma(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    _only(modifiers, {"rn"})
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        return _narrow(b, i, kind, None)
    if kind == "f64":
        raise PtxError("fma.f64 is not supported")
    registers, wide = b.machine.registers, b.machine.wide
    slots = [b.constant(b.read(o, "f32")()) if isinstance(o, Number) else b.slot(o) for o in i.operands[1:]]
    x, y, z = slots
    d = b.slot(i.operands[0])
    machine, widen = b.machine, np.float64

    def run(mask: Mask | None) -> None:
        p, q, s = wide[x], wide[y], wide[z]
        if p is None:
            p = wide[x] = registers[x].astype(widen)
        if q is None:
            q = wide[y] = registers[y].astype(widen)
        if s is None:
            s = wide[z] = registers[z].astype(widen)
        r = machine.fma(p, q, s)
        if mask is None:
            registers[d], wide[d] = None, r
        else:
            registers[d] = np.where(mask.bits, arith.canonical(r.astype(np.float32)), machine.value(d))
            wide[d] = None

    return run


def _narrow(b: Builder, i: Instruction, kind: str, operation: Any) -> Run:
    """float16 and bfloat16, one or two a register; ``operation`` None is the fused multiply-add."""
    element = kind.removesuffix("x2")
    dtype, packed = SEEN[element], kind.endswith("x2")
    put, reads = b.write(i.operands[0]), [b.read(o, "b32" if packed else element) for o in i.operands[1:]]

    def values() -> list[Any]:
        found = [np.asarray(read()) for read in reads]
        return [np.ascontiguousarray(np.atleast_1d(v)).view(dtype) for v in found] if packed else found

    def run(mask: Mask | None) -> None:
        with np.errstate(all="ignore"):
            if operation is None:
                x, y, z = values()
                r = arith.narrow_fma(x, y, z, dtype)
            else:
                # float64 has more than twice their bits, so that rounding twice is as rounding once.
                r = arith.round_narrow(operation(*(v.astype(np.float64) for v in values())), dtype)
        put(r.view(np.uint32) if packed else r.view(np.uint16), mask)

    return run


@instruction("neg", "abs", "sqrt", "rcp", "not", "cnot", "popc", "clz", "brev")
def _unary(b: Builder, i: Instruction, site: Site) -> Run:
    base = i.op.split(".")[0]
    modifiers, kind = parts(i)
    _only(modifiers, {"rn"})
    if base in ("neg", "abs") and kind in ("f32", "f64", "f16", "bf16"):
        sign = {"f32": 1 << 31, "f64": 1 << 63}.get(kind, 1 << 15)
        bits = f"b{8 * SEEN[kind].itemsize}"
        flip = SEEN[bits].type(sign)
        return _simple(b, i, bits, (lambda v: v ^ flip) if base == "neg" else (lambda v: v & ~flip))
    if base in ("sqrt", "rcp"):
        if kind != "f32" or modifiers != ["rn"]:
            raise PtxError("only the rounded forms are supported")
        return _simple(
            b, i, kind, arith.sqrt32 if base == "sqrt" else lambda v: arith.div32(np.float32(1), v)
        )
    if base == "popc":
        return _simple(b, i, f"b{kind[1:]}", lambda v: np.bitwise_count(v).astype(np.int32))
    if base in ("clz", "brev", "cnot"):
        raise PtxError("not supported")
    return _simple(b, i, kind, {"neg": np.negative, "abs": np.abs, "not": np.invert}[base])


@instruction("and", "or", "xor")
def _logic(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    operation = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[base]
    return _simple(b, i, kind, operation)


@instruction("shl", "shr")
def _shift(b: Builder, i: Instruction, site: Site) -> Run:
    base, kind = i.op.split(".")
    operation = arith.shift_left if base == "shl" else arith.shift_right
    put, value, amount = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], "u32")
    if isinstance(i.operands[2], Number) and 0 <= i.operands[2].value < 8 * SEEN[kind].itemsize:
        by = SEEN[kind].type(i.operands[2].value)
        plain = np.left_shift if base == "shl" else np.right_shift
        return lambda mask: put(plain(value(), by), mask)
    return lambda mask: put(operation(value(), amount()), mask)


@instruction("prmt")
def _prmt(b: Builder, i: Instruction, site: Site) -> Run:
    return _simple(b, i, "u32", arith.permute)


@instruction("bfe", "bfi", "shf", "lop3")
def _bits(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    base = i.op.split(".")[0]
    if base == "lop3":
        table = i.operands[4]
        assert isinstance(table, Number)
        reads, put = [b.read(o, "u32") for o in i.operands[1:4]], b.write(i.operands[0])
        x, y, z = reads
        return lambda mask: put(_lop3(x(), y(), z(), int(table.value)), mask)
    if base == "bfe":
        put, value = b.write(i.operands[0]), b.read(i.operands[1], kind)
        start, length = b.read(i.operands[2], "u32"), b.read(i.operands[3], "u32")
        return lambda mask: put(_extract(value(), start() & 0xFF, length() & 0xFF), mask)
    raise PtxError("not supported")


def _lop3(x: Any, y: Any, z: Any, table: int) -> Any:
    """Any logic of three inputs: bit (4x + 2y + z) of the table."""
    result = np.uint32(0)
    for row in range(8):
        if table >> row & 1:
            result = result | ((x if row & 4 else ~x) & (y if row & 2 else ~y) & (z if row & 1 else ~z))
    return result


def _extract(value: Any, start: Any, length: Any) -> Any:
    bits = 8 * value.dtype.itemsize
    wide = value.astype(object)
    field = (wide >> start) & ((1 << length.astype(object)) - 1)
    if value.dtype.kind == "i":
        sign = (wide >> np.minimum(start + length - 1, bits - 1)) & 1
        field = np.where((sign == 1) & (length > 0), field - (1 << length.astype(object)), field)
    return np.asarray(field).astype(value.dtype)


# Predicates

_COMPARE: dict[str, Any] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal},
    **{"gt": np.greater, "ge": np.greater_equal},
    **{"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal},
}


@instruction("setp")
def _setp(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    compare = _comparison(modifiers[0], kind)
    target = i.operands[0]
    one, two = b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    if isinstance(target, Vector) or len(modifiers) > 1:
        return _setp_combined(b, i, modifiers, compare, one, two)
    put = b.write(target)
    return lambda mask: put(compare(one(), two()), mask)


def _setp_combined(b: Builder, i: Instruction, modifiers: list[str], compare: Any, one: Any, two: Any) -> Run:
    targets = i.operands[0].items if isinstance(i.operands[0], Vector) else (i.operands[0],)
    puts = [b.write(target) for target in targets]
    operation = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}.get(
        (modifiers[1:] or [""])[0]
    )
    third = b.read(i.operands[3], "pred") if len(i.operands) > 3 else None

    def run(mask: Mask | None) -> None:
        result = compare(one(), two())
        for put, value in zip(puts, (result, ~result), strict=False):
            put(operation(value, third()) if operation and third else value, mask)

    return run


def _comparison(name: str, kind: str) -> Any:
    if name in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (name == "nan")
    if name.endswith("u") and kind in _FLOATS:
        ordered = _COMPARE[name[:-1]]
        return lambda a, b: ordered(a, b) | np.isnan(a) | np.isnan(b)
    if name == "ne" and kind in _FLOATS:  # ordered: false where one is NaN
        return lambda a, b: (a < b) | (a > b)
    return _COMPARE[name]


@instruction("selp")
def _selp(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    put, one, two = b.write(i.operands[0]), b.read(i.operands[1], kind), b.read(i.operands[2], kind)
    choose = b.read(i.operands[3], "pred")
    return lambda mask: put(np.where(choose(), one(), two()), mask)


# Moves and conversions


@instruction("mov")
def _mov(b: Builder, i: Instruction, site: Site) -> Run:
    _, kind = parts(i)
    target, source = i.operands
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _pack(b, target, source, kind)
    put, one = b.write(target), b.read(source, kind)
    if kind == "f32" and b.kind(target) == b.kind(source) == "f32":
        registers, wide = b.machine.registers, b.machine.wide
        d, s = b.slot(target), b.slot(source)

        def move(mask: Mask | None) -> None:
            if mask is None:
                registers[d], wide[d] = registers[s], wide[s]
            else:
                put(one(), mask)

        return move
    return lambda mask: put(one(), mask)


def _pack(b: Builder, target: Operand, source: Operand, kind: str) -> Run:
    """mov of a vector into a wider register, or out of one."""
    bits = 8 * SEEN[kind].itemsize
    if isinstance(target, Vector):
        count = len(target.items)
        narrow, puts = np.dtype(f"u{bits // count // 8}"), [b.write(item) for item in target.items]
        read = b.read(source, f"b{bits}")

        def unpack(mask: Mask | None) -> None:
            value = read()
            for j, put in enumerate(puts):
                put((value >> value.dtype.type(j * bits // count)).astype(narrow), mask)

        return unpack
    assert isinstance(source, Vector)
    count = len(source.items)
    wide, reads = np.dtype(f"u{bits // 8}"), [b.read(item, f"b{bits // count}") for item in source.items]
    put = b.write(target)

    def pack(mask: Mask | None) -> None:
        value = wide.type(0)
        for j, read in enumerate(reads):
            value = value | (read().astype(wide) << wide.type(j * bits // count))
        put(value, mask)

    return pack


@instruction("cvta")
def _cvta(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, _ = parts(i)
    space = modifiers[-1]
    base = {"global": 0, "shared": SHARED, "local": LOCAL}.get(space)
    if base is None:
        raise PtxError("not supported")
    put, one = b.write(i.operands[0]), b.read(i.operands[1], "s64")
    if base == 0:
        return lambda mask: put(one(), mask)
    if modifiers[0] == "to":
        return lambda mask: put(one() & np.int64(base - 1), mask)
    return lambda mask: put(one() | np.int64(base), mask)


@instruction("cvt")
def _cvt(b: Builder, i: Instruction, site: Site) -> Run:
    words = i.op.split(".")[1:]
    target, source = words[-2:]
    modes = words[:-2]
    put = b.write(i.operands[0])
    if target == "tf32":
        if modes[:1] != ["rna"]:
            raise PtxError("only cvt.rna.tf32.f32 is supported")
        one = b.read(i.operands[1], source)
        return lambda mask: put(arith.tf32(one()), mask)
    if target in ("f16x2", "bf16x2"):
        high, low = b.read(i.operands[1], source), b.read(i.operands[2], source)
        narrow = SEEN[target[:-2]]

        def pack(mask: Mask | None) -> None:
            first, second = (
                arith.round_narrow(v(), narrow).view(np.uint16).astype(np.uint32) for v in (low, high)
            )
            put(first | (second << np.uint32(16)), mask)

        return pack
    one = b.read(i.operands[1], source)
    convert = _conversion(target, source, modes)
    register = STORED[b.kind(i.operands[0])]

    def run(mask: Mask | None) -> None:
        value = convert(np.asarray(one()))
        if value.dtype.kind in "iu" and value.dtype.itemsize != register.itemsize:
            value = value.astype(register)
        put(value, mask)

    return run


def _conversion(target: str, source: str, modes: list[str]) -> Any:
    to, of = SEEN[target], SEEN[source]
    rounding = next((m for m in modes if m[:2] in ("rn", "rz", "rm", "rp")), "rn")
    if set(modes) - {rounding}:
        raise PtxError(f"modifiers {modes} are not supported")
    floats = {"f16", "bf16", "f32", "f64"}
    if source not in floats and target not in floats:
        return lambda v: v.astype(to)
    if source in floats and target not in floats:
        return lambda v: arith.float_to_integer(v, to.type, rounding)
    if target == "f32" and source == "f64":
        return lambda v: arith.float64_to_float32(v, rounding)
    if target == "f32" and source not in floats:
        return lambda v: arith.integers_to_float32(v, rounding)
    if target in ("f16", "bf16"):
        if rounding != "rn":
            raise PtxError("only rounding to nearest is supported")
        wide = np.float64 if source not in floats else of
        return lambda v: arith.round_narrow(v.astype(wide), to)
    if rounding in ("rni", "rzi", "rmi", "rpi") and target == source == "f32":
        return lambda v: {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}[rounding](v)
    return lambda v: v.astype(to)


# Memory


_SPACE = LOCAL.bit_length() - 1  # address bits below the state space of a generic address


def space_of(modifiers: list[str]) -> str:
    for space in ("global", "shared", "local", "param", "const"):
        if any(m == space or m.startswith(space + "_") for m in modifiers):
            return space
    return "generic"


_SPACES = {LOCAL >> _SPACE: "local", SHARED >> _SPACE: "shared"}


def _within(space: str, where: Array) -> Array:
    """A generic address in its state space."""
    return where if space == "global" else where & np.int64((1 << _SPACE) - 1)


def _spaces(where: Array, mask: Mask | None) -> list[tuple[Any, str, Mask | None]]:
    """Of a generic address: the lanes of each state space, as places among the active ones, and mask."""
    kinds = (where if mask is None else where[mask.index]) >> _SPACE
    if (kinds == kinds[0]).all():
        return [(slice(None), _SPACES.get(int(kinds[0]), "global"), mask)]
    return [(at, _SPACES.get(int(kinds[at[0]]), "global"), part) for at, part in divide(kinds, mask)]


def accessors(b: Builder, modifiers: list[str], site: Site, address: Any, width: int) -> tuple[Any, Any]:
    """(load, store) of an instruction's state space: load(mask), store(values, mask)."""
    machine, space = b.machine, space_of(modifiers)

    def memory(name: str) -> Any:
        return {"global": machine.memory, "shared": machine.shared, "local": machine.local}[name]

    if space == "const":
        return lambda mask: machine.constant.load(site, address(), width, mask, machine.lanes), None
    if space == "param":
        raise PtxError("not supported")

    def load(mask: Mask | None) -> Array:
        where = address()
        if space != "generic":
            return np.asarray(memory(space).load(site, where, width, mask))
        where = full(where, machine.lanes)
        of_spaces = [
            (at, np.asarray(memory(name).load(site, _within(name, where), width, part)))
            for at, name, part in _spaces(where, mask)
        ]
        values = of_spaces[0][1]
        if len(of_spaces) > 1:
            active = machine.lanes if mask is None else len(mask.index)
            values = np.empty((active, *values.shape[1:]), values.dtype)
            for at, each in of_spaces:
                values[at] = each
        return values

    def store(values: Array, mask: Mask | None) -> None:
        where = address()
        if space != "generic":
            memory(space).store(site, where, width, values, mask)
            return
        where = full(where, machine.lanes)
        for at, name, part in _spaces(where, mask):
            memory(name).store(site, _within(name, where), width, values[at], part)

    return load, store


@instruction("ld", "ldu")
def _ld(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    target, source = i.operands
    if "param" in modifiers:
        assert isinstance(source, Address)
        assert isinstance(source.base, Name)
        name, put, machine = source.base.text, b.write(target), b.machine
        if name not in dict(b.entry.parameters) or source.offset:
            raise PtxError(f"no parameter {name}+{source.offset}")
        return lambda mask: put(machine.parameters[name], mask)
    items = target.items if isinstance(target, Vector) else (target,)
    puts = [b.write_active(item, kind) for item in items]
    load, _ = accessors(b, modifiers, site, b.address(source), size_of(kind) * len(items))
    count = len(items)

    def run(mask: Mask | None) -> None:
        for put, values in zip(puts, split(load(mask), kind, count), strict=True):
            put(values, mask)

    return run


@instruction("st")
def _st(b: Builder, i: Instruction, site: Site) -> Run:
    modifiers, kind = parts(i)
    target, source = i.operands
    items = source.items if isinstance(source, Vector) else (source,)
    # Bits are stored, whatever they mean; a narrow store takes the low ones of a register.
    reads, width = [b.read(item, f"b{8 * size_of(kind)}") for item in items], size_of(kind) * len(items)
    _, store = accessors(b, modifiers, site, b.address(target), width)
    machine = b.machine

    def run(mask: Mask | None) -> None:
        values = [full(read(), machine.lanes) for read in reads]
        if mask is not None:
            values = [value[mask.index] for value in values]
        store(join(values, width), mask)

    return run


@instruction("cp")
def _cp(b: Builder, i: Instruction, site: Site) -> Run:
    """cp.async and its groups."""
    machine, words = b.machine, i.op.split(".")
    if words[:3] == ["cp", "async", "commit_group"]:
        return lambda mask: machine.shared.commit(mask)
    if words[:3] == ["cp", "async", "wait_group"]:
        groups = i.operands[0]
        assert isinstance(groups, Number)
        return lambda mask: machine.shared.wait(int(groups.value), mask)
    if words[:3] == ["cp", "async", "wait_all"]:

        def all_of_them(mask: Mask | None) -> None:
            machine.shared.commit(mask)
            machine.shared.wait(0, mask)

        return all_of_them
    if words[:2] != ["cp", "async"] or words[2] not in ("ca", "cg") or "mbarrier" in words:
        raise PtxError("not supported")
    to, of = b.address(i.operands[0]), b.address(i.operands[1])
    assert isinstance(i.operands[2], Number)
    width = int(i.operands[2].value)
    size = b.read(i.operands[3], "s32") if len(i.operands) > 3 else None

    def run(mask: Mask | None) -> None:
        if size is None:
            values = machine.memory.load(site, of(), width, mask, "copy")
        else:
            values = _partial(b, site, of(), size(), width, mask)
        # Both ends are one instruction: the patterns are of its shared-memory side.
        machine.shared.copy(site, to(), width, values, mask)

    return run


def _partial(b: Builder, site: Site, address: Any, size: Any, width: int, mask: Mask | None) -> Array:
    """cp.async of the first ``size`` bytes, zeros for the rest: all of them or none are supported."""
    lanes = b.machine.lanes
    size = full(size, lanes)
    active = np.ones(lanes, bool) if mask is None else mask.bits
    if not np.isin(size[active], (0, width)).all():
        raise Trap("unsupported", "cp.async of a part of its bytes", site, int(np.flatnonzero(active)[0]))
    shape = (lanes,) if width <= 4 else (lanes, width // 4)
    values = np.zeros(shape, np.uint32)
    read = active & (size > 0)
    if read.any():
        values[read] = b.machine.memory.load(site, address, width, Mask(read), "copy")
    return values[active]


@instruction("atom", "red")
def _atom(b: Builder, i: Instruction, site: Site) -> Run:
    """One lane after another, in their order."""
    modifiers, kind = parts(i)
    returns = i.op.startswith("atom")
    operation = next((m for m in modifiers if m in _ATOMIC), None)
    if operation is None or SEEN[kind].itemsize != 4:
        raise PtxError("not supported")
    put = b.write_active(i.operands[0], kind) if returns else None
    address = b.address(i.operands[int(returns)])
    sources = [b.read(o, kind) for o in i.operands[1 + int(returns) :]]
    machine, apply, space = b.machine, _ATOMIC[operation], space_of(modifiers)
    if space not in ("global", "shared", "generic"):
        raise PtxError("not supported")

    def run(mask: Mask | None) -> None:
        where = full(address(), machine.lanes)
        operands = [full(read(), machine.lanes) for read in sources]
        if mask is not None:
            operands = [operand[mask.index] for operand in operands]

        def change(at: int, old: Array) -> Array:
            new = apply(old.view(SEEN[kind]), *(operand[at : at + 1] for operand in operands))
            return np.asarray(new, SEEN[kind]).view(np.uint32)

        target = space
        if space == "generic":
            (_, target, _), *others = _spaces(where, mask)
            if others or target == "local":
                lane = 0 if mask is None else int(mask.index[0])
                raise Trap("unsupported", "an atomic on several state spaces, or on local memory", site, lane)
            where = _within(target, where)
        before = (machine.shared if target == "shared" else machine.memory).update(site, where, mask, change)
        if put:
            put(before, mask)

    return run


_ATOMIC: dict[str, Any] = {
    "add": lambda old, v: old + v,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, v: v,
    "cas": lambda old, compare, v: np.where(old == compare, v, old),
}


# Warps


@instruction("bar")
def _warp_barrier(b: Builder, i: Instruction, site: Site) -> Run:
    if i.op != "bar.warp.sync":
        raise PtxError("not supported")
    machine = b.machine
    return lambda mask: machine.shared.warp_barrier(mask)


@instruction("shfl")
def _shfl(b: Builder, i: Instruction, site: Site) -> Run:
    """shfl.sync: the value of another lane, and whether that lane is within the segment."""
    mode = i.op.split(".")[2]
    target = i.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    puts = [b.write(item) for item in items]
    value, by, clamp = (b.read(o, "u32") for o in i.operands[1:4])
    machine = b.machine

    def run(mask: Mask | None) -> None:
        machine.shared.warp_barrier(mask)
        lane = np.arange(machine.lanes) % WARP
        c, offset = (
            full(clamp(), machine.lanes).astype(np.int64),
            full(by(), machine.lanes).astype(np.int64) & 31,
        )
        segment, bound = (c >> 8) & 31, c & 31
        first = lane & segment
        last = first | (bound & ~segment & 31)
        source = {"up": lane - offset, "down": lane + offset, "bfly": lane ^ offset}.get(
            mode, first | (offset & ~segment)
        )
        inside = source >= last if mode == "up" else source <= last
        index = np.arange(machine.lanes) - lane + np.where(inside, source, lane)
        for put, result in zip(puts, (full(value(), machine.lanes)[index], inside), strict=False):
            put(result, mask)

    return run


@instruction("vote")
def _vote(b: Builder, i: Instruction, site: Site) -> Run:
    """vote.sync over the active lanes of each warp."""
    mode = i.op.split(".")[2]
    put, source = b.write(i.operands[0]), b.read(i.operands[1], "pred")
    machine = b.machine

    def run(mask: Mask | None) -> None:
        machine.shared.warp_barrier(mask)
        active = np.ones((machine.lanes // WARP, WARP), bool) if mask is None else mask.bits.reshape(-1, WARP)
        said = full(source(), machine.lanes).reshape(-1, WARP) & active
        if mode == "ballot":
            result = (
                (said.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1).astype(np.uint32)
            )
        else:
            every, some = (said | ~active).all(axis=1), said.any(axis=1)
            result = {"all": every, "any": some, "uni": every | ~some}[mode]
        put(np.repeat(result, WARP), mask)

    return run


@instruction("membar", "fence", "prefetch", "discard", "griddepcontrol")
def _nothing(b: Builder, i: Instruction, site: Site) -> Run:
    """Lanes run in one order: there is nothing to wait for."""
    return lambda mask: None


def _only(modifiers: list[str], allowed: set[str]) -> None:
    if set(modifiers) - allowed:
        raise PtxError(f"modifiers {modifiers} are not supported")


def _quiet(operation: Any) -> Any:
    def run(*operands: Any) -> Any:
        with np.errstate(all="ignore"):
            return operation(*operands)

    return run
