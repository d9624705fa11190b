"""What is in a cubin, which is an ELF64 file. Source: System V ABI, "Object Files"."""

from __future__ import annotations

import struct
from typing import NamedTuple

# What reading half a cubin may raise.
DAMAGE = (struct.error, IndexError, ValueError)
_NOBITS, _SYMTAB = 8, 2
_SIZED, _KPARAM_INFO = 4, 0x17  # of the attributes of .nv.info
_ENTRY = 0x10  # STO_CUDA_ENTRY, in a symbol's st_other


class Section(NamedTuple):
    """A section of a cubin; ``content`` is empty where it only reserves its ``size`` in bytes."""

    name: str
    size: int
    content: bytes


def sections(cubin: bytes) -> list[Section]:
    """The sections of a cubin."""
    return [section for _, _, section in _sections(cubin)]


def symbols(cubin: bytes) -> list[str]:
    """The symbols of all ``__global__`` functions of a cubin."""
    found = _sections(cubin)
    names = []
    for kind, link, section in found:
        if kind == _SYMTAB:
            strings = found[link][2].content
            for name, _, other, _, _, _ in struct.iter_unpack("<IBBHQQ", section.content):
                if other & 0xF0 == _ENTRY:
                    names.append(strings[name : strings.index(b"\0", name)].decode())
    return names


def code(cubin: bytes, symbol: str) -> bytes:
    """The instructions of a ``__global__`` function, with those of the functions that it calls."""
    return b"".join(s.content for s in sections(cubin) if s.name == f".text.{symbol}")


def parameter_offsets(cubin: bytes, symbol: str) -> tuple[int, ...]:
    """Where each parameter of a ``__global__`` function lies in the buffer of a launch, in bytes, in their
    order.

    From the KPARAM_INFO attributes of ``.nv.info.<symbol>``. A parameter of large alignment is aligned in the
    constant bank, so its offset is no multiple of its alignment.
    """
    found: dict[int, int] = {}
    for section in sections(cubin):
        at = 0
        while section.name == f".nv.info.{symbol}" and at < len(section.content):
            form, attribute, size = struct.unpack_from("<BBH", section.content, at)
            if (form, attribute) == (_SIZED, _KPARAM_INFO):
                _, ordinal, offset = struct.unpack_from("<IHH", section.content, at + 4)
                found[ordinal] = offset
            at += 4 + (size if form == _SIZED else 0)
    return tuple(found[ordinal] for ordinal in sorted(found))


def constant_bytes(cubin: bytes, symbol: str) -> int:
    """Bytes of all constant banks that a ``__global__`` function sees; bank 0 holds the launch parameters."""
    banks = ((s.name.split(".", 3)[3:], s.size) for s in sections(cubin) if s.name.startswith(".nv.constant"))
    return sum(size for of, size in banks if of in ([], [symbol]))


def _sections(cubin: bytes) -> list[tuple[int, int, Section]]:
    """(kind, linked section, section) of each."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    count, names = struct.unpack_from("<HH", cubin, 0x3C)
    headers = [struct.unpack_from("<IIQQQQI", cubin, table + 64 * i) for i in range(count)]
    strings = headers[names][4]
    return [
        (
            kind,
            link,
            Section(
                cubin[strings + name : cubin.index(b"\0", strings + name)].decode(),
                size,
                b"" if kind == _NOBITS else cubin[offset : offset + size],
            ),
        )
        for name, kind, _, _, offset, size, link in headers
    ]
