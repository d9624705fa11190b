"""The notes' claims: each verdict follows from what is stored, and turns where that is planted otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gemm_regression.counters.traffic import NcuCounts
from gemm_regression.tune.figures import Surveyed
from lab.advice.policies import NOTES
from lab.claims import CLAIMS, Claim, Facts, Judged, Seen, Status, judge, own, rules
from lab.claims.claim import read, together
from lab.claims.command import page
from lab.claims.rules import COUNTED, LARGE, NAIVE, SMALL
from tests.ladder import LADDER, PROJECT

HOLDS, HOLDS_IF, CONTRADICTED, NOT_MEASURED = Status
STORED = Facts.of(PROJECT)
TILED = "tiled-f32-tile32-pad0"
BEST = "register-f32-tile128x128x8-thread8x8-pad0"


def claim(text: str) -> Claim:
    """The only claim that says this, or whose condition does."""
    (found,) = (one for one in CLAIMS if text in f"{one.says}; {one.when}")
    return found


def verdict(text: str, facts: Facts) -> Status:
    return judge(claim(text), facts).verdict


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


def test_there_are_claims_of_every_note_each_with_its_own_words_and_at_most_twelve() -> None:
    assert len(CLAIMS) >= 120
    assert len({(one.note, one.at, one.says, one.when) for one in CLAIMS}) == len(CLAIMS)
    assert {one.note for one in CLAIMS} == set(NOTES)
    assert [one.says for one in CLAIMS if len(one.says.split()) > 12] == []
    assert [one.says for one in CLAIMS if not one.when or not one.at] == []


@pytest.mark.parametrize("one", CLAIMS, ids=lambda one: f"{one.note} {one.at}: {one.says}"[:60])
def test_every_verdict_of_what_is_stored_has_its_reason_and_its_figures(one: Claim) -> None:
    judged = judge(one, STORED)
    assert bool(judged.seen) or judged.verdict is NOT_MEASURED
    assert one.why(judged.verdict), judged.verdict


def test_what_the_notes_say_right_holds_and_what_they_say_wrong_does_not() -> None:
    stated = {
        "tiling: 32×32 with 1024 threads": HOLDS,
        "tensor cores: 128×128 with 256 threads": HOLDS,
        "tensor cores bring 10 to 20 times": HOLDS,
        "128 to 256 threads are typical": HOLDS,
        "naive is almost always memory-bound": HOLDS,
        "no configuration is the best for all": HOLDS,
        "the theoretical gain is TILE_SIZE times": HOLDS,
        "start with 32×32 and 256 threads": HOLDS,
        "too large a tile may exceed": HOLDS_IF,
        "depending on storage": HOLDS_IF,
        "errors that come and go": HOLDS_IF,
        "a register takes 1 cycle": NOT_MEASURED,
        "needs only 16 threads": NOT_MEASURED,
        "0.5 FLOP per byte": CONTRADICTED,
        "64 KB of registers": CONTRADICTED,
        "rows of 65 floats": CONTRADICTED,
    }
    assert {text: verdict(text, STORED) for text in stated} == stated


def test_without_anything_stored_only_arithmetic_and_rules_are_judged() -> None:
    judged = [judge(one, Facts(kernels=LADDER)).verdict for one in CLAIMS]
    known = sum(of is not NOT_MEASURED for of in judged)
    assert 10 < known < len(CLAIMS) / 3
    stored = sum(judge(one, STORED).verdict is not NOT_MEASURED for one in CLAIMS)
    assert stored > 2 * known


def test_a_speed_planted_otherwise_turns_the_verdict() -> None:
    times = "in practice tiling is 15 to 30 times"
    assert verdict(times, timed(LARGE, tiled=8600, tiled16=8000, naive=6460)) is CONTRADICTED
    assert verdict(times, timed(LARGE, tiled=1440, tiled16=760, naive=48)) is HOLDS
    assert verdict(times, timed(LARGE, tiled=1440, tiled16=100, naive=48)) is HOLDS_IF
    assert verdict(times, timed(LARGE, tiled=1440)) is NOT_MEASURED
    assert verdict(times, timed(SMALL, tiled=1440, naive=48)) is NOT_MEASURED


def test_two_gpus_that_disagree_make_it_a_condition() -> None:
    slow, fast = ({SMALL: {"tiled-f32-tile16-pad0": 60.0, NAIVE: n}} for n in (50.0, 10.0))
    judged = judge(claim("5 to 8 times as fast as naive"), Facts((gpu("One", slow), gpu("Other", fast))))
    assert judged.verdict is HOLDS_IF
    assert [(of.holds, of.gpu, of.said) for of in judged.seen] == [
        (False, "one", "1024³: 60 / 50 = 1.2"),
        (True, "other", "1024³: 60 / 10 = 6"),
    ]


@pytest.mark.parametrize(("speed", "wanted"), [(50.0, HOLDS), (1500.0, CONTRADICTED)])
def test_absolute_figures_are_judged_on_that_gpu_alone(speed: float, wanted: Status) -> None:
    here = gpu("NVIDIA H200", {LARGE: {NAIVE: 6460.0}})
    judged = judge(claim("naive: 48 GFLOPS"), Facts((here,)))
    assert (judged.verdict, judged.seen[0].said) == (NOT_MEASURED, "4096³: 6,460 GFLOPS")
    there = gpu("NVIDIA A100-SXM4-80GB", {LARGE: {NAIVE: speed}}, (8, 0))
    assert verdict("naive: 48 GFLOPS", Facts((here, there))) is wanted


def test_a_factor_of_an_a100_is_judged_there_alone() -> None:
    speeds = {LARGE: {"register-f32-tile64x64x16-thread4x4-pad0": 164.0, TILED: 100.0}}
    assert verdict("4×4: 1.64 times", Facts((gpu("NVIDIA H200", speeds),))) is NOT_MEASURED
    assert verdict("4×4: 1.64 times", Facts((gpu("NVIDIA A100", speeds),))) is HOLDS


def test_padding_is_judged_by_more_than_half_a_per_cent() -> None:
    padded = "almost always worth it"
    assert verdict(padded, timed(LARGE, tiled=100.0, padded=81.0)) is CONTRADICTED
    assert verdict(padded, timed(LARGE, tiled=100.0, padded=103.0)) is HOLDS
    assert verdict(padded, timed(LARGE, tiled=100.0, padded=100.1)) is CONTRADICTED


def test_a_counter_planted_otherwise_turns_the_verdict() -> None:
    problem = {name: dict(of) for name, of in STORED.counters[NAIVE].items()}
    problem[COUNTED] |= {"a_read": 0}  # as if A cost nothing
    planted = replace(STORED, counters={**STORED.counters, NAIVE: problem})
    assert verdict("0.5 FLOP per byte", planted) is HOLDS
    assert verdict("an element of C costs 2K reads", planted) is CONTRADICTED
    tiled = {name: {**of, "shared_loads_conflicts": 9} for name, of in STORED.counters[TILED].items()}
    assert verdict("reading As may have bank conflicts", STORED) is CONTRADICTED
    assert verdict("reading As may have bank conflicts", Facts(counters={TILED: tiled})) is HOLDS


def test_a_compiler_metric_planted_otherwise_turns_the_verdict() -> None:
    eighty = "needs about 80 registers"
    few = {arch: {BEST: replace(STORED.static[arch][BEST], registers=80)} for arch in ("sm_80", "sm_90a")}
    assert verdict(eighty, Facts(static=few)) is HOLDS
    assert verdict(eighty, Facts(static={**few, "sm_80": STORED.static["sm_80"]})) is HOLDS_IF
    shares = {f"tiled-f32-tile{size}-pad0": 8 / size for size in (8, 16, 32)}
    tiled = STORED.static["sm_80"][TILED]
    falling = {name: replace(tiled, occupancy=share) for name, share in shares.items()}
    assert verdict("occupancy: high with tile 8", Facts(static={"sm_80": falling})) is HOLDS


def test_the_fastest_of_each_stage_says_whether_occupancy_is_an_aim() -> None:
    low = "prefetch-f32-tile128x128x8-thread8x8-pad4"
    for names, wanted in (([TILED], HOLDS), ([low], CONTRADICTED), ([low, TILED], HOLDS_IF)):
        speeds = dict.fromkeys(names, 2.0) | {"cublas-f32": 9.0}
        facts = replace(STORED, gpus=(gpu("Test GPU", {LARGE: speeds}),))
        assert verdict("occupancy above 50 %", facts) is wanted


def test_rules_of_legality_judge_what_the_notes_launch() -> None:
    assert verdict("in practice with 256 threads", Facts()) is CONTRADICTED
    (seen,) = judge(claim("rows of 65 floats"), Facts(kernels=LADDER)).seen
    assert seen.said == "rows of As are 65 elements apart, so vectors of 4 would be misaligned"
    assert verdict("rows of 65 floats", Facts()) is NOT_MEASURED


def test_a_recommendation_is_judged_within_its_stage_and_by_all_of_its_shapes() -> None:
    cubes = [f"{n}x{n}x{n}" for n in (256, 512, 1024, 2048, 4096, 8192)]
    other, later = BEST.replace("pad0", "pad1"), "tf32x3-f32-x"

    def on(*shares: float) -> Status:
        speeds = {p: {BEST: s, other: 1.0, later: 9.0} for p, s in zip(cubes, shares, strict=False)}
        return verdict("Hopper: 128×128×8", replace(STORED, gpus=(gpu("NVIDIA H200", speeds),)))

    assert on(*[0.95] * 6) is HOLDS
    assert on(*[0.95] * 5, 0.8) is HOLDS
    assert on(*[0.5] * 5, 0.95) is HOLDS_IF
    assert on(*[0.5] * 6) is CONTRADICTED
    assert on(*[0.95] * 5) is NOT_MEASURED


def test_measured_roofs_and_counts_judge_what_limits_the_naive_kernel() -> None:
    def on(roofs: Mapping[str, Any], wavefronts: float) -> Facts:
        values = {"l1tex__data_pipe_lsu_wavefronts.sum": wavefronts}
        counted = {f"{NAIVE}-{LARGE}": NcuCounts("a" * 64, values, {"commit": "c" * 12})}
        one = replace(gpu("Test GPU", {LARGE: {NAIVE: 6000.0}}), roofs=roofs)
        return Facts((one,), seen={"test gpu": counted})

    roofs = {"shared": {"gbps": 33_000.0}, "f32": {"gflops": 66_000.0}, "cycles": {"shared": 29.0}}
    memory = "naive is almost always memory-bound"
    assert verdict(memory, on(roofs, 4.8e9)) is HOLDS
    assert verdict(memory, on(roofs, 1e9)) is CONTRADICTED
    assert verdict(memory, on({}, 4.8e9)) is NOT_MEASURED
    assert verdict("shared memory takes about", on(roofs, 1)) is CONTRADICTED
    assert verdict("shared memory takes about", on({"cycles": {"shared": 20.0}}, 1)) is HOLDS


@pytest.mark.parametrize(("second", "wanted"), [("exact", HOLDS), ("", HOLDS_IF)])
def test_planted_bugs_judge_what_is_said_of_barriers(second: str, wanted: Status) -> None:
    facts = Facts(planted={"first_barrier": "exact", "second_barrier": second, "guard": ""})
    assert verdict("errors that come and go", facts) is wanted


@pytest.mark.parametrize(
    ("stride", "rows", "ways"), [(32, 32, 32), (33, 32, 1), (16, 16, 8), (17, 16, 1), (36, 32, 4)]
)
def test_words_of_a_column_in_one_bank(stride: int, rows: int, ways: int) -> None:
    (seen,) = rules.column(Facts(), [rows, stride], ways, ways)
    assert (seen.holds, seen.said.rpartition(" ")[2]) == (True, f"{ways}-way")


def test_the_notes_test_of_a_config_lets_threads_without_work_pass() -> None:
    assert [
        own.valid(*one) for one in ((64, 256, 8), (64, 64, 8), (96, 256, 8), (32, 64, 4), (64, 64, 4))
    ] == [
        True,
        True,
        False,
        True,
        False,
    ]


def test_what_was_seen_is_put_together() -> None:
    yes, no, beside = Seen(True, "a"), Seen(False, "b"), Seen(None, "c")
    assert together([]).verdict is NOT_MEASURED
    assert together([beside]) == Judged(NOT_MEASURED, (beside,))
    assert together([yes, beside]).verdict is HOLDS
    assert together([yes], only_if=True).verdict is HOLDS_IF
    assert together([no], only_if=True).verdict is CONTRADICTED
    assert together([yes, no]).verdict is HOLDS_IF


def test_the_page_counts_the_verdicts_and_has_a_row_for_each_claim() -> None:
    facts = replace(
        timed(LARGE, tiled=300.0, naive=100.0), commits={"test gpu": {f"{NAIVE}-{LARGE}": "ab" * 8}}
    )
    text = """
        variants = { naive = "naive-f32-block32x32" }
        claim = [
            { note = "wall", at = "1", says = "it is so", when = "here", holds = "it is",
              judge = { ratio = ["tiled-f32-tile32-pad0", "{naive}"], at = ["4096x4096x4096"], low = 2 } },
            { note = "wall", at = "2", says = "and so", when = "there", unmeasured = "who knows",
              judge = { nothing = true } },
        ]"""
    made = page(read(text.replace("\n", " ").replace("claim =", "\nclaim =")), facts)
    counts = "| HOLDS | 1 |\n| HOLDS IF | 0 |\n| CONTRADICTED | 0 |\n| NOT MEASURED | 1 |"
    assert counts in made
    cell = "4096³: 300 / 100 = 3<br>(abababab)"
    assert f"| 1 | it is so | here | `{TILED}`<br>`{NAIVE}` | {cell} | HOLDS | it is |" in made
    assert "| 2 | and so | there |  |  | NOT MEASURED | who knows |" in made


def test_hit_rates_are_those_that_ncu_counted() -> None:
    facts = replace(timed(SMALL, naive=6000.0, tiled=8000.0), seen={})
    assert verdict("hit rate of L1", facts) is NOT_MEASURED
    for naive, tiled, wanted in ((95.0, 0.5, CONTRADICTED), (10.0, 60.0, HOLDS)):
        rates = {NAIVE: naive, TILED: tiled}
        values = {f"{name}-{SMALL}": {"l1tex__t_sector_hit_rate.pct": r} for name, r in rates.items()}
        counted = {case: NcuCounts("a" * 64, of, {"commit": "b" * 12}) for case, of in values.items()}
        judged = judge(claim("hit rate of L1"), replace(facts, seen={"test gpu": counted}))
        assert judged.verdict is wanted
        assert judged.seen[0].said == f"1024³: from {naive:g} % to {tiled:g} %"
