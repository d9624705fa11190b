"""A declaration of a kernel that is there: parameters by its compiled signature and their names, block
and grid by what gives right results on the interpreter. It says what it guessed, and what it could not."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import isqrt
from pathlib import Path

from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.compiler.objects import demangled, parameters, ptx_symbols, short_name
from gemm_regression.compiler.tools import CompileError
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import (
    BF16,
    F16,
    F32,
    S8,
    BlockShape,
    Case,
    Config,
    Constraints,
    DType,
    Kernel,
    Problem,
    with_output,
)
from gemm_regression.oracle import verify

ARCH, SECONDS = "sm_90a", 20.0
DTYPES = {"F32": F32, "F16": F16, "BF16": BF16, "S8": S8}
_ELEMENTS = {
    **{"float": "F32", "half": "F16", "__half": "F16", "nv_bfloat16": "BF16", "__nv_bfloat16": "BF16"},
    **dict.fromkeys(("char", "signed char", "int8_t"), "S8"),
}
BIAS = "bias"
_POINTERS, _SIZES, _SCALARS = ("A", "B", "C"), ("M", "N", "K"), ("alpha", "beta")
_LEADING = ("lda", "ldb", "ldc")
# What a role is called besides, in lower case without underscores, and without what says where a matrix lies.
_ALIASES = {
    **{name.lower(): name for name in (*_POINTERS, *_SIZES, *_SCALARS, *_LEADING)},
    **{"wa": "K", "wb": "N", "ha": "M", "rows": "M", "cols": "N", "columns": "N", "depth": "K"},
    **{"out": "C", "output": "C", "result": "C", "stridea": "lda", "strideb": "ldb", "stridec": "ldc"},
    **{"strideam": "lda", "stridebk": "ldb", "stridecm": "ldc"},
    **dict.fromkeys(("strideak", "stridebn", "stridecn"), "1"),
}
_AFFIX = re.compile(r"^(?:d|dev|device|g|gpu|p|mat|matrix)_|_(?:d|dev|device|gpu|ptr|mat)$")


@dataclass
class Taken:
    """A parameter: what the source has before its ``name``, its ``kind`` (pointer, int or float), and what is
    passed."""

    written: str
    name: str
    kind: str
    role: str = ""

    @property
    def text(self) -> str:
        stated = f"={self.role}" if self.role and _plain(self.name) != self.role.lower() else ""
        return re.sub(r"\* ", "*", f"{self.written} {self.name}{stated}".strip())


@dataclass
class Draft:
    """A kernel, the ``lines`` of its declaration, what stands ``before`` it, the ``names`` that these import
    of the model, and what was ``guessed`` and what is ``left`` to do, one line each."""

    kernel: Kernel
    lines: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=lambda: {"Kernel"})
    guessed: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def of_cuda(source: Path, entry: str, config: Config) -> Draft:
    """Of a .cu file, of whose functions ``entry`` names one if there are several. Raises CompileError, and
    ValueError for a function that is not there, or of elements that no dtype has."""
    kernel = Kernel("k", source, entry or "?", BlockShape((1, 1), (1, 1)), configs=(config,))
    ptx = compile_ptx(kernel, config, F32, ARCH)
    symbol, entry = _chosen(ptx, entry, source)
    draft = Draft(kernel)
    taken = _taken(source.read_text(encoding="utf-8"), entry, parameters(ptx, symbol) or ())
    give_roles(taken, draft)
    written = ", ".join(one.text for one in taken)
    draft.lines += [f'entry="{entry}",', f'parameters="{written}",']
    elements = {
        one.role: re.sub(r"const|\*", "", one.written).strip() for one in taken if one.kind == "pointer"
    }
    if "double" in elements.values():
        raise ValueError(f"{source.name}: {entry} takes double, which no dtype of the suite is")
    inputs, output = (_ELEMENTS.get(elements.get(name, ""), "F32") for name in "AC")
    draft.kernel = replace(
        kernel, entry=entry, parameters=written, dtypes=(declare_dtype(draft, inputs, output),)
    )
    if config:
        draft.lines.append(f"configs=({config!r},),")
        draft.names.add("Config")
    if sum(one.role in _SIZES for one in taken) == 1:
        draft.kernel = replace(draft.kernel, constraints=Constraints(square=True))
        draft.guessed.append("its one size is M, N and K: it takes square matrices")
    limits = re.search(r"\.(?:max|req)ntid (\d+)(?:, (\d+))?", ptx[ptx.index(f".entry {symbol}") :])
    _try_shapes(draft, _shapes(config, (int(limits[1]), int(limits[2] or 1)) if limits else None))
    return draft


def declare_dtype(draft: Draft, inputs: str, output: str) -> DType:
    """The dtype of these elements, by the names of the dtypes that have them."""
    dtype, text = DTYPES[inputs], inputs
    if inputs in ("F16", "BF16") and output in ("F16", "BF16"):
        dtype, text = with_output(dtype, DTYPES[output]), f"with_output({inputs}, {output})"
    if dtype != F32:
        draft.lines.append(f"dtypes=({text},),")
        draft.names |= set(re.findall(r"\w+", text))
    return dtype


def _chosen(ptx: str, entry: str, source: Path) -> tuple[str, str]:
    """The symbol and the C++ name of the function that is meant."""
    symbols = ptx_symbols(ptx)
    names = dict(zip(symbols, map(short_name, demangled(tuple(symbols))), strict=True))
    found = [symbol for symbol, name in names.items() if entry in ("", name)]
    if len(found) != 1:
        there = ", ".join(names.values()) or "none; of a template, name an instance: --entry 'gemm<16>'"
        raise ValueError(f"{source.name}: say which function, --entry NAME; there are: {there}")
    return found[0], names[found[0]]


def _taken(text: str, entry: str, kinds: Sequence[str]) -> list[Taken]:
    """The parameters as the source declares them; where that cannot be read, by the types of the PTX."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    name = re.escape(entry.partition("<")[0].rpartition("::")[2])
    head = re.search(rf"__global__[^;{{}}]*?\b{name}\s*\(([^(){{}};]*)\)\s*\{{", text)
    items = head[1].split(",") if head else []
    found = [re.fullmatch(r"\s*(.*?)(\w+)\s*(\[\s*\])?\s*", item, re.DOTALL) for item in items]
    if len(found) != len(kinds) or not all(found):
        return [
            Taken("void *" if kind in ("u64", "ptr") else "", f"p{i}", "") for i, kind in enumerate(kinds)
        ]
    made = []
    for one, kind in zip(found, kinds, strict=True):
        assert one
        written = re.sub(r"\b(volatile|__restrict__|__restrict|restrict|__grid_constant__)\b", " ", one[1])
        written = " ".join((written + "*" * bool(one[3])).replace("*", " * ").split())
        kind = "pointer" if "*" in written else "float" if kind.startswith("f") else "int"
        made.append(Taken(written, one[2], kind))
    return made


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def role_of(name: str) -> str:
    """What a parameter of this name is taken for; empty if that is not known."""
    while (short := _AFFIX.sub("", name)) != name:
        name = short
    plain = _plain(name)
    return _ALIASES.get(plain) or _ALIASES.get(re.sub(r"^d(?=[abc]$)|(?<=^[abc])ptr$", "", plain), "")


