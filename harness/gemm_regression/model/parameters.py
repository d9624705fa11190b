"""The parameters of a kernel: compile-time parameters (configs and their search space), and launch parameters
with their values for a problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

from gemm_regression.model import expressions
from gemm_regression.model.dtypes import DType
from gemm_regression.model.operation import Operation
from gemm_regression.model.problem import INT_MAX, Problem, Storage

# Names of a config's macros in a case id; macros with the same stem are joined with an x.
_LABELS = {"TILE_SIZE": "tile", "THREAD_TILE": "thread", "WARP_TILE": "warp", "PADDING": "pad"}


class Config(Mapping[str, int]):
    """The compile-time parameters of a kernel, each passed to nvcc as ``-D NAME=value``."""

    def __init__(self, **parameters: int) -> None:
        self._map = parameters
        self._items = tuple(parameters.items())

    def __getitem__(self, name: str) -> int:
        return self._map[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def __hash__(self) -> int:
        return hash(self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._items == other._items

    def __repr__(self) -> str:
        return f"Config({', '.join(f'{name}={value}' for name, value in self._items)})"

    @cached_property
    def label(self) -> str:
        """Short and stable: TILE_M=64, TILE_N=64, TILE_K=8, PADDING=1 is ``tile64x64x8-pad1``."""
        parts: dict[str, str] = {}
        for name, value in self._items:
            stem, _, axis = name.rpartition("_")
            stem = stem if axis in ("M", "N", "K", "X", "Y") else name
            word = _LABELS.get(stem, stem.lower().replace("_", ""))
            parts[word] = f"{parts[word]}x{value}" if word in parts else f"{word}{value}"
        return "-".join(parts.values())


Values = Mapping[str, int]


@dataclass(frozen=True)
class Rule:
    """A restriction of a search space. ``holds``: a predicate on the values of all axes. ``reason``: why a
    config that violates it is skipped."""

    reason: str
    holds: Callable[[Values], bool]


@dataclass(frozen=True)
class Space:
    """A search space of configs.

    ``axes``: every compile-time parameter with its values, in the order of the kernel's configs. ``rules``:
    restrictions in addition to the legality rules. ``defaults``: default values of macros in the source; a
    config omits a macro that has its default value. Raises ValueError for an axis without values or with a
    value twice, and for a default that belongs to no axis.
    """

    axes: Mapping[str, Sequence[int]]
    rules: tuple[Rule, ...] = ()
    defaults: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, values in self.axes.items():
            if not values or len(set(values)) != len(values):
                what = "no value" if not values else "one twice"
                raise ValueError(f"the axis {name} of a space has {what}")
        if strange := [name for name in self.defaults if name not in self.axes]:
            raise ValueError(f"the space has a default of {strange[0]}, which is not an axis")

    @property
    def size(self) -> int:
        """The number of combinations, without restrictions; 0 without axes."""
        return prod(map(len, self.axes.values())) if self.axes else 0

    def combinations(self) -> Iterator[dict[str, int]]:
        """All of them, the last axis running fastest."""
        for values in product(*self.axes.values()) if self.axes else ():
            yield dict(zip(self.axes, values, strict=True))

    def broken(self, values: Values) -> str:
        """The reason of the first rule that does not hold; empty if all hold."""
        return next((rule.reason for rule in self.rules if not rule.holds(values)), "")

    def config(self, values: Values) -> Config:
        """As a kernel declares it: an axis at its default is omitted."""
        return Config(**{n: v for n, v in values.items() if n not in self.defaults or self.defaults[n] != v})

    def _all_of(self, config: Config) -> dict[str, int]:
        """A value for every axis; empty for a config of other parameters."""
        every = {**self.defaults, **config}
        return {name: every[name] for name in self.axes} if every.keys() == self.axes.keys() else {}

    def values(self, config: Config) -> tuple[int, ...] | None:
        """A value for every axis; None for a config outside the space."""
        found = self._all_of(config)
        inside = len(found) == len(self.axes) and all(v in self.axes[n] for n, v in found.items())
        return tuple(found.values()) if inside else None

    def including(self, config: Config) -> Space:
        """The space with the values of a config outside it; itself if that has other parameters."""
        found = self._all_of(config)
        return replace(self, axes={n: sorted({*self.axes[n], v}) for n, v in found.items()} or self.axes)

    def narrowed(self, chosen: Mapping[str, Iterable[int]]) -> Space:
        """With other values for some axes. Raises ValueError for an axis that is not there, or no value."""
        if strange := [name for name in chosen if name not in self.axes]:
            raise ValueError(f"no axis {strange[0]!r}; there are: {', '.join(self.axes)}")
        return replace(self, axes={n: tuple(chosen.get(n, values)) for n, values in self.axes.items()})


# Kinds as in PTX: integers by width, regardless of sign; p64 is a pointer, bytes[128] a tensor map by value.
_KINDS = {
    "i32": "int, unsigned, unsigned int, int32_t, uint32_t, uint",
    "i64": "long, long long, long long int, unsigned long, unsigned long long, int64_t, uint64_t, size_t, "
    "std::size_t, ptrdiff_t",
    "f32": "float",
    "f64": "double",
    "f16": "half, __half",
    "bf16": "__nv_bfloat16, nv_bfloat16",
    "i8": "char, signed char, unsigned char, int8_t, uint8_t, bool",
    "i16": "short, unsigned short, int16_t, uint16_t",
    "bytes[128]": "CUtensorMap",
}
_TYPES = {name: kind for kind, names in _KINDS.items() for name in names.split(", ")}
_FLOATS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
_SIZES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8}  # bytes of integers that a pointer may point to
_HELD = {"i8": 127, "i16": 32767, "i32": INT_MAX}
_QUALIFIERS = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__|struct)\b")
SIZES = {"m": "M", "n": "N", "k": "K", "batch": "batch", "batchcount": "batch", "batchsize": "batch"}
_DECLARED = re.compile(r"(?:(.*?[\s*&]))??([A-Za-z_]\w*)\s*(?:\[\s*\])?(?:\s*=\s*(.+))?")


@dataclass(frozen=True)
class Parameter:
    """One parameter: ``name`` as spelled in the kernel; ``means``: the value passed: a size (``M``, ``N``,
    ``K``, ``batch``), ``alpha`` or ``beta``, an operand's name, its ``ld`` or ``stride`` (``ldA``,
    ``strideA``), ``workspace``, or an expression of numbers, sizes, scalars, lds, strides and the bytes of an
    element, ``sizeofA`` (``K/32``, ``4*ldA``); ``kind``: its type; None for the dtype's scalar type;
    ``element``: the C++ type that a pointer points to, where it is stated; ``struct``: the number of the
    struct by value that it is a member of, from 1 on, or 0.
    """

    name: str
    means: str
    kind: str | None
    element: str = ""
    struct: int = 0

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """What its value depends on; none for a constant."""
        return expressions.parse(self.means).names

    def element_fault(self, storage: Storage) -> str:
        """Why what it points to is no element of the operand: another float, or an integer of another size.
        Empty for types that only the source knows, such as a template's, a vector or ``void``."""
        kind, name = _TYPES.get(self.element, ""), storage.dtype.name
        size = _SIZES.get(kind)
        if (kind in _FLOATS and _FLOATS[kind] != name) or (size and size != storage.dtype.itemsize):
            whole = f"if the kernel takes them apart itself, declare void *{self.name}={self.means}"
            return f"parameter {self.element} *{self.name}: {self.means} has elements of type {name}; {whole}"
        return ""


