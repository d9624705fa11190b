"""The notes' claims: each verdict follows from what is stored, and turns where that is planted otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gemm_regression.counters.traffic import NcuCounts
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import BLOCKS, REGISTERS, TILING, WALL
from lab.claims import CLAIMS, Claim, Facts, Judged, Status
from lab.claims.claim import UNEXPLAINED, together
from lab.claims.command import page
from lab.claims.feeding import conflict
from lab.claims.rules import LARGE, SMALL, all_of
from tests.ladder import LADDER, PROJECT

HOLDS, CONTRADICTED, DEPENDS, NOT_MEASURED = Status
STORED = Facts.of(PROJECT)
UNKNOWN = Judged(NOT_MEASURED)
TILED, NAIVE = "tiled-f32-tile32-pad0", "naive-f32-block32x32"


def claim(text: str) -> Claim:
    """The only claim whose gist has this in it."""
    (found,) = (one for one in CLAIMS if text in one.gist)
    return found


def gpu(
    name: str, speeds: Mapping[str, Mapping[str, float]], capability: tuple[int, int] = (9, 0)
) -> Surveyed:
    return Surveyed(name.lower(), name, capability, (), speeds, based=frozenset(speeds))


def timed(problem: str, **speeds: float) -> Facts:
    """Facts of one GPU; the names of variants are given as TILED and so on."""
    tile16, padded = "tiled-f32-tile16-pad0", "tiled-f32-tile32-pad1"
    names = {"tiled": TILED, "tiled16": tile16, "padded": padded, "naive": NAIVE}
    of = {names.get(name, name): speed for name, speed in speeds.items()}
    return Facts((gpu("Test GPU", {problem: of}),), kernels=LADDER)


def test_there_are_claims_of_every_note_each_with_its_own_words() -> None:
    assert len(CLAIMS) >= 40
    assert len({(one.note, one.section, one.gist) for one in CLAIMS}) == len(CLAIMS)
    assert {one.note for one in CLAIMS} >= {TILING, WALL, BLOCKS, REGISTERS}


@pytest.mark.parametrize("one", CLAIMS, ids=lambda one: f"{one.section}: {one.gist}"[:60])
def test_every_verdict_of_what_is_stored_is_explained_and_has_figures(one: Claim) -> None:
    judged = one.judge(STORED)
    assert bool(judged.figures) or judged.verdict is NOT_MEASURED
    assert one.why(judged.verdict) != ""


def test_nearly_everything_that_is_contradicted_is_explained() -> None:
    """New figures may contradict what older ones did not."""
    unexplained = [one.gist for one in CLAIMS if one.why(one.judge(STORED).verdict) == UNEXPLAINED]
    assert len(unexplained) <= 3, unexplained


def test_without_anything_stored_only_arithmetic_and_rules_are_judged() -> None:
    judged = {one.gist: one.judge(Facts(kernels=LADDER)) for one in CLAIMS}
    known = [gist for gist, of in judged.items() if of.verdict is not NOT_MEASURED]
    assert 10 < len(known) < len(CLAIMS) / 3
    stored = [one for one in CLAIMS if one.judge(STORED).verdict is not NOT_MEASURED]
    assert len(stored) > 2 * len(known)


def test_a_speed_planted_otherwise_turns_the_verdict() -> None:
    times = claim("15 to 30 times as fast in practice")
    assert times.judge(timed(LARGE, tiled=8600, tiled16=8000, naive=6460)).verdict is CONTRADICTED
    assert times.judge(timed(LARGE, tiled=1440, tiled16=760, naive=48)).verdict is HOLDS
    assert times.judge(timed(LARGE, tiled=1440, tiled16=100, naive=48)).verdict is DEPENDS
    assert times.judge(timed(LARGE, tiled=1440)).verdict is NOT_MEASURED
    assert times.judge(timed(SMALL, tiled=1440, naive=48)).verdict is NOT_MEASURED


def test_two_gpus_that_disagree_make_it_depend() -> None:
    slow, fast = ({SMALL: {"tiled-f32-tile16-pad0": 60.0, NAIVE: n}} for n in (50.0, 10.0))
    facts = Facts((gpu("One", slow), gpu("Other", fast)))
    judged = claim("5 to 8 times as fast as the naive kernel").judge(facts)
    assert judged == Judged(DEPENDS, ("One: 60 / 50 GFLOPS = 1.2", "Other: 60 / 10 GFLOPS = 6"))


def test_absolute_figures_are_judged_on_that_gpu_alone() -> None:
    naive = claim("naive: 48 GFLOPS")
    here = gpu("NVIDIA H200", {LARGE: {NAIVE: 6460.0}})
    assert naive.judge(Facts((here,))) == Judged(NOT_MEASURED, ("NVIDIA H200: 6,460 GFLOPS",))
    for speed, verdict in ((50.0, HOLDS), (1500.0, CONTRADICTED)):
        there = gpu("NVIDIA A100-SXM4-80GB", {LARGE: {NAIVE: speed}}, (8, 0))
        assert naive.judge(Facts((here, there))).verdict is verdict


def test_a_range_of_the_notes_is_as_wide_as_it_says() -> None:
    tiles = claim("tiles of 16: 2 000 to 4 000 GFLOPS")
    for speed, verdict in ((1900.0, CONTRADICTED), (2000.0, HOLDS), (4000.0, HOLDS), (4100.0, CONTRADICTED)):
        there = gpu("NVIDIA A100-SXM4-80GB", {SMALL: {"tiled-f32-tile16-pad0": speed}}, (8, 0))
        assert tiles.judge(Facts((there,))).verdict is verdict, speed


def test_padding_is_judged_by_every_width_and_size() -> None:
    padded = claim("padded by one column are faster (tiled)")
    facts = timed(LARGE, tiled=100.0, padded=81.0)
    assert padded.judge(facts) == Judged(CONTRADICTED, (f"Test GPU, tile32, +1, {LARGE}: -19.0 %",))
    assert padded.judge(timed(LARGE, tiled=100.0, padded=103.0)).verdict is HOLDS
    assert padded.judge(timed(LARGE, tiled=100.0, padded=100.1)).verdict is CONTRADICTED


def test_a_counter_planted_otherwise_turns_the_verdict() -> None:
    half = claim("0.5 FLOP per byte")
    assert half.judge(STORED).verdict is CONTRADICTED
    problem = {name: dict(of) for name, of in STORED.counters[NAIVE].items()}
    problem["96x160x64"] |= {"a_read": 0}  # as if A cost nothing
    planted = replace(STORED, counters={**STORED.counters, NAIVE: problem})
    assert half.judge(planted).verdict is HOLDS
    assert claim("2MNK in all").judge(planted).verdict is CONTRADICTED
    conflicts = claim("As[ty][k] and Bs[k][tx] may conflict")
    tiled = {name: {**of, "shared_loads_conflicts": 9} for name, of in STORED.counters[TILED].items()}
    assert conflicts.judge(STORED).verdict is CONTRADICTED
    assert conflicts.judge(Facts(counters={TILED: tiled})).verdict is HOLDS


def test_a_compiler_metric_planted_otherwise_turns_the_verdict() -> None:
    eighty = claim("needs about 80 registers")
    name = "register-f32-tile128x128x8-thread8x8-pad0"
    assert eighty.judge(STORED).verdict is CONTRADICTED
    few = {arch: {name: replace(STORED.static[arch][name], registers=80)} for arch in ("sm_80", "sm_90a")}
    assert eighty.judge(Facts(static=few)).verdict is HOLDS
    assert eighty.judge(Facts(static={**few, "sm_80": STORED.static["sm_80"]})).verdict is DEPENDS
    occupancy = claim("occupancy is high with a tile of 8")
    shares = {f"tiled-f32-tile{size}-pad0": 8 / size for size in (8, 16, 32)}
    tiled = STORED.static["sm_80"][TILED]
    falling = {name: replace(tiled, occupancy=share) for name, share in shares.items()}
    assert occupancy.judge(STORED).verdict is CONTRADICTED
    assert occupancy.judge(Facts(static={"sm_80": falling})).verdict is HOLDS


def test_the_fastest_kernel_says_whether_occupancy_is_an_aim() -> None:
    aim = claim("occupancy should be above 50 %")
    low, full = "prefetch-f32-tile128x128x8-thread8x8-pad4", TILED
    for best, verdict in ((low, CONTRADICTED), (full, HOLDS)):
        speeds = {low: 1.0, full: 1.0, "cublas-f32": 9.0} | {best: 2.0}
        facts = replace(STORED, gpus=(gpu("Test GPU", {LARGE: speeds}),))
        assert aim.judge(facts).verdict is verdict


def test_rules_of_legality_judge_what_the_notes_launch() -> None:
    assert claim("256 threads compute a 64×64 tile").judge(Facts()).verdict is CONTRADICTED
    assert claim("rows of TILE_SIZE + 1 = 65").judge(Facts(kernels=LADDER)).figures == (
        "rows of As are 65 elements apart, so vectors of 4 would be misaligned",
    )
    assert claim("rows of TILE_SIZE + 1 = 65").judge(Facts()).verdict is NOT_MEASURED


def test_a_recommendation_needs_every_shape_that_its_choice_is_timed_at() -> None:
    (here,) = [one for one in STORED.gpus if one.slug == "nvidia-h200"]
    advice = claim("by a table of architectures")
    chosen = "register-f32-tile128x128x8-thread8x8-pad0"
    assert advice.judge(replace(STORED, gpus=(here,))).verdict is CONTRADICTED
    alone = {problem: {chosen: 1.0} for problem in here.gflops}
    best = replace(here, gflops=alone)
    assert advice.judge(replace(STORED, gpus=(best,))).verdict is HOLDS
    part = replace(here, gflops={LARGE: {chosen: 1.0}})
    assert advice.judge(replace(STORED, gpus=(part,))).verdict is NOT_MEASURED
    unknown = replace(best, based=frozenset({LARGE}))  # elsewhere the fastest kernel was not measured
    assert advice.judge(replace(STORED, gpus=(unknown,))).verdict is NOT_MEASURED


def test_measured_roofs_judge_latencies_and_what_limits_the_naive_kernel() -> None:
    def on(roofs: Mapping[str, Any]) -> Facts:
        return Facts((replace(gpu("Test GPU", {LARGE: {NAIVE: 6000.0}}), roofs=roofs),))

    fast = on({"cycles": {"fma": 1.0, "shared": 20.0}, "dram": {"gbps": 30_000.0}})
    real = on({"cycles": {"fma": 4.1, "shared": 29.0}, "dram": {"gbps": 4000.0}})
    for text in ("a register takes one", "shared memory takes about", "nearly always bound by memory"):
        assert claim(text).judge(fast).verdict is HOLDS
        assert claim(text).judge(real).verdict is CONTRADICTED
        assert claim(text).judge(on({})).verdict is NOT_MEASURED
    assert claim("a register takes one").judge(real).figures == ("Test GPU: 4.1 cycles",)


def test_planted_bugs_judge_what_is_said_of_barriers() -> None:
    barriers = claim("without either barrier")
    assert barriers.judge(STORED).verdict is HOLDS
    unseen = Facts(planted={"first_barrier": "exact", "second_barrier": ""})
    assert barriers.judge(unseen).verdict is DEPENDS


@pytest.mark.parametrize(
    ("stride", "rows", "ways"), [(32, 32, 32), (33, 32, 1), (16, 16, 8), (17, 16, 1), (36, 32, 4)]
)
def test_words_of_a_column_in_one_bank(stride: int, rows: int, ways: int) -> None:
    assert conflict(stride, rows) == ways


def test_judgements_are_put_together() -> None:
    assert together([]).verdict is NOT_MEASURED
    assert together([(True, "a"), (False, "b")]) == Judged(DEPENDS, ("a", "b"))
    holds = all_of(lambda facts: Judged(HOLDS, ("a",)), lambda facts: UNKNOWN)
    assert holds(Facts()) == Judged(HOLDS, ("a",))


def test_the_page_counts_the_verdicts_and_has_a_row_for_each_claim() -> None:
    one = Claim("A note", "1", "it is so", lambda facts: Judged(HOLDS, ("1 / 2",)), holds="it is")
    other = Claim("A note", "2", "and so", lambda facts: UNKNOWN, "A100")
    text = page([one, other], Facts())
    assert "| HOLDS | 1 |\n| CONTRADICTED | 0 |\n| DEPENDS | 0 |\n| NOT MEASURED HERE | 1 |" in text
    assert "| 1 | it is so | any | HOLDS | 1 / 2 | it is |" in text
    assert "| 2 | and so | A100 | NOT MEASURED HERE |  | nothing stored says |" in text


def test_hit_rates_are_those_that_ncu_counted() -> None:
    one = claim("hit rate of L1")
    facts = replace(timed(SMALL, naive=6000.0, tiled=8000.0), seen={})
    assert one.judge(facts).verdict is NOT_MEASURED
    for naive, tiled, verdict in ((95.0, 0.5, CONTRADICTED), (10.0, 60.0, HOLDS)):
        rates = {NAIVE: naive, TILED: tiled}
        values = {f"{name}-{SMALL}": {"l1tex__t_sector_hit_rate.pct": r} for name, r in rates.items()}
        counted = {case: NcuCounts("a" * 64, of, {}) for case, of in values.items()}
        judged = one.judge(replace(facts, seen={"test gpu": counted}))
        assert judged.verdict is verdict
        assert judged.figures[0].startswith(f"Test GPU, {SMALL}: from {naive:g}")
