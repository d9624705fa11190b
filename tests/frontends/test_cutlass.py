"""NVIDIA's own first kernels of tensor memory, CUTLASS's tutorials for sm_100: results, and what is said."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptxsan
from ptxsan.nvcc import compile_file

M, N, K = 256, 256, 128
SHARED = 128 * 64 * 2 + 256 * 64 * 2 + 64  # bytes: a tile of A, one of B, mbarriers and an address
FORM = 1 << 4 | N // 8 << 17 | 128 // 16 << 24  # the instruction descriptor: FP32 sums, 128 × 256


@pytest.fixture(scope="module")
def cutlass() -> Path:
    """The folder of CUTLASS."""
    spec = find_spec("cutlass_library")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (folder := Path(place) / "source").is_dir():
            return folder
    pytest.skip("CUTLASS is not installed: pip install --group cutlass")


def run(cutlass: Path, name: str, tiles: bool) -> tuple[ptxsan.LaunchResult, bool]:
    """A tutorial: its result, and whether D is 2·C + A·Bᵀ to the bit. ``tiles``: A and B are tensor maps."""
    source = cutlass / "examples/cute/tutorial/blackwell" / f"{name}.cu"
    flags = [f"-I{cutlass / folder}" for folder in ("include", "tools/util/include")]
    text = compile_file(source, "sm_100a", flags=["--expt-relaxed-constexpr", *flags])
    text = re.sub(r"(param_[78])\[256\]", r"\1[128]", text)  # behind a tensor map there is nothing
    found = re.search(r"\.entry (\w*gemm_device\w*)\(", text)
    assert found
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(np.float16) for rows in (M, N))
    c = rng.integers(-4, 5, (M, N)).astype(np.float32)

    def tensor(rows: int, columns: int, *data: Any) -> tuple[Any, ...]:
        return np.int32(rows), np.int32(columns), np.int32(columns), *data

    form = (np.uint32(FORM), np.uint32(1))
    maps: list[Any] = [ptxsan.Tiled(a, (128, 64), 128), ptxsan.Tiled(b, (256, 64), 128)] if tiles else []
    sources = [tensor(M, K), tensor(N, K)] if tiles else [tensor(M, K, a), tensor(N, K, b)]
    sums = [tensor(M, N, c), tensor(M, N, ptxsan.Empty((M, N)))]
    arguments = [*sources, *sums, b"\0", form, b"\0", *maps, np.float32(1), np.float32(2)]
    result = ptxsan.run(
        text, entry=found[1], grid=(M // 128, 1), block=128, arguments=arguments, shared=SHARED
    )
    want = 2 * c + a.astype(np.float32) @ b.astype(np.float32).T
    return result, np.array_equal(result.arrays[3, 3], want)


DEALLOCATES = r"deallocates .* of tensor memory, which tcgen05.ld\S* reads, with no tcgen05.wait::ld between"


def test_a_product_of_tiles_that_threads_store(cutlass: Path) -> None:
    """01_mma_sm100 has no fence.proxy.async between its stores to shared memory and tcgen05.mma."""
    result, right = run(cutlass, "01_mma_sm100", tiles=False)
    assert right
    assert {hazard.check for hazard in result.hazards} == {"race"}
    assert all("with no fence.proxy.async between" in hazard.problem for hazard in result.hazards)
    assert all(re.search(DEALLOCATES, note.problem) for note in result.notes)


def test_a_product_of_tiles_that_tma_brings(cutlass: Path) -> None:
    """02_mma_tma_sm100 has no fence of mbarrier.init, and depends on the registers of its loads alone."""
    result, right = run(cutlass, "02_mma_tma_sm100", tiles=True)
    assert right
    assert result.clean, result.hazards
    known = (DEALLOCATES, "initialisation the async proxy need not see")
    assert all(any(re.search(each, note.problem) for each in known) for note in result.notes)
