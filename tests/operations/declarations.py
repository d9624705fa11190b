"""A project of the tests' own: small kernels of every operation, layout, dtype and way of taking parameters.

One declaration each. What is new to the suite is made here as anybody would: an operation (``RESIDUAL``) and
a dtype (``S16``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gemm_regression.model import (
    BF16,
    DTYPES,
    F16,
    GEMM_BATCHED,
    GEMM_BIAS_GELU,
    GEMM_BIAS_RELU,
    S8,
    BlockShape,
    Config,
    Constraints,
    DType,
    Kernel,
    Operand,
    Operation,
    Problem,
    TensorMap,
    Workspace,
    gemm,
)

TILE = 16

# C = alpha·A·B + beta·C + D: GEMM's operands and product, and a matrix that lies as C does.
_A, _B, _C = gemm().operands
RESIDUAL = Operation("gemm_residual", (_A, _B, Operand("D", "m", "n", "added", like="C"), _C), gemm().product)

S16 = DType("s16", np.dtype(np.int16), np.dtype(np.int32), 0.0, 0.0, 15, 0.0, np.dtype(np.int32))


ELEMENT_A_THREAD = BlockShape((TILE, TILE), (TILE, TILE), (1, 1), shared_bytes=2 * TILE * TILE * 4)

_Kernel = partial(Kernel, shape=ELEMENT_A_THREAD)


def _layouts(layouts: Iterable[str]) -> Iterable[Kernel]:
    """An instance of the template for each layout, such as NT, or NNT for a C stored by columns."""
    for layout in layouts:
        columns = (str(letter == "T").lower() for letter in f"{layout:N<3}")
        yield _Kernel(
            name=f"layout_{layout.lower()}",
            source=Path("layouts.cu"),
            entry=f"gemm<{', '.join(columns)}>",
            operation=gemm(layout),
        )


def _tiles(problem: Problem) -> int:
    return max(1, -(-problem.m // TILE) * -(-problem.n // TILE))


KERNELS: tuple[Kernel, ...] = (
    *_layouts(("NN", "NT", "TN", "TT", "NNT", "TTT")),
    _Kernel(
        name="outputs",
        source=Path("outputs.cu"),
        entry="gemm_outputs",
        dtypes=(F16, BF16, *(DTYPES[name] for name in ("f16_f16", "bf16_bf16", "f32_f16", "f32_bf16"))),
    ),
    _Kernel(name="batched", source=Path("batched.cu"), entry="gemm_batched", operation=GEMM_BATCHED),
    _Kernel(name="bias_relu", source=Path("bias.cu"), entry="gemm_bias_relu", operation=GEMM_BIAS_RELU),
    _Kernel(name="bias_gelu", source=Path("bias.cu"), entry="gemm_bias_gelu", operation=GEMM_BIAS_GELU),
    _Kernel(name="int8", source=Path("int8.cu"), entry="gemm_int8", dtypes=(S8,)),
    _Kernel(name="int8_dp4a", source=Path("int8_dp4a.cu"), entry="gemm_int8_dp4a", dtypes=(S8,)),
    _Kernel(name="int16", source=Path("int16.cu"), entry="gemm_int16", dtypes=(S16,)),
    _Kernel(
        name="split",
        source=Path("split_k.cu"),
        entry="gemm_split",
        parameters="float *C, const float *A, const float *B, unsigned *counters=workspace, M, N, K",
        configs=(Config(SPLIT=3),),
        shape=replace(ELEMENT_A_THREAD, shared_bytes=2 * TILE * TILE * 4 + 4, split=3),
        workspace=Workspace(
            bytes=lambda config, dtype, problem: 4 * _tiles(problem) * (1 + config["SPLIT"] * TILE * TILE),
            zeroed=lambda config, dtype, problem: 4 * _tiles(problem),
        ),
    ),
    _Kernel(
        name="sgemm",
        source=Path("orders.cu"),
        entry="people::sgemm",
        parameters="M, N, K, alpha, A, B, beta, C",
    ),
    _Kernel(
        name="matrix_mul",
        source=Path("matrix_mul.cu"),
        entry="matrix_mul",
        parameters="float *C, float *A, float *B, int wA=K, int wB=N",
        constraints=Constraints(multiples={"m": TILE, "n": TILE, "k": TILE}),
    ),
    _Kernel(
        name="tma",
        source=Path("tma.cu"),
        entry="gemm_tma",
        parameters="int M, int N, int K, float alpha, const CUtensorMap A=mapA, const CUtensorMap B=mapB, "
        "float beta, float* C, int ldc",
        configs=(Config(TILE=32),),
        shape=BlockShape((32, 32), (32, 32), (1, 1)),
        constraints=Constraints(multiples={"lda": 4, "ldb": 4}, at_least={"m": 1, "n": 1, "k": 1}),
        min_capability=(9, 0),
        maps=lambda config, dtype: {"A": TensorMap((32, 32)), "B": TensorMap((32, 32))},
    ),
    _Kernel(name="residual", source=Path("residual.cu"), entry="gemm_residual", operation=RESIDUAL),
)
