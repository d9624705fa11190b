"""The arguments of a launch: NumPy values to the buffers and the parameters of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ptxsan.frontend import Entry, PtxError, parameter_bytes, size_of
from ptxsan.isa.images import Image
from ptxsan.isa.tensormap import BYTES, TensorMapDescriptor
from ptxsan.lanes import Array
from ptxsan.machine.memory.buffer import BUFFER, Buffer


@dataclass(frozen=True)
class Empty:
    """An uninitialised array argument: reading an element before the kernel has written it is a hazard if the
    value matters."""

    shape: int | tuple[int, ...]
    dtype: Any = np.float32


class DeviceArray:
    """Memory that stays from launch to launch, as on a GPU: what a kernel writes the next one reads.

    Made by ``to_device`` or ``device_array``. ``values`` and ``initialised``, of its ``shape``: the elements,
    and which of them a launch or the host has written.
    """

    def __init__(self, values: Array, initialised: Array) -> None:
        self.values, self.initialised = values, initialised
        self.uses: list[Any] = []  # by launches on streams, of streams.py

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.values.shape
        return shape

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def copy_to_host(self) -> Array:
        """A copy. Raises PtxError if an element was never written."""
        if not self.initialised.all():
            at = tuple(int(i) for i in np.argwhere(~self.initialised)[0])
            raise PtxError(f"element {at} of the array was never written; .values has what memory holds")
        return self.values.copy()


def to_device(array: Any) -> DeviceArray:
    """A copy of an array, or of what DLPack or __array_interface__ describes. Raises PtxError for one on a
    GPU."""
    values = np.array(_host(array))
    return DeviceArray(values, np.ones(values.shape, bool))


def device_array(shape: int | tuple[int, ...], dtype: Any = np.float32) -> DeviceArray:
    """Uninitialised memory."""
    values = np.zeros(shape, dtype)
    return DeviceArray(values, np.zeros(values.shape, bool))


def _host(given: Any) -> Any:
    """Arrays of other libraries as NumPy's; whatever else as it is."""
    if isinstance(given, np.ndarray | np.generic):
        return given
    try:
        if hasattr(given, "__array_interface__"):
            return np.asarray(given)
        if hasattr(given, "__dlpack__"):
            return np.from_dlpack(given)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise PtxError(f"{type(given).__name__}: NumPy cannot read it: {error}") from None
    if hasattr(given, "__cuda_array_interface__"):
        raise PtxError(f"{type(given).__name__} is on a GPU: copy it to the host first")
    return given


@dataclass(frozen=True)
class Tiled:
    """A CUtensorMap for a ``__grid_constant__`` parameter, as cuTensorMapEncodeTiled makes it.

    ``array``: the tensor, or the number of the argument that is the tensor. ``box``: the elements that one
    copy transfers, in the order of the array's axes. ``swizzle``: 0, 32, 64 or 128 bytes. ``nan``: elements
    outside the tensor are filled with NaN, not with zero. ``steps``: the element strides, in the order of the
    axes. ``tf32``: FP32 elements are rounded to TF32 when they are copied to shared memory.
    """

    array: Array | Empty | DeviceArray | int
    box: tuple[int, ...]
    swizzle: int = 0
    nan: bool = False
    steps: tuple[int, ...] = ()
    tf32: bool = False

    def at(self, address: int, array: Any) -> TensorMapDescriptor:
        """The tensor map of ``array`` at this address. Raises PtxError for what the driver rejects."""
        more = {"swizzle": self.swizzle, "nan": self.nan, "steps": tuple(reversed(self.steps))}
        return TensorMapDescriptor.of_array(address, array, self.box, self.tf32, **more)


