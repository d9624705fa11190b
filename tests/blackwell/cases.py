"""The launches of the kernels in this folder, with what they must leave: whole numbers, so to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import ptxsan
from tests.hopper.cases import Launch

HERE = Path(__file__).parent
ARCH = "sm_100a"
Array = np.ndarray[Any, np.dtype[Any]]


def numbers(*shape: int, dtype: Any = np.float16, low: int = -4, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(low, 5, shape).astype(dtype)


def gemm(*defines: str, m: int = 256, n: int = 128, k: int = 192) -> Launch:
    """The product by TMA and tcgen05.mma, with a warp for each."""
    a, b = numbers(m, k), numbers(n, k, seed=1)
    maps = [ptxsan.Tiled(each, (64, 64), 128) for each in (a, b)]
    arguments = (*maps, ptxsan.Empty((m, n)), *map(np.int32, (m, n, k)))
    want = {2: a.astype(np.float32) @ b.astype(np.float32).T}
    shared = 2 * 24 * 1024 + 6 * 8 + 16
    return Launch(str(HERE / "gemm.cu"), (n // 64,), 192, arguments, want, "gemm", shared, defines, ARCH)


def relay(*defines: str) -> Launch:
    """The product of A in tensor memory, added to C, which a copy brings there."""
    a, b, c = numbers(128, 32), numbers(64, 32, seed=1), numbers(128, 64, dtype=np.float32, seed=2)
    arguments = a, b, c, ptxsan.Empty((128, 64))
    want = {3: c + a.astype(np.float32) @ b.astype(np.float32).T}
    shared = 128 * 64 * 4 + 64 * 32 * 2 + 32
    return Launch(str(HERE / "relay.cu"), (1,), 128, arguments, want, "relay", shared, defines, ARCH)


def pair(*defines: str, rows: int = 256, n: int = 128, k: int = 128) -> Launch:
    """The product by pairs of blocks, of so many rows each."""
    a, b = numbers(2 * rows, k), numbers(n, k, seed=1)
    maps = [ptxsan.Tiled(a, (64, 64), 128), ptxsan.Tiled(b, (32, 64), 128)]
    arguments = (*maps, ptxsan.Empty((2 * rows, n)), np.int32(k))
    want = {2: a.astype(np.float32) @ b.astype(np.float32).T}
    shared = rows // 2 * 128 + 32 * 128 + 32
    more = (f"ROWS={rows}", *defines)
    return Launch(str(HERE / "pair.cu"), (4, n // 64), 128, arguments, want, "pair", shared, more, ARCH)


# By type: kind, its number in an instruction descriptor, and what NumPy calls it.
TYPES: dict[str, tuple[str, int, Any]] = {
    "f16": ("f16", 0, np.float16), "bf16": ("f16", 1, ml_dtypes.bfloat16), "tf32": ("tf32", 2, np.float32),
    "u8": ("i8", 0, np.uint8), "s8": ("i8", 1, np.int8),
    "e4m3": ("f8f6f4", 0, ml_dtypes.float8_e4m3fn), "e5m2": ("f8f6f4", 1, ml_dtypes.float8_e5m2),
}  # fmt: skip
SUMS: dict[str, tuple[int, Any]] = {"f16": (0, np.float16), "f32": (1, np.float32), "s32": (2, np.int32)}


def form(
    a_type: str, b_type: str, total: str, *more: str, swizzle: int = 128, rows: int = 128, seed: int = 1
) -> Launch:
    """A product by tcgen05.mma: types of the multiplicands and of the sum."""
    kind, a_number, a_dtype = TYPES[a_type]
    _, b_number, b_dtype = TYPES[b_type]
    item = np.dtype(a_dtype).itemsize
    depth = 128 // item
    a = numbers(rows, depth, dtype=a_dtype, low=0 if a_type == "u8" else -4, seed=seed)
    b = numbers(64, depth, dtype=b_dtype, low=0 if b_type == "u8" else -4, seed=seed + 1)
    wide = [each.astype(np.float64).reshape(len(each), 4, -1) for each in (a, b)]
    steps = np.einsum("iks,jks->kij", *wide) * (-1 if "MINUS_A=1" in more else 1)
    steps *= -1 if "MINUS_B=1" in more else 1
    scale = 0.5 if "SCALED" in more else 1.0
    want = sum(step * scale ** (3 - k) for k, step in enumerate(steps)) + 0.0
    if "LEAVES_OUT" in more:  # lanes 4 to 7, 64 to 95 and 96, which hold 0
        want[[*range(4, 8), *range(64, 97)]] = 0
    number, dtype = SUMS[total]
    out = np.asarray(want).astype(dtype)
    words = out.view(np.uint16).astype(np.uint32) if total == "f16" else out.view(np.uint32)
    maps = []
    for name, x in (("A", a), ("B", b)):
        stored = np.ascontiguousarray(x.T) if f"TURN_{name}=1" in more else x
        kept = stored.view(np.uint8) if item == 1 else stored
        maps.append(ptxsan.Tiled(kept, (32, (swizzle or 16) // item), swizzle))
    defines = [f'KIND="{kind}"', f"TYPE_A={a_number}", f"TYPE_B={b_number}", f"SUM={number}", f"ITEM={item}"]
    defines += [f"SWIZZLE={swizzle}", f"ROWS={rows}", *more]
    arguments = (*maps, np.ascontiguousarray(a).view(np.uint32), ptxsan.Empty((rows, 64), np.uint32))
    return Launch(str(HERE / "forms.cu"), (1,), 128, arguments, {3: words}, "forms", 0, tuple(defines), ARCH)


# Moves of 8 registers by their names. A thread's number, and a register's, is one of digits, lowest first:
# what each adds to the place in (lanes × columns), as CUTLASS's layouts have it (Copy_Traits).
Digits = tuple[tuple[int, int], ...]  # (size, stride)
MOVES: dict[str, tuple[int, Digits, Digits]] = {  # columns, thread, register
    "32x32b.x8": (8, ((32, 8),), ((8, 1),)),
    "16x64b.x8": (16, ((2, 128), (2, 1), (8, 16)), ((8, 2),)),
    "16x128b.x4": (16, ((4, 1), (8, 16)), ((2, 128), (4, 4))),
    "16x256b.x2": (16, ((4, 2), (8, 16)), ((2, 1), (2, 128), (2, 8))),
    "16x32bx2.x8": (16, ((16, 16), (2, 8)), ((8, 1),)),
}


def places(name: str) -> tuple[Array, Array]:
    """Lane and column of each thread's registers, (32, 8)."""
    columns, *both = MOVES[name]
    sums = []
    for digits, count in zip(both, (32, 8), strict=True):
        number, total = np.arange(count), np.zeros(count, np.int64)
        for size, stride in digits:
            total += number % size * stride
            number = number // size
        sums.append(total)
    return np.divmod(sums[0][:, None] + sums[1][None, :], columns)


