"""Schedules, intervals and looks: their properties, and by simulation how often they are wrong."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gemm_regression.judge.vocabulary import DEFAULT_MARGIN
from gemm_regression.timing.looks import (
    MIN_BLOCKS,
    Estimate,
    PairedKind,
    PairFinding,
    SequentialTest,
    conclude,
    look_until,
)
from gemm_regression.timing.samples import AbbaBlock, PairedSamples, into_blocks, schedule, total
from tests.gemm_regression.judge.replay import recorded

RULE = SequentialTest()
EDGE = math.log1p(DEFAULT_MARGIN)
RATIOS = st.lists(st.floats(-0.02, 0.02), min_size=MIN_BLOCKS, max_size=48)


# Schedules


@given(st.integers(0, 2**32), st.integers(0, 30), st.integers(1, 30))
def test_schedule_depends_on_seed_case_and_block_alone(seed: int, first: int, blocks: int) -> None:
    whole = schedule(seed, "case", 0, first + blocks).orders
    assert schedule(seed, "case", first, blocks).orders == whole[first:]
    assert {"".join(sorted(order)) for order in whole} == {"AABB"}
    assert all(order == order[::-1] for order in whole)  # the two arms have the same mean time: no drift


def test_schedule_is_drawn_by_lot_and_balanced() -> None:
    orders = schedule(1, "case", 0, 400).orders
    assert Counter(orders) == {"ABBA": 200, "BAAB": 200}
    assert all(set(two) == {"ABBA", "BAAB"} for two in zip(orders[::2], orders[1::2], strict=True))
    assert Counter(orders[::2])["ABBA"] not in (0, 200)
    assert schedule(2, "case", 0, 400).orders != orders
    assert schedule(1, "other", 0, 400).orders != orders


def test_sides_change_at_every_launch_or_two() -> None:
    two = dataclasses.replace(schedule(1, "case", 0, 1), orders=("ABBA", "BAAB"))
    assert two.launches(2) == "ABBAABBABAABBAAB"


# Samples


def launched(orders: tuple[str, ...], a: float, b: float, drift: float = 0.0, rounds: int = 3) -> list[float]:
    launches = "".join(order * rounds for order in orders)
    return [(a if arm == "A" else b) + drift * i for i, arm in enumerate(launches)]


@given(st.floats(-1e-6, 1e-6))
def test_linear_drift_cancels_in_each_block(drift: float) -> None:
    orders = schedule(3, "case", 0, 6).orders
    blocks, lost = into_blocks(orders, 2, launched(orders, 1e-3, 1.01e-3, drift, 2), [1980.0] * 48)
    assert lost == 0
    for number, block in enumerate(blocks):
        middle = drift * (8 * number + 3.5)
        assert block.log_ratio == pytest.approx(math.log((1.01e-3 + middle) / (1e-3 + middle)), abs=1e-12)


def test_launches_off_the_clock_are_thrown_away_and_thinned_blocks_with_them() -> None:
    orders = schedule(3, "case", 0, 6).orders
    seconds = launched(orders, 1.0, 1.01, rounds=2)
    mhz = [1980.0] * 48
    mhz[0] = 1500.0  # one launch of block 0
    mhz[8:12] = [1400.0] * 4  # half of block 1, in which an arm has two rounds first or last
    blocks, lost = into_blocks(orders, 2, seconds, mhz)
    assert lost == 5
    assert [len(block.a) + len(block.b) for block in blocks] == [7, 4, 8, 8, 8, 8]
    mhz[12] = mhz[13] = 1400.0  # and an arm of it whole
    blocks, lost = into_blocks(orders, 2, seconds, mhz)
    assert (len(blocks), lost) == (5, 7)


def test_samples_add_up() -> None:
    block = AbbaBlock((1.0, 1.2), (2.0,), (1000.0, 1000.0), (500.0,))
    one = PairedSamples((block,), discarded=2, gpu_seconds=0.5, reasons=4)
    both = total([one, one])
    assert both == PairedSamples((block, block), discarded=4, gpu_seconds=1.0, reasons=4)
    assert both.median("b") == 2.0
    assert block.log_ratio == pytest.approx(math.log(2 / 1.1))
    assert block.log_cycles == pytest.approx(math.log(1000 / 1100))
    assert math.isnan(dataclasses.replace(block, a_mhz=()).log_cycles)


def test_resolution_is_what_the_timer_cannot_tell_apart() -> None:
    ticks = AbbaBlock((1e-5, 1e-5 + 32e-9), (1e-5 + 64e-9, 1e-5 + 64e-9 + 1e-12))
    assert PairedSamples((ticks,)).resolution == pytest.approx(16e-9 / 1.0016e-5)
    # Samples that are all one tick say nothing about what lies within it.
    same = PairedSamples((AbbaBlock((1e-5,) * 3, (1e-5,) * 3),) * 12)
    estimate = Estimate.of(same.log_ratios, same.resolution)
    assert estimate.p_value(0.005) == 1.0
    assert estimate.half_width(0.01) == pytest.approx(0.025)


# Intervals


def test_interval_is_students() -> None:
    ratios = [0.01, 0.012, 0.008, 0.011, 0.009, 0.013]
    low, high = stats.ttest_1samp(ratios, 0).confidence_interval(0.99)
    assert Estimate.of(ratios).interval(0.01) == pytest.approx((math.expm1(low), math.expm1(high)))


@given(RATIOS, st.floats(1e-7, 0.3), st.floats(0.0005, 0.02))
def test_slower_or_certainly_not_just_where_the_interval_lies_on_one_side_of_the_margin(
    ratios: list[float], miss: float, margin: float
) -> None:
    e = Estimate.of(ratios)
    low, high = e.interval(miss)
    p, kind = e.p_value(margin), e.conclude(margin, miss)
    if abs(p - miss) > 1e-6 * miss:  # not where rounding decides
        assert (kind is PairedKind.SLOWER) is (low > margin)
        assert (kind in (PairedKind.SAME, PairedKind.FASTER)) is (high < margin)
        assert (kind is PairedKind.AMBIGUOUS) is (p > miss)
    if kind is PairedKind.FASTER:
        assert high < 1 / (1 + margin) - 1


@pytest.mark.parametrize("mean", [-0.05, -0.0036, 0.0, 0.0007])
def test_certainly_not_slower_by_the_margin_is_clear_faster_or_not(mean: float) -> None:
    """What is a little faster for certain, or at most 0.07 % slower, is not red."""
    assert Estimate(mean, 0.0003, 12).conclude(0.005, 1e-4) in (PairedKind.SAME, PairedKind.FASTER)


@given(RATIOS, st.floats(0.0005, 0.02), st.floats(1e-7, 0.3))
def test_a_control_asks_for_a_difference_either_way(ratios: list[float], margin: float, miss: float) -> None:
    one, other = Estimate.of(ratios), Estimate.of([-r for r in ratios])
    assert one.differs(margin, miss) is other.differs(margin, miss)
    if one.conclude(margin, miss) in (PairedKind.SLOWER, PairedKind.FASTER):
        assert one.differs(margin, 1.000001 * miss)


@pytest.mark.parametrize("ratios", [[0.0] * (MIN_BLOCKS - 1), [0.0] * 9 + [math.nan], [0.0] * 9 + [math.inf]])
def test_too_little_or_no_number_is_no_estimate(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match=r"complete blocks|finite"):
        Estimate.of(ratios)


# Looks


@pytest.mark.parametrize(
    "wrong", [{"error": 0.0}, {"error": 1.0}, {"looks": 0}, {"blocks": 7}, {"blocks": 4}]
)
def test_rule_that_makes_no_test_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        SequentialTest(**wrong)  # type: ignore[arg-type]


def test_each_look_doubles_the_blocks_and_has_its_share_of_the_error() -> None:
    assert [RULE.blocks_of(look) for look in range(4)] == [(0, 12), (12, 12), (24, 24), (48, 48)]
    assert RULE.share(10) * 10 * RULE.looks == pytest.approx(RULE.error)


def concluded(estimates: dict[str, Estimate], cases: int = 0) -> dict[str, PairFinding]:
    return conclude(estimates, dict.fromkeys(estimates, DEFAULT_MARGIN), RULE, cases or len(estimates))


@given(st.lists(st.tuples(st.floats(-0.02, 0.02), st.floats(1e-6, 0.01)), min_size=1, max_size=12))
def test_holm_decides_what_bonferroni_does_and_nothing_beyond_the_error_of_a_look(
    cases: list[tuple[float, float]],
) -> None:
    estimates = {str(i): Estimate(mean, error, 12) for i, (mean, error) in enumerate(cases)}
    found, p = concluded(estimates), {case: e.p_value(DEFAULT_MARGIN) for case, e in estimates.items()}
    assert found.keys() == estimates.keys()
    open_ = {case for case, f in found.items() if f.kind is PairedKind.AMBIGUOUS}
    for case, f in found.items():
        assert p[case] > RULE.share(len(cases)) or case not in open_
        if p[case] > RULE.error / RULE.looks:
            assert case in open_ or f.margin > DEFAULT_MARGIN
        assert RULE.share(len(cases)) <= f.miss <= RULE.error / RULE.looks * (1 + 1e-9)
    # A more certain case is never open where a less certain one is not.
    sure = {case for case in found.keys() - open_ if found[case].margin == DEFAULT_MARGIN}
    assert all(p[one] >= p[other] for one in open_ for other in sure)


def test_a_part_of_a_run_has_no_more_than_its_own_shares() -> None:
    estimates = {"clear": Estimate(0.0, 1e-5, 12), "open": Estimate(EDGE, 0.01, 12)}
    assert [f.miss for f in concluded(estimates, 100).values()] == pytest.approx(
        [RULE.share(100), 2 * RULE.share(100)]
    )


# Simulations


def decided(log_ratios: np.ndarray, rule: SequentialTest) -> tuple[list[PairedKind], int]:
    """The verdicts on cases (rows) whose blocks (columns) are all there already; and blocks looked at."""
    used, estimates = 0, {}
    for row, ratios in enumerate(log_ratios):

        def more(look: int, ratios: np.ndarray = ratios) -> tuple[list[float], float]:
            nonlocal used
            first, count = rule.blocks_of(look)
            used += count
            return list(ratios[first : first + count]), 0.0

        share = rule.share(len(log_ratios))
        e = look_until(more, lambda e, share=share: e.p_value(DEFAULT_MARGIN) <= share, rule)  # type: ignore[misc]
        assert e is not None
        estimates[str(row)] = e
    found = conclude(estimates, dict.fromkeys(estimates, DEFAULT_MARGIN), rule, len(estimates))
    return [found[str(row)].kind for row in range(len(log_ratios))], used


def simulated(rng: np.random.Generator, truth: np.ndarray, spread: float, blocks: int = 96) -> np.ndarray:
    """Block log-ratios with heavier tails than the normal's, of one true ratio a row."""
    return truth[:, None] + spread * rng.standard_t(8, (len(truth), blocks))