@dataclass(frozen=True)
class Im2col:
    """A CUtensorMap for a ``__grid_constant__`` parameter, as cuTensorMapEncodeIm2col makes it.

    ``array``: the tensor of three to five axes (N, then D, H and W, as many as there are, then C), or the
    number of the argument that is the tensor. ``lower`` and ``upper``: the corners of the bounding box, in
    the order of these axes: −padding, and padding − dilation · (filter − 1). ``pixels`` and ``channels``:
    what one copy transfers. ``steps``: the element strides, in the order of the axes. Else as of Tiled.
    """

    array: Array | Empty | DeviceArray | int
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    pixels: int
    channels: int
    swizzle: int = 0
    nan: bool = False
    steps: tuple[int, ...] = ()
    tf32: bool = False

    def at(self, address: int, array: Any) -> TensorMapDescriptor:
        """The tensor map of ``array`` at this address. Raises PtxError for what the driver rejects."""
        more: dict[str, Any] = {"swizzle": self.swizzle, "nan": self.nan, "steps": self.steps[::-1]}
        more["corners"] = self.lower[::-1], self.upper[::-1]
        return TensorMapDescriptor.of_array(address, array, (self.pixels, self.channels), self.tf32, **more)


@dataclass(frozen=True)
class Texture:
    """A texture object for a ``cudaTextureObject_t`` parameter.

    ``array``: of one to three axes, x last, after them one of 2 or 4 ``channels``; or the number of the
    argument that is the array. ``layered``: the first axis is that of the layers. ``filter``: "point" or
    "linear". ``address``: "clamp", "border" (zeros outside), "wrap" or "mirror". ``normalized``: coordinates
    from 0 to 1. ``as_float``: integers of 8 or 16 bits are read as floats, of up to 1
    (cudaReadModeNormalizedFloat).
    """

    array: Array | Empty | DeviceArray | int
    filter: str = "point"
    address: str = "clamp"
    normalized: bool = False
    as_float: bool = False
    channels: int = 1
    layered: bool = False

    def at(self, address: int, array: Any) -> Image:
        """The texture of ``array`` at this address. Raises PtxError for what CUDA rejects."""
        more: dict[str, Any] = {"normalized": self.normalized, "as_float": self.as_float}
        more |= {"filter": self.filter, "mode": self.address}
        return Image.of(address, array, self.channels, self.layered, **more)


@dataclass(frozen=True)
class Surface:
    """A surface object for a ``cudaSurfaceObject_t`` parameter. ``array``, ``channels``, ``layered``: as of
    Texture. What a kernel stores is in the result's ``arrays``."""

    array: Array | Empty | DeviceArray | int
    channels: int = 1
    layered: bool = False

    def at(self, address: int, array: Any) -> Image:
        """The surface of ``array`` at this address. Raises PtxError for what CUDA rejects."""
        return Image.of(address, array, self.channels, self.layered, surface=True)


@dataclass(frozen=True)
class Multicast:
    """An address of a multicast object (cuMulticastCreate), for a pointer that ``multimem`` takes.

    ``arrays``: the replicas, one of each GPU, as arrays of one size or as numbers of arguments that are
    arrays. What a kernel stores is in the result's ``arrays``, at (argument, replica).
    """

    arrays: tuple[Array | Empty | DeviceArray | int, ...]


_MULTICAST = 7000  # the number of the first one, beyond those of buffers and variables
_MAPS = Tiled | Im2col
_IMAGES = Texture | Surface


def extents(given: int | Sequence[int], what: str) -> tuple[int, int, int]:
    values = (given,) if isinstance(given, int) else tuple(int(v) for v in given)
    if not 1 <= len(values) <= 3 or min(values) < 1:
        raise PtxError(f"{what} {given}: one to three extents of at least 1")
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


_ARRAYS = np.ndarray | Empty | DeviceArray
_POINTERS = ("u64", "s64", "b64", "b8[8]")  # types of a pointer, also as the one member of a struct
Place = Any  # the number of an argument, or (number, member) of a struct


