"""A launch as data: what a device needs of a case besides its binary, and what no launch may change; a binary
that is launched without its declaration, its source or its compiler, and its launch as JSON. Pure.

A launch is written with what is usual left out, so that the document of a launch, and with it its
`launch_id`, stays the same where a new kind of launch gets a field of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from gemm_regression.compiler.units import ModuleSource
from gemm_regression.model import (
    DTYPES,
    Argument,
    Array,
    Case,
    DType,
    Finding,
    Launch,
    Problem,
    Storage,
    TensorMap,
)


def odd(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: DType, most: int = 1 << 12) -> Array:
    """Odd integers of 13 bits, fewer where the dtype holds fewer, below 2 · ``most`` in any case."""
    half = min(1 << (min(13, dtype.integer_bits) - 1), most)
    return (2 * rng.integers(-half, half, shape) + 1).astype(np.float32)


def sparse(rng: np.random.Generator, shape: int | tuple[int, ...], density: float) -> Array:
    """Of {0, ±1}, so sparse that sums of odd integers times these stay below 2²⁴."""
    shares = [density / 2, 1 - density, density / 2]
    return rng.choice([-1.0, 0.0, 1.0], shape, p=shares).astype(np.float32)


WORKSPACE = "workspace"
ANYTHING = 0xFFFFFFFF  # the initial contents: a NaN as a float, far too large as a counter


def sizes(case: Case) -> tuple[int, int]:
    """Size of the workspace in bytes, a multiple of 4, and how many of its first bytes are zero; 0, 0 without
    one."""
    workspace = case.kernel.workspace
    if workspace is None:
        return 0, 0
    given = case.config, case.dtype, case.problem
    size, zeroed = -(-workspace.bytes(*given) // 4) * 4, -(-workspace.zeroed(*given) // 4) * 4
    return max(size, zeroed), zeroed


def new_workspace(case: Case) -> Array:
    """The workspace before a launch, (1, words) of 32 bits."""
    size, zeroed = sizes(case)
    words = np.full((1, max(4, size) // 4), ANYTHING, np.uint32)
    words[0, : zeroed // 4] = 0
    return words


def workspace_violations(zeroed: int, after: Array) -> list[Finding]:
    """What a launch did not leave as the next one is to find it, of a workspace (1, words) of 32 bits, the
    first ``zeroed`` bytes of which must be zero.
    """
    left = np.flatnonzero(after[0, : zeroed // 4])
    if not left.size:
        return []
    text = f"the workspace is not zero again at byte {4 * int(left[0])}; {left.size} words in total"
    return [Finding("workspace", text)]


@dataclass(frozen=True)
class Work:
    """A launch for a problem: what the worker needs of a case besides its build.

    ``storages`` of the operands by name, ``roles`` of each as `Operand` has them; ``workspace`` bytes of it
    and how many of them are zero; ``library``, ``linear`` and ``depth`` as of the operation; ``product``
    whether it is plain A·B, so that C·x = A·(B·x); ``slope`` of its activation; ``finite_c`` as of what the
    kernel takes; ``draws`` as of the operation, of the operands that say how they are drawn.
    """

    problem: Problem
    dtype: DType
    operation: str
    launch: Launch
    arguments: tuple[Argument, ...]
    storages: Mapping[str, Storage]
    roles: Mapping[str, str]
    workspace: tuple[int, int]
    library: str | None
    product: bool
    exact: bool
    depth: int
    slope: float
    finite_c: bool = False
    draws: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Case) -> Work:
        operation, p = case.kernel.operation, case.problem
        activation = operation.activation
        return cls(
            problem=p,
            dtype=case.dtype,
            operation=operation.name,
            launch=case.launch,
            arguments=() if case.kernel.library else case.arguments,
            storages=case.storages,
            roles={each.name: each.role for each in operation.operands if not each.hidden},
            workspace=sizes(case),
            library=operation.library,
            product=operation.plain_product,
            # With an epilogue cublasLt rounds more than once into FP16 and BF16.
            exact=(activation is None or activation.exact)
            and operation.error is None
            and not (operation.library and case.dtype.output.itemsize < 4),
            depth=operation.depth_of(p),
            slope=activation.slope if activation else 1.0,
            finite_c=case.kernel.constraints.finite_c,
            draws=operation.draws(p, case.dtype),
        )

    @property
    def result(self) -> str:
        """The operand that beta scales."""
        return next(name for name, role in self.roles.items() if role == "result")

    @property
    def outputs(self) -> list[str]:
        """The operands that a launch writes, the result first."""
        return [self.result, *(name for name, role in self.roles.items() if role == "output")]

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes from a 256-byte boundary to the start of each operand."""
        return {name: storage.start * storage.dtype.itemsize for name, storage in self.storages.items()}

    def __hash__(self) -> int:
        return hash((self.problem, self.dtype.name, self.operation, self.launch, self.arguments))