def test_false_verdicts_stay_within_the_error_where_they_are_likeliest() -> None:
    """Nine cases a run that lie on the margin, where one of the two claims is false, and one far off."""
    rng, rule, runs = np.random.default_rng(1), SequentialTest(error=0.1), 300
    truth = np.array([EDGE * 0.9999] * 5 + [EDGE * 1.0001] * 4 + [0.05])
    false = 0
    for _ in range(runs):
        kinds, _ = decided(simulated(rng, truth, 0.001), rule)
        called = [kind is PairedKind.SLOWER for kind in kinds[:5]]
        passed = [kind in (PairedKind.SAME, PairedKind.FASTER) for kind in kinds[5:9]]
        false += any(called + passed)
        assert kinds[9] is PairedKind.SLOWER
    # Of 300 runs with a chance of 0.1 each, 99.9 % have fewer than 47.
    assert 0 < false < 47


def test_power_and_false_alarms_at_the_noise_of_a_quiet_gpu() -> None:
    """Blocks spread by 0.15 %, the H200's of 115 µs: 1 % is always seen, nothing raised without cause."""
    rng, runs = np.random.default_rng(2), 60
    truth = np.log1p(np.array([0.0] * 6 + [0.01, 0.02, -0.01]))
    found: Counter[tuple[int, PairedKind]] = Counter()
    for _ in range(runs):
        found.update(enumerate(decided(simulated(rng, truth, 0.0015), RULE)[0]))
    assert all(found[case, PairedKind.SAME] == runs for case in range(6))
    assert found[6, PairedKind.SLOWER] == found[7, PairedKind.SLOWER] == runs
    assert found[8, PairedKind.FASTER] + found[8, PairedKind.SAME] == runs