def moves(name: str, *more: str, at: int = 0, stores: bool = False, packs: bool = False) -> Launch:
    """Registers of a load or a store, of the lanes ``at`` and after them of each warp. ``packs``: a register
    is of two columns, the low halves of which it has."""
    held = np.arange(128 * 32, dtype=np.uint32).reshape(128, 32) * 7 + 1
    given = np.arange(128 * 8, dtype=np.uint32).reshape(4, 32, 8) * 65537 + (5 << 16)
    lane, column = places(name)
    lanes, columns = np.broadcast_arrays(np.arange(4)[:, None, None] * 32 + at + lane, column)
    out = held.copy()
    if stores and packs:
        out[lanes, 2 * columns], out[lanes, 2 * columns + 1] = given & 0xFFFF, given >> 16
    elif stores:
        out[lanes, columns] = given
    elif packs:
        low, high = held[lanes, 2 * columns], held[lanes, 2 * columns + 1]
        out = (low & 0xFFFF | high << 16).reshape(128, 8)
    else:
        out = held[lanes, columns].reshape(128, 8)
    defines = [f'FORM="{name}"', f"AT={at}", *more]
    defines += ["STORES"] if stores else []
    defines += ['PACKS=".pack::16b"', 'UNPACKS=".unpack::16b"'] if packs else []
    defines += [f'MORE=", {16 if packs else 8}"'] if "bx2" in name else []
    arguments = np.concatenate([held.ravel(), given.ravel()]), ptxsan.Empty(out.shape, np.uint32)
    return Launch(str(HERE / "moves.cu"), (1,), 128, arguments, {1: out}, "moves", 0, tuple(defines), ARCH)


# Copies: rows and bytes of each, and which 32 of the rows each quarter of the lanes gets (§9.7.16.9.1).
COPIES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "128x256b": (128, 32, (0, 1, 2, 3)),
    "128x128b": (128, 16, (0, 1, 2, 3)),
    "64x128b.warpx2::02_13": (64, 16, (0, 1, 0, 1)),
    "64x128b.warpx2::01_23": (64, 16, (0, 0, 1, 1)),
    "32x128b.warpx4": (32, 16, (0, 0, 0, 0)),
}


def copy(name: str) -> Launch:
    """Rows of shared memory in tensor memory."""
    rows, size, quarters = COPIES[name]
    held = np.arange(rows * size // 4, dtype=np.uint32).reshape(rows, -1) * 11 + 3
    out = np.concatenate([held[32 * quarter : 32 * quarter + 32] for quarter in quarters])
    defines = f'FORM="{name}"', f"ROWS={rows}", f"BYTES={size}"
    arguments = held, ptxsan.Empty(out.shape, np.uint32)
    return Launch(str(HERE / "copies.cu"), (1,), 128, arguments, {1: out}, "copies", 0, defines, ARCH)