def usual_parameters(operation: Operation, workspace: bool = False) -> str:
    """The default parameters of a kernel; those of plain GEMM are
    ``M, N, K, alpha, A, lda, B, ldb, beta, C, ldc``."""

    def named(role: str) -> Iterator[str]:
        for operand in operation.operands:
            if operand.role == role and not operand.hidden:
                name = operand.name
                yield name
                matrix = role not in ("added", "output")
                if operand.like or matrix:
                    yield f"ld{name}"
                    if operation.batched and (operand.batched or matrix):
                        yield f"stride{name}"

    names = ["M", "N", "K", "alpha", *named("multiplied"), *named("added")]
    names += ["beta", *named("result"), *named("output")]
    return ", ".join(names + ["batch"] * operation.batched + ["workspace"] * workspace)


def parse_parameters(text: str, operation: Operation) -> tuple[Parameter, ...]:
    """Parses a declaration in C++ style, ``float *C, float *A, float *B, int wA=K, int wB=N``.

    Types may be omitted: sizes and leading dimensions are then ``int``, strides ``long long``, alpha and
    beta of the dtype's scalar type. A name that is not a role of the operation must be followed by ``=`` and
    its role, a number, or an expression of these as in C, ``int groups=(K+31)/32``, ``int lda4=4*lda``;
    ``void *scratch=0`` is a null pointer; ``{A, M, K, long long lda}`` is a struct by value. Raises
    ValueError, in one line, if it cannot be parsed, a role is unknown or occurs twice, or an operand is
    missing.
    """
    # What a parameter can mean, by its name in lower case without underscores.
    sizes = {_plain(name): name for name in operation.sizes} or SIZES
    known = {**sizes, "alpha": "alpha", "beta": "beta", "workspace": "workspace"}
    operands = [operand.name for operand in operation.operands if not operand.hidden]
    for name in operands:
        known |= {f"{what}{_plain(name)}": f"{what}{name}" for what in ("", "ld", "stride", "map", "sizeof")}
    found = []
    for struct, item in _items(text):
        match = _DECLARED.fullmatch(item)
        if not match:
            raise ValueError(f"parameter {item!r} cannot be parsed: write it as in C++, NAME or NAME=ROLE")
        written, name, role = match[1] or "", match[2], match[3] or match[2]
        means = _means(item, name, role, known)
        kind = _kind(item, written, means, operation)
        if struct and (kind is None or kind == "bytes[128]"):
            problem = "a tensor map is no member of a struct" if kind else f"state the type of {name}"
            raise ValueError(f"parameter {item!r}: {problem}")
        found.append(Parameter(name, means, kind, _element(written), struct))
    given = [parameter.means for parameter in found if parameter.roles]
    for role in given:
        once = role in known.values() and role not in sizes.values() and not role.startswith("sizeof")
        if once and given.count(role) > 1:
            raise ValueError(f"parameters ({text}): {role} occurs twice")
    for name in operands:
        if not {name, f"map{name}"}.intersection(given):
            raise ValueError(f"parameters ({text}): {name} of {operation.name} is missing")
    return tuple(found)


