"""Textures and surfaces: what a handle stands for, and fetches by the CUDA C++ Programming Guide's formulas
(PTX ISA §5.3, §9.7.10 and §9.7.11; texture fetching, an appendix of the guide).

What the guide does not say is as an H100 was seen to do it: which texels, and the weights of a linear filter.
Its sums are exact here, and rounded to nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ptxsan.checks import IMAGE, Site, Trap
from ptxsan.frontend import Address, Instruction, Operand, PtxError, Register, Vector, size_of
from ptxsan.isa.warp import OPERATIONS
from ptxsan.lanes import Array, Mask, full
from ptxsan.machine import SEEN, Builder, Run, items_of, join, words_of
from ptxsan.machine.table import instruction

FILTERS, MODES = ("point", "linear"), ("clamp", "border", "wrap", "mirror")
_AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
_FAR = 1 << 40  # a coordinate that lies outside of every texture
_NORMAL = 2.0**-126  # what is less is 0
_STEPS = 1 << 21  # a normalized coordinate is cut off to one of so many


@dataclass(frozen=True)
class Image:
    """An array at an ``address``: ``extents`` in texels, x first, and ``layers``, 0 for none. A texel is
    ``channels`` elements of a ``dtype``. The rest is of a texture; a ``surface`` has none of it."""

    address: int
    dtype: Any
    channels: int
    extents: tuple[int, ...]
    layers: int
    surface: bool = False
    filter: str = "point"
    mode: str = "clamp"
    normalized: bool = False
    as_float: bool = False

    @classmethod
    def of(cls, address: int, array: Any, channels: int, layered: bool, **more: Any) -> Image:
        """Of what has the shape and dtype of an array. Raises PtxError for what CUDA rejects."""
        shape = array.shape if isinstance(array.shape, tuple) else (array.shape,)
        shape, last = (shape[:-1], shape[-1]) if channels > 1 else (shape, 1)
        layers, axes = (shape[0], shape[1:]) if layered and shape else (0, shape)
        made = cls(address, np.dtype(array.dtype), channels, tuple(reversed(axes)), layers, **more)
        real = made.dtype.kind == "f"
        for bad, takes in (
            (channels not in (1, 2, 4) or last != channels, "1, 2 or 4 channels, the last axis if not 1"),
            (not 1 <= len(axes) <= (2 if layered else 3), "1 to 3 axes, or layers of 1 or 2"),
            (made.dtype not in _ELEMENTS, "elements of 8 to 32 bits, integers, float16 or float32"),
            (made.filter not in FILTERS or made.mode not in MODES, f"{FILTERS} and {MODES}"),
            (
                made.mode in ("wrap", "mirror") and not made.normalized,
                "normalised coordinates to wrap or mirror",
            ),
            (
                made.as_float and (real or made.dtype.itemsize > 2),
                "integers of 8 or 16 bits to make floats of",
            ),
            (made.filter == "linear" and not (real or made.as_float), "floats to filter"),
        ):
            if bad:
                raise PtxError(
                    f"a texture or surface takes {takes}: {shape} of {made.dtype}, {channels} channels"
                )
        return made

    @property
    def texel(self) -> int:
        return int(self.channels * self.dtype.itemsize)

    def decoded(self, held: Array, kind: str) -> Array:
        """Texels (n, channels) as the type of an instruction: float64 for f32, which rounds, else 32 bits."""
        if kind != "f32":
            return held.astype(np.int64).astype(SEEN[kind])
        if not self.as_float:
            return held.astype(np.float64)
        return np.maximum(held.astype(np.float64) / np.iinfo(self.dtype).max, -1.0)

    def along(self, at: Array, axis: int, between: bool) -> tuple[Array, Array]:
        """Of coordinates the texel, or the lower of the two that they lie ``between`` and the weight of the
        other one in 256ths."""
        at = np.clip(np.nan_to_num(at.astype(np.float64), nan=0.0), -_FAR, _FAR)
        at[np.abs(at) < _NORMAL] = 0
        x = np.floor(at * _STEPS) / _STEPS * self.extents[axis] if self.normalized else at
        if not between:
            return np.floor(x).astype(np.int64), np.zeros(len(x), np.int64)
        x = np.floor((x - 0.5) * 256 + 0.5).astype(np.int64)
        return x >> 8, x & 255

    def placed(self, i: Array, axis: int, mode: str) -> tuple[Array, Array]:
        """Numbers of texels as the address mode has them, and which are inside."""
        n = self.extents[axis]
        if mode == "wrap":
            i = i % n
        elif mode == "mirror":
            i = np.where(i % (2 * n) < n, i % (2 * n), 2 * n - 1 - i % (2 * n))
        return np.clip(i, 0, n - 1), (i >= 0) & (i < n) | (mode == "clamp")

    def offset(self, places: Sequence[Array], layer: Array) -> Array:
        """The number of a texel: along x first, layers last."""
        steps = [prod(self.extents[:axis]) for axis in range(len(places) + 1)]
        return np.asarray(sum(p * s for p, s in zip((*places, layer), steps, strict=True)))


_ELEMENTS = [np.dtype(t) for t in ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4"]]


class _Access:
    """[handle, {coordinates}] of an instruction: which lanes mean which object, and where."""

    def __init__(self, b: Builder, i: Instruction, operand: Operand, kind: str, site: Site) -> None:
        words = words_of(i)
        self.geometry = next((word for word in words if word in _AXES), "")
        if not self.geometry:
            raise PtxError("of this geometry is not supported")
        if not isinstance(operand, Vector) or len(operand.items) != 2:
            raise PtxError("takes [handle, {coordinates}]")
        self._handle, self._b, self._site = handle(b, operand.items[0]), b, site
        coordinates = list(items_of(operand.items[1]))
        layer = coordinates.pop(0) if self.geometry.startswith("a") else None
        self._layer = b.read(layer, "s32") if layer else lambda: np.int32(0)
        self.axes, self._surface = _AXES[self.geometry], words[0].startswith("s")
        if len(coordinates) < self.axes:
            raise PtxError(f"takes {self.axes} coordinates")
        self._at = [b.read(one, kind) for one in coordinates[: self.axes]]

    def objects(self, mask: Mask | None) -> Iterator[tuple[Image, Array, list[Array], Array]]:
        """Of each object: it, its lanes (n,), their coordinates and layers."""
        lanes = np.arange(self._b.state.lanes) if mask is None else mask.index
        at = [full(read(), self._b.state.lanes) for read in self._at]
        layer = full(self._layer(), self._b.state.lanes).astype(np.int64)
        for image, of in objects(self._b, self._site, self._handle(), lanes, self._surface):
            if (len(image.extents), bool(image.layers)) != (self.axes, self.geometry.startswith("a")):
                what = f"accesses an object of {len(image.extents)} axes and {image.layers} layers"
                raise Trap("bounds", f"{what} by .{self.geometry}", self._site, int(of[0]))
            # Beyond the last layer a texture has the last one; a surface has none there.
            last = max(0, image.layers - 1)
            yield (
                image,
                of,
                [each[of] for each in at],
                (layer[of] if self._surface else layer[of].clip(0, last)),
            )

    def lanes(self, of: Array, values: Array) -> Array:
        """Values (n,) of these lanes as (lanes,)."""
        found = np.zeros(self._b.state.lanes, values.dtype)
        found[of] = values
        return found

    def mask(self, of: Array) -> Mask:
        return Mask(self.lanes(of, np.ones(len(of), bool)))


def handle(b: Builder, operand: Operand) -> Callable[[], Any]:
    """Raises PtxError for a variable of .texref, .samplerref or .surfref."""
    if not isinstance(operand, Address) or not isinstance(operand.base, Register):
        raise PtxError("takes a handle in a register: module-scope references are not supported")
    return b.address(operand)


def objects(
    b: Builder, site: Site, handles: Any, lanes: Array, surface: bool
) -> Iterator[tuple[Image, Array]]:
    """The objects that lanes (n,) name, and which of these lanes."""
    given = full(handles, b.state.lanes)[lanes]
    for each in np.unique(given).tolist():
        of, image = lanes[given == each], b.state.memory.objects.get(each)
        if image is None or image.surface != surface:
            kind = "surface" if surface else "texture"
            raise Trap("bounds", f"0x{each & (1 << 64) - 1:x} is no {kind} object", site, int(of[0]))
        yield image, of


class _Fetch:
    """The texels of a texture, each in a load of its own."""

    def __init__(self, b: Builder, i: Instruction, site: Site) -> None:
        self.kind, coordinates = words_of(i)[-2:]
        if self.kind not in ("f32", "s32", "u32") or coordinates not in ("f32", "s32"):
            raise PtxError("of these types is not supported")
        self._b, self._site, self._whole = b, site, coordinates == "s32"
        self._access = _Access(b, i, i.operands[1], coordinates, site)
        self._puts = [b.write_active(item, self.kind) for item in items_of(i.operands[0])]
        if len(self._puts) != 4:
            raise PtxError("gives four values: other vectors are not supported")

    def run(self, mask: Mask | None, made: Callable[[Image, Array, list[Array], Array], Array]) -> None:
        """``made``: the four values of the lanes of an object, (n, 4)."""
        found = np.zeros((self._b.state.lanes, 4), SEEN[self.kind])
        for image, of, at, layer in self._access.objects(mask):
            if (self.kind == "f32") != (image.as_float or image.dtype.kind == "f"):
                what = f"a fetch of .{self.kind} from a texture of {image.dtype}"
                raise Trap("unsupported", what, self._site, int(of[0]))
            with np.errstate(all="ignore"):
                found[of] = made(image, of, at, layer)
        for n, put in enumerate(self._puts):
            put(np.ascontiguousarray(found[:, n] if mask is None else found[mask.index, n]), mask)

    def texels(self, image: Image, of: Array, i: Sequence[Array], layer: Array) -> Array:
        """(n, 4); what is missing of four channels is 0, 0 and 1; outside all are 0."""
        mode = "border" if self._whole else image.mode  # tex1Dfetch gives 0 outside
        placed = [image.placed(each, axis, mode) for axis, each in enumerate(i)]
        inside = np.logical_and.reduce([ok for _, ok in placed])
        found = np.zeros((len(of), 4), np.float64 if self.kind == "f32" else SEEN[self.kind])
        if inside.any():
            found[inside, image.channels :] = np.array([0, 0, 0, 1])[image.channels :]
            where = image.address + image.offset([p for p, _ in placed], layer) * image.texel
            part = of[inside]
            memory, every = self._b.state.memory, self._access.lanes(part, where[inside])
            raw = memory.load(self._site, every, image.texel, self._access.mask(part), IMAGE)
            held = np.ascontiguousarray(raw).view(np.uint8).reshape(len(part), -1).view(image.dtype)
            found[inside, : image.channels] = image.decoded(held, self.kind)
        return found

    def corners(self, image: Image, at: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Along each axis the texel, or with a linear filter the lower of two and the weight of the other."""
        if self._whole:
            return [each.astype(np.int64) for each in at], []
        linear = image.filter == "linear"
        found = [image.along(each, axis, linear) for axis, each in enumerate(at)]
        return [low for low, _ in found], [weight for _, weight in found if linear]


