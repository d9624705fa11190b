"""What of a result is compared with a GPU's, and how a difference is told."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.instructions.probe import FORMATS, LANES, Array, Probe, Type, operands_of, split

FILE = Path(__file__).with_name("recorded.json")


def recorded() -> dict[str, Any]:
    """What a GPU gave: provenance, and findings by the probe's id; no probes before the first recording."""
    return dict(json.loads(FILE.read_text())) if FILE.exists() else {"probes": {}}


def _results(probe: Probe, out: Array) -> Iterator[tuple[Type, Array]]:
    at = 0
    for token in probe.results:
        kind, count = split(token)
        yield kind, np.ascontiguousarray(out[:, at : at + kind.size * count])
        at += kind.size * count


def _values_of(kind: Type, octets: Array) -> Array | None:
    """As floats, in float64; None for bits."""
    dtype = (
        FORMATS[kind.values][0] if kind.values in FORMATS else np.float32 if kind.values == "unit" else None
    )
    with np.errstate(all="ignore"):
        return None if dtype is None else octets.view(dtype).astype(np.float64)


def digest(probe: Probe, out: Array) -> str:
    """Of the results to the bit, where the ISA fixes them."""
    hashed = hashlib.sha256()
    for _, octets in fixed(probe, out):
        hashed.update(octets.tobytes())
    return hashed.hexdigest()[:16]


# Of these the ISA names no pattern for NaN, nor for any float64.
_ANY_NAN = ("neg", "abs", "cvt.f32.", "cvt.f64.", "cvt.sat.f32.")


def fixed(probe: Probe, out: Array) -> Iterator[tuple[Type, Array]]:
    """The results with one NaN for all where the pattern of a NaN is not fixed."""
    for kind, octets in _results(probe, out):
        if kind.values == "float64" or (probe.code.startswith(_ANY_NAN) and kind.values in FORMATS):
            held = octets.view(FORMATS[kind.values][0]).copy()
            with np.errstate(invalid="ignore"):
                held[np.isnan(held)] = np.nan
            octets = held.view(np.uint8)
        yield kind, octets


def _of_floats(probe: Probe) -> list[Array]:
    """The operands of an approximate function, in float64."""
    given, at, operands = operands_of(probe), 0, []
    for token in probe.operands:
        kind, count = split(token)
        values = _values_of(kind, np.ascontiguousarray(given[:, at : at + kind.size * count]))
        assert values is not None
        operands.append(values[:, 0])
        at += -(-kind.size * count // 8) * 8
    return operands


def classes(probe: Probe, out: Array) -> Array:
    """Of an approximate result, where an operand is 0, infinite or NaN: 1 for a number, 2 for 0, 3 for
    infinity, each with its sign, and 4 for NaN; 0 where all operands are ordinary. (LANES,)"""
    ((kind, octets),) = _results(probe, out)
    values = _values_of(kind, octets)
    assert values is not None
    r = values[:, 0]
    which = np.where(np.isinf(r), 3, np.where(r == 0, 2, 1)) * np.where(np.signbit(r), -1, 1)
    special = np.any([(v == 0) | ~np.isfinite(v) for v in _of_floats(probe)], axis=0)
    return np.asarray(np.where(special, np.where(np.isnan(r), 4, which), 0), np.int8)


def error(probe: Probe, out: Array) -> float:
    """The largest error of an approximate result, in units of its bound, over ordinary operands."""
    bound = probe.bound
    assert bound is not None
    ((kind, octets),) = _results(probe, out)
    got, operands = _values_of(kind, octets), _of_floats(probe)
    assert got is not None
    tiny, largest = (
        (FORMATS.get(kind.values) or FORMATS["float32"])[2],
        {"float16": 65504.0}.get(kind.values, 3.4e38),
    )
    with np.errstate(all="ignore"):
        want = bound.exact(*operands)
        ordinary = np.isfinite(want) & (np.abs(want) >= tiny) & (np.abs(want) < largest)
        for values in operands:
            ordinary &= np.isfinite(values) & (np.abs(values) >= tiny) & (np.abs(values) <= 2.0**126)
        ordinary &= (operands[0] >= bound.domain[0]) & (operands[0] <= bound.domain[1])
        off = np.abs(got[:, 0] - want) / (bound.relative * np.abs(want) + bound.absolute)
    assert ordinary.sum() > 50, probe
    return float(off[ordinary].max())


def finding(probe: Probe, out: Array) -> dict[str, Any]:
    """What is recorded of a probe."""
    if probe.bound is None:
        return {"digest": digest(probe, out)}
    held = hashlib.sha256(classes(probe, out).tobytes()).hexdigest()[:16]
    return {"classes": held, "error": round(error(probe, out), 3)}


def differences(probe: Probe, gpu: Array, here: Array) -> str:
    """The first lanes where two runs differ, with the operands, in hex."""
    if probe.bound is not None:
        lanes = np.flatnonzero(classes(probe, gpu) != classes(probe, here))
        said = f"{probe.code}: errors {error(probe, gpu):.3f} and {error(probe, here):.3f} of the bound"
    else:
        pairs = zip(fixed(probe, gpu), fixed(probe, here), strict=True)
        other = [(one != two).reshape(LANES, -1).any(axis=1) for (_, one), (_, two) in pairs]
        lanes = np.flatnonzero(np.any(other, axis=0))
        said = f"{probe.code}: {len(lanes)} of {LANES} lanes differ"
    for lane in lanes[:6].tolist():
        row = [operands_of(probe)[lane, :32], gpu[lane, :16], here[lane, :16]]
        words = [" ".join(f"{w:08x}" for w in np.ascontiguousarray(each).view(np.uint32)) for each in row]
        said += f"\n  lane {lane}: of {words[0]}\n    the GPU has {words[1]}\n    here it is {words[2]}"
    return said
