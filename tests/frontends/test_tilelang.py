"""A kernel of TileLang, by the CUDA C++ that it makes, where that package is installed: it is large."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan

tilelang = pytest.importorskip("tilelang")
T = importlib.import_module("tilelang.language")
a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float16)


def source() -> str:
    """CUDA C++ of a product of 64x64 matrices."""

    @T.prim_func  # type: ignore[untyped-decorator]
    def matmul(
        A: T.Tensor((64, 64), "float16"),  # type: ignore[valid-type]
        B: T.Tensor((64, 64), "float16"),  # type: ignore[valid-type]
        C: T.Tensor((64, 64), "float32"),  # type: ignore[valid-type]
    ) -> Any:
        with T.Kernel(2, 2, threads=128) as (column, row):
            left, right = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
            total = T.alloc_fragment((32, 32), "float32")
            T.clear(total)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[row * 32, k * 32], left)
                T.copy(B[k * 32, column * 32], right)
                T.gemm(left, right, total)
            T.copy(total, C[row * 32, column * 32])

    target = {"kind": "cuda", "arch": "sm_80"}
    with importlib.import_module("tilelang").tvm.target.Target(target):
        return str(tilelang.lower(matmul, target=target).kernel_source)


def launched(text: str) -> ptxsan.LaunchResult:
    home = Path(tilelang.__file__).parent
    flags = [f"-I{home}/src", f"-I{home}/3rdparty/cutlass/include"]
    arguments = [a, b, ptxsan.Empty((64, 64))]
    how: dict[str, Any] = {"grid": (2, 2), "block": 128, "shared": 32768}
    return ptxsan.run(text, **how, arguments=arguments, arch="sm_80", flags=flags)


def test_a_matmul() -> None:
    result = launched(source())
    assert result.clean
    assert np.abs(result.arrays[2] - a.astype(np.float32) @ b.astype(np.float32)).max() < 1e-3


def test_barriers_less() -> None:
    text = source()
    assert "__syncthreads();" in text
    found = launched(text.replace("__syncthreads();", ";")).hazards
    assert found[0].check == "race"
    assert "tl::" in text.split("\n")[found[0].line - 1]