def give_roles(taken: Sequence[Taken], draft: Draft, known: Mapping[str, str] | None = None) -> None:
    """Those ``known`` by the parameters' names, else by names alone, and what is left of each kind by its
    order; says which are guesses, and which are left."""
    kinds = {"pointer": _POINTERS, "float": _SCALARS, "int": _SIZES}
    for one in taken:
        role = (known or {}).get(one.name) or role_of(one.name)
        fits = (role in (*_POINTERS, BIAS)) == (one.kind == "pointer") and (role in _SCALARS) <= (
            one.kind == "float"
        )
        given = [other.role for other in taken if other.role not in (*_SIZES, "1")]
        one.role = role if fits and role not in given else ""
    for kind, roles in kinds.items():
        free = [one for one in taken if one.kind == kind and not one.role]
        missing = [role for role in roles if role not in [one.role for one in taken]]
        if kind == "int" and len(free) == 1 and len(missing) == 3:
            missing = ["N"]  # of square matrices
        if len(free) == len(missing):
            free.sort(key=lambda one: kind == "pointer" and "const" not in one.written)  # C is written to
            for one, role in zip(free, missing, strict=True):
                one.role = role
    for one in taken:
        if not one.role:
            draft.left.append(f"parameter {one.name}: say what is passed, {one.name}=ROLE")
        elif _plain(one.name) != one.role.lower():
            draft.guessed.append(f"parameter {one.name} is {one.role}")


Shape = tuple[tuple[int, int, int], tuple[int, int]]  # threads; rows and columns of the tile