@pytest.mark.parametrize("truth", [0.0, 0.01])
def test_noise_beyond_the_largest_margin_is_ambiguous_never_same(truth: float) -> None:
    rng = np.random.default_rng(3)
    kinds = Counter[PairedKind]()
    for _ in range(50):
        kinds.update(decided(simulated(rng, np.full(4, truth), 0.2), RULE)[0])
    assert PairedKind.SAME not in kinds
    assert kinds[PairedKind.AMBIGUOUS] > 195


def test_noise_beyond_the_margin_is_judged_by_the_least_margin_that_it_allows() -> None:
    """Of 96 blocks that spread by 1.5 %, equal ones end within 1 %; what is slower by that does not."""
    for mean, kind in ((0.0, PairedKind.SAME), (0.003, PairedKind.SAME), (0.01, PairedKind.AMBIGUOUS)):
        estimate = Estimate(mean, 0.0015, 96)
        found = PairFinding.at_last(estimate, DEFAULT_MARGIN, 1e-5)
        assert found.kind is kind
        assert DEFAULT_MARGIN < estimate.least_margin(1e-5) < 0.012
        assert found.margin == (estimate.least_margin(1e-5) if kind is PairedKind.SAME else DEFAULT_MARGIN)


def test_doubtful_cases_alone_cost_more_looks() -> None:
    rng = np.random.default_rng(4)
    truth = np.array([0.0] * 9 + [EDGE])
    kinds, used = decided(simulated(rng, truth, 0.0005), RULE)
    assert kinds[-1] is PairedKind.AMBIGUOUS
    assert used == 9 * 12 + 96