def _weights(along: Sequence[Array]) -> dict[tuple[int, ...], Array]:
    """Of each corner, in 256ths. An H100 splits by x, z and y in turn, and rounds each part: a half goes to
    the upper one where x is."""
    found: dict[tuple[int, ...], Array] = {(): np.full(len(along[0]), 256)}
    for weight in along if len(along) < 3 else (along[0], along[2], along[1]):
        upper = {c: (whole * weight + (128 if c[:1] == (1,) else 127)) >> 8 for c, whole in found.items()}
        found = {(*c, 0): found[c] - upper[c] for c in found} | {(*c, 1): upper[c] for c in found}
    return found if len(along) < 3 else {(x, y, z): w for (x, z, y), w in found.items()}


_NOTE = "texels and weights as an H100 has them, linear filters of 3 axes to 1/256, of 8 bits to 1/32767"


@instruction("9.7.10", "tex:3", "memory", note=f"texture objects without mipmaps; {_NOTE}")
def _tex(b: Builder, i: Instruction, site: Site) -> Run:
    words, fetch = words_of(i), _Fetch(b, i, site)
    if len(i.operands) != (4 if "grad" in words else 3 if "level" in words else 2):
        raise PtxError("with offsets or a depth to compare with is not supported")

    def made(image: Image, of: Array, at: list[Array], layer: Array) -> Array:
        low, weights = fetch.corners(image, at)
        if not weights:
            return fetch.texels(image, of, low, layer)
        total = np.zeros((len(of), 4))
        for corner, weight in _weights(weights).items():
            texels = fetch.texels(image, of, [x + c for x, c in zip(low, corner, strict=True)], layer)
            total += np.where(weight[:, None] == 0, 0, texels * (weight[:, None] / 256))
        return total

    return lambda mask: fetch.run(mask, made)


