"""The launches of the kernels in this folder, with what they must leave: whole numbers, so to the bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

import ptxsan
from tests.hopper import together
from tests.ptxsan.rig import TYPES

HERE = Path(__file__).parent
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Launch:
    """``want``: what the arguments of these numbers must be afterwards."""

    file: str
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]
    want: Mapping[int, Array]
    entry: str
    shared: int = 0
    defines: tuple[str, ...] = field(default=())
    arch: str = "sm_90a"

    def emulate(self) -> ptxsan.LaunchResult:
        def compiled(path: Path, arch: str, defines: tuple[str, ...], flags: Any) -> str:
            return together.ptx(path, self.entry, arch, defines)

        with mock.patch("ptxsan.nvcc.compile_file", compiled):
            return ptxsan.run(
                HERE / self.file,
                grid=self.grid,
                block=self.block,
                arguments=self.arguments,
                entry=self.entry,
                shared=self.shared,
                defines=self.defines,
                arch=self.arch,
            )

    def expect(self) -> None:
        """Tells that it is going to be needed, so that it is compiled with others of its file."""
        together.expect(HERE / self.file, self.entry, self.arch, self.defines)

    def given(self, which: int, argument: Any) -> Launch:
        """With another argument of this number."""
        return replace(self, arguments=(*self.arguments[:which], argument, *self.arguments[which + 1 :]))

    def right(self, arrays: Mapping[int, Array]) -> bool:
        """Whether every bit is as it must be."""
        return all(
            np.array_equal(arrays[i].ravel().view(np.uint8), want.ravel().view(np.uint8))
            for i, want in self.want.items()
        )


def pipeline(*defines: str, m: int = 128, n: int = 128, k: int = 320) -> Launch:
    """The product by TMA and wgmma."""
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (m, k)).astype(np.float16)
    b = random.integers(-4, 5, (n, k)).astype(np.float16)
    maps = [
        ptxsan.Tiled(a, (64, 64), 128),
        ptxsan.Tiled(b, (64, 64), 128),
        ptxsan.Tiled(ptxsan.Empty((m, n)), (64, 32)),
    ]
    want = {2: a.astype(np.float32) @ b.astype(np.float32).T}
    shared = 3 * 24 * 1024 + 2 * 64 * 64 * 4 + 48
    grid = n // 64, m // 128
    return Launch("pipeline.cu", grid, 384, (*maps, np.int32(k)), want, "pipeline", shared, defines)


def multicast(*defines: str) -> Launch:
    """A product of which the blocks of a cluster share tiles."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (64, 160)).astype(np.float32) for _ in range(2))
    maps = [ptxsan.Tiled(a, (32, 32)), ptxsan.Tiled(b, (16, 32))]
    arguments = (*maps, ptxsan.Empty((64, 64)), np.int32(64), np.int32(160))
    return Launch("cluster.cu", (2, 2), 1024, arguments, {2: a @ b.T}, "multicast", defines=defines)