GUARD = 16 * 1024  # bytes on either side of a buffer, more than the largest row of a block tile
ALIGN = 256  # what cuMemAlloc promises


def aligned(size: int) -> int:
    return -(-size // ALIGN) * ALIGN


EXACT = "GEMM_EXACT_BUFFERS"  # set in the environment under a sanitizer, which knows no guard bands


def violations(
    before: Array,
    after: Array,
    buffers: Mapping[str, Array],
    starts: Mapping[str, int],
    written: tuple[str, ...],
) -> tuple[Finding, ...]:
    """One for each buffer with changed bytes that is not one of those ``written``, and one for the guard
    bands together. ``before`` and ``after`` are images, bytes, in which the buffers start at ``starts``.
    """
    lines: list[str] = []
    ends = {name: starts[name] + buffer.nbytes for name, buffer in buffers.items()}
    allowed = sorted((starts[name], ends[name]) for name in buffers if name in written)
    kept = zip(
        (0, *(end for _, end in allowed)), (*(start for start, _ in allowed), before.size), strict=True
    )
    if all(np.array_equal(before[start:end], after[start:end]) for start, end in kept):
        return ()
    changed = np.flatnonzero(before != after)
    for name, buffer in buffers.items():
        inside = (changed >= starts[name]) & (changed < ends[name])
        if inside.any() and name not in written:
            first = int(changed[inside][0] - starts[name]) // buffer.itemsize
            row, column = divmod(first, max(1, buffer.shape[1]))
            lines.append(f"input {name} was changed at ({row}, {column}), {int(inside.sum())} bytes in all")
        changed = changed[~inside]
    if changed.size:
        first = int(changed[0])
        near = [(first - end, f"past the end of {name}") for name, end in ends.items() if first >= end]
        near += [
            (start - first, f"before the start of {name}") for name, start in starts.items() if first < start
        ]
        distance, where = min(near)
        lines.append(f"a guard band was written, first {distance} bytes {where}, {changed.size} bytes in all")
    return tuple(Finding("guard", line) for line in lines)


Document = dict[str, Any]


@dataclass(frozen=True)
class StoredBinary:
    """What is kept of a case: ``name`` its variant, for messages; the ``cubin``, the ``symbol`` of the entry
    in it, and the launch."""

    name: str
    cubin: bytes
    symbol: str
    work: Work

    @cached_property
    def sha256(self) -> str:
        """Of the cubin."""
        return hashlib.sha256(self.cubin).hexdigest()

    @cached_property
    def launch_id(self) -> str:
        """Of everything that it is launched with."""
        return launch_id(launch_document(self.symbol, self.work))

    @property
    def key(self) -> tuple[str, str]:
        """The cubin, and how it is launched."""
        return self.sha256, self.launch_id


@dataclass(frozen=True)
class CompiledBinary(StoredBinary):
    """One that a worker has compiled of a ``source``, which SourceModule loads."""

    source: ModuleSource


def launch_id(document: Mapping[str, Any]) -> str:
    """The first 16 digits of the SHA-256 of the document in canonical JSON, without an ``id`` in it."""
    content = {name: value for name, value in document.items() if name != "id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def launch_document(symbol: str, work: Work) -> Document:
    """Symbol and launch as JSON-able data; `read_launch` reads it."""
    more = {n: v for n, usual in _usual(work.problem).items() if (v := getattr(work, n)) != usual}
    return {
        "symbol": symbol,
        "problem": _problem(work.problem),
        "dtype": _dtype(work.dtype),
        "operation": work.operation,
        "launch": str(work.launch),
        "arguments": [_argument(argument) for argument in work.arguments],
        "operands": [_operand(name, work) for name in work.storages],
        **more,
    }


def read_launch(document: Mapping[str, Any]) -> tuple[str, Work]:
    """The symbol and the launch of a document. Raises ValueError, one line, for what `launch_document` does
    not write, and for an ``id`` that is not the document's."""
    content = {name: value for name, value in document.items() if name != "id"}
    if document.get("id", launch_id(content)) != launch_id(content):
        raise ValueError(f"launch {document['id']!r}: its content is that of {launch_id(content)}")
    try:
        symbol, work = _read(content)
        if launch_id(launch_document(symbol, work)) != launch_id(content):
            raise ValueError("it holds what a launch does not have")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        text = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise ValueError(f"launch {launch_id(content)} cannot be read ({text})") from None
    return symbol, work


def _read(document: Document) -> tuple[str, Work]:
    problem, dtype = _read_problem(document["problem"]), _read_dtype(document["dtype"])
    more: Document = {name: document.get(name, value) for name, value in _usual(problem).items()}
    work = Work(
        problem=problem,
        dtype=dtype,
        operation=document["operation"],
        launch=Launch.parse(document["launch"]),
        arguments=tuple(_read_argument(argument) for argument in document["arguments"]),
        storages={one["name"]: _read_storage(one, dtype) for one in document["operands"]},
        roles={one["name"]: one["role"] for one in document["operands"]},
        **{**more, "workspace": tuple(more["workspace"])},
    )
    return document["symbol"], work


def _usual(problem: Problem) -> Document:
    """What a launch of this problem has where the document is silent."""
    return {
        "workspace": (0, 0),
        "library": "",
        "product": True,
        "exact": True,
        "depth": problem.k,
        "slope": 1.0,
        "finite_c": False,
        "draws": {},
    }


def _unusual(value: Any, usual: Any) -> Document:
    """The fields of a dataclass that another one of it has otherwise."""
    return {f.name: v for f in fields(value) if (v := getattr(value, f.name)) != getattr(usual, f.name)}


def _problem(problem: Problem) -> Document:
    sizes: Document = {"m": problem.m, "n": problem.n, "k": problem.k}
    layout = {"layout": problem.layout} if problem.layout != "NN" else {}
    return {**sizes, **layout, **_unusual(problem, Problem(**sizes, layout=problem.layout))}


def _read_problem(given: Document) -> Problem:
    return Problem(**{**given, "starts": tuple(given.get("starts", (0, 0, 0)))})


def _dtype(dtype: DType) -> str | Document:
    """Its name, if it is the one that is known by it."""
    if DTYPES.get(dtype.name) == dtype:
        return dtype.name
    return {
        name: value.name if isinstance(value, np.dtype) else value for name, value in asdict(dtype).items()
    }


def _read_dtype(given: str | Document) -> DType:
    if isinstance(given, str):
        return DTYPES[given]
    arrays = {name: _numpy(given[name]) for name in ("storage", "output", "scalar")}
    return DType(**{**given, **arrays, "min_capability": tuple(given["min_capability"])})


def _numpy(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _argument(argument: Argument) -> list[Any]:
    """Name and kind, and then a number, the name of a buffer, or that of one and its tensor map; or the
    members of a struct."""
    if argument.members:
        return [argument.name, argument.kind, [_argument(one) for one in argument.members]]
    if argument.map:
        held = {"box": argument.map.box, **_unusual(argument.map, TensorMap(argument.map.box))}
        return [argument.name, argument.kind, argument.buffer, held]
    return [argument.name, argument.kind, argument.buffer or argument.value]


def _read_argument(given: list[Any]) -> Argument:
    name, kind, value, *maps = given
    if isinstance(value, list):
        return Argument(name, kind, members=tuple(map(_read_argument, value)))
    if not isinstance(value, str):
        return Argument(name, kind, value)
    (found,) = maps or [None]
    return Argument(
        name, kind, buffer=value, map=found and TensorMap(**{**found, "box": tuple(found["box"])})
    )


def _operand(name: str, work: Work) -> Document:
    storage, role = work.storages[name], work.roles[name]
    usual = Storage(_held(work.dtype, role), 1, storage.rows, storage.columns, max(1, storage.columns))
    sizes = {"rows": storage.rows, "columns": storage.columns}
    more = _unusual(storage, usual)
    if "dtype" in more:
        more["dtype"] = storage.dtype.name
    return {"name": name, "role": role, **sizes, **more}


def _read_storage(given: Document, dtype: DType) -> Storage:
    of = {name: value for name, value in given.items() if name not in ("name", "role")}
    held = _numpy(of["dtype"]) if "dtype" in of else _held(dtype, given["role"])
    return Storage(**{"count": 1, "ld": max(1, of["columns"]), **of, "dtype": held})


def _held(dtype: DType, role: str) -> np.dtype[Any]:
    return dtype.storage if role == "multiplied" else dtype.output
