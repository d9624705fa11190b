"""The suites hold what they promise, and a wrong name is answered in one clear line."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby

import pytest

from gemm_regression.baselines import current
from gemm_regression.model import Config, DType, Kernel, Problem, find_problem, variant_name
from gemm_regression.model.gpus import GpuLimits, legal_variants, refusals
from gemm_regression.project.selection import Choice, find_config, illegal, left_out
from gemm_regression.project.selection import select as select_cases
from gemm_regression.project.suites import (
    DEEP,
    DEEP_BATCHED,
    SPARSE,
    TALL,
    TIMED,
    TIMED_BATCHED,
    TIMED_GIBIBYTE,
    VERIFIED,
    VERIFIED_BATCHED,
    VERIFIED_INTEGER,
    VERIFIED_SMOKE,
    WHOLE,
    first_of_each_tile,
)
from tests.ladder import LADDER, PROJECT, find_kernel, select

OWN = PROJECT.suites["full"].verified_too
# K of whole blocks, N of whole 8 columns: in the place of TALL something too large, of two problems one.
WHOLE_BLOCKS = ("wgmma_scaled",)
H200 = GpuLimits.of((9, 0))
TIMED_FEW = PROJECT.suites["full"].timed_few
VARIANTS = [(kernel, *of) for kernel in LADDER for of in legal_variants(kernel, H200)]
SINGLE = [each for each in VARIANTS if each[0].compiled and not each[0].operation.batched]


@pytest.mark.parametrize("problem", VERIFIED, ids=lambda problem: problem.id)
def test_no_verified_problem_hides_an_exchange_of_sizes(problem: Problem) -> None:
    assert problem == Problem(1, 1, 1) or len({problem.m, problem.n, problem.k}) == 3


@pytest.mark.parametrize("problems", [VERIFIED, VERIFIED_SMOKE], ids=["full", "smoke"])
def test_verified_problems_reach_every_path(problems: tuple[Problem, ...]) -> None:
    padded = [p for p in problems if not p.tight]
    assert any(p.lda % 4 == p.ldb % 4 == p.ldc % 4 == 0 and p.k % 4 for p in padded), "a vector over the edge"
    assert any(p.lda % 2 and p.ldb % 2 and p.ldc % 2 for p in padded), "no vector at all"
    assert any(p.k == 0 and p.beta for p in problems), "only beta"
    assert any(p.m * p.n * p.k % 2 and p.beta for p in problems), "nothing divides"
    assert {p.alpha for p in problems} >= {1, -1, 2, 3}
    assert {p.beta for p in problems} >= {0, 1, -1, 2, 3}


def test_zero_sizes_and_scales_are_verified() -> None:
    empty = {"".join(size for size in "mnk" if not getattr(p, size)) for p in VERIFIED}
    assert empty >= {"m", "n", "k"}
    assert any(p.alpha == 0 for p in VERIFIED)


@pytest.mark.parametrize("ld", ["lda", "ldb", "ldc"])
def test_rows_are_aligned_for_vectors_of_each_width_and_of_none(ld: str) -> None:
    """A kernel that takes rows as aligned for wider vectors than they are meets such rows."""
    assert {math.gcd(getattr(p, ld), 8) for p in VERIFIED if p.m > 1 and p.k > 1} >= {1, 2, 4, 8}


@pytest.mark.parametrize(
    ("kernel", "config", "dtype"),
    [pytest.param(*each, id=variant_name(*each)) for each in VARIANTS if each[0].compiled],
)
def test_every_config_meets_whole_tiles_and_four_of_them_along_k(
    kernel: Kernel, config: Config, dtype: DType
) -> None:
    rows, columns = kernel.shape_of(config, dtype).tile
    depth = config.get("TILE_K", config.get("TILE_SIZE", 1))
    assert any(
        p.m >= rows and p.n >= columns and p.m * p.n > rows * columns and p.k >= 4 * depth
        for p in VERIFIED_SMOKE
        if p.lda % 8 == p.ldb % 8 == p.ldc % 8 == p.k % 8 == p.n % 8 == 0
    )


@pytest.mark.parametrize(
    ("kernel", "config", "dtype"),
    [pytest.param(*each, id=variant_name(*each)) for each in VARIANTS if "STAGES" in each[1]],
)
def test_every_ring_of_stages_is_gone_around(kernel: Kernel, config: Config, dtype: DType) -> None:
    """In each block, along K alone: a stage whose tiles TMA copies has 128 bytes of a row."""
    depth = config.get("TILE_K", 128 // dtype.storage.itemsize)
    blocks = config.get("SPLIT", config.get("SLICES", 1))
    longest = max(p.k for p in PROJECT.suites["full"].verified_of(kernel, dtype))
    assert longest > config["STAGES"] * depth * blocks


def test_full_verifies_every_legal_variant_on_every_problem() -> None:
    cases = [case for case in select().verify if not case.kernel.is_dispatcher]
    own = {kernel.name: len(kernel.operation.problems) for kernel in LADDER if kernel.operation.problems}
    expected = sum(
        own[kernel.name]
        if kernel.name in own
        else len((*VERIFIED, *OWN.get(kernel.name, ()), *VERIFIED_BATCHED * kernel.operation.batched))
        + len(VERIFIED_INTEGER) * dtype.integer
        - 2 * (kernel.name in WHOLE_BLOCKS)
        for kernel, _, dtype in VARIANTS
        if not kernel.is_dispatcher
    )
    assert len(set(cases)) == len(cases) == expected


def test_full_times_defaults_everywhere_and_the_others_on_two_problems() -> None:
    """But for stages that later ones outdo, of which less is timed."""
    cases = select().timed
    for kernel in (kernel for kernel in LADDER if not kernel.is_dispatcher):
        batches = (*TIMED_BATCHED, *TIMED_GIBIBYTE)
        problems = batches if kernel.operation.batched else TIMED
        squares = (Problem(1024, 1024, 1024), Problem(4096, 4096, 4096))
        few = (*TIMED_BATCHED[2:4], *TIMED_GIBIBYTE) if kernel.operation.batched else squares
        problems, few = TIMED_FEW.get(kernel.name, (problems, few))
        small = [p for p in problems if p.flops <= kernel.largest_timed]
        for config, dtype in legal_variants(kernel, H200):
            fitting = {p for p in small if not kernel.refusals(config, p)}
            timed = {c.problem for c in cases if (c.kernel, c.config, c.dtype) == (kernel, config, dtype)}
            default = config == kernel.configs[0]
            at = PROJECT.suites["full"].timed_at.get(variant_name(kernel, config, dtype))
            if at is not None:
                fitting = {kernel.narrowed(problem) for problem in at}
            assert timed == (fitting if default or at is not None else set(few))
    assert len({case.id for case in cases}) == len(cases)


def test_nightly_times_what_full_leaves_out() -> None:
    full, nightly = ({case.id for case in select(name).timed} for name in ("full", "nightly"))
    assert full < nightly
    assert {case.id for case in select("full").verify} == {case.id for case in select("nightly").verify}
    stored = current(PROJECT.baselines, "nvidia-h200")
    assert stored
    assert nightly <= set(stored.case_ids)
    assert nightly < {case.id for case in select("unmeasured").timed}
    said = f"LEFT OUT: {len(nightly - full)} timed cases, which --suite nightly has"
    assert left_out(PROJECT, "full", (9, 0)) == [said]
    assert left_out(PROJECT, "nightly", (9, 0)) == []


def test_an_operation_that_declares_what_is_timed_alone_is_timed_on_nothing_else() -> None:
    kernel = find_kernel("lean_loop")
    timed = replace(kernel, operation=replace(kernel.operation, timed=((48, 32, 16),), library=None))
    assert PROJECT.suites["full"].timed_of(timed, Config(), timed.dtypes[0]) == (Problem(48, 32, 16),)


def test_stages_of_which_less_is_timed_are_timed_ragged_and_at_the_size_of_the_ladder() -> None:
    """Every legal config once, the default one also where edges and few tiles show."""
    assert TIMED_FEW.keys() < {kernel.name for kernel in LADDER}
    for name, (default, others) in TIMED_FEW.items():
        assert others
        assert set(others) < set(default)
        if find_kernel(name).operation.batched:
            assert set(default) == {*TIMED_BATCHED, *TIMED_GIBIBYTE}
        else:
            assert {Problem(n, n, n) for n in (1024, 4096, 4095)} < set(default) < set(TIMED)


def test_variants_that_are_for_a_few_shapes_are_of_the_ladder() -> None:
    """Another name would be of no variant: timed nowhere but where all are, and nobody would see it."""
    assert set(PROJECT.suites["full"].timed_at) <= {variant_name(*variant) for variant in VARIANTS}


def test_batches_of_a_gibibyte_are_timed_and_chosen_for() -> None:
    assert [p.n for p in TIMED_GIBIBYTE] == [8, 16, 32, 64]
    for problem in TIMED_GIBIBYTE:
        cases = [case for case in select().timed if case.problem == problem]
        assert {case.kernel.name for case in cases} == {"batched_small", "batched_vectors", "select"}
        for case in cases:
            held = case.kernel.operation.compulsory_bytes(problem, case.dtype)
            assert 2**30 - 12 * problem.n**2 < held <= 2**30


def test_an_interpreter_is_spared_large_problems_of_a_batched_kernel_without_a_batch() -> None:
    kernels = [find_kernel("batched_small"), find_kernel("tiled")]
    cases = [each.case for each in PROJECT.suites["full"].verify(kernels, H200, emulated=True)]
    batched, tiled = ({c.problem for c in cases if c.kernel == kernel} for kernel in kernels)
    assert batched >= set(VERIFIED_BATCHED) - {DEEP_BATCHED}
    small = {p for p in VERIFIED if p.flops <= 2**20 and p not in (WHOLE, TALL, DEEP)}
    assert DEEP_BATCHED not in batched  # all its tiles are small
    assert batched - set(VERIFIED_BATCHED) > small
    assert not any(p.flops > 2**20 for p in batched - set(VERIFIED_BATCHED))
    assert set(VERIFIED) - {WHOLE, TALL, DEEP} < tiled


def test_an_interpreter_gets_some_problems_of_variants_that_differ_within_a_tile_alone() -> None:
    found: dict[tuple[str, str], set[Problem]] = {}
    for case in select_cases(PROJECT, Choice(), (9, 0), emulated=True).verify:
        name = f"{case.kernel.name}-{case.config.label}"
        found.setdefault((name, case.dtype.name), set()).add(case.problem)
    every = set(VERIFIED) - {WHOLE, TALL, DEEP} | {SPARSE}
    some = set(VERIFIED_SMOKE) - {WHOLE}
    for size, wide in ((32, 64), (16, 32), (8, 16)):
        assert found[f"tiled-tile{size}-pad0", "f32"] > every
        assert found[f"tiled-tile{size}-pad1", "f32"] == some | {Problem(size, wide, WHOLE.k // 2)}
    for name in ("wmma-tile64x64x32-warp32x32", "mma_sync-tile64x64x32-warp32x32-stages3"):
        assert found[name, "f16"] > every
        assert found[name, "tf32"] > every
        own = set(OWN.get(name.split("-")[0], ()))
        assert found[name, "bf16"] == some | {Problem(64, 128, WHOLE.k // 2)} | own
    for kernel, config, dtype in SINGLE:
        asked = map(kernel.narrowed, some)
        takes = {kernel.narrowed(kernel.constraints.near(problem, config)) for problem in asked}
        ran, shape = found[f"{kernel.name}-{config.label}", dtype.name], kernel.shape_of(config, dtype)
        if shape.split > 1 and shape.tile[0] < 32:  # a tile is of several blocks, and these are of few rows
            assert max(p.m for p in ran if p.lda < SPARSE.lda) <= 9 * shape.tile[0]
            ran, takes = ({replace(p, m=0) for p in problems} for problems in (ran, takes))
        assert ran > takes


def test_variants_of_other_tiles_threads_or_parameters_get_all() -> None:
    for name in ("rectangular", "prefetch", "split_k", "lean_loop", "stream_k", "batched_vectors", "tf32x3"):
        kernel = find_kernel(name)
        variants = legal_variants(kernel, H200)
        assert first_of_each_tile(kernel, variants) == set(variants)


def test_an_interpreter_gets_whole_tiles_of_each_config_and_many_along_m_of_the_first() -> None:
    found: dict[object, list[Problem]] = {}
    kernels = list(dict.fromkeys(kernel for kernel, _, _ in SINGLE))
    for case in (each.case for each in PROJECT.suites["full"].verify(kernels, H200, emulated=True)):
        found.setdefault((case.kernel, case.config, case.dtype), []).append(case.problem)
    for kernel, config, dtype in SINGLE:
        problems, (rows, columns) = found[kernel, config, dtype], kernel.shape_of(config, dtype).tile
        (whole,) = [p for p in problems if p.m == rows and p.n in (2 * columns, 3 * columns) and p.tight]
        assert whole.m != whole.n
        k = 128 if kernel.name in WHOLE_BLOCKS else DEEP.k
        edges = min(DEEP.m, rows + 2), min(DEEP.n, columns + 8)
        deep = [p for p in problems if (p.m, p.n, p.k) == (*edges, k)]
        assert bool(deep) is (max(rows, columns) > 128)
        assert all(p.m > rows and (p.n > columns or columns >= DEEP.n) for p in deep)
        n, depth = min(137, columns + 9), 128 if kernel.name in WHOLE_BLOCKS else TALL.k
        n += -n % int(dict(kernel.constraints.multiples).get("n", 1))
        tall = [p for p in problems if p.m > 8 * rows and (p.n, p.k) == (n, depth)]
        assert bool(tall) is (config == kernel.configs[0] and dtype.name not in ("bf16", "e4m3_bf16", "s8"))


def test_rows_are_far_apart_where_a_kernel_takes_only_whole_vectors_of_columns_or_k_too() -> None:
    names = ("wgmma", "wgmma_tf32", "wgmma_swapped", "wgmma_scaled")
    found = PROJECT.suites["full"].verify([find_kernel(name) for name in names], H200, emulated=True)
    far = {
        (case.kernel.name, case.problem.n)
        for case in (each.case for each in found)
        if case.problem.ldc > SPARSE.lda
    }
    assert far == {(name, 8) for name in names}


def test_slow_kernels_are_spared_the_largest_problems() -> None:
    full, smoke = ({(c.kernel.name, c.problem.m) for c in select(name).timed} for name in ("full", "smoke"))
    asked = [("strided", 4096), ("lean_loop", 8192), ("strided", 8192)]
    assert [each in full for each in asked] == [True, True, False]
    assert {m for name, m in smoke if name == "strided"} == {1024}
    assert {m for name, m in smoke if name == "naive"} == {1024, 2048, 4095}


@pytest.mark.parametrize("name", PROJECT.suites)
def test_nothing_illegal_runs(name: str) -> None:
    for limits in (H200, GpuLimits.of((7, 5))):
        found = select(name, (), limits.capability)
        for case in found.verify + found.timed:
            assert not refusals(case.kernel, case.config, case.dtype, limits)


def test_every_kernel_is_timed_in_every_dtype() -> None:
    """By smoke and full what the baseline has."""
    smoke, full, unmeasured = (
        {(c.kernel.name, c.dtype.name) for c in select(name).timed}
        for name in ("smoke", "full", "unmeasured")
    )
    assert smoke == full
    assert unmeasured == {(kernel.name, dtype.name) for kernel in LADDER for dtype in kernel.dtypes}
    stored = current(PROJECT.baselines, "nvidia-h200")
    assert stored
    assert {tuple(name.split("-")[:2]) for name in stored.case_ids} == full


@pytest.mark.parametrize("capability", [(9, 0), (8, 0), (7, 5)])
def test_what_smoke_times_the_baseline_of_full_has(capability: tuple[int, int]) -> None:
    smoke, full = (select(name, (), capability).timed for name in ("smoke", "full"))
    assert {case.id for case in smoke} <= {case.id for case in full}


@pytest.mark.parametrize("name", PROJECT.suites)
def test_cases_have_ids_and_timed_ones_keep_the_data_of_a_problem_and_dtype_together(name: str) -> None:
    verified, cases = select(name).verify, select(name).timed
    assert len({case.id for case in verified}) == len(verified)
    runs = [key for key, _ in groupby(cases, key=lambda case: (case.problem, case.dtype))]
    assert len(runs) == len(set(runs))
    assert len(list(groupby(cases, key=lambda case: case.problem))) == len({c.problem for c in cases})
    order = [kernel.name for kernel in LADDER]
    for _, run in groupby(cases, key=lambda case: (case.problem, case.dtype)):
        ranks = [order.index(case.kernel.name) for case in run]
        assert ranks == sorted(ranks)


def test_advised_configs_are_timed_at_every_shape_and_by_no_other_suite() -> None:
    advice = select("advice")
    for kernel in LADDER:
        problems = TIMED_BATCHED if kernel.operation.batched else TIMED
        problems = tuple(problem for problem in problems if problem.flops <= kernel.largest_timed)
        for config, dtype in legal_variants(kernel, H200, kernel.advised):
            own = [c for c in advice.timed if (c.kernel, c.config, c.dtype) == (kernel, config, dtype)]
            timed = {c.problem for c in own}
            assert timed == (set(problems) if dtype == kernel.dtypes[0] else set())
            assert any(c.config == config for c in advice.verify if c.kernel == kernel)
    ordinary = {c for name in ("smoke", "full") for c in (*select(name).timed, *select(name).verify)}
    assert all(c.config in c.kernel.configs for c in ordinary)
    assert any(c.config not in c.kernel.configs for c in advice.timed)


def test_what_is_illegal_can_be_listed_with_its_reasons() -> None:
    listed = dict(illegal(LADDER, H200))
    assert "4096 threads" in listed["tiled-f32-tile64-pad0"][0]
    assert "misaligned" in listed["vectorized-f32-tile64x64x8-thread8x8-pad1"][0]
    assert "36×36" in listed["tiled-f32-tile36-pad0"][0]  # of the advised ones
    declared = sum(len(kernel.declared) * len(kernel.dtypes) for kernel in LADDER)
    legal = sum(len(legal_variants(kernel, H200, kernel.declared)) for kernel in LADDER)
    assert len(listed) + legal == declared
    assert len(illegal(LADDER, GpuLimits.of((7, 5)))) > len(listed)


@pytest.mark.parametrize(
    "problem", [*VERIFIED, *TIMED, Problem(8, 9, 10, batch=5, alpha=0.5)], ids=lambda p: p.id
)
def test_every_problem_is_found_by_its_id(problem: Problem) -> None:
    assert find_problem(problem.id) == problem


@pytest.mark.parametrize(
    ("lookup", "message"),
    [
        (lambda: select("smok"), r"unknown suite 'smok' \(did you mean 'smoke'\?\); known: smoke, full"),
        (lambda: find_kernel("tield"), r"'tield' \(did you mean 'tiled'\?\); known: tiled and \d+ more"),
        (lambda: find_config(find_kernel("naive"), "tile8"), r"config of naive 'tile8'; known: block32x32, "),
        (lambda: find_config(find_kernel("cublas"), "x"), r"unknown config of cublas 'x'; known: none"),
        (lambda: find_problem("4096x4096"), r"unknown shape '4096x4096': write it as MxNxK"),
        (lambda: find_problem("1x2x3-alpha1e-e"), r"unknown shape '1x2x3-alpha1e-e'"),
        (lambda: find_problem("8x8x8-ld4.8.8"), r"problem 8x8x8: lda 4 is less than the row length 8"),
        (lambda: find_problem("1x1x2147483648"), r"shape '1x1x2147483648': .* at most 2147483647"),
        (lambda: find_problem("1x2x3-batch0"), r"batch 1 or more"),
    ],
)
def test_a_wrong_name_is_one_clear_line(lookup: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        lookup()
    assert "\n" not in str(error.value)
    assert find_config(find_kernel("tiled"), "tile16-pad1") == Config(TILE_SIZE=16, PADDING=1)
