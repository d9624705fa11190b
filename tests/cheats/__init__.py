"""Kernels that seem faster than they are, `cheats.cu`: each must be caught where it is timed, or gain
nothing."""

from __future__ import annotations

from pathlib import Path

from gemm_regression.model import F32, BlockShape, Case, Config, Kernel, Problem, Workspace

CHEATS = {
    1: "the first result again and again, from a module's variable",
    2: "no work after the first launches",
    3: "the result of the launch before the last",
    4: "the result of the launch before, if some inputs are the same",
    5: "FP16 where FP32 is asked for",
    6: "what the library left beside C",
    7: "a result kept in the workspace",
    8: "a mark past the end of C, after which it does nothing",
    9: "half of the products where C lies as it does when it is timed",
    10: "half of the products of alpha 1, beta 0 and what is no integer",
    11: "rows left alone after some launches",
    12: "inputs that L2 is asked to keep",
}
# Of these the timed launches do the whole work: they may pass, and must not be faster.
NO_GAIN = frozenset({4, 7, 12})
_TILE = 16


def kernel(size: int) -> Kernel:
    """All cheats, and 0, which is honest; they cheat on cubes of this size."""
    return Kernel(
        name="cheat",
        source=Path(__file__).with_name("cheats.cu"),
        entry="gemm_cheat",
        parameters="M, N, K, alpha, A, lda, B, ldb, beta, C, ldc, workspace",
        shape=BlockShape((_TILE, _TILE), (_TILE, _TILE), (1, 1), shared_bytes=2 * _TILE * _TILE * 4),
        configs=tuple(Config(CHEAT=number, SIZE=size) for number in (0, *CHEATS)),
        workspace=Workspace(bytes=lambda config, dtype, problem: 4 * (size * size + 1)),
    )


def case(number: int, size: int) -> Case:
    made = kernel(size)
    return Case(made, F32, made.configs[number], Problem(size, size, size))
