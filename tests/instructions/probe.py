"""A probe: an instruction with its operands, random and special, a lane of 1024 each."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from tests.ptxsan.rig import TYPES as TYPES_OF

Array = np.ndarray[Any, np.dtype[Any]]
Reference = Callable[..., Array]
THREADS, BLOCKS = 128, 8
LANES = THREADS * BLOCKS
IN, OUT = 128, 32  # bytes a lane


@dataclass(frozen=True)
class Bound:
    """An approximate result: within ``relative`` times the exact one plus ``absolute``, where the first
    operand is in ``domain``."""

    exact: Reference
    relative: float
    absolute: float = 0.0
    domain: tuple[float, float] = (-np.inf, np.inf)


@dataclass(frozen=True)
class Probe:
    """An instruction: ``code`` with places for its results and operands, or its words alone. Types are those
    of TYPES, several registers of one being "f*4"."""

    code: str
    results: tuple[str, ...]
    operands: tuple[str, ...]
    bound: Bound | None = None

    @property
    def id(self) -> str:
        name = re.sub(r"[^\w.]+", "-", self.code.split(";")[0] if "{" not in self.code else self.code)
        return f"{name.strip('-')[:60]}-{zlib.crc32(repr((self.code, self.operands)).encode()):08x}"


@dataclass(frozen=True)
class Type:
    """Of an operand: its register's class, how it is loaded, its bytes, and which values it takes."""

    register: str
    kind: str
    size: int
    values: str


TYPES = {
    "f": Type("f", "f32", 4, "float32"),
    "u": Type("f", "f32", 4, "unit"),
    "d": Type("fd", "f64", 8, "float64"),
    "r": Type("r", "b32", 4, "bits"),
    "n": Type("r", "b32", 4, "small"),
    "l": Type("rd", "b64", 8, "bits"),
    "P": Type("rd", "b64", 8, "float32"),
    "s": Type("rs", "b16", 2, "bits"),
    "h": Type("rs", "b16", 2, "float16"),
    "b": Type("rs", "b16", 2, "bfloat16"),
    "H": Type("r", "b32", 4, "float16"),
    "B": Type("r", "b32", 4, "bfloat16"),
    "p": Type("p", "pred", 4, "bits"),
    # Small whole numbers, of which every sum is exact.
    **{
        f"i{kind}": Type("r", "b32", 4, f"whole {kind}")
        for kind in ("f16", "bf16", "tf32", "e4m3", "e5m2", "s32")
    },
    "if32": Type("f", "f32", 4, "whole f32"),
    "if64": Type("fd", "f64", 8, "whole f64"),
}


def split(token: str) -> tuple[Type, int]:
    name, _, count = token.partition("*")
    return TYPES[name], int(count or 1)


# Values

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, np.inf, -np.inf, np.nan, 65504.0, 448.0, 57344.0, 1e30)
FORMATS: dict[str, tuple[Any, Any, float]] = {
    "float16": (np.float16, np.uint16, 2.0**-14),
    "bfloat16": (ml_dtypes.bfloat16, np.uint16, 2.0**-126),
    "float32": (np.float32, np.uint32, 2.0**-126),
    "float64": (np.float64, np.uint64, 2.0**-1022),
}


def _floats(name: str, count: int, random: np.random.Generator) -> Array:
    """A third special values and their neighbours, a third any bits, a third of like sizes."""
    dtype, unsigned, tiny = FORMATS[name]
    with np.errstate(all="ignore"):
        special = (
            np.array([*_SPECIAL, tiny, -tiny, tiny / 2, tiny * 0.999], np.float64)
            .astype(dtype)
            .view(unsigned)
        )
        near = (random.integers(-64, 65, count) / 16.0).astype(dtype).view(unsigned)
        normal = random.standard_normal(count).astype(dtype).view(unsigned)
    step = random.integers(-1, 2, count).astype(np.int64).astype(unsigned)
    bits = random.integers(0, 1 << 63, count, dtype=np.uint64).astype(unsigned)
    kinds = [random.choice(special, count), random.choice(special, count) + step, bits, near, normal]
    return np.choose(random.integers(0, len(kinds), count), kinds).astype(unsigned)


def _values(kind: str, octets: int, random: np.random.Generator) -> Array:
    """(LANES, octets) bytes of operands."""
    if kind.startswith("whole"):
        dtype = np.dtype(TYPES_OF[kind.split()[1]])
        whole = random.integers(-4, 5, (LANES, octets // dtype.itemsize)).astype(dtype)
        return whole.view(np.uint8)
    if kind == "small":
        return random.integers(0, 70, (LANES, octets // 4)).astype(np.uint32).view(np.uint8)
    if kind == "unit":
        return random.uniform(-4, 4, (LANES, octets // 4)).astype(np.float32).view(np.uint8)
    if kind in FORMATS:
        each = np.dtype(FORMATS[kind][1]).itemsize
        held = _floats(kind, LANES * octets // each, random)
        return np.ascontiguousarray(held.reshape(LANES, -1)).view(np.uint8)
    words = random.integers(0, 256, (LANES, octets)).astype(np.uint8)
    edges = (
        np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 31, 32], np.uint32).view(np.uint8).reshape(-1, 4)
    )
    whole = np.tile(random.choice(edges, LANES), (1, -(-octets // 4)))[:, :octets]
    return np.where(random.random((LANES, 1)) < 0.3, whole, words)


@cache
def operands_of(probe: Probe) -> Array:
    """(LANES, IN) bytes: the operands one after another, each at a multiple of 8."""
    random = np.random.default_rng(zlib.crc32(probe.id.encode()))
    given, at = np.zeros((LANES, IN), np.uint8), 0
    for token in probe.operands:
        kind, count = split(token)
        size = kind.size * count
        given[:, at : at + size] = _values(kind.values, size, random)
        at += -(-size // 8) * 8
    assert at <= IN, probe
    return given