def test_one_without_blocks_waits() -> None:
    asked: list[int] = []
    few = [0.0001, -0.0001, 0.0002]

    def looked(*looks: list[float]) -> Estimate | None:
        asked.clear()

        def more(look: int) -> tuple[list[float], float]:
            asked.append(look)
            return looks[look], 0.0

        return look_until(more, lambda e: e.p_value(DEFAULT_MARGIN) < 1e-6, RULE)

    thin = looked(few, few, [], [])
    assert thin
    assert thin.blocks == 6
    assert looked([], [], [], few) is None
    assert asked == [0, 1, 2, 3]


def _recorded_blocks(rng: np.random.Generator, case: str, rounds: int, runs: int, blocks: int) -> np.ndarray:
    """Log-ratios (runs, blocks) of two equal arms, of rounds drawn from the recording."""
    seen = [np.array(run[case]["seconds"]) for run in recorded()["runs"]]
    share = np.concatenate([seconds / np.median(seconds) for seconds in seen])
    arms = rng.choice(share, (2, runs, blocks, 2 * rounds))
    arms = arms * (1 + 4e-4 * rng.standard_normal(arms.shape))  # between the quantiles that were kept
    a, b = np.median(arms, axis=-1)
    return np.asarray(np.log(b / a))


def test_student_is_right_on_recorded_noise_where_the_bootstrap_is_not() -> None:
    """Why Student's t: misses of nominal 99 % intervals over twelve blocks of recorded H200 samples."""
    rng, miss, runs = np.random.default_rng(5), 0.01, 1500
    student = bootstrap = signed_rank = counted = 0
    for case, rounds in (
        ("double_buffered-f32-tile128x128x16-thread8x8-pad4-stages2-1024x1024x1024", 12),
        ("tiled-f32-tile32-pad0-2048x2048x2048", 2),
        ("naive-f32-block32x32-4095x4095x4095", 1),
    ):
        ratios = _recorded_blocks(rng, case, rounds, runs, 12)
        for row in ratios:
            low, high = Estimate.of(list(row)).interval(miss)
            student += not low <= 0 <= high
        for row in ratios[:300]:
            means = row[rng.integers(0, 12, (800, 12))].mean(axis=1)
            low, high = np.quantile(means, (miss / 2, 1 - miss / 2))
            bootstrap += not low <= 0 <= high
            signed_rank += stats.wilcoxon(row, method="exact").pvalue <= miss
            counted += 1
    assert student / (3 * runs) < 0.015
    assert bootstrap / counted > 0.02
    assert signed_rank / counted < 0.02
    # The signed-rank test behind Hodges and Lehmann's interval cannot say more than this with twelve blocks.
    assert stats.wilcoxon(np.arange(1.0, 13.0), method="exact").pvalue == 2**-11