@dataclass
class Bound:
    """The arguments of one launch: ``values`` as the parameters take them; of each array its buffer and what
    was ``given``, by place; ``objects``: textures and surfaces by handle; ``multicast``: the
    addresses of replicas. A DeviceArray that is given twice is one buffer."""

    values: list[Any] = field(default_factory=list)
    buffers: dict[Place, Buffer] = field(default_factory=dict)
    given: dict[Place, Any] = field(default_factory=dict)
    objects: dict[int, Image] = field(default_factory=dict)
    multicast: dict[int, list[int]] = field(default_factory=dict)

    def pointer(self, place: Place, array: Any, name: str, where: str) -> np.int64:
        """The address of an argument's buffer."""
        there = [at for at, other in self.given.items() if other is array and isinstance(array, DeviceArray)]
        number = len(self.distinct)
        self.buffers[place] = self.buffers[there[0]] if there else _buffer(name, number, array, where)
        self.given[place] = array
        return np.int64(self.buffers[place].address(0))

    @property
    def distinct(self) -> list[Buffer]:
        return list({id(buffer): buffer for buffer in self.buffers.values()}.values())

    def arrays(self) -> dict[Place, Array]:
        """After the launch: each array's values. A DeviceArray has them, too."""
        found = {}
        for place, buffer in self.buffers.items():
            array = self.given[place]
            found[place] = buffer.values(0).reshape(array.shape)
            if isinstance(array, DeviceArray):
                array.values[...] = found[place]
                array.initialised[...] = buffer.initialised(0).reshape(array.shape)
        return found


def bind(entry: Entry, name: str, names: Sequence[str], given: Sequence[Any]) -> Bound:
    """The ``given`` arguments of a kernel that messages call ``name`` and its parameters ``names``. Raises
    PtxError, one line, for those that do not match."""
    if len(given) != len(entry.parameters):
        wanted = ", ".join(f"{n}: .{kind}" for n, (_, kind) in zip(names, entry.parameters, strict=True))
        raise PtxError(f"{name} takes {len(entry.parameters)} arguments ({wanted}), {len(given)} given")
    bound = Bound()
    for i, (argument, (_, kind)) in enumerate(zip(map(_host, given), entry.parameters, strict=True)):
        where = f"argument {i} of {name}, {names[i]}"
        if isinstance(argument, _MAPS | _IMAGES):
            if isinstance(argument, _MAPS) and parameter_bytes(kind) != BYTES:
                raise PtxError(f"{where}: a tensor map, where the kernel takes .{kind}")
            if isinstance(argument, _IMAGES) and kind not in _POINTERS:
                raise PtxError(f"{where}: a texture or surface, where the kernel takes .{kind}")
            if not isinstance(argument.array, int):
                bound.pointer(i, argument.array, names[i], where)
            bound.values.append(argument)
        elif isinstance(argument, Multicast):
            if kind not in _POINTERS:
                raise PtxError(f"{where}: a multicast object, where the kernel takes .{kind}")
            for j, one in enumerate(argument.arrays):
                if not isinstance(one, int):
                    bound.pointer((i, j), _host(one), f"{names[i]}.{j}", where)
            bound.values.append(argument)
        elif isinstance(argument, _ARRAYS):
            if kind not in _POINTERS:
                raise PtxError(f"{where}: an array, where the kernel takes a number of type .{kind}")
            bound.values.append(bound.pointer(i, argument, names[i], where))
        elif argument is None and kind in _POINTERS:
            bound.values.append(bytes(8) if parameter_bytes(kind) else np.int64(0))
        elif size := parameter_bytes(kind):
            if isinstance(argument, tuple):
                members = [
                    bound.pointer((i, j), one, f"{names[i]}.{j}", where) if isinstance(one, _ARRAYS) else one
                    for j, one in enumerate(map(_host, argument))
                ]
                argument = _struct(members, where)
            held = argument if isinstance(argument, bytes) else getattr(argument, "tobytes", bytes)()
            if len(held) != size:
                raise PtxError(f"{where}: {len(held)} bytes, where the kernel takes a struct of {size} bytes")
            bound.values.append(held)
        else:
            bound.values.append(_number(argument, kind, where))
    for i, argument in enumerate(bound.values):
        if isinstance(argument, Multicast):
            bound.values[i] = _window(bound, i, argument, f"argument {i} of {name}, {names[i]}")
        if isinstance(argument, _MAPS | _IMAGES):
            of = i if not isinstance(argument.array, int) else argument.array
            if of not in bound.buffers:
                raise PtxError(f"argument {i} of {name}, {names[i]}: argument {of} is no array")
            made = argument.at(bound.buffers[of].address(0), bound.given[of])
            if isinstance(made, Image):
                bound.objects[len(bound.objects) + 1] = made
                handle = np.int64(len(bound.objects))
                bound.values[i] = handle.tobytes() if parameter_bytes(entry.parameters[i][1]) else handle
                if made.surface:
                    bound.buffers[of].watch()
            else:
                bound.values[i] = made.encode()
    return bound


