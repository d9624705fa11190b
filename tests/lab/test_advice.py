"""The notes' recommendations as policies: each chooses what is declared, and is ranked by stored figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.baselines import BaselineError, append
from gemm_regression.model import Case, Problem, variant_name
from gemm_regression.model.gpus import GpuLimits, refusals, suggested_block
from gemm_regression.project.suites import TIMED, TIMED_BATCHED
from gemm_regression.timing.plan import Measurement
from gemm_regression.tune.figures import SURVEY, Surveyed, every_survey, store_survey, surveyed
from lab.advice.command import page
from lab.advice.policies import POLICIES, Advice, Target, best_single, mean_share, rank
from tests.gemm_regression import synthetic
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import Rig
from tests.gemm_regression.synthetic import CUBE, SLUG, case, five_runs, measurement, merged, run, saved
from tests.ladder import LADDER, select

REGISTERS = {"naive-f32-block32x32": 40}
TARGETS = [Target(GpuLimits.of(c), REGISTERS) for c in ((7, 5), (8, 0), (8, 6), (9, 0), (12, 0))]
_ADVISED = [(kernel, config, kernel.dtypes[0]) for kernel in LADDER for config in kernel.advised]
ADVISED = {variant_name(*variant): variant for variant in _ADVISED}


def named(name: str) -> Advice:
    return next(policy for policy in POLICIES if policy.name == name)


def square(n: int) -> Problem:
    return Problem(n, n, n)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_a_policy_chooses_what_is_declared_legal_and_timed(policy: Advice) -> None:
    timed = {case.id for case in select("advice").timed}
    chosen = set()
    for target in TARGETS:
        for problem in (*TIMED, *TIMED_BATCHED):
            variant = policy.choose(problem, target)
            if variant is None:
                continue
            chosen.add(variant)
            kernel, config, dtype = ADVISED[variant]
            if target.limits.capability >= (8, 0):
                assert not refusals(kernel, config, dtype, target.limits)
            if kernel.operation.batched == (problem.batch > 1) and problem.flops <= kernel.largest_timed:
                assert f"{variant}-{problem.id}" in timed
    assert chosen


def test_names_are_told_apart_and_each_has_a_source() -> None:
    assert len({policy.name for policy in POLICIES}) == len(POLICIES)
    assert all(policy.note and policy.section and policy.gist for policy in POLICIES)


def test_classes_of_size_end_where_the_notes_say() -> None:
    by_size, target = named("by size"), TARGETS[3]
    tiles = [by_size.choose(square(n), target) or "" for n in (255, 256, 1024, 1025, 4096, 4097)]
    wanted = "tile16 tile32x32x32 tile32x32x32 tile64x64x8 tile64x64x8 tile128x128x8"
    assert [tile.split("-")[2] for tile in tiles] == wanted.split()
    by_function = named("by a function of the size")
    assert by_function.choose(square(511), target) == by_function.choose(Problem(4096, 64, 4096), target)
    assert "tile32x32x32" in str(by_function.choose(square(2047), target))
    assert "tile64x64x64" in str(by_function.choose(square(2048), target))
    assert "tile128x64x8" in str(named("by shape").choose(Problem(4096, 64, 4096), target))
    turing, hopper = (named("by architecture").choose(CUBE, one) for one in TARGETS[:4:3])
    assert turing == "register-f32-tile32x32x32-thread2x2-pad0"
    assert hopper == "register-f32-tile128x128x8-thread8x8-pad0"


def test_the_suggested_block_has_the_most_threads_of_equal_occupancy() -> None:
    """An SM of 1 536 threads holds one block of 1 024, or two of 768."""
    blocks = {c: suggested_block(32, 0, GpuLimits.of(c)) for c in ((7, 5), (8, 0), (8, 6), (9, 0))}
    assert blocks == {(7, 5): 1024, (8, 0): 1024, (8, 6): 768, (9, 0): 1024}
    # 80 registers a thread: 6 warps for each of four sub-partitions.
    uses = ((80, 0), (256, 0), (32, 300 * 1024))
    assert [suggested_block(*use, GpuLimits.of((9, 0))) for use in uses] == [768, 0, 0]
    suggested = named("largest potential block")
    assert suggested.choose(CUBE, TARGETS[2]) == "naive-f32-block32x24"
    assert suggested.choose(CUBE, Target(TARGETS[2].limits)) is None


def test_a_policy_is_ranked_by_the_fastest_of_its_dtype() -> None:
    speeds = {
        "64x64x64": {"a-f32-x": 50.0, "b-f32-x": 100.0, "c-f16-x": 900.0},
        "32x32x32": {"a-f32-x": 30.0},
        "16x16x16": {"b-f32-x": 10.0},
    }
    ranks = rank(lambda problem: "a-f32-x", speeds, [square(n) for n in (64, 32, 16, 8)])
    found = [(one.problem, one.share, one.best) for one in ranks]
    assert found == [("64x64x64", 0.5, "b-f32-x"), ("32x32x32", 1.0, "a-f32-x")]
    assert mean_share(ranks) == pytest.approx(0.5**0.5)
    (within,) = rank(lambda problem: "a-f32-x", speeds, [square(64)], within=True)
    assert (within.share, within.best) == (1.0, "a-f32-x")
    assert mean_share([]) is None


def test_one_config_for_all_is_the_best_of_those_measured_everywhere() -> None:
    speeds = {
        "64x64x64": {"a-f32-x": 50.0, "b-f32-x": 90.0, "c-f16-x": 900.0, "d-f32-x": 100.0},
        "32x32x32": {"a-f32-x": 30.0, "b-f32-x": 25.0, "c-f16-x": 900.0},
    }
    single = best_single(speeds, [square(64), square(32)])
    assert single is not None
    assert single.choose(CUBE, TARGETS[3]) == "b-f32-x"
    assert single.source == "measured here"
    assert best_single(speeds, [square(64), square(16)]) is None


TILED = case("tiled")


def test_a_survey_is_a_run_without_samples_or_secrets(tmp_path: Path) -> None:
    (path,) = saved(tmp_path / "runs", [run(1, {TILED: measurement(0.02), case("naive"): measurement(0.04)})])
    file = store_survey(path, tmp_path / "baselines")
    assert file == tmp_path / "baselines" / SLUG / SURVEY
    text = file.read_text()
    assert not any(secret in text for secret in synthetic.SECRETS)
    assert '"data"' not in text
    found = surveyed(tmp_path / "baselines", SLUG)
    assert found is not None
    assert (found.files, found.capability) == ((SURVEY,), (9, 0))
    assert found.gflops[CUBE.id][TILED.variant] == pytest.approx(CUBE.gflops(0.02), rel=1e-5)


class Even(ReplayDevice):
    """Every case takes 20 ms."""

    def time(self, case: Case, plan: Any) -> Measurement:
        return measurement(0.02)


def test_a_run_of_the_suite_becomes_a_survey(tmp_path: Path) -> None:
    """As ``--measure`` makes it: every config of the kernel on every shape, none of them judged."""
    rig = Rig(tmp_path / "project")
    done = rig.run("--kernel", "tiled", "--baseline-run", "-m", "gpu", suite="advice", device=Even())
    assert done.status == 0, done.text
    store_survey(tmp_path / "project" / "out.json", tmp_path / "baselines")
    (found,) = every_survey(tmp_path / "baselines")
    variants = [variant for variant in ADVISED if variant.startswith("tiled-")]
    legal = {v for v in variants if not refusals(*ADVISED[v], TARGETS[3].limits)}
    assert {(problem, v) for problem, of in found.gflops.items() for v in of} == {
        (problem.id, variant) for problem in TIMED for variant in legal
    }


def test_a_survey_comes_before_the_baseline(tmp_path: Path) -> None:
    root = tmp_path / "baselines"
    append(root, merged(tmp_path, five_runs([TILED, case("naive")], 0.01)), {})
    store_survey(saved(tmp_path / "more", [run(9, {TILED: measurement(0.02)})])[0], root)
    (found,) = every_survey(root)
    assert found.gflops[CUBE.id][TILED.variant] == pytest.approx(CUBE.gflops(0.02), rel=1e-5)
    assert found.gflops[CUBE.id][case("naive").variant] == pytest.approx(CUBE.gflops(0.01), rel=1e-3)


def test_a_damaged_survey_is_refused_and_named(tmp_path: Path) -> None:
    file = store_survey(saved(tmp_path / "runs", [run(1, {TILED: measurement()})])[0], tmp_path)
    document = json.loads(file.read_text())
    document["benchmarks"][0]["extra_info"]["gflops"] *= 2
    file.write_text(json.dumps(document))
    with pytest.raises(BaselineError, match=rf"{SURVEY}.*{TILED.id}.*gflops is"):
        every_survey(tmp_path)


def test_a_throttled_run_is_not_kept(tmp_path: Path) -> None:
    (path,) = saved(tmp_path / "runs", [run(1, {TILED: measurement(throttled=True)})])
    with pytest.raises(BaselineError, match="throttled"):
        store_survey(path, tmp_path)
    assert every_survey(tmp_path) == []


def test_the_page_has_every_policy_every_measured_config_and_why_others_cannot_run() -> None:
    slow, fast = "register-f32-tile128x128x8-thread8x8-pad0", "warp_tiled-f32-x"
    speeds = {CUBE.id: {slow: 20.0, fast: 80.0, "cublas-f32": 900.0}}
    found = Surveyed(SLUG, "Test GPU", (9, 0), (SURVEY,), speeds)
    text = page([found], [TARGETS[3]], LADDER)
    (row,) = [line for line in text.splitlines() if line.startswith("| as for Hopper |")]
    note = "How to choose block and tile sizes, §7.3"
    choice = f"| as for Hopper | {note} | 128×128×8 with 256 threads | 1 "
    assert row == f"{choice}| 100.0 % | 25.0 % | 25.0 % at {CUBE.id} | `{fast}` |"
    assert f"| `{slow}` | – | 20.00 (25.0 %) | – | – |" in text
    assert f"| as for Turing | {note} | 32×32×32 with 256 threads | 0 " in text
    assert "| `tiled-f32-tile48-pad0` | 2304 threads per block (48×48), at most 1024 allowed |" in text