def sums(*defines: str) -> Launch:
    """Sums through distributed shared memory."""
    x = np.random.default_rng(0).integers(-4, 5, (50, 128)).astype(np.float32)
    want = np.stack([x[np.arange(50) % 8 // 4 == cluster].sum(axis=0) for cluster in range(2)])
    arguments = x, np.int32(50), ptxsan.Empty(2 * 128 + 2)
    wanted = {2: np.r_[want.ravel(), want.sum(axis=1)].astype(np.float32)}
    return Launch("cluster.cu", (8,), 128, arguments, wanted, "sums", defines=defines)


def bulk(*defines: str) -> Launch:
    """Copies without a tensor map."""
    x = np.random.default_rng(0).integers(-99, 99, 4 * 512).astype(np.int32)
    arguments = x, ptxsan.Empty(4 * 512, np.int32), np.zeros(256, np.int32)
    want = {1: 2 * x, 2: (2 * x).reshape(-1, 256).sum(axis=0).astype(np.int32)}
    return Launch("bulk.cu", (4,), 256, arguments, want, "bulk", defines=defines)


def registers(*defines: str, n: int = 3) -> Launch:
    """Products of which one multiplicand goes through registers."""
    x = np.random.default_rng(0).integers(-3, 4, (n, 2, 64, 64)).astype(np.float16)
    arguments = ptxsan.Tiled(x.reshape(-1, 64), (64, 64), 128), ptxsan.Empty((64, 64)), np.int32(n)
    want = np.einsum("nik,njk->ij", x[:, 0].astype(np.float32), x[:, 1].astype(np.float32))
    return Launch("registers.cu", (1,), 256, arguments, {1: want}, "registers", defines=defines)


def tokens(*defines: str) -> Launch:
    """mbarriers by their states, with cp.async."""
    x = np.random.default_rng(0).integers(-99, 99, 256).astype(np.int32)
    arguments = x, ptxsan.Empty(256, np.int32), ptxsan.Empty(256, np.int32)
    want = {1: x[::-1].copy(), 2: np.full(256, 7, np.int32)}
    return Launch("tokens.cu", (1,), 256, arguments, want, "tokens", defines=defines)


def ring(*defines: str) -> Launch:
    """Bulk copies and sums from block to block of a cluster."""
    given = 1000 * np.arange(8, dtype=np.int32)[:, None] + np.arange(128, dtype=np.int32)
    before = [block // 4 * 4 + (block - 1) % 4 for block in range(8)]
    arguments = ptxsan.Empty((8, 128), np.int32), ptxsan.Empty((8, 128), np.int32)
    want = {0: given[before], 1: given[before] + np.arange(128, dtype=np.int32)}
    return Launch("tokens.cu", (8,), 128, arguments, want, "ring", defines=defines)


def maps(*defines: str) -> Launch:
    """Boxes of matrices of other sizes, by tensor maps that the blocks make of one."""
    rows, columns = np.array([[12, 40], [7, 16], [6, 24]], np.int32).T
    random = np.random.default_rng(4)
    each = [random.integers(1, 99, (m, n)).astype(np.float32) for m, n in zip(rows, columns, strict=True)]
    want = np.zeros((len(each), 8, 16), np.float32)
    for of, x in zip(want, each, strict=True):
        of[:5] = x[-5:, :16]
    pattern = ptxsan.Tiled(np.zeros((8, 32), np.float32), (8, 16))
    flat = np.concatenate([x.ravel() for x in each])
    made, out = ptxsan.Empty(32 * len(each), np.uint32), ptxsan.Empty((len(each), 8, 16))
    arguments = pattern, flat, rows, columns, made, out
    return Launch("maps.cu", (len(each),), 64, arguments, {5: want}, "maps", defines=defines)


def form(kind: str, total: str, swizzle: int, *more: str) -> Launch:
    """A product by wgmma: type of the multiplicands, of the sum, swizzle in bytes."""
    dtype = np.dtype(TYPES[kind])
    depth = 128 // dtype.itemsize
    random = np.random.default_rng(1)
    low = 0 if kind == "u8" else -3
    a, b = (random.integers(low, 4, (64, depth)).astype(dtype) for _ in range(2))
    want = a.astype(np.float64) @ b.astype(np.float64).T * (-1 if "SIGN=-1" in more else 1)
    defines = [f"KIND={kind}", f"SUM={total}", f"SWIZZLE={swizzle}", f"DEPTH={depth}", f"STEP={depth // 4}"]
    defines += ["WHOLE"] * (total == "s32") + ["HALF_SUM"] * (total == "f16")
    defines += ["WIDE"] * (dtype.itemsize != 2)
    maps = []
    for name, x in (("A", a), ("B", b)):
        stored = np.ascontiguousarray(x.T) if f"TURN_{name}=1" in more else x
        kept = stored.view(np.uint8) if dtype.itemsize == 1 else stored
        maps.append(ptxsan.Tiled(kept, (64, (swizzle or 16) // dtype.itemsize), swizzle))
    out = ptxsan.Empty((64, 64), TYPES[total])
    arguments = (*maps, np.ascontiguousarray(a).view(np.uint32), out)
    # 0 − 0 is 0, which a sum of products with a minus is not told to be.
    wanted = (want + 0.0).astype(TYPES[total])
    return Launch("forms.cu", (1,), 128, arguments, {3: wanted}, "forms", defines=(*defines, *more))


FORMS = (
    *(
        ("f16", "f32", swizzle, *turns)
        for swizzle in (0, 32, 64, 128)
        for turns in ((), ("TURN_A=1",), ("TURN_B=1",), ("TURN_A=1", "TURN_B=1"))
    ),
    *(
        (kind, total, 128, *where)
        for kind, total in (
            ("f16", "f16"),
            ("bf16", "f32"),
            ("tf32", "f32"),
            ("s8", "s32"),
            ("u8", "s32"),
            ("e4m3", "f32"),
            ("e4m3", "f16"),
            ("e5m2", "f32"),
        )
        for where in ((), ("A_IN_REGISTERS",))
    ),
    ("f16", "f32", 64, "SIGN=-1", "A_IN_REGISTERS", "TURN_B=1"),
    ("bf16", "f32", 32, "SIGN=-1"),
    *(("f16", "f32", swizzle, "OFF=128") for swizzle in (32, 64, 128)),
    ("f16", "f32", 128, "OFF=384", "TURN_A=1", "TURN_B=1"),
)


def sparse(kind: str, total: str, swizzle: int = 128, selector: int = 0, *more: str) -> Launch:
    """A product of a sparse A by wgmma: of each four elements two are held (of each two of TF32 one), in a
    random place; what the lanes hold of the metadata that the selector does not ask for is wrong."""
    dtype = np.dtype(TYPES[kind])
    depth, chunk = 256 // dtype.itemsize, 2 if kind == "tf32" else 4
    random = np.random.default_rng(3)
    low = 0 if kind == "u8" else -3
    held = random.integers(low, 4, (64, depth // 2)).astype(dtype)
    b = random.integers(low, 4, (64, depth)).astype(dtype)
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    kept = pairs[random.integers(0, 6, (64, depth // chunk))]  # (rows, chunks, 2), halves of TF32
    if kind == "tf32":
        kept = np.array([(0, 1), (2, 3)])[random.integers(0, 2, (64, depth // chunk))]
    nibbles = kept[..., 0] | kept[..., 1] << 2
    places = kept[..., :1] // 2 if kind == "tf32" else kept
    columns = (np.arange(depth // chunk)[:, None] * chunk + places).reshape(64, -1)
    whole = np.zeros((64, depth))
    np.put_along_axis(whole, columns, held.astype(np.float64), axis=1)
    metadata = np.full((4, 128), 0xFFFFFFFF, np.uint32)
    per_step = depth // chunk // 4
    for step, thread in np.ndindex(4, 128):
        row, place = thread // 32 * 16 + thread % 32 // 4, thread % 4
        of = nibbles[:, step * per_step : (step + 1) * per_step]
        if dtype.itemsize == 1:  # eight chunks of a row, the rows by turns
            mine = of[row + place % 2 * 8, place // 2 * 8 :][:8]
        elif place // 2 == selector:  # four chunks of both rows
            mine = np.r_[of[row, place % 2 * 4 :][:4], of[row + 8, place % 2 * 4 :][:4]]
        else:
            continue
        metadata[step, thread] = sum(int(n) << 4 * i for i, n in enumerate(mine))
    maps = [
        ptxsan.Tiled(
            x.view(np.uint8) if dtype.itemsize == 1 else x, (64, (swizzle or 16) // dtype.itemsize), swizzle
        )
        for x in (held, b)
    ]
    out = ptxsan.Empty((64, 64), TYPES[total])
    arguments = (*maps, np.ascontiguousarray(held).view(np.uint32), metadata, out)
    defines = [
        f"KIND={kind}",
        f"SUM={total}",
        f"SWIZZLE={swizzle}",
        f"SELECTOR={selector}",
        f"ITEM={dtype.itemsize}",
    ]
    defines += [f"STEP={depth // 4}"] + ["WHOLE"] * (total == "s32") + ["WIDE"] * (dtype.itemsize != 2)
    want = (whole @ b.astype(np.float64).T + 0.0).astype(TYPES[total])
    return Launch("sparse.cu", (1,), 128, arguments, {4: want}, "sparse", defines=(*defines, *more))


SPARSE: tuple[tuple[Any, ...], ...] = (
    *(
        (kind, "s32" if kind in ("s8", "u8") else "f32", 128, 0, *where)
        for kind in ("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e5m2")
        for where in ((), ("A_IN_REGISTERS",))
    ),
    *(("f16", "f32", swizzle) for swizzle in (0, 64)),
    *((kind, "f32", 128, 1) for kind in ("f16", "tf32")),
)

# Boxes: shape, box, where from, swizzle, whether outside is NaN, steps. All in the order of NumPy's axes.
BOXES: dict[str, tuple[Any, ...]] = {
    "1d": ((100,), (64,), (8,), 0, False, ()),
    "2d": ((40, 64), (16, 32), (3, 4), 0, False, ()),
    "2d-edge": ((40, 64), (16, 32), (33, 48), 0, False, ()),
    "2d-before": ((40, 64), (16, 32), (-3, -8), 0, False, ()),
    "2d-nan": ((40, 64), (16, 32), (33, 48), 0, True, ()),
    "2d-128": ((40, 64), (16, 32), (3, 4), 128, False, ()),
    "2d-64": ((40, 64), (16, 16), (3, 60), 64, False, ()),
    "2d-32": ((40, 64), (16, 8), (35, 4), 32, False, ()),
    "2d-steps": ((40, 64), (16, 32), (3, 4), 0, False, (3, 1)),
    "3d": ((6, 10, 32), (4, 3, 8), (3, 8, 28), 0, False, ()),
    "4d": ((3, 4, 5, 16), (2, 3, 2, 8), (2, 3, -1, 12), 0, False, ()),
    "5d": ((3, 2, 4, 5, 16), (2, 1, 3, 2, 8), (1, 1, 2, 4, 12), 0, False, ()),
    "5d-128": ((3, 2, 4, 5, 64), (2, 2, 3, 2, 32), (1, -1, 2, 4, 12), 128, False, (1, 1, 2, 1, 1)),
}

NANS = (np.float16, ml_dtypes.bfloat16, np.float64)
ADDED = (np.int32, np.float16, np.uint64)


# FP32 numbers by their bits, and what a map of elements TFLOAT32 made of them on an H100. For NaN with a
# sign, the next table, it is what the emulated device makes.
TO_TF32 = {
    **{0x00000000: 0x00000000, 0x80000000: 0x80000000, 0x7F800000: 0x7F800000, 0xFF800000: 0xFF800000},
    **{0x7F800001: 0x7FFFE000, 0x7FC00000: 0x7FFFE000, 0x7FFFFFFF: 0x7FFFE000},
    **{0x7F7FFFFF: 0x7F800000, 0x7F7FF000: 0x7F800000, 0x7F7FEFFF: 0x7F7FE000},  # overflow
    **{0x00000001: 0x00000000, 0x00000FFF: 0x00000000, 0x00001000: 0x00000000, 0x00003000: 0x00004000},
    **{0x007FFFFF: 0x00800000, 0x00800000: 0x00800000},  # subnormal numbers, those above too
}
SIGNED_NANS = {0xFF800001: 0x7FFFE000, 0xFFC00000: 0x7FFFE000, 0xFFFFFFFF: 0x7FFFE000}
TIES = (0x3F801000, 0x3F803000, 0xBF801000, 0xBF803000, 0x3F800FFF, 0x3F801001, 0x3FFFF000, 0x807FF000)
TF32_BOXES = ("2d", "2d-edge", "2d-128", "2d-64", "3d", "5d-128")


def to_tf32(x: Array) -> Array:
    """FP32 numbers rounded to TF32, to the nearest, ties to even, in float64: 11 significant bits, fewer for
    subnormal numbers. Every NaN becomes one without a sign."""
    with np.errstate(invalid="ignore", over="ignore"):
        wide = x.astype(np.float64)
        unit = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - 1, -126) - 10)
        near = np.where(np.isfinite(wide), np.rint(wide / unit) * unit, wide).astype(np.float32)
    return np.where(np.isnan(wide), np.uint32(0x7FFFE000), near.view(np.uint32)).view(np.float32)


def _any_bits(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """FP32 numbers of random bits, half of them special."""
    special = np.array([*TO_TF32, *SIGNED_NANS, *TIES], np.uint32)
    bits = random.integers(0, 1 << 32, shape, np.uint32)
    return np.where(random.random(shape) < 0.5, random.choice(special, shape), bits).view(np.float32)


def box(name: str, dtype: Any = np.float32, *defines: str, tf32: bool = False) -> Launch:
    """A box to shared memory, as it lies there to raw, and to a place one before it (16 bytes in a row), but
    not before the first, in another tensor. ``tf32``: of numbers of any bits, which are rounded."""
    shape, size, at, swizzle, nan, steps = BOXES[name]
    random = np.random.default_rng(2)
    x, y = (random.integers(0, 100, shape).astype(dtype) for _ in range(2))
    x = _any_bits(random, shape) if tf32 else x
    seen = to_tf32(x) if tf32 else x
    steps = steps or (1,) * len(shape)
    counts = [-(-b // s) for b, s in zip(size, steps, strict=True)]
    taken = np.full(counts, np.full(y.itemsize // 2, 0x7FF7 if nan else 0, np.uint16).view(dtype)[0], dtype)
    want, there = y.copy(), tuple(max(0, a) for a in (*(a - 1 for a in at[:-1]), at[-1] - 16 // y.itemsize))
    for index in np.ndindex(*counts):
        place = tuple(a + i * s for a, i, s in zip(at, index, steps, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            taken[index] = seen[place]
    for index in np.ndindex(*counts):
        place = tuple(a + i * s for a, i, s in zip(there, index, steps, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            want[place] = taken[index] + y[place] if "ADD" in defines else taken[index]
    flat = taken.ravel().view(np.uint8)
    place_of = np.arange(flat.size)
    raw = np.empty_like(flat)
    raw[place_of ^ ((place_of >> 7 & {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]) << 4)] = flat
    maps = [ptxsan.Tiled(x, size, swizzle, nan, steps, tf32), ptxsan.Tiled(y, size, swizzle, nan, steps)]
    places = [np.array([*reversed(p), 0, 0, 0, 0][:5], np.int32).tobytes() for p in (at, there)]
    arguments = maps[0], places[0], maps[1], places[1], ptxsan.Empty(flat.size // 4, np.uint32)
    all_defines = f"RANK={len(shape)}", f"BYTES={flat.size}", *defines
    wanted = {4: raw.view(np.uint32), 2: want}
    return Launch("boxes.cu", (1,), 64, arguments, wanted, "boxes", flat.size, all_defines)


def everything() -> dict[str, Launch]:
    """Every right launch, by name."""
    return {
        "pipeline": pipeline(),
        "pipeline-long": pipeline(m=256, n=192, k=1024),
        "multicast": multicast(),
        "sums": sums(),
        "bulk": bulk(),
        "multicast-relaxed": multicast("RELAXED_AFTER_FENCE"),
        "registers": registers(),
        "tokens": tokens(),
        "ring": ring(),
        "maps": maps(),
        "maps-in-global": maps("IN_GLOBAL"),
        **{"wgmma-" + "-".join(map(str, f)): form(*f) for f in FORMS},
        **{"sparse-" + "-".join(map(str, f)): sparse(*f) for f in SPARSE},
        **{f"box-{name}": box(name) for name in BOXES},
        **{f"box-tf32-{name}": box(name, tf32=True) for name in TF32_BOXES},
        **{f"box-nan-{np.dtype(d).name}": box("2d-nan", d) for d in NANS},
        **{f"box-add-{np.dtype(d).name}": box("2d-edge", d, "ADD") for d in ADDED},
    }
