"""The parameters of a kernel, in its own order and names, and the arguments that a launch hands over."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.model.dtype import DType
from harness.model.operation import Operation, Storage
from harness.model.problem import Problem

# As PTX has them: integers by width, whatever their sign; p64 a pointer, bytes[128] a tensor map by value.
Kind = Literal["i32", "i64", "f32", "f64", "f16", "bf16", "p64", "bytes[128]"]

_TYPES: dict[str, Kind] = {
    "int": "i32",
    "unsigned": "i32",
    "unsigned int": "i32",
    "int32_t": "i32",
    "uint32_t": "i32",
    "uint": "i32",
    "long": "i64",
    "long long": "i64",
    "long long int": "i64",
    "unsigned long": "i64",
    "unsigned long long": "i64",
    "int64_t": "i64",
    "uint64_t": "i64",
    "size_t": "i64",
    "std::size_t": "i64",
    "ptrdiff_t": "i64",
    "float": "f32",
    "double": "f64",
    "half": "f16",
    "__half": "f16",
    "__nv_bfloat16": "bf16",
    "nv_bfloat16": "bf16",
    "CUtensorMap": "bytes[128]",
}
_QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__|struct)\b")
_SIZES = {"m": "M", "n": "N", "k": "K", "batch": "batch", "batchcount": "batch", "batchsize": "batch"}


@dataclass(frozen=True)
class Parameter:
    """One parameter: ``name`` as the kernel spells it; ``means`` what is handed over: a size (``M``, ``N``,
    ``K``, ``batch``), ``alpha`` or ``beta``, an operand's name, its ``ld`` or ``stride`` (``ldA``,
    ``strideA``), ``workspace``, or a number; ``kind`` None: alpha and beta are of the dtype's scalar type.
    """

    name: str
    means: str
    kind: Kind | None

    @property
    def constant(self) -> bool:
        return bool(re.fullmatch(r"-?\d+", self.means))


@dataclass(frozen=True)
class TensorMap:
    """How the tensor memory accelerator reads or writes a matrix: boxes of (rows, columns) elements of
    storage, in shared memory swizzled over so many bytes (0, 32, 64 or 128). Past the edges are zeros."""

    box: tuple[int, int]
    swizzle: int = 0


@dataclass(frozen=True)
class Argument:
    """What is handed over for a parameter: a number, or the address of an operand or of the workspace."""

    name: str
    kind: Kind
    value: float = 0
    buffer: str = ""
    map: TensorMap | None = None


def roles(operation: Operation) -> dict[str, str]:
    """What a parameter of this operation can mean, by its name in small letters without underscores."""
    known = {**_SIZES, "alpha": "alpha", "beta": "beta", "workspace": "workspace"}
    for operand in operation.operands:
        name = operand.name
        known |= {name.lower(): name}
        known |= {f"{what}{name.lower()}": f"{what}{name}" for what in ("ld", "stride", "map")}
    return known


def usual_parameters(operation: Operation, workspace: bool = False) -> str:
    """The parameters that a kernel has unless it declares its own: those of plain GEMM are
    ``M, N, K, alpha, A, lda, B, ldb, beta, C, ldc``."""
    multiplied, added = [], []
    result = operation.result.name
    for operand in operation.operands:
        if operand.role == "multiplied":
            multiplied += _matrix(operand.name, operation.batched)
        elif operand.role == "added":
            added += (
                _matrix(operand.name, operand.batched and operation.batched)
                if operand.like
                else [operand.name]
            )
    names = ["M", "N", "K", "alpha", *multiplied, *added, "beta", *_matrix(result, operation.batched)]
    names += ["batch"] * operation.batched + ["workspace"] * workspace
    return ", ".join(names)


def _matrix(name: str, batched: bool) -> list[str]:
    return [name, f"ld{name}", *([f"stride{name}"] if batched else [])]


def parse_parameters(text: str, operation: Operation) -> tuple[Parameter, ...]:
    """The parameters of a declaration such as a C++ one, ``float *C, float *A, float *B, int wA=K, int
    wB=N``.

    Types may be left out: sizes and leading dimensions are then ``int``, strides ``long long``, alpha and
    beta of the dtype's scalar type. A name that is no role of the operation is followed by ``=`` and its
    role, or by a number. Raises ValueError, in one line, for what cannot be read and for a role that is not
    known.
    """
    known = roles(operation)
    found = []
    for item in (part.strip() for part in text.split(",")):
        match = re.fullmatch(
            r"(?P<type>.*?[\s*&])??(?P<name>[A-Za-z_]\w*)\s*(\[\s*\])?(\s*=\s*(?P<role>-?\w+))?", item
        )
        if not match:
            raise ValueError(
                f"parameter {item!r} cannot be read: write it as in C++, or as NAME or NAME=ROLE"
            )
        written, name, role = match["type"], match["name"], match["role"] or match["name"]
        if re.fullmatch(r"-?\d+", role):
            means = role
        else:
            key = role.lower().replace("_", "")
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {known[near[0]]}? " if near else ""
                choices = ", ".join(dict.fromkeys(known.values()))
                raise ValueError(
                    f"parameter {item!r}: {hint}say what {name} means by {name}=ROLE, "
                    f"one of {choices}, or a number"
                )
            means = known[key]
        found.append(Parameter(name, means, _kind(item, written or "", means, operation)))
    _complete(text, found, operation)
    return tuple(found)


def _kind(item: str, written: str, means: str, operation: Operation) -> Kind | None:
    pointer = means == "workspace" or means in {operand.name for operand in operation.operands}
    if "*" in written or "&" in written or item.rstrip().endswith("]"):
        if not pointer:
            raise ValueError(f"parameter {item!r}: a pointer cannot hold {means}")
        return "p64"
    name = " ".join(_QUALIFIERS.sub(" ", written).split())
    if means.startswith("map"):
        return "bytes[128]"
    if pointer:
        if name:
            raise ValueError(f"parameter {item!r}: {means} is handed over by its address")
        return "p64"
    if not name:
        if means in ("alpha", "beta"):
            return None
        return "i64" if means.startswith("stride") else "i32"
    if name not in _TYPES:
        raise ValueError(f"parameter {item!r}: unknown type {name!r}; known: {', '.join(_TYPES)}")
    return _TYPES[name]


def _complete(text: str, found: list[Parameter], operation: Operation) -> None:
    """Raises ValueError where an operand is missing, or a role comes twice."""
    means = [parameter.means for parameter in found if not parameter.constant]
    for role in means:
        if means.count(role) > 1 and role not in _SIZES.values():
            raise ValueError(f"parameters ({text}): {role} is handed over twice")
    for operand in operation.operands:
        if operand.name not in means and f"map{operand.name}" not in means:
            raise ValueError(f"parameters ({text}): {operand.name} of {operation.name} is missing")


def arguments(
    parameters: tuple[Parameter, ...],
    operation: Operation,
    problem: Problem,
    dtype: DType,
    maps: Mapping[str, TensorMap],
) -> tuple[Argument, ...]:
    """What a launch on a problem hands over, in the order of the parameters; ``maps`` by operand. Raises
    ValueError where one is missing."""
    storages = operation.storages(problem, dtype)
    scalar: Kind = "i32" if dtype.scalar.kind == "i" else "f32"
    return tuple(_argument(parameter, scalar, problem, storages, maps) for parameter in parameters)


def _argument(
    parameter: Parameter,
    scalar: Kind,
    problem: Problem,
    storages: Mapping[str, Storage],
    maps: Mapping[str, TensorMap],
) -> Argument:
    means, kind = parameter.means, parameter.kind or scalar
    if kind == "bytes[128]":
        operand = means.removeprefix("map")
        if operand not in maps:
            raise ValueError(f"parameter {parameter.name}: no tensor map of {operand} is declared")
        return Argument(parameter.name, kind, buffer=operand, map=maps[operand])
    if kind == "p64":
        return Argument(parameter.name, kind, buffer=means)
    if parameter.constant:
        return Argument(parameter.name, kind, int(means))
    if means in ("alpha", "beta", "batch"):
        value = getattr(problem, means)
        return Argument(parameter.name, kind, int(value) if kind[0] == "i" else value)
    if means in ("M", "N", "K"):
        return Argument(parameter.name, kind, getattr(problem, means.lower()))
    if means.startswith("ld"):
        return Argument(parameter.name, kind, storages[means[2:]].ld)
    return Argument(parameter.name, kind, storages[means.removeprefix("stride")].stride)
