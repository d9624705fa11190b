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


def run(
    cutlass: Path, folder: Path, name: str, tiles: bool = True, pairs: bool = False
) -> tuple[ptxsan.LaunchResult, bool]:
    """A tutorial: its result, and whether D is 2·C + A·Bᵀ to the bit. ``tiles``: A and B are tensor maps;
    ``pairs``: of blocks, in clusters of one pair and not of 16 blocks."""
    tutorials = cutlass / "examples/cute/tutorial/blackwell"
    source = (tutorials / f"{name}.cu").read_text(encoding="utf-8")
    of_16 = "auto cluster_shape = make_shape(Int<4>{}, Int<4>{}"
    assert (of_16 in source) == pairs
    file = folder / f"{name}.cu"
    file.write_text(
        source.replace(of_16, "auto cluster_shape = make_shape(Int<2>{}, Int<1>{}"), encoding="utf-8"
    )
    flags = [f"-I{cutlass / each}" for each in ("include", "tools/util/include", tutorials)]
    text = compile_file(file, "sm_100a", flags=["--expt-relaxed-constexpr", *flags])
    text = re.sub(r"(param_[78])\[256\]", r"\1[128]", text)  # behind a tensor map there is nothing
    found = re.search(r"\.entry (\w*gemm_device\w*)\(", text)
    assert found
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, K)).astype(np.float16) for rows in (M, N))
    c = rng.integers(-4, 5, (M, N)).astype(np.float32)

    def tensor(rows: int, columns: int, *data: Any) -> tuple[Any, ...]:
        return np.int32(rows), np.int32(columns), np.int32(columns), *data

    form = (np.uint32(FORM + ((128 // 16 << 24) if pairs else 0)), np.uint32(1))
    box = 128 if pairs else 256  # rows of B
    maps: list[Any] = [ptxsan.Tiled(a, (128, 64), 128), ptxsan.Tiled(b, (box, 64), 128)] if tiles else []
    sources = [tensor(M, K), tensor(N, K)] if tiles else [tensor(M, K, a), tensor(N, K, b)]
    sums = [tensor(M, N, c), tensor(M, N, ptxsan.Empty((M, N)))]
    arguments = [*sources, *sums, b"\0", form, b"\0", *maps, np.float32(1), np.float32(2)]
    how: dict[str, Any] = {"grid": (M // 128, 1), "block": 128, "shared": SHARED}
    how |= {"entry": found[1], "cluster": (2, 1, 1) if pairs else None}
    result = ptxsan.run(text, arguments=arguments, **how)
    want = 2 * c + a.astype(np.float32) @ b.astype(np.float32).T
    return result, np.array_equal(result.arrays[3, 3], want)


DEALLOCATES = r"deallocates .* of tensor memory, which tcgen05.ld\S* reads, with no tcgen05.wait::ld between"


def test_a_product_of_tiles_that_threads_store(cutlass: Path, tmp_path: Path) -> None:
    """01_mma_sm100 has no fence.proxy.async between its stores to shared memory and tcgen05.mma."""
    result, right = run(cutlass, tmp_path, "01_mma_sm100", tiles=False)
    assert right
    assert {hazard.check for hazard in result.hazards} == {"race"}
    assert all("with no fence.proxy.async between" in hazard.problem for hazard in result.hazards)
    assert all(re.search(DEALLOCATES, note.problem) for note in result.notes)


@pytest.mark.parametrize(("name", "pairs"), [("02_mma_tma_sm100", False), ("04_mma_tma_2sm_sm100", True)])
def test_a_product_of_tiles_that_tma_brings(cutlass: Path, tmp_path: Path, name: str, pairs: bool) -> None:
    """They have no fence of mbarrier.init, and depend on the registers of their loads alone. All threads wait
    for each phase, and none for another thread: a slow one may miss a phase."""
    result, right = run(cutlass, tmp_path, name, pairs=pairs)
    assert right
    assert {hazard.check for hazard in result.hazards} == {"barrier"}
    assert all("nothing keeps the next one" in hazard.problem for hazard in result.hazards)
    known = (DEALLOCATES, "initialisation the async proxy need not see")
    assert all(any(re.search(each, note.problem) for each in known) for note in result.notes)