def _shapes(config: Config, given: tuple[int, int] | None) -> list[Shape]:
    """Threads and tiles to try, by the config, what the kernel says of its block, and what is usual."""
    x, y = given or (32, 8)
    found = list[tuple[tuple[int, int], tuple[int, int]]]()
    rows, columns = (next((v for name, v in config.items() if name.endswith(axis)), 0) for axis in "MN")
    if rows and columns:
        each = config.get("TM", 1) * config.get("TN", 1)
        found += [((x, y), (rows, columns)), ((rows * columns // each, 1), (rows, columns))]
    for size in (isqrt(x * y), *config.values(), 16, 32, 8):
        found += [((size, size), (size, size)), ((size * size, 1), (size, size))]
    found += [((i, j), (j, i)) for i, j in ((x, y), (256, 1), (128, 1))]
    return [((i, j, 1), tile) for (i, j), tile in dict.fromkeys(found) if 0 < i * j <= 1024]


def by_rows(shape: BlockShape, p: Problem) -> tuple[int, int, int]:
    """x along the rows of C."""
    return -(-p.m // shape.tile[0]), -(-p.n // shape.tile[1]), 1


GRIDS = {
    "": None,
    "grid=lambda shape, p: (-(-p.m // shape.tile[0]), -(-p.n // shape.tile[1]), 1),": by_rows,
}


def _try_shapes(draft: Draft, shapes: Sequence[Shape]) -> None:
    """The first block and grid with right results, for any size, or else for whole tiles."""
    draft.names.add("BlockShape")
    tries = product((False, True), shapes, GRIDS) if not draft.left else []
    for are_whole, (threads, tile), grid in tries:
        deep = next((v for name, v in draft.kernel.configs[0].items() if name.endswith("K")), max(tile))
        whole = {"m": tile[0], "n": tile[1], "k": deep} if are_whole else {}
        takes = replace(draft.kernel.constraints, multiples=whole)
        shape = BlockShape(threads, tile)
        kernel = replace(draft.kernel, shape=shape, grid=GRIDS[grid], constraints=takes)
        if right(kernel, tile):
            draft.kernel = kernel
            draft.lines += [_shape_text(threads, tile), *filter(None, [grid])]
            declare_constraints(draft)
            sizes = f"threads of {threads[0]}x{threads[1]} and tiles of {tile[0]}x{tile[1]}"
            draft.guessed.append(f"{sizes} give right results{' if all tiles are whole' * bool(whole)}")
            return
    draft.lines.append(_shape_text(*shapes[0]))
    tried = "" if draft.left else "none that was tried gives right results: "
    draft.left.append(f"shape: {tried}state the threads of a block, its tile of C, and the grid")
    declare_constraints(draft)


def _shape_text(threads: tuple[int, int, int], tile: tuple[int, int]) -> str:
    return f"shape=BlockShape(threads={threads[:2]}, tile={tile}),"


def declare_constraints(draft: Draft) -> None:
    takes = draft.kernel.constraints
    said = ["square=True"] * takes.square + [f"multiples={dict(takes.multiples)}"] * bool(takes.multiples)
    if said:
        draft.lines.append(f"constraints=Constraints({', '.join(said)}),")
        draft.names.add("Constraints")


def right(kernel: Kernel, tile: tuple[int, int]) -> bool:
    """Whether the interpreter finds nothing wrong with a kernel, for a problem of 3 by 4 tiles or more."""
    (dtype, *_), config = kernel.dtypes, kernel.configs[0]
    problem = Problem(2 * tile[0] + 5, 4 * tile[1] - 7 + 8 * (tile[1] < 8), 45)
    case = Case(kernel, dtype, config, kernel.narrowed(kernel.constraints.near(problem, config)))
    device = EmulatedDevice(ARCH, by_source=False, time_limit=SECONDS)
    try:
        return not case.refusals and not verify(device, case)
    except (CompileError, DeviceError, ValueError):
        return False


def text_of(draft: Draft, name: str, source: str) -> str:
    """The declarations' file; ``source``: the path from it."""
    body = "\n".join(f"        {line}" for line in draft.lines)
    before = "\n".join(draft.before).replace("SOURCE_PATH", source)
    # Constants, then classes, then functions, as ruff sorts them.
    names = sorted(draft.names, key=lambda name: (not name.isupper(), name.islower(), name))
    imports = f"from gemm_regression.model import {', '.join(names)}"
    said = "SOURCE" if draft.before else f'"{source}"'
    parts = (
        '"""The kernels of this project, each with the configs it is tested with."""\n',
        f"{imports}\n" if not draft.before else before.replace("MODEL_IMPORTS", imports) + "\n",
        f'KERNELS = (\n    Kernel(\n        "{name}",\n        {said},\n{body}\n    ),\n)',
    )
    return "\n".join(parts) + "\n"
