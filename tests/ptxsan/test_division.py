"""What nvcc makes of integer division, by variables and by constants, against Python."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.model import F32, BlockShape, Config, Kernel
from tests.ptxsan.rig import execute

SOURCE = """
extern "C" __global__ void k(const int4 *in, long long *out, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int a = in[i].x, b = in[i].y;
    unsigned ua = a, ub = b;
    long long wide = (long long)a * 2654435761LL + b;
    switch (n) {
    case 0: out[i] = a / b; break;
    case 1: out[i] = a % b; break;
    case 2: out[i] = ua / ub; break;
    case 3: out[i] = ua % ub; break;
    case 4: out[i] = a / 7; break;
    case 5: out[i] = a % 7; break;
    case 6: out[i] = ua / 7u; break;
    case 7: out[i] = ua % 641u; break;
    case 8: out[i] = a / 16; break;
    case 9: out[i] = a % 16; break;
    case 10: out[i] = a / -3; break;
    case 11: out[i] = wide / b; break;
    case 12: out[i] = wide % b; break;
    case 13: out[i] = wide / 1000003; break;
    case 14: out[i] = (unsigned long long)wide % 97; break;
    }
}
"""
EDGES = (
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    15,
    16,
    17,
    640,
    641,
    65535,
    65536,
    2**30,
    2**31 - 1,
    -(2**31),
    -(2**31) + 1,
)


def quotient(a: int, b: int) -> int:
    return math.trunc(Fraction(a, b))


def remainder(a: int, b: int) -> int:
    return a - b * quotient(a, b)


def unsigned(a: int) -> int:
    return a % 2**32


def wide(a: int, b: int) -> int:
    return a * 2654435761 + b


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "a / b": quotient,
    "a % b": remainder,
    "ua / ub": lambda a, b: unsigned(a) // unsigned(b),
    "ua % ub": lambda a, b: unsigned(a) % unsigned(b),
    "a / 7": lambda a, b: quotient(a, 7),
    "a % 7": lambda a, b: remainder(a, 7),
    "ua / 7": lambda a, b: unsigned(a) // 7,
    "ua % 641": lambda a, b: unsigned(a) % 641,
    "a / 16": lambda a, b: quotient(a, 16),
    "a % 16": lambda a, b: remainder(a, 16),
    "a / -3": lambda a, b: quotient(a, -3),
    "wide / b": lambda a, b: quotient(wide(a, b), b),
    "wide % b": lambda a, b: remainder(wide(a, b), b),
    "wide / 1000003": lambda a, b: quotient(wide(a, b), 1000003),
    "wide % 97, unsigned": lambda a, b: wide(a, b) % 2**64 % 97,
}


@pytest.fixture(scope="module")
def division(tmp_path_factory: pytest.TempPathFactory) -> str:
    source: Path = tmp_path_factory.mktemp("division") / "division.cu"
    source.write_text(SOURCE)
    stage = Kernel(
        name="division",
        idea="integer division",
        source=source,
        entry="k",
        dtypes=(F32,),
        configs=(Config(),),
        shape=lambda config, dtype: BlockShape((32, 1), (1, 1)),
    )
    return compile_ptx(stage, Config(), F32, "sm_90a")


@pytest.mark.compile
@pytest.mark.parametrize("operation", OPERATIONS)
def test_division(division: str, operation: str) -> None:
    reference = OPERATIONS[operation]
    rng = np.random.default_rng(0)
    random = rng.integers(-(2**31), 2**31, (64, 2)) >> rng.integers(0, 32, (64, 2))
    pairs = [*itertools.product(EDGES, repeat=2), *((int(a), int(b)) for a, b in random)]
    # By zero, and −2³¹ by −1, are undefined in C.
    pairs = [(a, b) for a, b in pairs if b and (a, b) != (-(2**31), -1)]
    operands = np.ones((-(-len(pairs) // 32) * 32, 4), np.int32)
    operands[: len(pairs), :2] = pairs
    out, report = execute(division, operands.view(np.uint32), n=list(OPERATIONS).index(operation))
    assert report.hazards == []
    found = out.view(np.int64)[: len(pairs), 0]
    assert [int(v) for v in found] == [reference(a, b) for a, b in pairs]