@instruction("9.7.10", "tld4:4", "memory", note="of texture objects of two axes")
def _tld4(b: Builder, i: Instruction, site: Site) -> Run:
    words, fetch = words_of(i), _Fetch(b, i, site)
    if len(i.operands) != 2 or words[1] not in "rgba" or not {"2d", "a2d"} & {*words}:
        raise PtxError("not supported")
    component = "rgba".index(words[1])

    def made(image: Image, of: Array, at: list[Array], layer: Array) -> Array:
        (x, _), (y, _) = (image.along(each, axis, between=True) for axis, each in enumerate(at))
        texels = [fetch.texels(image, of, [x + j, y + k], layer) for j, k in ((0, 1), (1, 1), (1, 0), (0, 0))]
        return np.stack([each[:, component] for each in texels], axis=1)

    return lambda mask: fetch.run(mask, made)


_QUERIES: dict[str, Callable[[Image], int]] = {
    "width": lambda image: image.extents[0],
    "height": lambda image: (*image.extents, 0)[1],
    "depth": lambda image: (*image.extents, 0, 0)[2],
    "array_size": lambda image: image.layers,
    "normalized_coords": lambda image: image.normalized,
    "num_mipmap_levels": lambda image: 1,
}


@instruction("9.7.10", "txq:5", note="extents, layers and whether coordinates are normalised")
@instruction("9.7.11", "suq:5", note="extents and layers")
def _query(b: Builder, i: Instruction, site: Site) -> Run:
    base, query = words_of(i)[:2]
    if query not in _QUERIES or len(i.operands) != 2:
        raise PtxError("not supported")
    read, put, state = handle(b, i.operands[1]), b.write_active(i.operands[0], "u32"), b.state

    def run(mask: Mask | None) -> None:
        lanes, found = (
            np.arange(state.lanes) if mask is None else mask.index,
            np.zeros(state.lanes, np.uint32),
        )
        for image, of in objects(b, site, read(), lanes, base == "suq"):
            found[of] = _QUERIES[query](image)
        put(found if mask is None else found[mask.index], mask)

    return run


