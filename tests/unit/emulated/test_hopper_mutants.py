"""The rules of mbarriers, the async proxy and wgmma: our kernels run clean, planted mistakes are found."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import ptx

KERNELS = Path(__file__).parents[2] / "hopper"
M, N, K = 128, 128, 320


def pipeline(*defines: str, k: int = K) -> tuple[ptx.Result, bool]:
    """The product by TMA and wgmma, and whether it is right."""
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (M, k)).astype(np.float16)
    b = random.integers(-4, 5, (N, k)).astype(np.float16)
    c = ptx.Empty((M, N))
    maps = [ptx.Tiled(a, (64, 64), 128), ptx.Tiled(b, (64, 64), 128), ptx.Tiled(c, (64, 32))]
    shared = 3 * 24 * 1024 + 2 * 64 * 64 * 4 + 48
    how: dict[str, Any] = {"grid": (2, 1), "block": 384, "shared": shared, "defines": defines}
    result = ptx.run(KERNELS / "pipeline.cu", arguments=[*maps, k], **how)
    return result, np.array_equal(result.arrays[2], a.astype(np.float32) @ b.astype(np.float32).T)


def said(result: ptx.Result) -> str:
    return "\n".join(f"{h.check}: {h.message}" for h in result.hazards)


def test_the_pipeline_is_right() -> None:
    result, right = pipeline()
    assert right
    assert result.clean, said(result)


# Name of the mistake, and what is said of it; "" where the values alone are wrong.
PIPELINE = {
    "EXPECT_LESS": r"hang: .*waits for ever for the mbarrier .*tx-count -1024 bytes",
    "EXPECT_MORE": r"hang: .*waits for ever for the mbarrier .*tx-count 1024 bytes",
    "EXPECT_A_ONLY": r"barrier: .*ends with the mbarrier .*not as many bytes were copied as were expected",
    "EMPTY_COUNTS_ONE": r"hang: .*waits for ever for the mbarrier",  # two phases at each release
    "EMPTY_COUNTS_THREE": r"hang: .*waits for ever for the mbarrier",
    "NO_FENCE_INIT": r"note: race: .*initialisation the async proxy need not see",
    "NO_BARRIER_AFTER_INIT": r"race: .*uses the mbarrier .*initialised with no barrier between",
    "NO_WAIT_FOR_EMPTY": r"race: .*copies to .*is still writing",
    "EMPTY_WRONG_PARITY": r"hang: .*waits for ever for the mbarrier",
    "EMPTY_OF_ANOTHER_STAGE": r"hang: .*waits for ever for the mbarrier",
    "B_ON_ANOTHER_BARRIER": r"race: .*copies to .*is still writing",
    "FULL_WRONG_PARITY": r"uninit: .*reads shared memory",
    "FULL_OF_ANOTHER_STAGE": r"uninit: .*reads shared memory",
    "ONE_THREAD_WAITS": r"race: .*reads .*to which a cp.async.bulk.tensor\S* is still writing",
    "NO_WAIT_FOR_FULL": r"uninit: .*reads shared memory",
    "RELEASE_BEFORE_USE": r"race: .*copies to .*which a wgmma.mma_async\S* is still reading",
    "RELEASE_TWICE": r"hang: .*waits for ever for the mbarrier",
    "NO_RELEASE": r"hang: .*waits for ever for the mbarrier",
    "NO_WGMMA_FENCE": r"race: .*uses registers that were accessed since the last wgmma.fence",
    "SECOND_HALF_OF_A_MISALIGNED": r"misaligned: .*starts within the pattern of a 128-byte swizzle",
    "WRONG_SWIZZLE": "",
    "WRONG_STRIDE": "",
    "NO_COMMIT": r"race: .*touches .*which a wgmma in flight uses",
    "WAIT_TOO_LAX": r"race: .*touches .*which a wgmma in flight uses",
    "NO_WGMMA_WAIT": r"race: .*touches .*which a wgmma in flight uses",
    "TOUCH_IN_FLIGHT": r"race: .*touches .*which a wgmma in flight uses",
    "NO_PROXY_FENCE": r"race: .*reads .*wrote with no fence.proxy.async between",
    "NO_MEET": r"race: .*reads .*wrote with nothing between",
    "MEET_TOO_FEW": r"barrier: .*waits at a barrier",
    "REUSE_STORED": r"race: .*writes .*which a cp.async.bulk.tensor\S* is still reading",
    "TOO_MANY_REGISTERS": r"hang: .*waits for ever for registers",
}


@pytest.mark.parametrize("mistake", PIPELINE)
def test_a_mistake_in_the_pipeline_is_found(mistake: str) -> None:
    result, right = pipeline(mistake)
    check(result, right, PIPELINE[mistake])


def check(result: ptx.Result, right: bool, wanted: str) -> None:
    if not wanted:
        assert not right
        return
    found = result.notes if wanted.startswith("note: ") else result.hazards
    assert any(_matches(wanted.removeprefix("note: "), h) for h in found), said(result)


def _matches(wanted: str, hazard: Any) -> bool:
    return bool(re.search(wanted, f"{hazard.check}: {hazard.message}"))