def _items(text: str) -> Iterator[tuple[int, str]]:
    """The number of the struct, or 0, and the text of each parameter and member."""
    for number, item in enumerate(re.split(r",(?![^{}]*\})", text), 1):
        struct = re.fullmatch(r"\s*\{([^{}]*)\}\s*", item)
        for member in struct[1].split(",") if struct else [item]:
            yield number * bool(struct), member.strip()


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def _means(item: str, name: str, role: str, known: Mapping[str, str]) -> str:
    """The role or expression with the roles as the suite spells them. Raises ValueError, in one line."""
    try:
        names = expressions.parse(role).names
    except ValueError as error:
        raise ValueError(f"parameter {item!r}: {error}") from None
    for used in names:
        if _plain(used) not in known:
            stated = f"state the meaning of {name} as {name}=ROLE" if used == name else f"{used} is no ROLE"
            roles = ", ".join(dict.fromkeys(known.values()))
            raise ValueError(
                f"parameter {item!r}: {stated}, where ROLE is one of {roles}, or a number, or an expression "
                f"of these such as {name}=(K+31)/32"
            )
    return re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda found: known[_plain(found[0])], role)


def _element(written: str) -> str:
    """What a pointer points to; empty for no pointer, and for one to pointers."""
    name, star, more = _QUALIFIERS.sub(" ", written).partition("*")
    return " ".join(name.split()) if star and "*" not in more else ""


def _kind(item: str, written: str, means: str, operation: Operation) -> str | None:
    buffers = ("workspace", *(operand.name for operand in operation.operands))
    pointer = means in buffers
    for used in expressions.parse(means).names:
        if used != means and (used in buffers or used.startswith("map")):
            raise ValueError(f"parameter {item!r}: {used} is passed by itself, not in an expression")
    starred = "*" in written or "&" in written or item.endswith("]")
    name = " ".join(_QUALIFIERS.sub(" ", written).split())
    if starred and means == "0":
        return "p64"
    if starred and not pointer:
        raise ValueError(f"parameter {item!r}: a pointer cannot hold {means}")
    if pointer and name and not starred:
        raise ValueError(f"parameter {item!r}: {means} is passed as a pointer")
    if pointer or means.startswith("map"):
        return "p64" if pointer else "bytes[128]"
    if not name:
        return None if means in ("alpha", "beta") else "i64" if means.startswith("stride") else "i32"
    if name not in _TYPES:
        raise ValueError(f"parameter {item!r}: unknown type {name!r}; known: {', '.join(_TYPES)}")
    parsed = expressions.parse(means)
    if not parsed.names and _TYPES[name][0] == "i" and not float(parsed.value({})).is_integer():
        raise ValueError(f"parameter {item!r}: {means} is no integer; write float or double")
    return _TYPES[name]