class _Surface:
    """Bytes of a surface, x being a byte: where, of those lanes that access it."""

    def __init__(self, b: Builder, i: Instruction, operand: Operand, width: int, site: Site) -> None:
        words = words_of(i)
        if words[1] != "b":
            raise PtxError("formatted accesses are not supported")
        self._access, self.width, self._site = _Access(b, i, operand, "s32", site), width, site
        self.outside = next((word for word in words if word in ("trap", "clamp", "zero")), "trap")

    def parts(self, mask: Mask | None) -> Iterator[tuple[Array, Array, Mask]]:
        """Of each surface the lanes (n,) that access it, addresses (lanes,) and mask."""
        for image, of, at, layer in self._access.objects(mask):
            x, width = at[0].astype(np.int64), self.width
            if (x % width).any():
                lane = int(of[np.argmax(x % width != 0)])
                what = f"{width}-byte access at byte {int(x[of == lane][0])} of a row of a surface"
                raise Trap("misaligned", f"{what} is not aligned to {width} bytes", self._site, lane)
            row = image.extents[0] * image.texel
            places = [each.astype(np.int64) for each in at[1:]] + [layer] * bool(image.layers)
            sizes = [*image.extents[1:], *[image.layers] * bool(image.layers)]
            inside = (x >= 0) & (x + width <= row)
            for place, size in zip(places, sizes, strict=True):
                inside &= (place >= 0) & (place < size)
            if self.outside == "trap" and not inside.all():
                i, word = int(np.argmin(inside)), self._site.instruction.op.split(".")[0]
                where = ", ".join(str(int(each[i])) for each in (x, *places))
                what = (
                    f"{word} at byte and row ({where}) of a surface of rows of {row} bytes and {sizes} rows"
                )
                raise Trap(
                    "bounds",
                    what if sizes else f"{word} at byte {where} of a surface of {row} bytes",
                    self._site,
                    int(of[i]),
                )
            x, places = x.clip(0, row - width), [p.clip(0, n - 1) for p, n in zip(places, sizes, strict=True)]
            steps = [row * prod(sizes[:n]) for n in range(len(sizes))]
            where_to = (
                image.address + x + sum((p * s for p, s in zip(places, steps, strict=True)), np.int64(0))
            )
            if self.outside == "zero":
                of, where_to = of[inside], where_to[inside]
            if len(of):
                yield of, self._access.lanes(of, where_to), self._access.mask(of)


