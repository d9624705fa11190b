"""Mistakes in kernels of wgmma: descriptors, registers, stages, several tiles per block."""

from __future__ import annotations

from functools import partial

from gemm_regression.model import Problem
from tests.mutants.mutant import Mutant
from tests.mutants.order import EARLY, IN_LOCKSTEP, IN_STEP

# Three tiles for each of two blocks, edges, and along K more than twice the stages and a part of one.
SEVERAL = (Problem(140, 130, 500, alpha=2, beta=1),)
DEEP = (Problem(66, 70, 500),)

_Few = partial(Mutant, kernel="wgmma", config="tile128x64-groups1-stages3-blocks2", problems=SEVERAL)
_Wide = partial(Mutant, kernel="wgmma", problems=DEEP)
_Tf32 = partial(Mutant, kernel="wgmma_tf32", config="tile64x64-stages3-blocks2", problems=SEVERAL)

_DESCRIPTOR = "descriptor of a matrix"
_GROUP = "group of products"
_TILES = "several tiles per block"
_REGISTERS = "operand in registers"
MUTANTS = (
    _Wide(
        name="panels_one_after_another",
        kind=_DESCRIPTOR,
        edits=(("step * 16 * 128, PANEL_BYTES, 1024)", "step * 16 * 128, 1024, 1024)"),),
        about="the second panel of B is looked for in the first",
    ),
    _Few(
        name="eight_rows_too_near",
        kind=_DESCRIPTOR,
        edits=(("step * 32, 0, 1024)", "step * 32, 0, 512)"),),
        about="rows 8 to 15 of A are those from 4 on",
    ),
    _Few(
        name="step_of_b_as_of_a",
        kind=_DESCRIPTOR,
        edits=(("make_smem_desc(b + step * 16 * 128", "make_smem_desc(b + step * 32"),),
        about="along K, B is walked as if it were not turned",
    ),
    _Few(
        name="b_not_turned",
        kind=_DESCRIPTOR,
        edits=(("p, 1, 1, 0, 1; }", "p, 1, 1, 0, 0; }"),),
        about="rows of B are taken for columns",
    ),
    _Wide(
        name="parts_of_the_first_group",
        kind=_DESCRIPTOR,
        edits=(("+ group * M_BLOCKS * 64 * 128;", "+ 0 * M_BLOCKS * 64 * 128;"),),
        about="both groups multiply the same rows",
        problems=(Problem(130, 10, 70),),
    ),
    _Few(
        name="released_while_multiplied",
        kind=_GROUP,
        edits=(
            ("if (k > 0) release_stage(prev_stage);", "release_stage(pipe.stage);"),
            ("        release_stage(prev_stage);\n", ""),
        ),
        about="a stage is filled again while products read it",
        by_luck=EARLY,
    ),
    _Few(
        name="two_groups_under_way",
        kind=_GROUP,
        edits=(("warpgroup_wait<1>();", "warpgroup_wait<2>();"),),
        about="a stage is released one group of products too early",
        by_luck=EARLY,
    ),
    _Few(
        name="sums_not_waited_for",
        kind=_GROUP,
        edits=(("        warpgroup_wait<0>();\n", "        warpgroup_wait<1>();\n"),),
        about="sums are stored while the last products are under way",
        by_luck="ptxas waits where registers are read",
    ),
    _Few(
        name="products_not_begun",
        kind=_GROUP,
        edits=(("            warpgroup_arrive();\n", ""),),
        about="no wgmma.fence after the registers were read",
        by_luck="ptxas puts one there",
    ),
    _Few(
        name="products_not_ended",
        kind=_GROUP,
        edits=(("            warpgroup_commit_batch();\n", ""),),
        about="products of no group, for which nothing waits",
        by_luck="ptxas waits where registers are read",
    ),
    _Wide(
        name="empty_for_one_group",
        kind="arrivals of an mbarrier",
        edits=(("mbarrier_init(empty + i * 8, GROUPS);", "mbarrier_init(empty + i * 8, 1);"),),
        about="a stage is filled again when one of two groups has read it",
        by_luck=IN_STEP,
    ),
    _Few(
        name="awaited_by_one_warp",
        kind="phase of an mbarrier",
        edits=(
            (
                "            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);",
                "            if (warp == 0) mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);",
            ),
        ),
        about="three warps of a group multiply what may not have come",
        by_luck=EARLY,
    ),
    _Few(
        name="the_phase_before_awaited",
        kind="phase of an mbarrier",
        edits=(
            (
                "            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase);",
                "            mbarrier_wait_parity(full + pipe.stage * 8, pipe.phase ^ 1);",
            ),
        ),
        about="of each stage the round before is waited for, as if it were empty",
        by_luck=EARLY,
    ),
    _Few(
        name="released_by_all_but_one",
        kind="arrivals of an mbarrier",
        edits=(
            ("if (threadIdx.x % 128 == 0) mbarrier_arrive", "if (threadIdx.x % 128 != 0) mbarrier_arrive"),
        ),
        about="127 arrivals for one complete an odd number of phases",
        by_luck=EARLY,
    ),
    _Few(
        name="phases_from_the_start_in_every_tile",
        kind=_TILES,
        edits=(
            (
                "        int prev_stage = 0;  // the stage",
                "        pipe = {0, 0};\n        int prev_stage = 0;  // the stage",
            ),
        ),
        about="in its second tile, a block looks for the first stage again",
    ),
    _Few(
        name="sums_of_the_tile_before",
        kind=_TILES,
        edits=(("1024), k > 0 || step > 0);", "1024), true);"),),
        about="the first products add to what the registers held",
    ),
    _Few(
        name="columns_not_stored_yet",
        kind="__syncwarp dropped",
        edits=(("        __syncwarp();  // the next columns overwrite these\n", ""),),
        about="sums overwrite those that other lanes have not stored",
        by_luck=IN_LOCKSTEP,
    ),
    _Tf32(
        name="columns_of_b_one_after_another",
        kind=_REGISTERS,
        edits=(
            ("tile.column + column, whole);", "tile.column + warp * 16 + threadIdx.x % 32 / 4 * 2, whole);"),
        ),
        about="the sums are stored in the order in which they were multiplied",
    ),
    _Tf32(
        name="two_columns_of_b_exchanged",
        kind=_REGISTERS,
        edits=(
            (
                "{alpha * accum[j * 4 + odd], alpha * accum[j * 4 + 2 + odd]}",
                "{alpha * accum[j * 4 + 2 + odd], alpha * accum[j * 4 + odd]}",
            ),
        ),
        about="rows g and g + 8 of the first operand are taken for each other",
    ),
    _Tf32(
        name="chunk_of_b_four_rows_before",
        kind="swizzle wrong",
        edits=(("low + 4 * 128 ^ 64;", "low + 4 * 128;"),),
        about="four rows on, columns of B are looked for where they are in the first",
    ),
    _Tf32(
        name="loaded_while_multiplied",
        kind=_REGISTERS,
        edits=(("warpgroup_wait<1>();  // those before", "warpgroup_wait<2>();  // those before"),),
        about="columns are loaded into registers from which products under way read",
        by_luck="ptxas waits where registers are written",
    ),
    _Tf32(
        name="rows_of_a_released_while_multiplied",
        kind=_GROUP,
        edits=(
            ("                if (step == 0 && k > 0) release_stage(prev_stage);\n", ""),
            ("prev_stage = pipe.stage;", "release_stage(pipe.stage);"),
            ("        release_stage(prev_stage);\n", ""),
        ),
        about="B is read, but a stage is filled again while products read A",
        by_luck=EARLY,
    ),
    _Tf32(
        name="columns_loaded_without_a_fence",
        kind=_REGISTERS,
        edits=(("                warpgroup_arrive();\n", ""),),
        about="no wgmma.fence after columns were loaded into registers",
        by_luck="ptxas puts one there",
    ),
)