def _window(bound: Bound, number: int, argument: Multicast, where: str) -> np.int64:
    """The address of a multicast object whose replicas are bound."""
    places = [one if isinstance(one, int) else (number, j) for j, one in enumerate(argument.arrays)]
    missing = [place for place in places if place not in bound.buffers]
    if missing or not places:
        raise PtxError(f"{where}: argument {missing[0]} is no array" if missing else f"{where}: no replica")
    buffers = [bound.buffers[place] for place in places]
    if len({buffer.size for buffer in buffers}) > 1:
        raise PtxError(f"{where}: replicas of {', '.join(str(b.size) for b in buffers)} bytes")
    window = _MULTICAST + len(bound.multicast)
    bound.multicast[window] = [buffer.address(0) for buffer in buffers]
    return np.int64((window + 1) << BUFFER)


def _struct(members: Sequence[Any], where: str) -> bytes:
    """A struct of NumPy scalars, laid out as a C compiler does it."""
    data, widest = b"", 1
    for number, member in enumerate(members):
        if not isinstance(member, np.generic):
            raise PtxError(f"{where}: member {number} is neither an array nor a NumPy scalar")
        widest = max(widest, member.itemsize)
        data += bytes(-len(data) % member.itemsize) + member.tobytes()
    return data + bytes(-len(data) % widest)


def _buffer(name: str, number: int, argument: Any, where: str) -> Buffer:
    known = np.ones(1, bool)
    if isinstance(argument, Empty):
        argument, known = np.zeros(argument.shape, argument.dtype), np.zeros(1, bool)
    elif isinstance(argument, DeviceArray):
        argument, known = argument.values, argument.initialised
    if argument.dtype.hasobject or argument.dtype.itemsize not in (1, 2, 4, 8, 16):
        raise PtxError(f"{where}: an array of {argument.dtype} is not supported")
    known = np.broadcast_to(known.reshape(1, -1), (1, argument.size))
    return Buffer(name, number, [argument.reshape(1, -1)], known=[known], writable=True, flat=True)


def _number(argument: Any, kind: str, where: str) -> Any:
    """A scalar argument as the bits of a register of type ``kind``."""
    size, real = size_of(kind), kind.startswith("f")
    wanted = np.dtype(f"f{size}") if real else np.dtype(f"i{size}")
    if isinstance(argument, np.generic):
        of = argument.dtype
        fits = of.itemsize == size and (of.kind == "f" if real else of.kind in "iub")
        if not fits:
            raise PtxError(f"{where}: {of.name} given, but the kernel takes .{kind}")
        return argument.view(wanted)
    if not isinstance(argument, float | int if real else int) or (real and isinstance(argument, bool)):
        raise PtxError(f"{where}: {type(argument).__name__} given, but the kernel takes .{kind}")
    if real:
        return wanted.type(argument)
    if not -(1 << 8 * size - 1) <= argument < 1 << 8 * size:
        raise PtxError(f"{where}: {argument} does not fit into .{kind}")
    return np.array(argument % (1 << 8 * size), f"u{size}").view(wanted)[()]
