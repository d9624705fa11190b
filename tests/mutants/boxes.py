"""Mistakes in a kernel of the tensor memory accelerator: mbarriers, their phases, boxes and swizzles."""

from __future__ import annotations

from functools import partial

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant
from tests.mutants.order import EARLY, IN_LOCKSTEP, IN_STEP

# More tiles along K than twice the stages, and a part of one.
DEEP = (Problem(66, 70, 570, alpha=2, beta=1),)
WHOLE = (Problem(128, 64, 512),)

_Tma = partial(Mutant, kernel="mma_tma", config="tile128x64-warp32x32-stages4", problems=DEEP)
_Tf32 = partial(_Tma, dtype="tf32")

_ARRIVALS = "arrivals of an mbarrier"
_PHASE = "phase of an mbarrier"
_BOX = "box of another place"
MUTANTS = (
    _Tma(
        name="empty_for_one_warp_less",
        kind=_ARRIVALS,
        edits=(("mbarrier_init(empty + i * 8, WARPS);", "mbarrier_init(empty + i * 8, WARPS - 1);"),),
        about="a stage is filled again though one warp still reads it",
        by_luck=IN_STEP,
    ),
    _Tma(
        name="full_with_a_alone",
        kind=_ARRIVALS,
        edits=(("mbarrier_arrive_expect_tx(bar, STAGE_BYTES);", "mbarrier_arrive_expect_tx(bar, A_BYTES);"),),
        about="a stage counts as full with as many bytes as A has",
        by_luck=EARLY,
    ),
    _Tma(
        name="empty_before_it_was_full",
        kind=_PHASE,
        edits=(("tile / STAGES + 1 & 1", "tile / STAGES & 1"),),
        about="a stage is waited for that nobody has read yet: for ever",
    ),
    _Tf32(
        name="phase_of_the_round_before",
        kind=_PHASE,
        edits=(("stage = wraps ? 0 : stage + 1, phase ^= wraps;", "stage = wraps ? 0 : stage + 1;"),),
        about="a stage counts as full because it once was",
        by_luck=EARLY,
    ),
    _Tma(
        name="read_by_one_lane",
        kind="__syncwarp dropped",
        edits=(("                __syncwarp();  // all lanes have", "                // all lanes have"),),
        about="one lane says that its warp has read a stage",
        by_luck=IN_LOCKSTEP,
    ),
    _Tma(
        name="sums_over_boxes",
        kind="barrier dropped",
        edits=(("    __syncthreads();  // all warps have read the last tiles\n", ""),),
        about="sums overwrite what other warps still read",
        by_luck=IN_STEP,
        problems=WHOLE,
    ),
    _Tma(
        name="two_tiles_too_many",
        kind="copy in flight",
        edits=(("if (tile >= count) return;", "if (tile > count + 1) return;"),),
        about="boxes past the end of K arrive where the sums are, or after the block",
        by_luck="only zeros come, and mostly before the sums",
        # seven tiles: the second one too many goes where the first one was, and the sums are
        problems=(Problem(66, 70, 440, alpha=2, beta=1),),
    ),
    _Tma(
        name="panel_of_another",
        kind=_BOX,
        edits=(("coord.block_col + i * PANEL,", "coord.block_col + (i + 1) * PANEL,"),),
        about="the panels of B are those to the right",
    ),
    _Tma(
        name="chunk_not_swizzled",
        kind="swizzle wrong",
        edits=(("((chunk ^ row) & 7) * 16", "(chunk & 7) * 16"),),
        about="B is read as if no copy had swizzled it",
    ),
    _Tf32(
        name="chunks_next_to_each_other",
        kind="swizzle wrong",
        edits=(("+ part / 2 + part % 2 * 4;", "+ part;"),),
        about="lanes multiply other columns than the sums are stored to",
    ),
    _Tf32(
        name="columns_left_as_multiplied",
        kind="swizzle wrong",
        edits=(("return sizeof(Element) == 2 ? column :", "return sizeof(Element) <= 4 ? column :"),),
        about="the sums are stored in the order in which they were multiplied",
    ),
)