@instruction("9.7.11", "suld:1", "move memory", note="`.b`")
def _suld(b: Builder, i: Instruction, site: Site) -> Run:
    items, state = items_of(i.operands[0]), b.state
    kind = next(
        word for word in reversed(words_of(i)) if word in SEEN and word.startswith("b") and word != "b"
    )
    surface = _Surface(b, i, i.operands[1], size_of(kind) * len(items), site)
    puts = [b.write_active(item, kind) for item in items]

    def run(mask: Mask | None) -> None:
        found = np.zeros((state.lanes, surface.width), np.uint8)
        for of, where, part in surface.parts(mask):
            raw = state.memory.load(site, where, surface.width, part, IMAGE)
            found[of] = np.ascontiguousarray(raw).view(np.uint8).reshape(len(of), -1)
        held = found if mask is None else found[mask.index]
        for n, put in enumerate(puts):
            each = held[:, n * size_of(kind) : (n + 1) * size_of(kind)]
            put(np.ascontiguousarray(each).view(SEEN[kind])[:, 0], mask)

    return run


@instruction("9.7.11", "sust:2", "move", writes=0, note="`.b`")
def _sust(b: Builder, i: Instruction, site: Site) -> Run:
    items, state = items_of(i.operands[1]), b.state
    kind = next(
        word for word in reversed(words_of(i)) if word in SEEN and word.startswith("b") and word != "b"
    )
    surface = _Surface(b, i, i.operands[0], size_of(kind) * len(items), site)
    reads = [b.read(item, kind) for item in items]

    def run(mask: Mask | None) -> None:
        values = [full(read(), state.lanes) for read in reads]
        for of, where, part in surface.parts(mask):
            given = join([value[of] for value in values], surface.width)
            state.memory.store(site, where, surface.width, given, part, kind=IMAGE)

    return run


@instruction("9.7.11", "sured:3", "atomic", writes=0, note="`.b`")
def _sured(b: Builder, i: Instruction, site: Site) -> Run:
    words = words_of(i)
    kind = next(word for word in reversed(words) if word in ("u32", "s32", "b32", "u64", "s64"))
    operation, dtype, state = OPERATIONS[words[2]], SEEN[kind], b.state
    surface, read = _Surface(b, i, i.operands[0], dtype.itemsize, site), b.read(i.operands[1], kind)

    def change(values: Array, n: int, old: Array) -> Array:
        return np.asarray(operation(old.view(dtype), values[n : n + 1]), dtype).view(old.dtype)

    def run(mask: Mask | None) -> None:
        values = full(read(), state.lanes)
        for of, where, part in surface.parts(mask):
            state.memory.update(site, where, surface.width, part, partial(change, values[of]))

    return run
