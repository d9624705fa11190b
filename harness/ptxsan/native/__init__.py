"""What C computes of registers: operations by name, and the instructions that they are.

Each is one C expression of the operands a, b and c, for every lane. An instruction that has none here runs on
NumPy; one that has must give the same bits either way, which tests/ptxsan/test_native.py checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np


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


# The C sources compiled for this processor, once, and loaded, by whatever C compiler there is or not at all.
#
# The shared object lies in the cache of compiled kernels ($GEMM_CACHE_DIR, else $XDG_CACHE_HOME or ~/.cache,
# gemm-regression), under a name made of source, compiler, options and processor. NumPy does the work where
# there is no compiler, no folder to write to, no processor with fused multiply-adds, or where objects do not
# look as objects.c declares them; GEMM_NUMPY=1 asks for that.


_SOURCES = ("objects.c", "blocks.c", "shared.c", "matrices.c")  # one text, in this order
_COMPILERS = ("cc", "gcc", "clang", "g++", "c++")
_OPTIONS = (
    "-shared",
    "-fPIC",
    "-O3",
    "-march=native",
    "-ffp-contract=off",
    "-fwrapv",
    "-fno-strict-aliasing",
    "-w",
)
# Registers by what they hold, in the order that programs number them.
KINDS = tuple(np.dtype(kind) for kind in (bool, np.uint16, np.int32, np.int64, np.float32, np.float64))


class _Unfit(Exception):
    """Why there is no library, in a few words."""


# What each function takes: o an object, n a number, p an address.
_FUNCTIONS = {
    "prepare": "opo",
    "run": "pooon",
    "shared_places": "onoonnnnnooo",
    "granules": "onno",
    "all_set": "oon",
    "set_all": "oon",
    "apart": "oono",
    "tag": "ooonnoon",
    "unordered": "ooonnoo",
    "wavefronts": "ooono",
    "multiply": "pooon",
    "multiply_tiles": "ooo",
}
_TYPES = {"o": ctypes.py_object, "n": ctypes.c_long, "p": ctypes.c_void_p}


class CLibrary:
    """The functions of the C sources, as attributes; ``note`` says which compiler made them, ``built`` is
    another for all that they depend on."""

    def __init__(self, shared: ctypes.PyDLL, note: str, built: str) -> None:
        for name, takes in _FUNCTIONS.items():
            function = getattr(shared, name)
            function.argtypes, function.restype = [_TYPES[each] for each in takes], ctypes.c_long
            setattr(self, name, function)
        self.note, self.built = note, built
        held = [np.arange(7, dtype=np.int32)]  # which nobody else has
        wrong = self.prepare(held, held[0].__array_interface__["data"][0], np.int64(-7))
        if wrong:
            fused = "the processor has no fused multiply-add"
            raise _Unfit(fused if wrong == 1 else "objects do not lie in memory as expected")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def _found() -> CLibrary | str:
    if os.environ.get("GEMM_NUMPY", "0") not in ("", "0"):
        return "GEMM_NUMPY is set"
    try:
        path, note = _built()
        return CLibrary(ctypes.PyDLL(str(path)), note, path.name)
    except (_Unfit, OSError, AttributeError, ImportError, subprocess.SubprocessError) as error:
        return str(error).splitlines()[0]


def library() -> CLibrary | None:
    """The compiled functions, or None where NumPy has to do."""
    found = _found()
    return found if isinstance(found, CLibrary) else None


def describe() -> str:
    """What runs straight-line code, in a few words."""
    found = _found()
    return f"C, by {found.note}" if isinstance(found, CLibrary) else f"NumPy alone: {found}"


def identity() -> str:
    """Another for all that straight-line code may depend on: source, compiler, options and processor."""
    found = _found()
    return found.built if isinstance(found, CLibrary) else found


def _built() -> tuple[Path, str]:
    source = "".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in _SOURCES)
    source = source.replace("OPERATIONS\n", c_cases() + "\n").replace("FIRST_GATHER", str(FIRST_GATHER))
    if platform.python_implementation() != "CPython" or sys.byteorder != "little":
        raise _Unfit("only CPython on a little-endian processor is supported")
    problem = "no C compiler"
    for compiler in filter(None, map(shutil.which, _COMPILERS)):
        made = Path(compiler).resolve()
        stamp = f"{made} {made.stat().st_mtime_ns} {made.stat().st_size}"
        key = "\n".join((source, stamp, *_OPTIONS, _processor(), sys.version, np.__version__))
        name = f"ptx-{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
        folder = _folder()
        if (path := folder / name).is_file():
            return path, Path(compiler).name
        try:
            _compile(compiler, source, path)
            return path, Path(compiler).name
        except subprocess.CalledProcessError as error:
            problem = f"{compiler} failed: {(error.stderr.strip().splitlines() or ['?'])[0]}"
    raise _Unfit(problem)


def _compile(compiler: str, source: str, path: Path) -> None:
    """Whole or not at all. Of several processes that need it at once, one compiles."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_suffix(".lock")):
        if not path.is_file():
            _make(compiler, source, path)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; where nothing can be locked, all."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            fcntl.flock(held.enter_context(lock.open("w")), fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def _make(compiler: str, source: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".ptx-") as folder:
        text, made = Path(folder, "blocks.c"), Path(folder, "blocks.so")
        text.write_text(source, encoding="utf-8")
        language = ("-x", "c", "-std=gnu11") if not compiler.endswith("++") else ("-x", "c")
        command = [compiler, *_OPTIONS, *language, str(text), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        made.replace(path)


def _folder() -> Path:
    """Where the compiler's cache lies, too."""
    if folder := os.environ.get("GEMM_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gemm-regression"


def _processor() -> str:
    """Model and features: what -march=native means."""

    def lines() -> Iterator[str]:
        try:
            text = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]
        except OSError:
            return
        yield from (
            line for line in text.splitlines() if line.startswith(("model name", "flags", "Features"))
        )

    return "\n".join([platform.machine(), platform.processor(), *lines()])
