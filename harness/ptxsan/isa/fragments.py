"""Products of tensor cores in C: fragments of warps in registers to those of the sum."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.checks import Site, Trap
from ptxsan.frontend import Instruction, Operand, PtxError, Vector
from ptxsan.isa.memory import accessors
from ptxsan.lanes import WARP, Array, Mask, full
from ptxsan.machine import SEEN, STORED, WIDEST, Builder, Run, words_of
from ptxsan.machine.state import KernelState
from ptxsan.machine.table import instruction
from ptxsan.native import KINDS, CLibrary, library
from ptxsan.rounding import canonical, round_narrow

# Types by what matrices.c calls them; e4m3 and e5m2 are tables of their values.
_KINDS = {
    name: i for i, name in enumerate(("f16", "bf16", "tf32", "8", "s8", "u8", "s4", "u4", "f32", "s32"))
}
SUMS = ("f16", "f32", "s32")
SMALL = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")  # floats of 8 bits and, with padding to that, less
MULTIPLIED = ("f16", "bf16", "tf32", *SMALL, "s8", "u8", "s4", "u4")


class _Fragments(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("kind", "registers")],
        *[(name, ctypes.c_void_p) for name in ("place", "eights")],
    ]


class _MultiplyFields(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_int32) for name in ("copies", "m", "n", "k", "saturates")],
        *[(name, _Fragments) for name in "abcd"],
    ]


class Multiply:
    """One form of mma: A, B, C and D, of which ``copies`` lie one below the other."""

    def __init__(self, library: CLibrary, copies: int, matrices: Sequence[Matrix], saturates: bool) -> None:
        # Kept, as the structure has their addresses alone.
        self._held = [np.ascontiguousarray(m.place, np.int32) for m in matrices]
        of = [
            _Fragments(
                _KINDS[m.kind if m.kind not in _EIGHTS else "8"],
                m.words,
                _at(place),
                _at(_EIGHTS.get(m.kind)),
            )
            for m, place in zip(matrices, self._held, strict=True)
        ]
        one, other = matrices[:2]
        sizes = (copies, one.rows // copies, other.columns, one.columns)
        self._fields = _MultiplyFields(*sizes, int(saturates), *of)
        self.address, self.run = ctypes.addressof(self._fields), library.multiply


_multiply = lru_cache(maxsize=64)(Multiply)


def _at(array: Array | None) -> int | None:
    return None if array is None else int(array.__array_interface__["data"][0])


# Fragments of tensor-core instructions: registers of a warp as matrices, and back.
#
# Products are exact, sums are made in float64 in the order of k, the accumulator's term last, then rounded
# to the accumulator's type: integers come out as on the hardware, real numbers within its error bounds.
# Where a C compiler is, native/matrices.c does the same, to the bit.


_OCTETS = np.arange(256, dtype=np.uint8)
# The values of their bytes: those of 6 bits are the low ones, that of 4 bits is in the middle (§9.7.14.5.14).
_EIGHTS: dict[str, Array] = {
    kind: np.ascontiguousarray(octets).view(of).astype(np.float64)
    for kind, octets, of in (
        ("e4m3", _OCTETS, ml_dtypes.float8_e4m3fn),
        ("e5m2", _OCTETS, ml_dtypes.float8_e5m2),
        ("e3m2", _OCTETS & 63, ml_dtypes.float6_e3m2fn),
        ("e2m3", _OCTETS & 63, ml_dtypes.float6_e2m3fn),
        ("e2m1", _OCTETS >> 2 & 15, ml_dtypes.float4_e2m1fn),
    )
}
_FOUR = _EIGHTS["e2m1"][::4][:16]  # the values of its bits alone
_ROUNDED = ("f16", "bf16", "tf32", "e2m1x2", *_EIGHTS)  # whose sums may be, in float64
_BITS = {"s4": 4, "u4": 4, "e2m1x2": 4, "b1": 1, "tf32": 32, **dict.fromkeys(_EIGHTS, 8)}


def bits_of(kind: str) -> int:
    """Of an element in a fragment. Raises PtxError for a type that is in none."""
    if kind not in _BITS and kind not in SEEN:
        raise PtxError(f"type .{kind} is not supported")
    return _BITS[kind] if kind in _BITS else 8 * int(SEEN[kind].itemsize)


def elements(words: Array, kind: str) -> Array:
    """Registers (..., words) of 32 or 64 bits as elements (..., n) in float64, those in low bits first."""
    if kind == "tf32":  # the hardware does not look at the lower 13 bits
        words = words & np.uint32(0xFFFFE000)
    raw = np.ascontiguousarray(words)
    if kind == "b1":
        return np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little").astype(np.float64)
    if kind in ("s4", "u4", "e2m1x2"):
        octets = raw.view(np.uint8)
        nibbles = (
            np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1).astype(np.int8)
        )
        if kind == "e2m1x2":
            return np.asarray(_FOUR[nibbles])
        signed = (nibbles ^ 8) - 8 if kind == "s4" else nibbles
        return np.asarray(signed, np.float64)
    if kind in _EIGHTS:
        return np.asarray(_EIGHTS[kind][raw.view(np.uint8)])
    dtype = SEEN["f32" if kind == "tf32" else kind]
    return np.asarray(raw.view(dtype), np.float64)


def registers(values: Array, kind: str, saturates: bool = False) -> Array:
    """Elements (..., n) in float64 as registers of a sum's type: rounded to floats; integers wrap around, or
    stay within their limits (.satfinite)."""
    with np.errstate(all="ignore"):
        if kind == "f16":
            return np.ascontiguousarray(round_narrow(values, np.float16)).view(np.uint32)
        if kind == "f32":
            return np.ascontiguousarray(canonical(values.astype(np.float32))).view(np.uint32)
        if kind == "f64":
            return np.ascontiguousarray(values).view(np.uint64)
    whole = values.astype(np.int64)
    if saturates:
        whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
    return np.ascontiguousarray(whole.astype(np.uint32))


def product(a: Array, b: Array, c: Array, kind: str, operation: str = "") -> Array:
    """a·b + c of matrices (warps, rows, columns); of bits with xor or and in place of products."""
    if kind in _ROUNDED:
        total, term = np.zeros(c.shape), np.empty(c.shape)
        for k in range(a.shape[2]):
            total += np.multiply(a[:, :, k, None], b[:, k, None, :], out=term)
        return np.asarray(total + c)
    both = a @ b  # whole numbers, exact in any order
    if operation == "xor":
        both = a.sum(axis=2, keepdims=True) + b.sum(axis=1, keepdims=True) - 2 * both
    return np.asarray(both + c)


def tile_products(a: Array, b: Array) -> Array:
    """a·bᵀ of tiles (tiles, rows, K) and (tiles, columns, K) in float64, added in the order of K."""
    made = np.empty((*a.shape[:2], b.shape[1]))
    found = library()
    if found is None or found.multiply_tiles(np.ascontiguousarray(a), np.ascontiguousarray(b), made):
        made[:] = 0
        with np.errstate(all="ignore"):
            for k in range(a.shape[2]):
                made += a[:, :, None, k] * b[:, None, :, k]
    return made


def whole_warps(mask: Mask | None, site: Site) -> None:
    if mask is None:
        return
    warps = mask.bits.reshape(-1, WARP)
    part = warps.any(axis=1) & ~warps.all(axis=1)
    if part.any():
        raise Trap("barrier", "is executed by a part of its warp", site, int(np.argmax(part)) * WARP)


class Words:
    """Registers of a fragment as an array (lanes, registers) of words, and back."""

    def __init__(self, b: Builder, operand: Operand, bits: int = 32) -> None:
        if not isinstance(operand, Vector):
            raise PtxError("a fragment is a vector of registers")
        self._state, self.count = b.state, len(operand.items)
        self._reads = [b.read(item, f"b{bits}") for item in operand.items]
        self._puts = [b.write(item) for item in operand.items]

    def held(self, count: int) -> list[Any]:
        """The first registers, each an array over the lanes or a scalar."""
        return [read() for read in self._reads[:count]]

    def get(self) -> Array:
        return np.stack([full(each, self._state.lanes) for each in self.held(self.count)], axis=1)

    def columns(self) -> Array:
        """The same as (registers, lanes)."""
        return np.stack([full(each, self._state.lanes) for each in self.held(self.count)])

    def set(self, words: Array, mask: Mask | None) -> None:
        self.put(np.ascontiguousarray(words.T), mask)

    def put(self, columns: Array, mask: Mask | None) -> None:
        """(registers, lanes); of fewer registers than there are the first ones again."""
        for i, put in enumerate(self._puts):
            put(columns[i % len(columns)], mask)


class Matrix:
    """A matrix of a warp, or several one below the other: ``places`` are row and column of each lane's
    elements, (32, elements), in the order of the registers; more of them repeat the first."""

    def __init__(self, rows: int, columns: int, kind: str, places: tuple[Array, Array]) -> None:
        self.rows, self.columns, self.kind = rows, columns, kind
        self.place = places[0] * columns + places[1]
        self.words = -(-self.place.shape[1] * bits_of(kind) // (64 if kind == "f64" else 32))
        self._order = np.argsort(self.place.ravel())  # each element is held once

    def decode(self, words: Array) -> Array:
        """(lanes, registers) to (warps, rows, columns) in float64."""
        values = elements(words[:, : self.words], self.kind).reshape(-1, self.place.size)
        return values.take(self._order, axis=1).reshape(-1, self.rows, self.columns)

    def encode(self, values: Array, saturates: bool = False) -> Array:
        """Matrices to the registers that hold them, (lanes, words)."""
        held = values.reshape(-1, self.place.size).take(self.place.ravel(), axis=1)
        return registers(held.reshape(-1, self.place.shape[1]), self.kind, saturates)


class Product:
    """D = A·B + C of matrices in registers; ``copies`` of each lie one below the other."""

    def __init__(
        self,
        b: Builder,
        operands: Sequence[Operand],
        matrices: Sequence[Matrix],
        operation: str,
        saturates: bool,
        site: Site,
        copies: int = 1,
    ) -> None:
        self._state, self._operation, self._saturates, self._site = b.state, operation, saturates, site
        words = (64 if m.kind == "f64" else 32 for m in (matrices[3], *matrices[:3]))
        self._out, *self._sources = (Words(b, o, bits) for o, bits in zip(operands, words, strict=True))
        *self._given, self._made = matrices
        self._copies = copies
        self._native: Multiply | None = None
        held = [*self._sources, self._out]
        if any(w.count % m.words for w, m in zip(held, matrices, strict=True)):
            raise PtxError("another number of registers than its shape has")
        kinds = [m.kind for m in matrices]
        known = not operation and {*kinds[:2]} <= {*MULTIPLIED} and {*kinds[2:]} <= {*SUMS}
        registers = [item for o in operands[:4] if isinstance(o, Vector) for item in o.items]
        known = known and all(b.kind(r) and STORED[b.kind(r)].itemsize == 4 for r in registers)
        if known and (found := library()) is not None:
            self._native = _multiply(found, copies, tuple(matrices), saturates)
            out, *sources = (o.items for o in operands[:4] if isinstance(o, Vector))
            slots = [b.slot(r) for o, m in zip(sources, self._given, strict=True) for r in o[: m.words]]
            slots += [n for r in out for n in (b.slot(r), KINDS.index(STORED[b.kind(r)]))]
            self._slots = np.array(slots, np.int32)

    def run(self, mask: Mask | None) -> None:
        state, native = self._state, self._native
        if native is not None:
            bits = None if mask is None else np.ascontiguousarray(mask.bits)
            if native.run(native.address, state.registers, self._slots, bits, state.lanes):
                whole_warps(mask, self._site)
                raise AssertionError(f"a register of {self._site.ptx} is no array over the lanes")
            return
        whole_warps(mask, self._site)
        with np.errstate(all="ignore"):
            a, b, c = (
                m.decode(s.get()).reshape(-1, m.rows // self._copies, m.columns)
                for s, m in zip(self._sources, self._given, strict=True)
            )
            made = self._made.encode(product(a, b, c, self._given[0].kind, self._operation), self._saturates)
        self._out.set(made, mask)


# ldmatrix, stmatrix, movmatrix: 8x8 matrices of 16 bits of a warp (PTX ISA §9.7.14.5.15 to 17).
def _form(i: Instruction, count: int) -> tuple[list[str], bool]:
    """The words, and whether rows and columns change places. Raises PtxError for another form."""
    words = words_of(i)
    if "m8n8" not in words or words[-1] != "b16" or f"x{count}" not in words:
        raise PtxError("only m8n8 of b16, as many as there are registers, is supported")
    return words, "trans" in words


def _gives(state: KernelState, count: int) -> Callable[[Mask | None], Mask]:
    """Lanes 8i … 8i + 7 give the addresses of the rows of matrix i. For the same mask it is the same one, by
    which the checks know an access again."""
    last: list[Any] = [None, 0, None]

    def of(mask: Mask | None) -> Mask:
        if last[0] is not mask or last[1] != state.lanes:
            gives = np.tile(np.arange(WARP) < 8 * count, state.lanes // WARP)
            last[:] = mask, state.lanes, Mask(gives if mask is None else gives & mask.bits)
        return last[2]  # type: ignore[no-any-return]

    return of


def _fragment(matrices: Array) -> Array:
    """(warps, count, 8, 8) of 16 bits to the words (lanes, count) that hold them: two of a row each."""
    count = matrices.shape[1]
    held = np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, count, WARP)
    return held.transpose(0, 2, 1).reshape(-1, count)


def _matrices(words: Array) -> Array:
    """The other way round."""
    count = words.shape[1]
    held = np.ascontiguousarray(words.reshape(-1, WARP, count).transpose(0, 2, 1))
    return held.view(np.uint16).reshape(-1, count, 8, 8)


@instruction("9.7.14", "ldmatrix:5.15", "move memory warp", note="`.m8n8` of `.b16`")
def _ldmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    registers, base, state = Words(b, i.operands[0]), b.address(i.operands[1]), b.state
    words, transposed = _form(i, registers.count)
    load, _ = accessors(b, words, site, base, 16)
    giving = _gives(state, registers.count)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        gives = giving(mask)
        rows = np.zeros(state.lanes, WIDEST)
        rows[gives.bits] = np.ascontiguousarray(load(gives)).view(WIDEST)[:, 0]
        matrices = rows.view(np.uint16).reshape(-1, WARP // 8, 8, 8)[:, : registers.count]
        registers.set(_fragment(matrices.transpose(0, 1, 3, 2) if transposed else matrices), mask)

    return run


@instruction("9.7.14", "stmatrix:5.16", "move warp", writes=0, note="`.m8n8` of `.b16`")
def _stmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    base, registers, state = b.address(i.operands[0]), Words(b, i.operands[1]), b.state
    words, transposed = _form(i, registers.count)
    _, store = accessors(b, words, site, base, 16)
    giving = _gives(state, registers.count)

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        gives = giving(mask)
        matrices = _matrices(registers.get())
        if transposed:
            matrices = matrices.transpose(0, 1, 3, 2)
        rows = np.zeros((state.lanes // WARP, WARP // 8, 8, 8), np.uint16)
        rows[:, : registers.count] = matrices
        store(rows.reshape(state.lanes, 8).view(np.uint32)[gives.bits], gives)

    return run


@instruction("9.7.14", "movmatrix:5.17", "move warp")
def _movmatrix(b: Builder, i: Instruction, site: Site) -> Run:
    """A matrix that a warp holds, transposed."""
    if i.op != "movmatrix.sync.aligned.m8n8.trans.b16":
        raise PtxError("not supported")
    put, read, state = b.write(i.operands[0]), b.read(i.operands[1], "b32"), b.state

    def run(mask: Mask | None) -> None:
        whole_warps(mask, site)
        matrices = _matrices(full(read(), state.lanes).reshape(-1, 1))
        put(_fragment(matrices.transpose(0, 1, 3, 2))[:, 0], mask)

    return run
