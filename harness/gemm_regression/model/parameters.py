"""The parameters of a kernel, in its own order and names, and the arguments of a launch."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gemm_regression.model.dtype import DType
from gemm_regression.model.operation import Operation, Storage
from gemm_regression.model.problem import Problem

# As in PTX: integers by width, regardless of sign; p64 is a pointer, bytes[128] a tensor map by value.
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
    """One parameter: ``name`` as spelled in the kernel; ``means``: the value passed: a size (``M``, ``N``,
    ``K``, ``batch``), ``alpha`` or ``beta``, an operand's name, its ``ld`` or ``stride`` (``ldA``,
    ``strideA``), ``workspace``, or a number; ``kind``: its type; None for the dtype's scalar type.
    """

    name: str
    means: str
    kind: Kind | None

    @property
    def constant(self) -> bool:
        return bool(re.fullmatch(r"-?\d+", self.means))


@dataclass(frozen=True)
class TensorMap:
    """How the tensor memory accelerator accesses a matrix: ``box`` of (rows, columns) elements of storage;
    ``swizzle`` in shared memory in bytes (0, 32, 64 or 128). Elements past the edges are zero. With
    ``panel``, the columns are in panels of so many, which are a third dimension of the map and of the box.
    ``tf32``: FP32 elements are rounded to TF32, to nearest even, on the way to shared memory."""

    box: tuple[int, int]
    swizzle: int = 0
    panel: int = 0
    tf32: bool = False

    def dimensions(self, storage: Storage) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Extents, strides in bytes (of all but the first) and box of the map of a matrix, as
        cuTensorMapEncodeTiled takes them: the contiguous dimension first. A batch is one matrix of all its
        rows. Raises ValueError for columns that are not whole panels."""
        rows, columns = storage.count * (storage.rows + storage.gap), storage.columns
        size, (down, across) = storage.dtype.itemsize, self.box
        if not self.panel:
            return (columns, rows), (storage.ld * size,), (across, down)
        if columns % self.panel or across % self.panel:
            raise ValueError(f"{columns} columns and a box of {across} are not whole panels of {self.panel}")
        extents = (self.panel, rows, columns // self.panel)
        return extents, (storage.ld * size, self.panel * size), (self.panel, down, across // self.panel)


@dataclass(frozen=True)
class Argument:
    """The value for a parameter: a number, or the address of an operand or of the workspace."""

    name: str
    kind: Kind
    value: float = 0
    buffer: str = ""
    map: TensorMap | None = None


def roles(operation: Operation) -> dict[str, str]:
    """What a parameter of this operation can mean, by its name in lower case without underscores."""
    known = {**_SIZES, "alpha": "alpha", "beta": "beta", "workspace": "workspace"}
    for operand in operation.operands:
        name = operand.name
        known |= {name.lower(): name}
        known |= {f"{what}{name.lower()}": f"{what}{name}" for what in ("ld", "stride", "map")}
    return known


def usual_parameters(operation: Operation, workspace: bool = False) -> str:
    """The default parameters of a kernel; those of plain GEMM are
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
    """Parses a declaration in C++ style, ``float *C, float *A, float *B, int wA=K, int wB=N``.

    Types may be omitted: sizes and leading dimensions are then ``int``, strides ``long long``, alpha and
    beta of the dtype's scalar type. A name that is not a role of the operation must be followed by ``=`` and
    its role, or a number. Raises ValueError, in one line, if it cannot be parsed or a role is unknown.
    """
    known = roles(operation)
    found = []
    for item in (part.strip() for part in text.split(",")):
        match = re.fullmatch(
            r"(?P<type>.*?[\s*&])??(?P<name>[A-Za-z_]\w*)\s*(\[\s*\])?(\s*=\s*(?P<role>-?\w+))?", item
        )
        if not match:
            raise ValueError(
                f"parameter {item!r} cannot be parsed: write it as in C++, or as NAME or NAME=ROLE"
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
                    f"parameter {item!r}: {hint}state the meaning of {name} as {name}=ROLE, "
                    f"where ROLE is one of {choices}, or a number"
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
            raise ValueError(f"parameter {item!r}: {means} is passed as a pointer")
        return "p64"
    if not name:
        if means in ("alpha", "beta"):
            return None
        return "i64" if means.startswith("stride") else "i32"
    if name not in _TYPES:
        raise ValueError(f"parameter {item!r}: unknown type {name!r}; known: {', '.join(_TYPES)}")
    return _TYPES[name]


def _complete(text: str, found: list[Parameter], operation: Operation) -> None:
    """Raises ValueError if an operand is missing, or a role occurs twice."""
    means = [parameter.means for parameter in found if not parameter.constant]
    for role in means:
        if means.count(role) > 1 and role not in _SIZES.values():
            raise ValueError(f"parameters ({text}): {role} occurs twice")
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
    """The arguments of a launch for a problem, in the order of the parameters; ``maps`` by operand. Raises
    ValueError if a tensor map is missing, or is to round to TF32 what is not FP32."""
    storages = operation.storages(problem, dtype)
    scalar: Kind = "i32" if dtype.scalar.kind == "i" else "f64" if dtype.scalar == np.float64 else "f32"
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
            raise ValueError(f"parameter {parameter.name}: no tensor map is declared for {operand}")
        if maps[operand].tf32 and (held := storages[operand].dtype) != np.float32:
            raise ValueError(
                f"parameter {parameter.name}: a tensor map with tf32=True rounds FP32 elements, and those of "
                f"{operand} are {held}: write tf32=(dtype == TF32)"
            )
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
