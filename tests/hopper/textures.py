"""Launches of textures.cu: fetches by each filter, mode and type, at random places and at the edges between
texels."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

import ptxsan
from tests.hopper.cases import Array, Launch

_COUNT = 512
_AXES = {
    "line": (10,),
    "plane": (7, 9),
    "solid": (3, 5, 6),
    "layers": (7, 9),
    "octets": (10,),
    "shorts": (7, 9),
}
_MODES = ("clamp", "border", "wrap", "mirror")
KINDS: list[dict[str, Any]] = [
    {"filter": f, "address": a, "normalized": n}
    for f, a, n in product(("point", "linear"), _MODES, (False, True))
    if n or a in ("clamp", "border")
]


def everything() -> dict[str, Launch]:
    """By name."""
    found = {"surface": surface()}
    for kind in KINDS:
        how = "-".join([kind["filter"], kind["address"], *["normalized"] * kind["normalized"]])
        names = [name for name in _AXES if name != "shorts" or kind["filter"] == "point"]
        found |= {f"{name}-{how}": fetches(name, kind) for name in names}
    return found


def fetches(name: str, kind: dict[str, Any]) -> Launch:
    random, axes = np.random.default_rng(1), _AXES[name]
    entry = "line" if name == "octets" else name
    more = {"channels": 4} if name == "plane" else {"layered": True} if name == "layers" else {}
    shape = (3, *axes) if name == "layers" else (*axes, 4) if name == "plane" else axes
    array: Array = random.standard_normal(shape).astype(np.float32)
    if name == "shorts":
        array = random.integers(-1000, 1000, shape).astype(np.int16)
    if name == "octets":
        array, more = random.integers(-128, 128, shape).astype(np.int8), {"as_float": True}
    at = _coordinates(random, axes, kind["normalized"])
    outs = [
        ptxsan.Empty(_COUNT * (4 if name == "plane" else 1), np.int32 if name == "shorts" else np.float32)
    ]
    outs *= 2 if name == "plane" else 1
    arguments = (ptxsan.Texture(array, **more, **kind), at, *outs)
    return Launch("textures.cu", (_COUNT // 64,), 64, arguments, {}, entry)


def _coordinates(random: np.random.Generator, axes: tuple[int, ...], normalized: bool) -> Array:
    """x first: half of them anywhere, in the texture and beside it, half at multiples of a quarter texel."""
    sizes = np.array(axes[::-1])
    at = random.uniform(-1.5, 2.5, (_COUNT, len(axes))) * sizes
    at[_COUNT // 2 :] = np.rint(4 * at[_COUNT // 2 :]) / 4
    return np.ascontiguousarray(at / sizes if normalized else at, np.float32)


def surface() -> Launch:
    x = np.arange(128, dtype=np.float32).reshape(4, 16, 2)
    to = ptxsan.Surface(np.zeros((4, 16, 2), np.float32), channels=2)
    return Launch("textures.cu", (4,), 16, (ptxsan.Surface(x, channels=2), to), {}, "shifted")
