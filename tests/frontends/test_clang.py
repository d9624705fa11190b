"""Kernels that clang compiles, against NumPy; planted mistakes are found at the lines of the source."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan import Empty
from tests.frontends.rig import FOLDER, agree, changed, tells

if not shutil.which("clang"):
    pytest.skip("there is no clang", allow_module_level=True)

FILE = "clang_kernels.cu"
x = np.random.default_rng(0).standard_normal(512).astype(np.float32)
pairs = np.arange(64, dtype=np.int32).reshape(32, 2)

SHIFT = np.int32(5), np.int32(7)

# The grid, the block, the arguments, and what is left by the number of the argument.
LAUNCHES: dict[str, tuple[Any, ...]] = {
    "reverse": (1, 128, (x[:128], Empty(128)), {1: x[127::-1]}),
    "sums": (
        4, 128, (x, np.int32(500), np.zeros(1, np.float32), np.zeros(1, np.int32)),
        {2: [x[:500].sum()], 3: [(x[:500] > 0).sum()]},
    ),
    "pairs": (1, 32, (SHIFT, pairs, Empty((32, 2), np.int32)), {2: pairs[:, ::-1] + SHIFT}),
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("clang") / "kernels.ptx"
    words = ["-x", "cuda", "--cuda-device-only", "-S", "--cuda-gpu-arch=sm_80", "-nocudainc", "-nocudalib"]
    words += ["-Xclang", "-target-feature", "-Xclang", "+ptx70", "-O2", "-gline-tables-only"]
    words += ["-Wno-unknown-cuda-version", str(FOLDER / FILE), "-o", str(out)]
    subprocess.run(["clang", *words], check=True)
    return Path(out).read_text(encoding="utf-8")


def launched(text: str, name: str) -> ptxsan.LaunchResult:
    grid, block, arguments, _ = LAUNCHES[name]
    return ptxsan.run(text, entry=name, grid=grid, block=block, arguments=arguments)


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_kernel(name: str, text: str) -> None:
    agree(launched(text, name), LAUNCHES[name][3], 1e-5)


def test_a_barrier_less(text: str) -> None:
    tells(launched(changed(text, r"bar\.sync"), "reverse"), "race", FILE, "y[i] = cells[127 - i]")


def test_an_offset(text: str) -> None:
    text = changed(text, r"st\.global\.v?2?\.?\w+ \t\[%rd\d+\+4", r"\g<0>096")
    tells(launched(text, "pairs"), "bounds", FILE, "to[i].y = from[i].x")
