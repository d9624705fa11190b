"""A declaration of a kernel in Triton that is there, as `declare` makes one of CUDA C++."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from gemm_regression.cli.declare import (
    BIAS,
    Draft,
    Taken,
    by_rows,
    declare_constraints,
    declare_dtype,
    give_roles,
    right,
    role_of,
)
from gemm_regression.cli.triton_roles import roles
from gemm_regression.compiler.frontend import functions_of
from gemm_regression.compiler.triton import Triton, jitted
from gemm_regression.model import (
    GELU,
    GEMM,
    RELU,
    BlockShape,
    Config,
    Constraints,
    Kernel,
    Problem,
    gemm,
    gemm_bias,
)

_POINTERS = ("A", "B", "C")
# Constants by what their names end with, and what most kernels take for them.
_USUAL = {"M": 64, "N": 64, "K": 32}
_DTYPES = (("F16", "F32"), ("F16", "F16"), ("F32", "F32"))
_HEAD = """\
from pathlib import Path

from gemm_regression.compiler.triton import Triton, jitted
MODEL_IMPORTS

SOURCE = Path(__file__).parent / "SOURCE_PATH"
"""


# By how a declaration writes them; B as rows of weights, one for each column of C, is the layout NT.
_OPERATIONS = {
    "GEMM": GEMM,
    'gemm("NT")': gemm("NT"),
    "gemm_bias()": gemm_bias(),
    "gemm_bias(activation=RELU)": gemm_bias(activation=RELU),
    "gemm_bias(activation=GELU)": gemm_bias(activation=GELU),
    'gemm_bias("NT")': gemm_bias("NT"),
    'gemm_bias("NT", RELU)': gemm_bias("NT", RELU),
    'gemm_bias("NT", GELU)': gemm_bias("NT", GELU),
}


def in_a_line(shape: BlockShape, p: Problem) -> tuple[int, int, int]:
    """All tiles along x."""
    return -(-p.m // shape.tile[0]) * -(-p.n // shape.tile[1]), 1, 1


GRIDS = {
    "grid=lambda shape, p: (-(-p.m // shape.tile[0]) * -(-p.n // shape.tile[1]), 1, 1),": in_a_line,
    "grid=lambda shape, p: (-(-p.m // shape.tile[0]), -(-p.n // shape.tile[1]), 1),": by_rows,
    "": None,
}


def of_triton(source: Path, entry: str, config: Config) -> Draft:
    """Of a .py file, of whose functions under ``@triton.jit`` ``entry`` names one if there are several;
    ``config`` has the values of constants. Raises ValueError."""
    name, function = _chosen(source, entry)
    constants, left = dict[str, int](config), list[str]()
    taken, types, seen = list[Taken](), list[str](), _seen(function)
    for one in function.params:
        if one.is_constexpr:
            if one.name not in constants and (value := _constant(one)) is not None:
                constants[one.name] = value
            if one.name not in constants:
                left.append(f"constant {one.name}: state it, -D {one.name}=NUMBER")
            continue
        role = role_of(one.name)
        pointer = one.name in seen or role in _POINTERS or one.name.endswith("ptr")
        kind = "pointer" if pointer else "float" if role in ("alpha", "beta") else "int"
        taken.append(Taken({"pointer": "", "float": "float", "int": "int"}[kind], one.name, kind))
    draft = Draft(Kernel(name, source, name, BlockShape((1, 1), (1, 1))), left=left)
    if left:
        raise ValueError(f"{source.name}: {'; '.join(left)}")
    give_roles(taken, draft, seen)
    words = {"pointer": "*{dtype}", "float": "fp32", "int": "i32"}
    types = ["*{output}" if one.role in ("C", BIAS) else words[one.kind] for one in taken]
    frontend = Triton(name, " ".join(types), tuple((constant, constant) for constant in constants))
    written = ", ".join([*(one.text for one in taken), "void *scratch=0", "void *profile=0"])
    draft.before = [_HEAD, f"MATMUL = {_frontend_text(frontend)}\n"]
    draft.lines += [f'entry="{name}",', "frontend=MATMUL,", f'parameters="{written}",']
    draft.lines.append(f"configs=({Config(**constants)!r},),")
    draft.names |= {"Config"}
    draft.guessed += [
        f"constant {constant} is {value}" for constant, value in constants.items() if constant not in config
    ]
    tile = [next((c for c in constants if c.endswith(axis)), "") for axis in "MN"]
    draft.lines.append(f'shape=MATMUL.shape(SOURCE, tile=("{tile[0]}", "{tile[1]}")),')
    if not all(tile):
        draft.left.append("shape: state the constants, or numbers, that are the rows and columns of a tile")
    draft.kernel = replace(
        draft.kernel, frontend=frontend, parameters=written, configs=(Config(**constants),)
    )
    added = BIAS in seen.values()
    clamped = roles(function.src, frozenset()).clamps
    _try(draft, tile, [name for name, of in _OPERATIONS.items() if (BIAS in name) == added], clamped)
    return draft


def _seen(function: Any) -> dict[str, str]:
    """What its pointers are, by name, as its text shows; empty for those of which it shows no more."""
    names = [one.name for one in function.params if not one.is_constexpr]
    found = roles(function.src, frozenset(name for name in names if role_of(name) in ("", *_POINTERS)))
    besides = dict.fromkeys(found.loaded, BIAS if len(found.loaded) == 1 else "")
    return besides | found.of


def _chosen(source: Path, entry: str) -> tuple[str, Any]:
    found = {name: kernel for name, of in functions_of(source).items() if (kernel := jitted(of))}
    # What others call is no kernel.
    called = {n for n in found if any(re.search(rf"\b{n}\(", of.src) for o, of in found.items() if o != n)}
    chosen = [n for n in found if (n == entry if entry else n not in called)]
    if len(chosen) != 1:
        there = ", ".join(found) or "none under @triton.jit"
        raise ValueError(f"{source.name}: say which function, --entry NAME; there are: {there}")
    return chosen[0], found[chosen[0]]


def _constant(one: Any) -> int | None:
    """A default, or what most kernels take; None if that is not known."""
    if isinstance(one.default, int):
        return int(one.default)
    if "GROUP" in one.name.upper():
        return 8
    return _USUAL.get(one.name[-1:].upper())


def _frontend_text(of: Triton) -> str:
    constants = "".join(f'("{name}", "{value}"), ' for name, value in of.constants)
    return f'Triton(\n    "{of.function}",\n    types="{of.types}",\n    constants=({constants.strip()}),\n)'


def _try(draft: Draft, tile: list[str], operations: list[str], clamped: bool) -> None:
    """The first dtype, grid and operation with right results."""
    names, lines, config = set(draft.names), list(draft.lines), draft.kernel.configs[0]
    sizes = [next((v for name, v in config.items() if name.endswith(axis)), 1) for axis in "MNK"]
    operations.sort(key=lambda name: ("RELU" in name) != clamped)
    ways = product((False, True), operations, _DTYPES, GRIDS)
    for whole, operation, (inputs, output), grid in () if draft.left else ways:
        draft.lines, draft.names = [*lines], {*names}
        dtype = declare_dtype(draft, inputs, output)
        frontend, source = draft.kernel.frontend, draft.kernel.source
        assert isinstance(frontend, Triton)
        assert source
        takes = Constraints(multiples=dict(zip("mnk", sizes, strict=True)) if whole else {})
        shape = frontend.shape(source, (tile[0], tile[1]))
        kernel = replace(
            draft.kernel,
            shape=shape,
            dtypes=(dtype,),
            grid=GRIDS[grid],
            constraints=takes,
            operation=_OPERATIONS[operation],
        )
        if right(kernel, (sizes[0], sizes[1])):
            draft.kernel = kernel
            draft.lines += filter(None, [grid])
            if operation != "GEMM":
                draft.lines.append(f"operation={operation},")
                draft.names |= set(re.findall(r"gemm_bias|gemm|RELU|GELU", operation))
            declare_constraints(draft)
            said = "" if operation == "GEMM" else f", {operation}"
            draft.guessed.append(
                f"{dtype}{said} and this grid give right results{' if all tiles are whole' * whole}"
            )
            return
    draft.lines, draft.names = lines, names
    tried = "" if draft.left else ": none that was tried gives right results"
    draft.left.append(f"operation, dtypes and grid: state them{tried}")
