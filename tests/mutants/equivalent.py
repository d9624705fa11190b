"""Generated mutants that nothing catches: those that are right, and why, one by one; and the others."""

from __future__ import annotations

from collections.abc import Mapping

_STEP = "one more step where K ends with a tile: both operands are zeros there, and nothing is added"
_A = "what stands in A past its edge is multiplied by the zeros of B, or goes into rows that are not stored"
_B = (
    "what stands in B past its edge is multiplied by the zeros of A, or goes into columns that are not stored"
)
_ORDER = "the products of a step in another order, each of another sum"
_TWICE = (
    "what was stored as one vector is stored once more, by element, by the same thread and with its value"
)

EQUIVALENT: Mapping[str, str] = {
    "tiled_unrolled-guard_relaxed-1": _STEP,
    "tiled_unrolled-fill_wrong_or_missing-1": _A,
    "rectangular-guard_relaxed-1": _STEP,
    "register-fill_wrong_or_missing-1": _B,
    "prefetch-stage_off_by_one-1": "zeros are fetched after the last tile, into registers that nothing reads",
    "prefetch-way_out_dropped-1": _TWICE,
    "double_buffered-way_out_dropped-1": _TWICE,
    "warp_tiled-way_out_dropped-1": _TWICE,
    "batched_small-fill_wrong_or_missing-1": _A,
    "split_k-guard_relaxed-1": "a block with no part of K fetches zeros, into registers that nothing reads",
    "batched_vectors-condition_reversed-1": _ORDER,
    "batched_vectors-stage_off_by_one-1": _ORDER,
    "wgmma-stage_off_by_one-1": "one stage fewer is used, by the warp that copies as by those that multiply",
    "wgmma-way_out_dropped-1": "what was stored as a vector is stored again, the same, by elements",
    "tf32x3-way_out_dropped-1": "only sums that are NaN are added up again, and there is none",
}

# Wrong, and no problem of the suite shows it: what it would take.
SURVIVORS: Mapping[str, str] = {
    "split_k-index_in_32_bits-1": "a workspace of 8 GiB, of a C with 23 000 rows and columns",
    "batched_vectors-index_in_32_bits-1": "a whole tile of 64 with rows of B far apart",
    "stream_k-barrier_commit_or_wait_dropped-1": "a fence on the reading side, which is not asked for",
    "stream_k-index_in_32_bits-1": "two columns more than tiles of 256, and rows of A far apart",
}
