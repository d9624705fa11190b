"""What is to be computed, as data: operands, the float64 reference, an activation.

Everything that depends on the operation is derived from this: a kernel's default parameters, the arguments
and buffers of a launch on every device, the error bound, the cuBLAS call it is compared with, FLOP and bytes.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from gemm_regression.model import expressions
from gemm_regression.model.dtypes import E4M3, DType
from gemm_regression.model.elements import Element, find_element
from gemm_regression.model.problem import SIZE_NAMES, Array, Operands, Problem, Storage, layout_fault, size_of


@dataclass(frozen=True)
class Activation:
    """An activation function. ``apply``: the function in float64. ``slope``: the largest absolute value of
    its derivative. ``rounding``: the error of its evaluation, in FP32 roundings relative to |x|. ``exact``:
    it maps integers to integers without rounding. ``keeps_nan``: it maps NaN to NaN, whatever instruction
    computes it. ``library``: the name of cublasLt's epilogue with a bias; None if there is none.
    """

    name: str
    apply: Callable[[Array], Array]
    slope: float
    rounding: float
    exact: bool = False
    keeps_nan: bool = True
    library: str | None = None


def _gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _relu(x: Array) -> Array:
    return np.maximum(x, 0.0)


# CUDA's fmaxf gives 0 of (NaN, 0).
RELU = Activation("relu", _relu, 1.0, 0.0, exact=True, keeps_nan=False, library="RELU_BIAS")
# D. Hendrycks and K. Gimpel, "Gaussian error linear units (GELUs)", arXiv:1606.08415, 2016: the approximation
# of x·Φ(x) by tanh, which is cublasLt's. It differs by up to 4.8e-4. 1.13 is the largest slope of either.
GELU = Activation("gelu", _gelu, 1.13, 8.0, library="GELU_BIAS")

_MOST_MADE = 1 << 18  # bytes of an operand that are stored with a launch
# How `Operation.draws` begins for words that are the same in each launch, and for those that cannot be drawn.
MADE, UNDRAWN = "made ", "undrawn "
_PARTIAL = {"float32": 2**24, "float16": 2**11, "bfloat16": 2**8}  # the integers that each holds
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


@dataclass(frozen=True)
class Operand:
    """A matrix or vector in global memory.

    ``rows`` and ``columns``: sizes of the problem (m, n, k, batch, or as the operation names them) or
    expressions of them (``k/128``), empty for 1. ``role``: ``multiplied`` operands have the dtype's storage
    type, ``added`` ones and the ``result`` its output type; the result is read only if beta is not 0. An
    ``output`` is one more result: what ``product`` and ``error`` say, as those of an `Operation`, neither
    scaled nor added to anything; of its dtype, or the output type.
    ``like``: the matrix of the problem, A, B or C, whose layout and leading dimension it shares, and by how
    much it starts past a 256-byte boundary; empty for a densely packed row-major one. ``batched``: whether
    there is one per matrix of a batch.

    ``dtype``: an element type of its own, such as ``"int8"`` or a `packed` one; rows and columns are then
    those of the numbers, not of words. ``values``: how numbers are drawn: ``normal``, standard normal, the
    default of floats; ``scale``, above 0 and other ones for neighbours; or the smallest and the largest
    integer, numbers or expressions, ``(0, "k-1")``, by default all that the type holds. ``made``: the words
    of an operand whose memory holds several others, such as blocks of a scale and its integers: a function of
    the numbers of all others and of the operation's sizes, which returns (batch, rows, columns); those others
    are ``hidden``, in no memory of their own, and ``values`` is what words are drawn from where only their
    speed counts: without, the words are made there, too, such as offsets, of hidden operands.

    Raises ValueError for another dtype or way, for integers of 32 bits and more without a range, for a result
    with a dtype of its own (a DType has it), for an output without a product, and for packed numbers in the
    layout of a matrix."""

    name: str
    rows: str
    columns: str
    role: Literal["multiplied", "added", "result", "output"]
    like: str = ""
    batched: bool = True
    dtype: str | Element = ""
    values: Literal["", "normal", "scale"] | tuple[int | str, int | str] = ""
    made: Callable[[Operands], Array] | None = None
    hidden: bool = False
    product: Callable[[Operands], Array] | None = None
    error: Callable[[Operands, Array], Array] | None = None

    def __post_init__(self) -> None:
        fault, element = "", self.element
        ranged = isinstance(self.values, tuple) and len(self.values) == 2
        if not (ranged or self.values in ("", "normal", "scale")):
            fault = f"values {self.values!r}: must be normal, scale or a range such as (0, 15)"
        elif element and self.role == "result":
            fault = "the result has the output type of the dtype: declare dtypes=(with_output(…),)"
        elif (self.role == "output") != bool(self.product) or (self.error and not self.product):
            fault = "an output, and nothing else, has a product of its own: declare role and product="
        elif self.role == "output" and (self.values or self.made or self.hidden):
            fault = "an output is written: leave values, made and hidden out"
        elif (self.made or self.hidden) and not (element or (self.hidden and self.values)):
            fault = "made and hidden operands need an element type: declare dtype="
        elif self.hidden and self.role != "multiplied":
            fault = "only multiplied operands can be hidden"
        elif element and element.bits and self.like:
            fault = f"packed numbers have no leading dimension: leave like={self.like!r} out"
        elif (
            element
            and element.integer
            and not (ranged or self.made or self.role == "output")
            and (element.storage.itemsize > 2 and not element.bits)
        ):
            fault = f'elements of {element.name} need a range: write values=(0, "k-1")'
        elif element and element.integer and self.values in ("normal", "scale"):
            fault = f"values {self.values} are floats, and {element.name} holds integers"
        if fault:
            raise ValueError(f"operand {self.name}: {fault}")

    @property
    def element(self) -> Element | None:
        """Its element type; None for that of its role."""
        return find_element(self.dtype) if self.dtype else None

    @property
    def drawn(self) -> str:
        """``integers``, ``scale`` or ``normal``."""
        integer = isinstance(self.values, tuple) or (self.element is not None and self.element.integer)
        return "integers" if integer else str(self.values or "normal")

    def range(self, problem: Problem) -> tuple[int, int]:
        """The smallest and the largest integer that are drawn."""
        if isinstance(self.values, tuple):
            low, high = (size_of(str(limit), problem) for limit in self.values)
            return low, max(low, high)
        assert self.element
        return self.element.low, self.element.high

    def sizes(self, problem: Problem) -> tuple[int, int]:
        """Rows and columns of its numbers."""
        return size_of(self.rows or "1", problem), size_of(self.columns or "1", problem)

    def shape(self, problem: Problem) -> tuple[int, int, int]:
        """Of its numbers: matrices, rows, columns."""
        return problem.batch if self.batched else 1, *self.sizes(problem)

    def storage(self, problem: Problem, dtype: DType) -> Storage:
        """Its memory layout."""
        rows, columns = self.sizes(problem)
        kind = dtype.storage if self.role == "multiplied" else dtype.output
        if self.element:
            kind, (rows, columns) = self.element.storage, self.element.words(rows, columns)
        count = problem.batch if self.batched else 1
        if not self.like:
            return Storage(kind, count, rows, columns, max(1, columns))
        if turned := problem.transposed(self.like):
            rows, columns = columns, rows
        ld, gap = getattr(problem, f"ld{self.like.lower()}"), problem.gap if self.batched else 0
        return Storage(kind, count, rows, columns, ld, gap, turned, problem.start(self.like))


@dataclass(frozen=True)
class Operation:
    """result = activation(alpha · product + beta · result + added operands).

    ``product`` computes the product (batch, m, n) of the multiplied operands, (batch, rows, columns) in
    float64 each, packed numbers unpacked, nothing scaled; it may be any function. For their absolute values
    it must return the sum of the absolute values of all terms, where differences are sums (`Magnitude`); or
    ``error`` tells the bound on the absolute error, of the operands and the exact result. ``depth`` is the
    number of products per element, a size of the problem or an expression; where a kernel ``promotes``, of
    those that the tensor cores add before the sum goes on in FP32. ``roundings``: how often a kernel
    may round a term to the storage type of the dtype, such as a dequantised weight, or a sum that it hands
    on. ``partial``: the type of sums that blocks hand on to one another, such as ``"float16"``; by default
    that of the sums. ``layout`` is as in ``Problem.layout``; ``batched``: whether there may be several
    matrices. ``library`` names the epilogue of the cuBLAS call that computes the same, empty for a plain
    product; None if there is no such call.

    ``sizes``: the operation's own names of m, n, k and batch, in this order; those without a name are 1.
    ``problems``, ``timed``: what it is verified and timed on, sizes in the same order, instead of the suite's
    problems of a GEMM. ``flops``: operations of a launch, an expression; 2·m·n·depth·batch without. ``unit``:
    what its speed is told in: of GB/s, the bytes of all operands, each read or written once. ``looks_at``: of
    one of its `views`, the output that stands for the result.
    Raises ValueError for what is no layout, size or expression."""

    name: str
    operands: tuple[Operand, ...]
    product: Callable[[Operands], Array]
    depth: str = "k"
    layout: str = "NN"
    batched: bool = False
    activation: Activation | None = None
    library: str | None = None
    error: Callable[[Operands, Array], Array] | None = None
    roundings: int = 0
    partial: str = ""
    promotes: bool = False
    sizes: tuple[str, ...] = ()
    problems: tuple[tuple[int, ...], ...] = ()
    timed: tuple[tuple[int, ...], ...] = ()
    flops: str = ""
    unit: Literal["GFLOPS", "GB/s"] = "GFLOPS"
    keeps_nan: bool = True
    looks_at: str = ""

    def __post_init__(self) -> None:
        if fault := layout_fault(self.layout):
            raise ValueError(f"{self.name}: {fault}")
        if len(self.sizes) > len(SIZE_NAMES):
            raise ValueError(f"{self.name}: sizes {self.sizes}: at most {len(SIZE_NAMES)}")
        if self.unit not in ("GFLOPS", "GB/s"):
            raise ValueError(f"{self.name}: unit {self.unit!r}: must be GFLOPS or GB/s")
        if (self.own or self.outputs[1:]) and self.library is not None:
            what = "operands of other types, or several outputs"
            raise ValueError(f"{self.name}: no library has {what}: declare library=None")
        if self.partial not in ("", *_PARTIAL):
            raise ValueError(f"{self.name}: partial {self.partial!r}: must be one of {', '.join(_PARTIAL)}")
        if both := {operand.name for operand in self.operands} & set(self.sizes):
            raise ValueError(f"{self.name}: {min(both)} is the name of a size and of an operand")
        try:
            changes: dict[str, Any] = {
                name: self._in_sizes(getattr(self, name)) for name in ("depth", "flops")
            }
            changes["operands"] = tuple(self._of_sizes(operand) for operand in self.operands)
            for asked in (*self.problems, *self.timed):
                self.problem(*asked)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None
        changes["batched"] = self.batched or len(self.sizes) == len(SIZE_NAMES)
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def _of_sizes(self, operand: Operand) -> Operand:
        shape: dict[str, Any] = {name: self._in_sizes(getattr(operand, name)) for name in ("rows", "columns")}
        if isinstance(operand.values, tuple):
            low, high = (self._in_sizes(str(limit)) for limit in operand.values)
            return replace(operand, **shape, values=(low, high))
        return replace(operand, **shape)

    def _in_sizes(self, text: str) -> str:
        """An expression of the operation's own sizes, in those of a problem. Raises ValueError."""
        known = {**{size: size for size in SIZE_NAMES}, **dict(zip(self.sizes, SIZE_NAMES, strict=False))}
        for name in expressions.parse(text).names if text else ():
            if name not in known:
                raise ValueError(f"{text!r}: {name} is no size; known: {', '.join(self.sizes or SIZE_NAMES)}")
        return _WORD.sub(lambda found: known[found[0]], text)

    def problem(self, *sizes: int) -> Problem:
        """The problem of these sizes, in the order of ``sizes``, or of m, n, k and batch. Raises ValueError
        for another number of sizes."""
        names = SIZE_NAMES[: len(self.sizes)] if self.sizes else SIZE_NAMES[: max(3, len(sizes))]
        if len(sizes) != len(names):
            what = ", ".join(self.sizes or names)
            raise ValueError(f"problem {sizes}: takes {len(names)} sizes: {what}")
        given: dict[str, Any] = dict(zip(names, sizes, strict=True))
        return Problem(**{"m": 1, "n": 1, "k": 1, **given}, layout=self.layout)

    @property
    def verified(self) -> tuple[Problem, ...]:
        """The problems of its own to verify."""
        return tuple(self.problem(*sizes) for sizes in self.problems)

    @property
    def clocked(self) -> tuple[Problem, ...]:
        """The problems of its own to time."""
        return tuple(self.problem(*sizes) for sizes in self.timed)

    def told(self, problem: Problem) -> str:
        """A problem in the operation's own sizes; empty if it has none."""
        return ", ".join(f"{name} {size}" for name, size in self.named(problem).items())

    def named(self, problem: Problem) -> dict[str, int]:
        """The operation's own sizes of a problem, by name."""
        return {name: getattr(problem, size) for name, size in zip(self.sizes, SIZE_NAMES, strict=False)}

    @property
    def own(self) -> bool:
        """Whether the probes of a product are not made for it: an operand has a type of its own, or the
        result an error that the operation declares."""
        others = (operand for operand in self.operands if operand.role != "output")
        return bool(self.error or self.looks_at) or any(operand.dtype or operand.values for operand in others)

    def exact_sums(self, dtype: DType) -> int:
        """Integers whose terms, in absolute value, add to less than this are added exactly."""
        most = 2**24 if self.promotes else self.added_as(dtype).exact_sums
        return min(most, _PARTIAL[self.partial]) if self.partial else most

    def added_as(self, dtype: DType) -> DType:
        """The dtype, with the roundoff of tensor cores for sums of products where operands are of FP8."""
        elements = [operand.element for operand in self.operands if operand.role == "multiplied"]
        fp8 = any(element is not None and element.storage.name.startswith("float8") for element in elements)
        roundoff = max(dtype.accumulate_roundoff, E4M3.accumulate_roundoff)
        return replace(dtype, accumulate_roundoff=roundoff) if fp8 else dtype

    def depth_of(self, problem: Problem) -> int:
        """Products per element."""
        return size_of(self.depth, problem)

    @property
    def result(self) -> Operand:
        """The output operand, or the one that a view looks at."""
        wanted = self.looks_at
        return next(o for o in self.operands if (o.name == wanted if wanted else o.role == "result"))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The operands that a launch writes."""
        return tuple(operand.name for operand in self.operands if operand.role in ("result", "output"))

    def reads(self, name: str, problem: Problem) -> bool:
        """Whether a launch may depend on what an operand holds before it."""
        return name not in self.outputs or (name == self.result.name and problem.beta != 0)

    @property
    def views(self) -> tuple[Operation, ...]:
        """The same launch, judged by one output after another: the operation itself, and of each further
        output the operation whose result that is."""
        plain: dict[str, Any] = {"activation": None, "library": None}
        more = ((o.name, o.product, o.error) for o in self.operands if o.product)
        made = (replace(self, looks_at=name, product=of, error=error, **plain) for name, of, error in more)
        return (self, *made)

    @property
    def bare(self) -> bool:
        """Whether the result is alpha · product + beta · result, without added operands or activation."""
        return self.activation is None and not any(operand.role == "added" for operand in self.operands)

    @property
    def plain_product(self) -> bool:
        """Whether it is bare, and the product is A·B of operands of the dtype."""
        return self.bare and self.product is _product and not self.own

    def draws(self, problem: Problem, dtype: DType) -> dict[str, str]:
        """How the words of operands that say so are drawn for timing: ``integers 0 15`` (of packed ones, all
        words), ``normal``, ``scale 0``, times that power of two: a result of 16 bits stays finite; ``made``
        with the words themselves, or ``undrawn`` and why it cannot be timed."""
        found, most = {}, math.sqrt(max(1, self.depth_of(problem)))
        for operand in (each for each in self.operands if not each.hidden):
            if operand.made and not operand.values:
                found[operand.name] = self._made(operand, problem)
            elif operand.name in self.outputs:
                continue
            elif operand.drawn == "integers":
                element, (low, high) = operand.element, operand.range(problem)
                limits = np.iinfo(element.storage if element else dtype.storage)
                words = (limits.min, limits.max) if element and element.bits else (low, high)
                found[operand.name] = f"integers {words[0]} {words[1]}"
                most *= min(255, max(1, abs(low), abs(high)))
            elif operand.dtype or operand.values:
                found[operand.name] = operand.drawn
        power = -math.ceil(math.log2(most / 2**12)) if dtype.output.itemsize == 2 and most > 2**12 else 0
        for name in [name for name, drawn in found.items() if drawn == "scale"]:
            found[name], power = f"scale {power}", 0  # the first of them alone
        return found

    def _made(self, operand: Operand, problem: Problem) -> str:
        """``made WORDS``, in base 64: those of a timed problem; or ``undrawn WHY``."""
        assert operand.made
        assert operand.element
        rng, values = np.random.default_rng(1), dict[str, Any](self.named(problem))
        size = math.prod(operand.shape(problem)) * operand.element.storage.itemsize
        if size > _MOST_MADE:
            return f"{UNDRAWN}{operand.name} is made, {size} bytes of it: declare values= to time this"
        for other in (each for each in self.operands if each.hidden):
            values[other.name] = _of_timed(rng, other, problem)
        try:
            words = np.asarray(operand.made(values)).astype(operand.element.storage)
        except Exception as error:  # a user's function may raise anything
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            remedy = "of hidden operands alone this can be timed: declare values="
            return f"{UNDRAWN}made of {operand.name} fails: {what}; {remedy}"
        return f"{MADE}{base64.b64encode(words.tobytes()).decode()}"

    def storages(self, problem: Problem, dtype: DType) -> Mapping[str, Storage]:
        """The memory layout of each operand, by name, in the order of the operands."""
        return _storages(self.operands, problem, dtype)

    def sums(self, problem: Problem, product: Array, values: Operands) -> Array:
        """alpha · product + beta · result + added operands, (batch, m, n) in float64.

        For absolute values of the product, the operands, alpha and beta, this is the S of the error bound.
        Of a further output, the product alone.
        """
        if self.looks_at:
            return product
        total = problem.alpha * product
        if problem.beta:
            total = total + problem.beta * values[self.result.name]
        for operand in self.operands:
            if operand.role == "added":
                total = total + values[operand.name]
        return total

    def flop(self, problem: Problem) -> int:
        """Floating-point (or integer) operations: 2 · m · n · depth · batch, if no others are declared."""
        if self.flops:
            return size_of(self.flops, problem)
        return 2 * problem.m * problem.n * self.depth_of(problem) * problem.batch

    def compulsory_bytes(self, problem: Problem, dtype: DType) -> int:
        """The minimum bytes of memory traffic: each operand read once, the result written once."""
        storages = self.storages(problem, dtype)
        read_again = storages[self.result.name].bytes if problem.beta else 0
        return sum(storage.bytes for storage in storages.values()) + read_again


@lru_cache(maxsize=256)
def _storages(operands: tuple[Operand, ...], problem: Problem, dtype: DType) -> Mapping[str, Storage]:
    return {each.name: each.storage(problem, dtype) for each in operands if not each.hidden}


def _product(values: Operands) -> Array:
    return np.asarray(values["A"] @ values["B"])


_A = Operand("A", "m", "k", "multiplied", like="A")
_B = Operand("B", "k", "n", "multiplied", like="B")
_C = Operand("C", "m", "n", "result", like="C")
_BIAS = Operand("bias", "", "n", "added", batched=False)


def gemm(layout: str = "NN", batched: bool = False) -> Operation:
    """C = alpha·A·B + beta·C; for a batch, the matrices of A, B and C lie at fixed strides. Raises ValueError
    for a layout that is none."""
    name = ("gemm" if layout == "NN" else f"gemm_{layout}".lower()) + "_batched" * batched
    return Operation(name, (_A, _B, _C), _product, layout=layout, batched=batched, library="")


def gemm_bias(layout: str = "NN", activation: Activation | None = None) -> Operation:
    """C = activation(alpha·A·B + beta·C + bias), bias (n,) added to every row. Raises ValueError for a layout
    that is none."""
    name = "gemm_bias" + (f"_{activation.name}" if activation else "")
    name += "" if layout == "NN" else f"_{layout}".lower()
    library, operands = activation.library if activation else "BIAS", (_A, _B, _BIAS, _C)
    return Operation(name, operands, _product, layout=layout, activation=activation, library=library)


GEMM = gemm()
GEMM_BATCHED = gemm(batched=True)
GEMM_BIAS_RELU = gemm_bias(activation=RELU)
GEMM_BIAS_GELU = gemm_bias(activation=GELU)


def _of_timed(rng: np.random.Generator, operand: Operand, problem: Problem) -> Array:
    """The numbers of a hidden operand of a timed problem."""
    shape = operand.shape(problem)
    if operand.drawn == "integers":
        low, high = operand.range(problem)
        return rng.integers(low, high + 1, shape).astype(np.float64)
    numbers = rng.uniform(0.5, 2.0, shape) if operand.drawn == "scale" else rng.standard_normal(shape)
    return numbers.astype(operand.element.storage).astype(np.float64) if operand.element else numbers
