"""A binary that is launched without its declaration, its source or its compiler, and its launch as JSON.

Pure. A launch is written with what is usual left out, so that the document of a launch, and with it its
`launch_id`, stays the same where a new kind of launch gets a field of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np

from gemm_regression.devices.work import Work
from gemm_regression.model import DTYPES, Argument, DType, Launch, Problem, Storage, TensorMap

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


def launch_id(document: Mapping[str, Any]) -> str:
    """The first 16 digits of the SHA-256 of the document in canonical JSON, without an ``id`` in it."""
    content = {name: value for name, value in document.items() if name != "id"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def launch_document(symbol: str, work: Work) -> Document:
    """Symbol and launch as JSON-able data; `read_launch` reads it."""
    usual = _usual(work.problem, work.operation)
    more = {name: getattr(work, name) for name in usual if getattr(work, name) != usual[name]}
    return {
        "symbol": symbol,
        "problem": _problem(work.problem),
        "dtype": _dtype(work.dtype),
        "operation": work.operation,
        "launch": str(work.launch),
        "arguments": [_argument(argument) for argument in work.arguments],
        "operands": [_operand(name, work) for name in work.storages],
        **{name: list(value) if name == "workspace" else value for name, value in more.items()},
    }


def read_launch(document: Mapping[str, Any]) -> tuple[str, Work]:
    """The symbol and the launch of a document. Raises ValueError, one line, for what `launch_document` does
    not write, and for an ``id`` that is not the document's."""
    content = {name: value for name, value in document.items() if name != "id"}
    if document.get("id", launch_id(content)) != launch_id(content):
        raise ValueError(f"launch {document['id']!r}: its content is that of {launch_id(content)}")
    try:
        symbol, work = _read(content)
        if launch_document(symbol, work) != content:
            raise ValueError("it holds what a launch does not have")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        text = f"{type(error).__name__}: {error}" if not isinstance(error, ValueError) else str(error)
        raise ValueError(f"launch {launch_id(content)} cannot be read ({text})") from None
    return symbol, work


def _read(document: Document) -> tuple[str, Work]:
    problem, dtype = _read_problem(document["problem"]), _read_dtype(document["dtype"])
    operands = {operand["name"]: operand for operand in document["operands"]}
    more = {
        **(usual := _usual(problem, document["operation"])),
        **{name: value for name, value in document.items() if name in usual},
    }
    work = Work(
        problem=problem,
        dtype=dtype,
        operation=document["operation"],
        launch=Launch.parse(document["launch"]),
        arguments=tuple(_read_argument(argument) for argument in document["arguments"]),
        storages={name: _read_storage(operand, dtype) for name, operand in operands.items()},
        roles={name: operand["role"] for name, operand in operands.items()},
        **{**more, "workspace": tuple(more["workspace"])},
    )
    return document["symbol"], work


def _usual(problem: Problem, operation: str) -> Document:
    """What a launch of this problem has where the document is silent."""
    return {
        "workspace": (0, 0),
        "library": "",
        "product": True,
        "exact": True,
        "depth": problem.k,
        "slope": 1.0,
        "finite_c": False,
    }


def _unusual(value: Any, usual: Any) -> Document:
    """The fields of a dataclass that another one of it has otherwise."""
    return {f.name: v for f in fields(value) if (v := getattr(value, f.name)) != getattr(usual, f.name)}


def _problem(problem: Problem) -> Document:
    sizes: Document = {"m": problem.m, "n": problem.n, "k": problem.k}
    more = _unusual(problem, Problem(**sizes, layout=problem.layout))
    layout = {"layout": problem.layout} if problem.layout != "NN" else {}
    if "starts" in more:
        more["starts"] = list(more["starts"])
    return {**sizes, **layout, **more}


def _read_problem(given: Document) -> Problem:
    starts = tuple(given.get("starts", (0, 0, 0)))
    return Problem(**{**given, "starts": starts})


def _dtype(dtype: DType) -> str | Document:
    """Its name, if it is the one that is known by it."""
    if DTYPES.get(dtype.name) == dtype:
        return dtype.name
    arrays = {name: getattr(dtype, name).name for name in ("storage", "output", "scalar")}
    return {**asdict(dtype), **arrays, "min_capability": list(dtype.min_capability)}


def _read_dtype(given: str | Document) -> DType:
    if isinstance(given, str):
        return DTYPES[given]
    arrays = {name: _numpy(given[name]) for name in ("storage", "output", "scalar")}
    return DType(**{**given, **arrays, "min_capability": tuple(given["min_capability"])})


def _numpy(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name, name))


def _argument(argument: Argument) -> list[Any]:
    """Name and kind, and then a number, the name of a buffer, or that of one and its tensor map."""
    if argument.map:
        held = _unusual(argument.map, TensorMap(argument.map.box))
        return [argument.name, argument.kind, argument.buffer, {"box": list(argument.map.box), **held}]
    return [argument.name, argument.kind, argument.buffer or argument.value]


def _read_argument(given: list[Any]) -> Argument:
    name, kind, value, *maps = given
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
