"""Vector clocks: C and NumPy know the same, and what is found once is found again where something changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ptxsan.checks.clocks import Clocks
from ptxsan.lanes import WARP, Geometry, mask_of
from tests.ptxsan.test_native import needs_c, on_numpy

CLUSTER = Geometry(np.zeros((4, 3), np.int64), np.zeros(4, np.int64), (128, 1, 1), (4, 1, 1), (2, 1, 1))
LANES = CLUSTER.lanes


def change(clocks: Clocks, rng: np.random.Generator, tensor: bool = False) -> None:
    """What may happen in two clusters of two blocks, one of it."""
    block = int(rng.integers(4))
    lanes = np.sort(rng.choice(np.arange(block * 128, block * 128 + 128), int(rng.integers(1, 128)), False))
    warps = np.flatnonzero(rng.random(LANES // WARP) < 0.5)
    whole = mask_of((warps[:, None] * WARP + np.arange(WARP)).ravel(), LANES)
    happens = [
        lambda: clocks.meet(lanes),
        lambda: clocks.barrier(np.arange(4) == block),
        lambda: clocks.warp_barrier(whole if len(warps) else None),
        lambda: clocks.fence_proxy(mask_of(lanes, LANES) if block else None),
        lambda: clocks.acquire(lanes, *clocks.complete(1, int(clocks.now))),
        lambda: clocks.show(int(lanes[0])),
        lambda: clocks.grow(clocks.known.shape[1] - clocks.group + 1),
        clocks.tick,
    ]
    if tensor:
        happens += [
            lambda: clocks.before_thread_sync(lanes),
            lambda: clocks.after_thread_sync(lanes),
            lambda: clocks.observe(lanes, clocks.complete(1, int(clocks.now)), acquires=False),
        ]
    happens[int(rng.integers(len(happens)))]()


def state(clocks: Clocks) -> list[Any]:
    return [clocks.now, clocks.known.tolist(), clocks.fenced.tolist(), clocks.floor.tolist()]


@needs_c
@pytest.mark.parametrize("seed", range(6))
def test_both_know_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_c = Clocks(CLUSTER)
    with monkeypatch.context() as patch:
        on_numpy(patch)
        other = Clocks(CLUSTER)
    for step in range(25):
        for clocks in (in_c, other):
            change(clocks, np.random.default_rng([seed, step]))
        assert state(in_c) == state(other), step


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_warpgroup_hands_on_is_found_again_after_each_change(seed: int, tensor: bool) -> None:
    clocks, rng = Clocks(CLUSTER, tensor=tensor), np.random.default_rng(seed)
    for _ in range(40):
        first = 128 * int(rng.integers(4))
        clocks.released_by(first, 128)
        change(clocks, rng, tensor)
        for at in (0, 128, 256, 384):
            found, expected = clocks.released_by(at, 128), clocks.released(np.arange(at, at + 128))
            assert [each.tolist() for each in found] == [each.tolist() for each in expected]
