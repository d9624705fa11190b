"""What C computes of registers: operations by name, and the instructions that they are; and how all of the C
code is compiled. setup.py reads this file alone, so it needs nothing but Python.

Each is one C expression of the operands a, b and c, for every lane. An instruction that has none here runs on
NumPy; one that has must give the same bits either way, which tests/ptxsan/test_native.py checks.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class CExpression:
    """``result`` and ``operands`` are C types, ``expression`` gives the result from a, b and c."""

    result: str
    operands: tuple[str, ...]
    expression: str

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of the result and of the operands."""
        return tuple(SIZES[kind] for kind in (self.result, *self.operands))


_SIGNS = (("s", "int"), ("u", "uint"))
_C = {f"{sign}{bits}": f"{name}{bits}_t" for bits in (16, 32, 64) for sign, name in _SIGNS}
_C |= {f"b{bits}": f"uint{bits}_t" for bits in (16, 32, 64)}
_C |= {"f32": "float", "pred": "uint8_t"}
SIZES = {"uint8_t": 1, "uint16_t": 2, "int16_t": 2, "float": 4}
SIZES |= {f"{sign}int{bits}_t": bits // 8 for sign in ("", "u") for bits in (32, 64)}

_WORDS = (
    ("add", "a + b", 2),
    ("sub", "a - b", 2),
    ("mul.lo", "a * b", 2),
    ("mad.lo", "a * b + c", 3),
    ("neg", "-a", 1),
)
_ORDERED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}
# Of FP32, ne is false and those ending in u are true where an operand is NaN.
_REAL = {name: f"a {sign} b" for name, sign in _ORDERED.items() if name != "ne"}
_REAL |= {"ne": "(a < b) | (a > b)", "equ": "!((a < b) | (a > b))", "neu": "a != b"}
_REAL |= {"ltu": "!(a >= b)", "leu": "!(a > b)", "gtu": "!(a <= b)", "geu": "!(a < b)"}
_REAL |= {"num": "(a == a) & (b == b)", "nan": "(a != a) | (b != b)"}


def _table() -> dict[str, CExpression]:
    found: dict[str, CExpression] = {}

    def add(name: str, kind: str, expression: str, count: int = 2, result: str = "") -> None:
        found[name] = CExpression(_C[result or kind], (_C[kind],) * count, expression)

    for kind in ("s32", "u32", "s64", "u64"):
        word = f"b{kind[1:]}"  # sums and products are the same for both signs
        for base, expression, count in _WORDS:
            found[f"{base}.{kind}"] = CExpression(_C[word], (_C[word],) * count, expression)
        add(f"min.{kind}", kind, "a < b ? a : b")
        add(f"max.{kind}", kind, "a > b ? a : b")
        for name, sign in (_ORDERED | (_UNSIGNED if kind[0] == "u" else {})).items():
            of = word if name in ("eq", "ne") else kind
            add(f"setp.{name}.{kind}", of, f"a {sign} b", result="pred")
    for of, to in (("s32", "s64"), ("u32", "u64")):
        add(f"mul.wide.{of}", of, f"({_C[to]})a * b", result=to)
        found[f"mad.wide.{of}"] = CExpression(_C[to], (_C[of], _C[of], _C[to]), f"({_C[to]})a * b + c")
        add(f"mul.hi.{of}", of, f"(({_C[to]})a * b) >> 32", result=of)
    for bits, sign in itertools.product((32, 64), "bus"):
        kind, word = f"{sign}{bits}", _C[f"{sign}{bits}"]
        full = f"(b < {bits} ? a >> (b & {bits - 1}) : 0)"
        right = f"a >> (b < {bits} ? b : {bits - 1})" if sign == "s" else full
        found[f"shr.{kind}"] = CExpression(word, (word, "uint32_t"), right)
        word = _C[f"b{bits}"]
        found[f"selp.{kind}"] = CExpression(word, (word, word, "uint8_t"), "c ? a : b")
        if sign == "b":
            left = f"(b < {bits} ? a << (b & {bits - 1}) : 0)"
            found[f"shl.{kind}"] = CExpression(word, (word, "uint32_t"), left)
            for name in ("eq", "ne"):
                add(f"setp.{name}.{kind}", kind, f"a {_ORDERED[name]} b", result="pred")
    found["selp.f32"] = found["selp.b32"]
    for kind in ("b32", "b64", "pred"):
        for base, sign in (("and", "&"), ("or", "|"), ("xor", "^")):
            add(f"{base}.{kind}", kind, f"a {sign} b")
        add(f"not.{kind}", kind, "!a" if kind == "pred" else "~a", 1)
    for to, of in itertools.product(("s32", "u32", "s64", "u64"), repeat=2):
        wider = of[1:] < to[1:]  # by the sign of what is converted, else by its lower bits
        found[f"cvt.{to}.{of}"] = CExpression(_C[f"b{to[1:]}"], (_C[of if wider else f"b{of[1:]}"],), "a")
    for of in ("s32", "u32", "s64", "u64"):
        found[f"cvt.rn.f32.{of}"] = CExpression("float", (_C[of],), "(float)a")
    for rounding in ("", ".rn"):
        for base, sign in (("add", "+"), ("sub", "-"), ("mul", "*")):
            add(f"{base}{rounding}.f32", "f32", f"one_nan(a {sign} b)")
    for base in ("fma", "mad"):
        add(f"{base}.rn.f32", "f32", "one_nan(__builtin_fmaf(a, b, c))", 3)
    add("neg.f32", "b32", "a ^ 0x80000000u", 1)
    add("abs.f32", "b32", "a & 0x7fffffffu", 1)
    # Ties away from zero, of infinities and NaN the upper bits; or ties to even.
    add("cvt.rna.tf32.f32", "b32", "(a + ((~a & 0x7f800000u) ? 0x1000u : 0)) & 0xffffe000u", 1)
    even = "(a & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : (a + 0xfffu + (a >> 13 & 1)) & 0xffffe000u"
    add("cvt.rn.tf32.f32", "b32", even, 1)
    # Zeros of two signs are told apart: of equal numbers the bits differ in the sign of a zero alone.
    other = "one_nan(a != a ? b : b != b ? a : a {0} b ? a : b {0} a ? b : joined_{1}(a, b))"
    add("min.f32", "f32", other.format("<", "or"))
    add("max.f32", "f32", other.format(">", "and"))
    for name, expression in _REAL.items():
        add(f"setp.{name}.f32", "f32", expression, result="pred")
    for kind in ("b16", "b32", "b64", "pred"):
        add(f"copy.{SIZES[_C[kind]]}", kind, "a", 1)
    return found