def values_of(operation: Operation, problem: Problem, dtype: DType) -> dict[str, float]:
    """What parameters and expressions of them mean for a problem, by role."""
    values = {name: getattr(problem, name.lower()) for name in (*SIZES.values(), "alpha", "beta")}
    values |= operation.named(problem)
    for name, storage in operation.storages(problem, dtype).items():
        values |= {f"ld{name}": storage.ld, f"stride{name}": storage.stride}
        values[f"sizeof{name}"] = storage.dtype.itemsize
    return values


def expression_refusals(
    parameters: tuple[Parameter, ...], operation: Operation, problem: Problem, dtype: DType
) -> Iterator[str]:
    """Expressions without a value for a problem, or with one that a 32-bit integer does not hold."""
    computed = [one for one in parameters if one.roles and one.means not in one.roles]
    computed += [one for one in parameters if one.means in one.roles and one.kind in ("i8", "i16")]
    values = values_of(operation, problem, dtype) if computed else {}
    for one in computed:
        try:
            value = expressions.parse(one.means).value(values)
        except ValueError as error:
            yield f"parameter {one.name}: {error}"
            continue
        if one.kind in _HELD and abs(value) > _HELD[one.kind]:
            bits = one.kind[1:]
            yield f"parameter {one.name}={one.means} is {value:g}, more than {bits} bits hold"


def narrow(parameters: tuple[Parameter, ...], operation: Operation, problem: Problem) -> Problem:
    """The problem restricted to what these parameters can express: in the operation's layout, without a batch
    if it is not batched, densely packed without leading dimensions or strides, alpha 1 and beta 0 if they are
    not parameters, a matrix with a tensor map at a boundary."""
    means = {role for parameter in parameters for role in parameter.roles}
    matrices = {operand.name: operand.like for operand in operation.operands if operand.like}
    problem, fixed = problem.stored(operation.layout), dict[str, float]()
    unnamed = ("m", "n", "k")[len(operation.sizes) :] if operation.sizes else ()
    if any(getattr(problem, size) != 1 for size in unnamed):
        ones: dict[str, Any] = dict.fromkeys(unnamed, 1)
        problem = replace(problem, **ones, lda=0, ldb=0, ldc=0)
    if not operation.batched:
        fixed["batch"] = 1
    if not operation.batched or not all(f"stride{name}" in means for name in matrices):
        fixed["gap"] = 0
    fixed |= {name: value for name, value in (("alpha", 1.0), ("beta", 0.0)) if name not in means}
    for name, like in matrices.items():  # A tensor map contains the leading dimension, too.
        if not {f"ld{name}", f"map{name}"} & means:
            fixed[f"ld{like.lower()}"] = problem.rows[f"ld{like.lower()}"]
    mapped = {like for name, like in matrices.items() if f"map{name}" in means}
    a, b, c = (0 if matrix in mapped else problem.start(matrix) for matrix in "ABC")
    if problem.starts == (a, b, c) and all(getattr(problem, name) == value for name, value in fixed.items()):
        return problem  # as most are; a new one takes long
    return replace(problem, **fixed, starts=(a, b, c))  # type: ignore[arg-type]


def signature_refusals(
    parameters: tuple[Parameter, ...], operation: Operation, problem: Problem
) -> Iterator[str]:
    """What of a problem these parameters or the operation cannot express, one line per reason."""
    for name, size in operation.named(problem).items():
        if size == 0:
            yield f"{name} is 0, and {operation.name} takes 1 or more"
    narrowed = narrow(parameters, operation, problem)
    if narrowed is problem:
        return
    if (narrowed.m, narrowed.n, narrowed.k) != (problem.m, problem.n, problem.k):
        yield f"{operation.name} has no sizes but {', '.join(operation.sizes)}; the others are 1"
        return
    if narrowed.layout != problem.layout:
        yield f"{operation.name} has layout {operation.layout}, not {problem.layout}"
        problem = problem.stored(operation.layout)
    if narrowed.batch != problem.batch:
        yield f"{operation.name} is not batched"
    for name in ("alpha", "beta"):
        if getattr(narrowed, name) != getattr(problem, name):
            yield f"it has no parameter {name}, so {name} is {getattr(narrowed, name):g}"
    if narrowed.beyond != problem.beyond:
        yield "it has no parameter for a leading dimension, so matrices are densely packed"
    elif narrowed.gap != problem.gap and narrowed.batch == problem.batch:
        yield "it has no parameter for a stride, so batches are densely packed"
    if narrowed.starts != problem.starts:
        yield "it has a tensor map, so the matrix starts at a 16-byte boundary"
