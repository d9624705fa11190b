"""A project of the tests' own: quantised operands, scales, indices, and operations that are no product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gemm_regression.model import (
    E4M3,
    F16,
    F32,
    S8,
    Array,
    BlockShape,
    Config,
    Constraints,
    Kernel,
    Operand,
    Operation,
    gemm,
    with_output,
)

HALF = with_output(F16, F16)
GROUP = 32
WARP = BlockShape((32, 1), (1, 1))


def _by_group(groups: Array, width: int) -> Array:
    """(count, rows, groups) for each of the ``width`` columns."""
    return np.repeat(groups, GROUP, axis=2)[:, :, :width]


def _dequantised(values: Mapping[str, Array]) -> Array:
    weights, width = values["weights"], values["weights"].shape[2]
    return (weights - _by_group(values["zeros"], width)) * _by_group(values["scales"], width)


GEMV_W4A16 = Operation(  # y (outputs) = (weights - zeros)·scales·x
    name="gemv_w4a16",
    sizes=("outputs", "inputs"),
    operands=(
        Operand("x", "inputs", "", "multiplied"),
        Operand("weights", "outputs", "inputs", "multiplied", dtype="uint4"),
        Operand("scales", "outputs", f"inputs/{GROUP}", "multiplied", values="scale"),
        Operand("zeros", "outputs", f"inputs/{GROUP}", "multiplied", dtype="uint8", values=(0, 15)),
        Operand("y", "outputs", "", "result"),
    ),
    product=lambda values: _dequantised(values) @ values["x"],
    depth="inputs",
    flops="2*outputs*inputs",
    problems=((1, 32), (7, 96), (37, 256), (64, 1024)),
    timed=((4096, 4096), (11008, 4096)),
)

_A, _B, _C = gemm("NT").operands
GEMM_INT8_SCALED = Operation(  # C = (A·Bᵀ)·row_scales·column_scales
    name="gemm_int8_scaled",
    operands=(
        Operand("A", "m", "k", "multiplied", like="A", dtype="int8"),
        Operand("B", "k", "n", "multiplied", like="B", dtype="int8"),
        Operand("row_scales", "m", "", "multiplied", dtype="float32", values="scale"),
        Operand("column_scales", "", "n", "multiplied", dtype="float32", values="scale"),
        Operand("C", "m", "n", "result", like="C"),
    ),
    product=lambda values: values["A"] @ values["B"] * values["row_scales"] * values["column_scales"],
    layout="NT",
)


def _scaled(values: Mapping[str, Array]) -> Array:
    return np.asarray(values["A"] @ values["B"] * values["scales"] / 1024)


def _either(values: Mapping[str, Array], result: Array) -> Array:
    """How far a right result may be off: by 1 where FP32 does not tell two neighbours apart."""
    scaled = _scaled(values)
    return np.asarray(np.abs(scaled - np.floor(scaled) - 0.5) < 1e-6 * np.abs(scaled), np.float64)


REQUANTISED = Operation(  # INT8 from INT8, a scale for each column
    name="requantised",
    operands=(
        _A,
        _B,
        Operand("scales", "", "n", "multiplied", dtype="float32", values="scale"),
        Operand("C", "m", "n", "result", like="C"),
    ),
    product=lambda values: np.clip(np.rint(_scaled(values)), -128, 127),
    error=_either,
    layout="NT",
)


def _by_block(values: Mapping[str, Array]) -> Array:
    a, b = values["A"], values["B"]
    a_scales = np.repeat(values["a_scales"], 128, axis=2)
    b_scales = np.repeat(np.repeat(values["b_scales"], 128, axis=1), 128, axis=2)
    return np.asarray((a * a_scales) @ (b * b_scales[:, : b.shape[2]].swapaxes(1, 2)))


FP8_BLOCKS = Operation(  # scales of 1×128 of A and of 128×128 of B
    name="fp8_blocks",
    operands=(
        _A,
        _B,
        Operand("a_scales", "m", "k/128", "multiplied", dtype="float32", values="scale"),
        Operand("b_scales", "(n+127)/128", "k/128", "multiplied", dtype="float32", values="scale"),
        Operand("C", "m", "n", "result", like="C"),
    ),
    product=_by_block,
    layout="NT",
    depth="128",
    promotes=True,
    flops="2*m*n*k",
)


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


SOFTMAX = Operation(
    name="softmax",
    sizes=("rows", "columns"),
    operands=(Operand("x", "rows", "columns", "multiplied"), Operand("y", "rows", "columns", "result")),
    product=lambda values: softmax(values["x"]),
    error=lambda values, y: 1e-5 * y,
    depth="columns",
    flops="5*rows*columns",
    unit="GB/s",
    problems=((1, 2), (5, 33), (9, 500)),
    timed=((4096, 4096),),
)


def _log_sum(values: Mapping[str, Array]) -> Array:
    largest = values["x"].max(axis=-1, keepdims=True)
    return np.asarray(largest + np.log(np.exp(values["x"] - largest).sum(axis=-1, keepdims=True)))


def _first_largest(values: Mapping[str, Array]) -> Array:
    return np.asarray(values["x"].argmax(axis=-1, keepdims=True))


_FLOAT: Any = {"dtype": "float32", "product": _log_sum, "error": lambda values, lse: 1e-6 * (1 + np.abs(lse))}
_PLACE: Any = {"dtype": "int32", "product": _first_largest, "error": lambda values, chosen: 0 * chosen}
GATE = replace(
    SOFTMAX,
    name="gate",
    operands=(
        *SOFTMAX.operands,
        Operand("lse", "rows", "", "output", **_FLOAT),
        Operand("chosen", "rows", "", "output", **_PLACE),
    ),
    problems=((2, 1), (5, 33), (9, 500)),
    timed=((16384, 256),),
)


def _row_scales(values: Mapping[str, Array]) -> Array:
    return np.asarray(np.abs(values["x"]).max(axis=-1, keepdims=True) / 127)


def _in_steps(values: Mapping[str, Array]) -> Array:
    scales = _row_scales(values)
    return np.asarray(np.divide(values["x"], scales, out=np.zeros_like(values["x"]), where=scales > 0))


QUANTISED = Operation(  # INT8 from FP16, and a scale for each row
    name="quantised",
    sizes=("rows", "columns"),
    operands=(
        Operand("x", "rows", "columns", "multiplied", dtype="float16"),
        Operand("q", "rows", "columns", "result"),
        Operand(
            "scales",
            "rows",
            "",
            "output",
            dtype="float16",
            product=_row_scales,
            error=lambda values, scales: 1e-6 * scales,
        ),
    ),
    product=lambda values: np.rint(_in_steps(values)),
    error=lambda values, q: (np.abs(np.abs(_in_steps(values) % 1) - 0.5) < 1e-4).astype(np.float64),
    keeps_nan=False,
    depth="columns",
    flops="4*rows*columns",
    unit="GB/s",
    problems=((2, 1), (5, 33), (9, 500)),
    timed=((4096, 4096),),
)


def _rmsnorm(values: Mapping[str, Array]) -> Array:
    x = values["x"]
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * values["weight"])


RMSNORM = Operation(
    name="rmsnorm",
    sizes=("rows", "columns"),
    operands=(
        Operand("x", "rows", "columns", "multiplied"),
        Operand("weight", "", "columns", "multiplied"),
        Operand("y", "rows", "columns", "result"),
    ),
    product=_rmsnorm,
    error=lambda values, y: 1e-5 * np.abs(y),
    depth="columns",
    flops="4*rows*columns",
    unit="GB/s",
    problems=((2, 1), (5, 33), (9, 500)),
    timed=((4096, 4096),),
)


def _attention(values: Mapping[str, Array]) -> Array:
    scores = values["Q"] @ values["K"].swapaxes(1, 2) / np.sqrt(values["Q"].shape[2])
    return np.asarray(softmax(scores) @ values["V"])


ATTENTION = Operation(
    name="attention",
    sizes=("queries", "dim", "keys", "heads"),
    operands=(
        Operand("Q", "queries", "dim", "multiplied"),
        Operand("K", "keys", "dim", "multiplied"),
        Operand("V", "keys", "dim", "multiplied"),
        Operand("O", "queries", "dim", "result"),
    ),
    product=_attention,
    error=lambda values, o: 1e-5 * np.abs(values["V"]).max(axis=1, keepdims=True) + 0 * o,
    flops="4*queries*keys*dim*heads",
    problems=((1, 8, 2, 1), (5, 33, 7, 3), (17, 64, 70, 2)),
    timed=((1024, 64, 1024, 16),),
)

GATHER = Operation(
    name="gather",
    sizes=("rows", "columns", "entries"),
    operands=(
        Operand("table", "entries", "columns", "multiplied"),
        Operand("index", "rows", "", "multiplied", dtype="int32", values=(0, "entries-1")),
        Operand("weight", "rows", "", "multiplied", values="scale"),
        Operand("y", "rows", "columns", "result"),
    ),
    product=lambda values: values["table"][0, values["index"][0, :, 0].astype(int)][None] * values["weight"],
    depth="1",
    flops="rows*columns",
    unit="GB/s",
    problems=((1, 3, 5), (70, 33, 40)),
    timed=((8192, 1024, 32000),),
)


def _blocks(values: Mapping[str, Array]) -> Array:
    """Each a scale in FP16 and 32 integers of 4 bits: number i in the low half of byte i, i + 16 above it."""
    count, rows, columns = values["integers"].shape
    scales = values["scales"].astype(np.float16)[..., None].view(np.uint8)
    nibbles = (values["integers"] + 8).astype(np.uint8).reshape(count, rows, columns // 32, 32)
    pairs = nibbles[..., :16] | nibbles[..., 16:] << 4
    return np.concatenate([scales, pairs], axis=3).reshape(count, rows, -1)


GEMV_BLOCKS = Operation(
    name="gemv_blocks",
    sizes=("outputs", "inputs"),
    operands=(
        Operand("x", "inputs", "", "multiplied"),
        Operand("integers", "outputs", "inputs", "multiplied", dtype="int4", hidden=True),
        Operand("scales", "outputs", "inputs/32", "multiplied", dtype="float16", values="scale", hidden=True),
        Operand(
            "blocks", "outputs", "inputs/32*18", "multiplied", dtype="uint8", values=(0, 59), made=_blocks
        ),
        Operand("y", "outputs", "", "result"),
    ),
    product=lambda values: values["integers"] * np.repeat(values["scales"], 32, axis=2) @ values["x"],
    depth="inputs",
    flops="2*outputs*inputs",
    problems=((1, 32), (7, 96), (37, 256)),
    timed=((4096, 4096),),
)


def _experts(values: Mapping[str, Any]) -> Array:
    """Of each token, in order: few tokens for the last experts, and none for some."""
    share = values["ticket"][0, :, 0] / 65536
    return np.sort((values["experts"] * share**4).astype(int))


def _offsets(values: Mapping[str, Any]) -> Array:
    """The first token of each expert, and how many tokens there are."""
    first = np.searchsorted(_experts(values), np.arange(int(values["experts"]) + 1))
    return np.asarray(first)[None, :, None]


GROUPED = Operation(  # y = x·weights[expert], of a mixture of experts
    name="grouped",
    sizes=("tokens", "outputs", "inputs", "experts"),
    operands=(
        Operand("x", "tokens", "inputs", "multiplied", batched=False),
        Operand("weights", "inputs", "outputs", "multiplied"),
        Operand("ticket", "tokens", "", "multiplied", "", False, "int32", (0, 65535), hidden=True),
        Operand(
            "offsets",
            "experts+1",
            "",
            "multiplied",
            batched=False,
            dtype="int32",
            made=_offsets,
        ),
        Operand("y", "tokens", "outputs", "result", batched=False),
    ),
    product=lambda v: (v["x"][0][:, None] @ v["weights"][_experts(v)]).swapaxes(0, 1),
    depth="inputs",
    flops="2*tokens*outputs*inputs",
    problems=((1, 3, 5, 2), (50, 33, 20, 12), (19, 16, 16, 3)),
    timed=((4096, 1024, 1024, 64),),
)

KERNELS = (
    Kernel(
        name="grouped",
        source=Path("grouped.cu"),
        entry="grouped",
        operation=GROUPED,
        parameters="float *y, const float *x, const float *weights, const int *offsets, int experts, "
        "int outputs, int inputs",
        shape=BlockShape((16, 16), (16, 16)),
        grid=lambda shape, p: (-(-p.n // 16), -(-p.m // 16) + p.batch, 1),
    ),
    Kernel(
        name="blocks",
        source=Path("blocks_gemv.cu"),
        entry="gemv_blocks",
        operation=GEMV_BLOCKS,
        parameters="const float *x, const void *blocks, float *y, int outputs, int blocks_of_row=inputs/32",
        shape=BlockShape((32, 4), (4, 1)),
        grid=lambda shape, p: (-(-p.m // 4), 1, 1),
        constraints=Constraints(multiples={"n": 32}),
    ),
    Kernel(
        name="w4a16",
        source=Path("w4a16_gemv.cu"),
        entry="gemv_w4a16",
        operation=GEMV_W4A16,
        dtypes=(HALF,),
        configs=(Config(GROUP=GROUP),),
        parameters="const half *x, const uint8_t *weights, const half *scales, const uint8_t *zeros, "
        f"half *y, int outputs, int inputs, int groups=inputs/{GROUP}",
        shape=BlockShape((32, 4), (4, 1)),
        grid=lambda shape, p: (-(-p.m // 4), 1, 1),
        constraints=Constraints(multiples={"n": GROUP}),
    ),
    Kernel(
        name="requantised",
        source=Path("requantised.cu"),
        entry="requantised",
        operation=REQUANTISED,
        dtypes=(with_output(S8, S8),),
        parameters="int8_t *C, const int8_t *A, const int8_t *B, const float *scales, int M, int N, int K, "
        "int lda, int ldb, int ldc",
        shape=BlockShape((16, 16), (16, 16)),
    ),
    Kernel(
        name="fp8_blocks",
        source=Path("fp8_blocks.cu"),
        entry="fp8_blocks",
        operation=FP8_BLOCKS,
        dtypes=(E4M3,),
        parameters="float *C, const fp8 *A, const fp8 *B, const float *a_scales, const float *b_scales, "
        "int M, int N, int K, int lda, int ldb, int ldc",
        shape=BlockShape((16, 16), (16, 16)),
        constraints=Constraints(multiples={"k": 128}),
    ),
    Kernel(
        name="int8_scaled",
        source=Path("int8_scaled.cu"),
        entry="gemm_int8_scaled",
        operation=GEMM_INT8_SCALED,
        dtypes=(HALF,),
        parameters="half *C, const int8_t *A, const int8_t *B, const float *row_scales, "
        "const float *column_scales, int M, int N, int K, int lda, int ldb",
        shape=BlockShape((16, 16), (16, 16)),
    ),
    Kernel(
        name="softmax",
        source=Path("softmax.cu"),
        entry="softmax",
        operation=SOFTMAX,
        parameters="float *y, const float *x, int rows, int columns",
        shape=WARP,
        grid=lambda shape, p: (p.m, 1, 1),
    ),
    Kernel(
        name="gate",
        source=Path("gate.cu"),
        entry="gate",
        operation=GATE,
        dtypes=(HALF,),
        parameters="half *y, float *lse, int *chosen, const half *x, int columns",
        shape=WARP,
        grid=lambda shape, p: (p.m, 1, 1),
    ),
    Kernel(
        name="quantised",
        source=Path("quantised.cu"),
        entry="quantised",
        operation=QUANTISED,
        dtypes=(with_output(S8, S8),),
        parameters="int8_t *q, half *scales, const half *x, int columns",
        shape=WARP,
        grid=lambda shape, p: (p.m, 1, 1),
    ),
    Kernel(
        name="rmsnorm",
        source=Path("rmsnorm.cu"),
        entry="rmsnorm",
        operation=RMSNORM,
        dtypes=(HALF,),
        parameters="half *y, const half *x, const half *weight, int columns, float epsilon=1e-5",
        shape=WARP,
        grid=lambda shape, p: (p.m, 1, 1),
    ),
    Kernel(
        name="attention",
        source=Path("attention.cu"),
        entry="attention",
        operation=ATTENTION,
        parameters="const float *Q, const float *K, const float *V, float *O, int queries, int keys, int dim",
        shape=BlockShape((32, 1), (1, 1), shared_bytes=4096, dynamic=True),
        grid=lambda shape, p: (p.m, p.batch, 1),
        constraints=Constraints(at_most={"k": 1024}),
    ),
    Kernel(
        name="gather",
        source=Path("gather.cu"),
        entry="gather",
        operation=GATHER,
        dtypes=(F32,),
        parameters="float *y, const float *table, const int *index, const float *weight, int columns",
        shape=BlockShape((64, 1), (1, 1)),
        grid=lambda shape, p: (p.m, 1, 1),
    ),
)