OPERATIONS = _table()
_CASES = list(dict.fromkeys(OPERATIONS.values()))
CODES = {name: _CASES.index(operation) for name, operation in OPERATIONS.items()}
FIRST_GATHER = len(_CASES)
GATHER = {size: FIRST_GATHER + i for i, size in enumerate((2, 4, 8))}  # from memory, by bytes


def c_cases() -> str:
    """The cases of the switch of blocks.c."""
    cases = []
    for code, operation in enumerate(_CASES):
        operands = ", ".join(operation.operands)
        number = len(operation.operands)
        cases.append(f"CASE{number}({code}, {operation.result}, {operands}, {operation.expression})")
    cases += [f"GATHER({code}, {_C[f'b{8 * size}']})" for size, code in GATHER.items()]
    return "\n".join(cases)


COMPILERS = ("cc", "gcc", "clang", "g++", "c++")
_FILES = (
    "objects.c",
    "blocks.c",
    "shared.c",
    "clocks.c",
    "global.c",
    "matrices.c",
)  # one text, in this order
OPTIONS = ("-shared", "-fPIC", "-O3", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-w")
# Of a wheel: by machine the processors that its library is for, and by what Linux tells them.
WHEEL = {
    "x86_64": ("-march=x86-64-v3", {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    "aarch64": ("", {"asimd"}),
}


def text() -> str:
    """All of the C code."""
    source = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _FILES)
    return source.replace("OPERATIONS\n", c_cases() + "\n").replace("FIRST_GATHER", str(FIRST_GATHER))


def wheel_name() -> str:
    """The file of the library that a wheel has for this machine, by the code that it was made of."""
    return f"ptx-{platform.machine()}-{hashlib.sha256(text().encode()).hexdigest()[:16]}.so"


def compile_text(compiler: str, source: str, target: str, path: Path) -> None:
    """Makes a shared object, whole or not at all, for the ``target``, an option of the compiler. Raises
    CalledProcessError with what the compiler says."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".ptx-") as folder:
        code, made = Path(folder, "blocks.c"), Path(folder, "blocks.so")
        code.write_text(source, encoding="utf-8")
        language = ("-x", "c", "-std=gnu11") if not compiler.endswith("++") else ("-x", "c")
        command = [compiler, *OPTIONS, *filter(None, [target]), *language, str(code), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        made.replace(path)
