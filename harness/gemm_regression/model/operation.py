"""What is to be computed, as data: operands, their memory layout, the float64 reference.

Everything that depends on the operation is derived from this: a kernel's default parameters, the arguments
and buffers of a launch on every device, the error bound, the cuBLAS call it is compared with, FLOP and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gemm_regression.model.problem import SPARSE, Array, DType, Problem


@dataclass(frozen=True)
class Activation:
    """``apply`` is the function itself in float64; ``slope`` the largest absolute value of its derivative;
    ``rounding`` how many roundings of FP32, relative to |x|, its own evaluation may cost. ``exact``: of
    integers it gives integers, without rounding. ``keeps_nan``: of NaN it gives NaN, whatever instruction
    computes it. ``library`` is the name of cublasLt's epilogue with a bias, None where it has none.
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

Operands = Mapping[str, Array]  # by operand, (batch, rows, columns) each


@dataclass(frozen=True)
class Storage:
    """The memory layout of an operand: ``count`` matrices of ``rows`` × ``columns`` elements of ``dtype``,
    rows ``ld`` elements apart, matrices ``rows + gap`` rows apart. ``transposed``: column-major storage, so
    these are the rows of the transposed matrix. ``start``: elements from a 256-byte boundary to the first."""

    dtype: np.dtype[np.generic]
    count: int
    rows: int
    columns: int
    ld: int
    gap: int = 0
    transposed: bool = False
    start: int = 0

    @property
    def stride(self) -> int:
        """Elements from one matrix of a batch to the next."""
        return (self.rows + self.gap) * self.ld

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of its buffer, including padding and gaps."""
        return self.count * (self.rows + self.gap), self.columns if self.ld > SPARSE else self.ld

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without padding."""
        return self.count * self.rows * self.columns * self.dtype.itemsize

    def elements(self, buffer: Array) -> Array:
        """The elements in a buffer of ``shape``, as stored: a view of (count, rows, columns)."""
        matrices = buffer.reshape(self.count, self.rows + self.gap, buffer.shape[1])
        return matrices[:, : self.rows, : self.columns]

    def matrices(self, buffer: Array) -> Array:
        """The matrices in a buffer of ``shape``: a view of (count, m, n), for any layout."""
        elements = self.elements(buffer)
        return elements.swapaxes(1, 2) if self.transposed else elements

    def buffer(self, matrices: Array, fill: float) -> Array:
        """A buffer with these matrices, (count, m, n), and ``fill`` in the padding."""
        out = np.full(self.shape, fill, self.dtype)
        self.matrices(out)[:] = matrices
        return out

    def place(self, row: int, column: int) -> str:
        """The element at a row and column of the buffer, as text: ``(3, 5)``, or ``[2](3, 5)`` in a batch."""
        matrix, row = divmod(row, max(1, self.rows + self.gap))
        return self.element(matrix, *((column, row) if self.transposed else (row, column)))

    def element(self, matrix: int, row: int, column: int) -> str:
        """An element of a matrix of the batch, as text."""
        return (f"[{matrix}]" if self.count > 1 else "") + f"({row}, {column})"


@dataclass(frozen=True)
class Operand:
    """A matrix or vector in global memory.

    ``rows`` and ``columns`` name sizes of the problem (m, n, k), empty for 1. ``role``: ``multiplied``
    operands have the dtype's storage type, ``added`` ones and the ``result`` its output type; the result is
    read only if beta is not 0. ``like``: the matrix of the problem, A, B or C, whose layout and leading
    dimension it shares, and by how much it starts past a 256-byte boundary; empty for a densely packed
    row-major one. ``batched``: whether there is one per matrix of a batch."""

    name: str
    rows: str
    columns: str
    role: Literal["multiplied", "added", "result"]
    like: str = ""
    batched: bool = True

    def storage(self, problem: Problem, dtype: DType) -> Storage:
        """Its memory layout."""
        rows, columns = (getattr(problem, size) if size else 1 for size in (self.rows, self.columns))
        kind = dtype.storage if self.role == "multiplied" else dtype.output
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
    float64 each; for their absolute values it must return the sum of the absolute values of all terms.
    ``depth`` is the number of products per element, a size of the problem. ``layout`` is as in
    ``Problem.layout``; ``batched``: whether there may be several matrices. ``library`` names the epilogue of
    the cuBLAS call that computes the same, empty for a plain product; None if there is no such call."""

    name: str
    operands: tuple[Operand, ...]
    product: Callable[[Operands], Array]
    depth: str = "k"
    layout: str = "NN"
    batched: bool = False
    activation: Activation | None = None
    library: str | None = None

    @property
    def result(self) -> Operand:
        """The output operand."""
        return next(operand for operand in self.operands if operand.role == "result")

    @property
    def bare(self) -> bool:
        """Whether the result is alpha · product + beta · result, without added operands or activation."""
        return self.activation is None and not any(operand.role == "added" for operand in self.operands)

    @property
    def plain_product(self) -> bool:
        """Whether it is bare, and the product is A·B."""
        return self.bare and self.product is _product

    def storages(self, problem: Problem, dtype: DType) -> dict[str, Storage]:
        """The memory layout of each operand, by name, in the order of the operands."""
        return {operand.name: operand.storage(problem, dtype) for operand in self.operands}

    def sums(self, problem: Problem, product: Array, values: Operands) -> Array:
        """alpha · product + beta · result + added operands, (batch, m, n) in float64.

        For absolute values of the product, the operands, alpha and beta, this is the S of the error bound.
        """
        total = problem.alpha * product
        if problem.beta:
            total = total + problem.beta * values[self.result.name]
        for operand in self.operands:
            if operand.role == "added":
                total = total + values[operand.name]
        return total

    def flop(self, problem: Problem) -> int:
        """Floating-point (or integer) operations: 2 · m · n · depth · batch."""
        return 2 * problem.m * problem.n * int(getattr(problem, self.depth)) * problem.batch

    def compulsory_bytes(self, problem: Problem, dtype: DType) -> int:
        """The minimum bytes of memory traffic: each operand read once, the result written once."""
        storages = self.storages(problem, dtype)
        read_again = storages[self.result.name].bytes if problem.beta else 0
        return sum(storage.bytes for storage in storages.values()) + read_again


def _product(values: Operands) -> Array:
    return np.asarray(values["A"] @ values["B"])


_A = Operand("A", "m", "k", "multiplied", like="A")
_B = Operand("B", "k", "n", "multiplied", like="B")
_C = Operand("C", "m", "n", "result", like="C")
_BIAS = Operand("bias", "", "n", "added", batched=False)


def gemm(layout: str = "NN", batched: bool = False) -> Operation:
    """C = alpha·A·B + beta·C; for a batch, the matrices of A, B and C lie at fixed strides."""
    name = ("gemm" if layout == "NN" else f"gemm_{layout.lower()}") + "_batched" * batched
    return Operation(name, (_A, _B, _C), _product, layout=layout, batched=batched, library="")


def gemm_bias(activation: Activation | None = None, layout: str = "NN") -> Operation:
    """C = activation(alpha·A·B + beta·C + bias), bias (n,) added to every row."""
    name = "gemm_bias" + (f"_{activation.name}" if activation else "")
    name += "" if layout == "NN" else f"_{layout.lower()}"
    library, operands = activation.library if activation else "BIAS", (_A, _B, _BIAS, _C)
    return Operation(name, operands, _product, layout=layout, activation=activation, library=library)


GEMM = gemm()
GEMM_BATCHED = gemm(batched=True)
GEMM_BIAS_RELU = gemm_bias(RELU)
GEMM_BIAS_GELU = gemm_bias(GELU)
