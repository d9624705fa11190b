"""What a cubin says in ELF attributes (``.nv.info``) of its ``__global__`` functions: their parameters, and
what they need; and a cubin as the source of a kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler import objects
from gemm_regression.compiler.tools import CompileError
from gemm_regression.model import Argument

_FLAT, _SIZED = (1, 2, 3), 4  # forms of an attribute: two bytes, or so many as those say
_FRAME, _KPARAM, _REGISTERS, _BARRIERS = 0x11, 0x17, 0x2F, 0x4C
_RESERVED = 1024  # bytes of a block's shared memory that are the system's, from compute capability 9.0 on
_CUDA = 190  # EM_CUDA


class Place(NamedTuple):
    """Where a parameter lies in the buffer of a launch, in bytes."""

    offset: int
    size: int


def parameters(cubin: bytes, symbol: str) -> tuple[Place, ...]:
    """Of each parameter of a ``__global__`` function, in their order. A parameter of large alignment is
    aligned in the constant bank, so its offset is no multiple of its alignment."""
    found = dict[int, Place]()
    for code, value in _attributes(cubin, f".nv.info.{symbol}"):
        if code == _KPARAM:
            _, ordinal, offset, flags = struct.unpack("<IHHI", value)
            found[ordinal] = Place(offset, flags >> 18)
    return tuple(found[ordinal] for ordinal in sorted(found))


def needs(cubin: bytes, symbol: str) -> tuple[int, int, int, int]:
    """Registers per thread, barriers and bytes of static shared memory per block, and bytes of local memory
    per thread; 0 of what a cubin does not say."""
    whole = {
        code: number
        for code, value in _attributes(cubin, ".nv.info")
        if code in (_REGISTERS, _FRAME)
        for index, number in [struct.unpack("<II", value)]
        if index == objects.symbols(cubin)[symbol]
    }
    own = dict(_attributes(cubin, f".nv.info.{symbol}"))
    shared = sum(each.size for each in objects.sections(cubin) if each.name == f".nv.shared.{symbol}")
    shared -= min(shared, _RESERVED * (_capability(cubin) >= 90))
    return whole.get(_REGISTERS, 0), own.get(_BARRIERS, b"\0")[0], shared, whole.get(_FRAME, 0)


def _attributes(cubin: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """The attributes of a section."""
    for section in objects.sections(cubin):
        at = 0
        while section.name == name and at < len(section.content):
            form, code, size = struct.unpack_from("<BBH", section.content, at)
            start, length = (at + 2, 2) if form in _FLAT else (at + 4, size)
            yield code, section.content[start : start + length]
            at = start + length


def mismatch(cubin: bytes, symbol: str, expected: Sequence[Argument]) -> str | None:
    """One line on the first parameter of another size than would be passed, else None. Of types a cubin says
    nothing."""
    taken = parameters(cubin, symbol)
    for position, (argument, place) in enumerate(zip(expected, taken, strict=False), 1):
        if (given := struct.calcsize(argument.letters)) != place.size:
            handed = f"{argument.kind} {argument.name}, {given} bytes"
            return f"parameter {position} is {handed}, but the kernel takes {place.size} bytes"
    if len(taken) != len(expected):
        names = ", ".join(argument.name for argument in expected)
        return f"the kernel takes {len(taken)} parameters, not {len(expected)} ({names})"
    return None


def read(path: Path, arch: str, what: str) -> bytes:
    """A file with a cubin for an architecture ("sm_90a"). Raises CompileError, one line."""
    try:
        cubin = path.read_bytes()
        capability = _capability(cubin)
        objects.symbols(cubin)
    except OSError as error:
        raise CompileError(f"{what}: cannot read {path}: {error.strerror}") from None
    except objects.DAMAGE:
        raise CompileError(f"{what}: {path} is no cubin, or only a part of one") from None
    if f"sm_{capability}" != arch.rstrip("af"):
        one = f"({capability // 10}, {capability % 10})"
        only = f"declare min_capability={one}, max_capability={one}"
        raise CompileError(f"{what}: {path.name} is for sm_{capability}, not for {arch}: {only}")
    return cubin


def _capability(cubin: bytes) -> int:
    """90 of a cubin for sm_90. Raises one of DAMAGE for another file."""
    (machine,), (flags,) = struct.unpack_from("<H", cubin, 0x12), struct.unpack_from("<I", cubin, 0x30)
    if cubin[:4] != b"\x7fELF" or machine != _CUDA:
        raise ValueError("no cubin")
    return int((flags >> 8 if cubin[8] >= 8 else flags) & 0xFF)  # by the version of the ABI
