"""The instructions that are compared with a GPU's: table.toml, approximate ones, those of linked operands."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.instructions.probe import Bound, Probe

_CHOICE = re.compile(r"\{([^{}]*,[^{}]*)\}")


def _probe(code: str, results: str, operands: str) -> Probe:
    return Probe(code, tuple(results.split()), tuple(operands.split()))


def _expanded(code: str) -> Iterator[str]:
    """With each of its {a,b}, as a shell has it."""
    choice = _CHOICE.search(code)
    if choice is None:
        yield code
    else:
        for one in choice[1].split(","):
            yield from _expanded(code[: choice.start()] + one + code[choice.end() :])


def _listed() -> Iterator[Probe]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for family in tomllib.loads(text).values():
        for types, codes in family.items():
            results, _, operands = types.partition(":")
            yield from (_probe(one, results, operands) for code in codes for one in _expanded(code))


def _approximate() -> Iterator[Probe]:
    def one(op: str, letter: str, *bound: object) -> Probe:
        return Probe(op, (letter[0],), tuple(letter), Bound(*bound))  # type: ignore[arg-type]

    for ftz in ("", ".ftz"):
        yield one(f"ex2.approx{ftz}.f32", "f", np.exp2, 2**-22.0, 0.0)
        yield one(f"lg2.approx{ftz}.f32", "f", np.log2, 2**-22.0, 2**-22.0)
        yield one(f"rcp.approx{ftz}.f32", "f", lambda v: 1 / v, 2**-23.0)
        yield one(f"sqrt.approx{ftz}.f32", "f", np.sqrt, 2**-23.0)
        yield one(f"rsqrt.approx{ftz}.f32", "f", lambda v: 1 / np.sqrt(v), 2**-22.9)
        yield one(f"sin.approx{ftz}.f32", "u", np.sin, 0.0, 2**-20.5, (-np.pi, np.pi))
        yield one(f"cos.approx{ftz}.f32", "u", np.cos, 0.0, 2**-20.5, (-np.pi, np.pi))
        yield Probe(f"div.approx{ftz}.f32", ("f",), ("u", "u"), Bound(np.divide, 2**-22.0))
        yield Probe(f"div.full{ftz}.f32", ("f",), ("f", "f"), Bound(np.divide, 2**-22.0))
    yield one("tanh.approx.f32", "f", np.tanh, 2**-11.0)
    yield one("tanh.approx.f16", "h", np.tanh, 0.0, 2**-10.987)
    # Of a result in bfloat16 2⁻⁸, which the ISA says, is half a unit; an H200 is off by up to a whole one.
    yield one("tanh.approx.bf16", "b", np.tanh, 2**-7.0)
    yield one("ex2.approx.f16", "h", np.exp2, 2**-9.9)
    yield one("ex2.approx.ftz.bf16", "b", np.exp2, 2**-7.0)
    yield one("rsqrt.approx.f64", "d", lambda v: 1 / np.sqrt(v), 2**-51.0)
    yield one("rcp.approx.ftz.f64", "d", lambda v: 1 / v, 2**-19.0)
    yield one("rsqrt.approx.ftz.f64", "d", lambda v: 1 / np.sqrt(v), 2**-19.0)


def _memory() -> Iterator[Probe]:
    form = "st.{2}.{1} [{3}], {{2}}; atom.{2}.{0}.{1} {{0}}, [{3}], {{3}}; ld.{2}.{1} {{1}}, [{3}];"
    ops = "add.u32 add.u64 min.s32 min.u32 min.s64 max.s32 max.u32 max.u64 and.b32 and.b64 or.b32 xor.b32 "
    ops += "xor.b64 exch.b32 exch.b64 inc.u32 dec.u32 add.f32 add.f64"
    for op, kind in (each.split(".") for each in ops.split()):
        letter = {"f32": "f", "f64": "d"}.get(kind) or ("l" if kind.endswith("64") else "r")
        for place in (("shared", "%cell"), ("global", "%scratch")):
            yield _probe(form.format(op, kind, *place), f"{letter} {letter}", f"{letter} {letter}")
    for kind, letter in (("f16", "h"), ("bf16", "b"), ("f16x2", "H"), ("bf16x2", "B")):
        bits = "b32" if kind.endswith("x2") else "b16"
        code = f"st.global.{bits} [%scratch], {{2}}; atom.global.add.noftz.{kind} {{0}}, [%scratch], {{3}}; "
        code += f"ld.global.{bits} {{1}}, [%scratch];"
        yield _probe(code, f"{letter} {letter}", f"{letter} {letter}")
    given = "st.shared.v4.b32 [%cell], {1}; bar.sync 0; "
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        form = f"sync.aligned.m8n8.x{count}{trans}.shared.b16"
        yield _probe(given + f"ldmatrix.{form} {{0}}, [%cell];", f"r*{count}", "r*4")
        code = given + f"stmatrix.{form} [%cell], {{2}}; bar.sync 0; "
        yield _probe(code + "ld.shared.v4.b32 {0}, [%cell];", "r*4", f"r*4 r*{count}")


def _products() -> Iterator[Probe]:
    def mma(shape: str, d: str, a: str, b: str, counts: tuple[int, int, int]) -> Iterator[Probe]:
        sums = {"f32": ("f", "if32"), "f16": ("r", "if16"), "s32": ("r", "is32"), "f64": ("d", "if64")}[d]
        of = {"s8": "r", "u8": "r", "s4": "r", "u4": "r", "b1": "r", "f64": "if64"}
        x, y = of.get(a, f"i{a}"), of.get(b, f"i{b}")
        n, m, c = counts
        code = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}"
        yield _probe(code, f"{sums[0]}*{c}", f"{x}*{n} {y}*{m} {sums[1]}*{c}")

    for d, c in (("f32", 4), ("f16", 2)):
        yield from mma("m16n8k8", d, "f16", "f16", (2, 1, c))
        yield from mma("m16n8k16", d, "f16", "f16", (4, 2, c))
    yield from mma("m16n8k8", "f32", "bf16", "bf16", (2, 1, 4))
    yield from mma("m16n8k16", "f32", "bf16", "bf16", (4, 2, 4))
    yield from mma("m16n8k4", "f32", "tf32", "tf32", (2, 1, 4))
    yield from mma("m16n8k8", "f32", "tf32", "tf32", (4, 2, 4))
    for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2")):
        yield from mma("m16n8k32", "f32", a, b, (4, 2, 4))
    for a, b in itertools.product(("s8", "u8"), repeat=2):
        yield from mma("m8n8k16", "s32", a, b, (1, 1, 2))
        yield from mma("m16n8k16", "s32", a, b, (2, 1, 4))
        yield from mma("m16n8k32", "s32", a, b, (4, 2, 4))
    for a, b in itertools.product(("s4", "u4"), repeat=2):
        yield from mma("m8n8k32", "s32", a, b, (1, 1, 2))
        yield from mma("m16n8k32", "s32", a, b, (2, 1, 4))
        yield from mma("m16n8k64", "s32", a, b, (4, 2, 4))
    doubles = {"m8n8k4": (1, 1, 2), "m16n8k4": (2, 1, 4), "m16n8k8": (4, 2, 4), "m16n8k16": (8, 4, 4)}
    for shape, counts in doubles.items():
        yield from mma(shape, "f64", "f64", "f64", counts)
    for shape, counts in (("m8n8k128", (1, 1, 2)), ("m16n8k128", (2, 1, 4)), ("m16n8k256", (4, 2, 4))):
        for operation in ("xor", "and"):
            code = f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{operation}.popc"
            yield _probe(code, f"r*{counts[2]}", f"r*{counts[0]} r*{counts[1]} is32*{counts[2]}")
    yield _probe("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "r*4", "r*4 r*2 r*4")
    for layouts in itertools.product(("row", "col"), repeat=2):
        code = f"mma.sync.aligned.m8n8k4.{layouts[0]}.{layouts[1]}.f32.f16.f16.f32"
        yield _probe(code, "f*8", "if16*2 if16*2 if32*8")


PROBES = tuple(dict.fromkeys([*_listed(), *_approximate(), *_memory(), *_products()]))
