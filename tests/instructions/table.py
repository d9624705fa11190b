"""The instructions that are compared with a GPU's: every family of the interpreter's table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from tests.instructions.probe import Bound, Probe

_MODES = ("rn", "rz", "rm", "rp")


def _of(codes: str | list[str], results: str, operands: str) -> Iterator[Probe]:
    """Instructions of one kind of results and operands."""
    for code in codes.split() if isinstance(codes, str) else codes:
        yield Probe(code, tuple(results.split()), tuple(operands.split()))


def _each(words: str, *choices: tuple[str, ...]) -> list[str]:
    """Of "add.{}.{}" every combination."""
    return [words.format(*each) for each in itertools.product(*choices)]


def _integers() -> Iterator[Probe]:
    for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u64", "l"), ("s16", "s"), ("u16", "s")):
        ops = ("add", "sub", "mul.lo", "mul.hi", "min", "max")
        yield from _of(_each("{}." + kind, ops), letter, f"{letter} {letter}")
        # The quotient by 0 is unspecified, as that of the least number by −1: divisors are positive.
        bits, most = kind[1:], "0x" + "7FFF" + "FFFF" * (int(kind[1:]) // 16 - 1)
        positive = f"and.b{bits} {{2}}, {{2}}, {most}; or.b{bits} {{2}}, {{2}}, 1; "
        both = [positive + f"{op}.{kind} {{0}}, {{1}}, {{2}};" for op in ("div", "rem")]
        yield from _of(both, letter, f"{letter} {letter}")
        yield from _of(_each("{}." + kind, ("mad.lo", "sad")), letter, f"{letter} {letter} {letter}")
        yield from _of(f"shr.{kind}", letter, f"{letter} n")
    yield from _of("mad.hi.s32 mad.hi.u32 mad.hi.sat.s32", "r", "r r r")
    yield from _of("mad24.lo.s32 mad24.hi.s32 mad24.hi.sat.s32 mad24.lo.u32 mad24.hi.u32", "r", "r r r")
    yield from _of("mul24.lo.s32 mul24.hi.s32 mul24.lo.u32 mul24.hi.u32 add.sat.s32 sub.sat.s32", "r", "r r")
    yield from _of("mul.wide.s32 mul.wide.u32", "l", "r r")
    yield from _of("mul.wide.s16 mul.wide.u16", "r", "s s")
    yield from _of("mad.wide.s32 mad.wide.u32", "l", "r r l")
    yield from _of("neg.s32 abs.s32 not.b32 cnot.b32 popc.b32 clz.b32 brev.b32", "r", "r")
    yield from _of("bfind.u32 bfind.s32 bfind.shiftamt.u32 bfind.shiftamt.s32", "r", "r")
    yield from _of("popc.b64 clz.b64 bfind.u64 bfind.s64 bfind.shiftamt.s64", "r", "l")
    yield from _of("neg.s64 abs.s64 not.b64 brev.b64 cnot.b64", "l", "l")
    yield from _of("neg.s16 abs.s16 not.b16", "s", "s")
    yield from _of("add.u16x2 add.s16x2 min.u16x2 max.s16x2 min.relu.s16x2 min.s16x2 max.u16x2", "r", "r r")
    yield from _of("min.s32.relu max.s32.relu min.s16x2.relu", "r", "r r")
    simd = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
    for count, sign, last in itertools.product((2, 4), "us", ("", ".sat", ".add")):
        kind = f".{sign}32"
        yield from _of(_each("{}" + str(count) + 3 * kind + last, simd), "r", "r r r")
    yield from _of("bfe.u32 bfe.s32", "r", "r n n")
    yield from _of("bfe.u64 bfe.s64", "l", "l n n")
    yield from _of("bfi.b32", "r", "r r n n")
    yield from _of("bfi.b64", "l", "l l n n")
    yield from _of("shl.b32", "r", "r n")
    yield from _of("shl.b64", "l", "l n")
    yield from _of(_each("shf.{}.{}.b32", ("l", "r"), ("wrap", "clamp")), "r", "r r n")
    yield from _of(
        ["prmt.b32", *_each("prmt.b32.{}", ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))], "r", "r r r"
    )
    yield from _of(_each("szext.{}.{}", ("clamp", "wrap"), ("s32", "u32")), "r", "r n")
    yield from _of("bmsk.clamp.b32 bmsk.wrap.b32", "r", "n n")
    yield from _of(["and.b32 {0}, {2}, 31; sub.u32 {0}, {0}, 9; fns.b32 {0}, {1}, 7, {0};"], "r", "r n")
    yield from _of(_each("dp4a.{}.{}", ("s32", "u32"), ("s32", "u32")), "r", "r r r")
    yield from _of(_each("dp2a.{}.{}.{}", ("lo", "hi"), ("s32", "u32"), ("s32", "u32")), "r", "r r r")
    yield from _of("slct.b32.s32", "r", "r r r")
    yield from _of("slct.b32.f32 slct.ftz.b32.f32", "r", "r r f")
    yield from _of(["lop3.b32 {0}, {1}, {2}, {3}, 0x6A;", "lop3.b32 {0}, {1}, {2}, {3}, 0xE8;"], "r", "r r r")
    yield from _of(["lop3.or.b32 {0}|{1}, {2}, {3}, {4}, 0x80, {5};"], "r p", "r r r p")
    chain = "{0}.cc.u32 {{0}}, {{2}}, {{4}}; {0}c.u32 {{1}}, {{3}}, {{5}};"
    yield from _of([chain.format("add"), chain.format("sub")], "r r", "r r r r")
    yield from _of(["add.cc.u64 {0}, {2}, {3}; addc.u64 {1}, {3}, {4};"], "l l", "l l l")
    product = "mad.lo.cc.{0} {{0}}, {{2}}, {{3}}, {{4}}; madc.hi.{0} {{1}}, {{2}}, {{3}}, {{5}};"
    yield from _of([product.format("u32"), product.format("s32")], "r r", "r r r r")
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    for kind, letter in (("s32", "r"), ("u32", "r"), ("s64", "l"), ("u16", "s")):
        yield from _of(_each("setp.{}." + kind, names), "p", f"{letter} {letter}")
    yield from _of(
        ["setp.lt.and.s32 {0}|{1}, {2}, {3}, {4};", "setp.ge.xor.u32 {0}|{1}, {2}, {3}, {4};"], "p p", "r r p"
    )
    yield from _of("set.lt.u32.s32 set.ge.s32.u32", "r", "r r")
    yield from _of("set.lt.f32.s32", "f", "r r")
    yield from _of("set.lt.and.u32.s32 set.ge.xor.u32.u32", "r", "r r p")
    yield from _of("cvt.pack.sat.s8.s32.b32 cvt.pack.sat.u8.s32.b32", "r", "r r r")
    yield from _of("cvt.pack.sat.s16.s32 cvt.pack.sat.u16.s32", "r", "r r")
    narrow = ("s8", "u8", "s16", "u16")
    yield from _of(
        _each("cvt.{}.s32", narrow) + _each("cvt.sat.{}.s32", narrow) + _each("cvt.sat.{}.u32", narrow),
        "r",
        "r",
    )
    yield from _of("cvt.sat.s32.u32 cvt.sat.u32.s32", "r", "r")
    yield from _of("cvt.sat.s32.s64 cvt.sat.u32.s64 cvt.u32.u64", "r", "l")
    yield from _of("cvt.s64.s32 cvt.u64.u32 cvt.sat.u64.s32", "l", "r")


def _floats() -> Iterator[Probe]:
    for tail in ("", ".ftz", ".sat", ".ftz.sat"):
        two = _each("{}.{}" + tail + ".f32", ("add", "sub", "mul"), _MODES)
        yield from _of(two if not tail.endswith("sat") else two[::4], "f", "f f")
        yield from _of(
            _each("fma.{}" + tail + ".f32", _MODES if tail != ".ftz.sat" else ("rn",)), "f", "f f f"
        )
    yield from _of(_each("{}.{}.f64", ("add", "sub", "mul", "div"), _MODES), "d", "d d")
    yield from _of(_each("fma.{}.f64", _MODES), "d", "d d d")
    yield from _of(_each("{}.{}.f64", ("rcp", "sqrt"), _MODES), "d", "d")
    # (1 + m·2⁻²³)·2⁻¹²⁶ times 1 − m·2⁻²³ − d·2⁻²⁴: just below the smallest normal number.
    below = "and.b32 %r50, {1}, 4095; or.b32 %r51, %r50, 0x800000; shl.b32 %r50, %r50, 1; "
    below += "shr.u32 %r52, {1}, 30; add.u32 %r50, %r50, %r52; sub.u32 %r50, 0x3F800000, %r50; "
    below += "mov.b32 %f50, %r51; mov.b32 %f51, %r50; "
    yield from _of([below + f"mul.{mode}.ftz.f32 {{0}}, %f50, %f51;" for mode in _MODES], "f", "r")
    yield from _of(_each("{}.{}{}.f32", ("rcp", "sqrt"), _MODES, ("", ".ftz")), "f", "f")
    yield from _of(_each("div.{}{}.f32", _MODES, ("", ".ftz")), "f", "f f")
    extrema = ("", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".ftz.NaN.xorsign.abs")
    yield from _of(_each("{}{}.f32", ("min", "max"), extrema), "f", "f f")
    yield from _of("min.f64 max.f64", "d", "d d")
    yield from _of("neg.f32 abs.f32 neg.ftz.f32 abs.ftz.f32", "f", "f")
    yield from _of("neg.f64 abs.f64", "d", "d")
    yield from _of("copysign.f32", "f", "f f")
    yield from _of("copysign.f64", "d", "d d")
    tests = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    yield from _of(_each("testp.{}.f32", tests), "p", "f")
    yield from _of(_each("testp.{}.f64", tests), "p", "d")
    names = ("eq", "ne", "lt", "ge", "equ", "neu", "ltu", "geu", "num", "nan")
    yield from _of(_each("setp.{}.f32", names) + _each("setp.{}.ftz.f32", names[:4]), "p", "f f")
    yield from _of(_each("setp.{}.f64", names), "p", "d d")
    yield from _of(_each("setp.{}.f16", names), "p", "h h")
    yield from _of(_each("setp.{}.bf16", names), "p", "b b")
    yield from _of(["setp.lt.f16x2 {0}|{1}, {2}, {3};", "setp.geu.f16x2 {0}|{1}, {2}, {3};"], "p p", "H H")
    yield from _of("set.lt.u32.f32 set.neu.ftz.u32.f32", "r", "f f")
    yield from _of("set.lt.f32.f32", "f", "f f")
    yield from _of("set.gt.f16x2.f16x2 set.leu.f16x2.f16x2", "H", "H H")
    yield from _of("set.gt.bf16x2.bf16x2", "B", "B B")
    yield from _of("set.lt.u32.f16x2 set.geu.s32.f16x2", "r", "H H")
    yield from _of("set.eq.u32.bf16x2", "r", "B B")
    for half, letter in (("f16", "h"), ("f16x2", "H")):
        for tail in ("", ".ftz", ".sat", ".ftz.sat"):
            yield from _of(
                _each("{}.rn" + tail + "." + half, ("add", "sub", "mul")), letter, f"{letter} {letter}"
            )
        forms = ("", ".ftz", ".sat", ".relu", ".ftz.relu")
        yield from _of(_each("fma.rn{}." + half, forms), letter, f"{letter} {letter} {letter}")
    for half, letter in (("bf16", "b"), ("bf16x2", "B")):
        yield from _of(_each("{}.rn." + half, ("add", "sub", "mul")), letter, f"{letter} {letter}")
        yield from _of(_each("fma.rn{}." + half, ("", ".relu")), letter, f"{letter} {letter} {letter}")
    for half, letter in (("f16", "h"), ("f16x2", "H"), ("bf16", "b"), ("bf16x2", "B")):
        rules = ("", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs")
        yield from _of(_each("{}{}." + half, ("min", "max"), rules), letter, f"{letter} {letter}")
        yield from _of(_each("{}." + half, ("neg", "abs")), letter, letter)


def _conversions() -> Iterator[Probe]:
    whole = ("rni", "rzi", "rmi", "rpi")
    for source, letter in (("f32", "f"), ("f64", "d"), ("f16", "h")):
        yield from _of(_each("cvt.{}.{}." + source, whole, ("s32", "u32")), "r", letter)
        yield from _of(_each("cvt.{}.{}." + source, whole[:2], ("s64", "u64")), "l", letter)
        yield from _of(_each("cvt.{}.{}." + source, whole[1:2], ("s16", "u16")), "s", letter)
        same = "f" if letter == "f" else letter
        yield from _of(_each("cvt.{}." + source + "." + source, whole), same, letter)
    yield from _of(_each("cvt.rzi.{}.bf16", ("s32", "u32")), "r", "b")
    yield from _of("cvt.rzi.ftz.s32.f32 cvt.rzi.s8.f32 cvt.rzi.u8.f32 cvt.rni.sat.u8.f32", "r", "f")
    for target, letter in (("f32", "f"), ("f64", "d"), ("f16", "h"), ("bf16", "b")):
        modes = _MODES
        yield from _of(_each("cvt.{}." + target + ".{}", modes, ("s64", "u64")), letter, "l")
        if target != "f64":
            yield from _of(_each("cvt.{}." + target + ".{}", modes, ("s32", "u32")), letter, "r")
    yield from _of("cvt.rn.f64.s32 cvt.rn.f64.u32", "d", "r")
    yield from _of(_each("cvt.{}.f32.f64", _MODES), "f", "d")
    yield from _of("cvt.rn.ftz.f32.f64 cvt.rn.sat.f32.f64", "f", "d")
    yield from _of("cvt.f64.f32", "d", "f")
    yield from _of("cvt.f32.f16 cvt.sat.f32.f16", "f", "h")
    yield from _of("cvt.f32.bf16", "f", "b")
    yield from _of("cvt.sat.f32.f32 cvt.ftz.f32.f32", "f", "f")
    yield from _of("cvt.rn.f16.f32 cvt.rz.f16.f32 cvt.rm.f16.f32 cvt.rp.f16.f32 cvt.rn.sat.f16.f32", "h", "f")
    yield from _of("cvt.rn.relu.f16.f32 cvt.rn.satfinite.f16.f32 cvt.rn.ftz.f16.f32", "h", "f")
    yield from _of("cvt.rn.f16.f64 cvt.rz.f16.f64", "h", "d")
    yield from _of("cvt.rn.bf16.f32 cvt.rz.bf16.f32 cvt.rn.relu.bf16.f32 cvt.rn.satfinite.bf16.f32", "b", "f")
    yield from _of(_each("cvt.{}{}.f16x2.f32", ("rn", "rz"), ("", ".relu", ".satfinite")), "H", "f f")
    yield from _of(_each("cvt.{}{}.bf16x2.f32", ("rn", "rz"), ("", ".relu", ".satfinite")), "B", "f f")
    yield from _of(
        "cvt.rna.tf32.f32 cvt.rna.satfinite.tf32.f32 cvt.rn.tf32.f32 cvt.rz.tf32.f32 cvt.rn.relu.tf32.f32",
        "r",
        "f",
    )
    yield from _of(_each("cvt.rn.satfinite{}.{}.f32", ("", ".relu"), ("e4m3x2", "e5m2x2")), "s", "f f")
    yield from _of(_each("cvt.rn.satfinite{}.{}.f16x2", ("", ".relu"), ("e4m3x2", "e5m2x2")), "s", "H")
    yield from _of(_each("cvt.rn{}.f16x2.{}", ("", ".relu"), ("e4m3x2", "e5m2x2")), "H", "s")


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


def _warps() -> Iterator[Probe]:
    for mode, clamp in (
        ("up", "0"),
        ("down", "0x1f"),
        ("bfly", "0x1f"),
        ("idx", "0x1f"),
        ("idx", "0x181f"),
        ("up", "0x1800"),
    ):
        code = f"and.b32 {{3}}, {{3}}, 31; shfl.sync.{mode}.b32 {{0}}|{{1}}, {{2}}, {{3}}, {clamp}, -1;"
        yield from _of([code], "r p", "r n")
    yield from _of(["vote.sync.ballot.b32 {0}, {1}, -1;"], "r", "p")
    yield from _of(_each("vote.sync.{}.pred {{0}}, {{1}}, -1;", ("all", "any", "uni")), "p", "p")
    yield from _of(["and.b32 {0}, {1}, 7; match.any.sync.b32 {0}, {0}, -1;"], "r", "r")
    yield from _of(["match.any.sync.b64 {0}, {1}, -1;"], "r", "l")
    yield from _of(["shr.u32 {0}, {2}, 8; match.all.sync.b32 {0}|{1}, {0}, -1;"], "r p", "n")
    yield from _of(_each("redux.sync.{}.s32 {{0}}, {{1}}, -1;", ("add", "min", "max")), "r", "r")
    yield from _of(_each("redux.sync.{}.u32 {{0}}, {{1}}, -1;", ("add", "min", "max")), "r", "r")
    yield from _of(_each("redux.sync.{}.b32 {{0}}, {{1}}, -1;", ("and", "or", "xor")), "r", "r")
    yield from _of(["activemask.b32 {0};"], "r", "")
    masks = ("eq", "lt", "le", "gt", "ge")
    yield from _of(_each("mov.u32 {{0}}, %lanemask_{};", masks), "r", "")


def _memory() -> Iterator[Probe]:
    form = "st.{2}.{1} [{3}], {{2}}; atom.{2}.{0}.{1} {{0}}, [{3}], {{3}}; ld.{2}.{1} {{1}}, [{3}];"
    ops = "add.u32 add.u64 min.s32 min.u32 min.s64 max.s32 max.u32 max.u64 and.b32 and.b64 or.b32 xor.b32 "
    ops += "xor.b64 exch.b32 exch.b64 inc.u32 dec.u32 add.f32 add.f64"
    for op, kind in (each.split(".") for each in ops.split()):
        letter = {"f32": "f", "f64": "d"}.get(kind) or ("l" if kind.endswith("64") else "r")
        both = [form.format(op, kind, *place) for place in (("shared", "%cell"), ("global", "%scratch"))]
        yield from _of(both, f"{letter} {letter}", f"{letter} {letter}")
    for kind, letter in (("f16", "h"), ("bf16", "b"), ("f16x2", "H"), ("bf16x2", "B")):
        bits = "b32" if kind.endswith("x2") else "b16"
        code = f"st.global.{bits} [%scratch], {{2}}; atom.global.add.noftz.{kind} {{0}}, [%scratch], {{3}}; "
        yield from _of(
            [code + f"ld.global.{bits} {{1}}, [%scratch];"], f"{letter} {letter}", f"{letter} {letter}"
        )
    vector = "st.global.v2.f32 [%scratch], {1}; red.global.add.v2.f32 [%scratch], {2}; "
    yield from _of([vector + "ld.global.v2.f32 {0}, [%scratch];"], "f*2", "f*2 f*2")
    swap = "st.global.b16 [%scratch], {2}; atom.global.cas.b16 {0}, [%scratch], {3}, {4}; "
    yield from _of([swap + "ld.global.b16 {1}, [%scratch];"], "s s", "s s s")
    for level in ("ca", "cg"):
        part = f"rem.u32 {{1}}, {{1}}, 17; cp.async.{level}.shared.global [%cell], [%src], 16, {{1}}; "
        yield from _of([part + "cp.async.wait_all; ld.shared.v4.b32 {0}, [%cell];"], "r*4", "n r*4")
    ignored = (
        "cp.async.ca.shared.global [%cell], [%src], 8, {1}; cp.async.wait_all; ld.shared.v2.b32 {0}, [%cell];"
    )
    yield from _of([ignored], "r*2", "p r*4")
    given = "st.shared.v4.b32 [%cell], {1}; bar.sync 0; "
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        form = f"sync.aligned.m8n8.x{count}{trans}.shared.b16"
        yield from _of([given + f"ldmatrix.{form} {{0}}, [%cell];"], f"r*{count}", "r*4")
        code = given + f"stmatrix.{form} [%cell], {{2}}; bar.sync 0; "
        yield from _of([code + "ld.shared.v4.b32 {0}, [%cell];"], "r*4", f"r*4 r*{count}")
    yield from _of("movmatrix.sync.aligned.m8n8.trans.b16", "r", "r")


def _products() -> Iterator[Probe]:
    def mma(shape: str, d: str, a: str, b: str, counts: tuple[int, int, int]) -> Iterator[Probe]:
        sums = {"f32": ("f", "if32"), "f16": ("r", "if16"), "s32": ("r", "is32"), "f64": ("d", "if64")}[d]
        of = {"s8": "r", "u8": "r", "s4": "r", "u4": "r", "b1": "r", "f64": "if64"}
        x, y = of.get(a, f"i{a}"), of.get(b, f"i{b}")
        n, m, c = counts
        code = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{d}"
        yield from _of([code], f"{sums[0]}*{c}", f"{x}*{n} {y}*{m} {sums[1]}*{c}")

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
            yield from _of([code], f"r*{counts[2]}", f"r*{counts[0]} r*{counts[1]} is32*{counts[2]}")
    yield from _of("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "r*4", "r*4 r*2 r*4")
    for layouts in itertools.product(("row", "col"), repeat=2):
        code = f"mma.sync.aligned.m8n8k4.{layouts[0]}.{layouts[1]}.f32.f16.f16.f32"
        yield from _of([code], "f*8", "if16*2 if16*2 if32*8")


PROBES: tuple[Probe, ...] = tuple(
    dict.fromkeys(
        [*_integers(), *_floats(), *_conversions(), *_approximate(), *_warps(), *_memory(), *_products()]
    )
)
