"""The choice of a kernel and config for a problem: by figures near it, without any, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_regression import __main__ as cli
from gemm_regression.baselines import BaselineError, append
from gemm_regression.baselines import stored as baselines
from gemm_regression.model import (
    F16,
    F32,
    GEMM_BATCHED,
    BlockShape,
    Config,
    Constraints,
    DType,
    Kernel,
    Problem,
    Space,
    TensorMap,
    find_problem,
)
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project.loader import load
from gemm_regression.tune import figures, stored
from gemm_regression.tune.figures import SelectError
from gemm_regression.tune.select import Selector, header, select
from gemm_regression.tune.table import BITS, Speed, Variant, block_of, log2_fixed
from tests.gemm_regression.rig import Printed
from tests.gemm_regression.samples import find_kernel
from tests.gemm_regression.synthetic import SLUG, case, five_runs, merged
from tests.gemm_regression.tune.tunable import FLOP, tuned
from tests.ladder import PROJECT

TILED = find_kernel("tiled")
H100 = GpuLimits.of((9, 0))


def kernel(name: str, *tiles: int, split: int = 1, **more: Any) -> Kernel:
    """A kernel of square tiles with 256 threads."""

    def shape(config: Config, dtype: DType) -> BlockShape:
        return BlockShape((16, 16), (config["TILE"], config["TILE"]), shared_bytes=0, split=split)

    configs = tuple(Config(TILE=tile) for tile in tiles or (16,))
    return Kernel(name, Path(f"{name}.cu"), name, shape, configs=configs, **more)


SMALL, LARGE = kernel("small", 16), kernel("large", 32, 128)
EVEN = kernel("even", 64, constraints=Constraints({"m": 8, "lda": 4, "A": 2}, {"k": 16}, {"n": 5000}))
MAPPED = kernel(
    "mapped",
    32,
    constraints=Constraints({"lda": 4}),
    parameters="int M, int N, int K, float alpha, const CUtensorMap A=mapA, const float* B, int ldb, "
    "float beta, float* C, int ldc",
    maps=lambda config, dtype: {"A": TensorMap((32, 32))},
)
BATCH = kernel("batch", 8, operation=GEMM_BATCHED)
CUBES = {64: (1.0, 0.5), 512: (0.8, 1.0), 4096: (0.2, 1.0)}  # the share of each in the faster one's speed


def figure(of: Kernel, problem: Problem, gflops: float, config: int = 0) -> Speed:
    return Speed(Variant(of, of.configs[config], of.dtypes[0]), problem, gflops, "a file")


FIGURES = [
    figure(of, Problem(n, n, n), n * share)
    for n, shares in CUBES.items()
    for of, share in zip((SMALL, LARGE), shares, strict=True)
]


def selector(figures: Iterable[Speed] = FIGURES, *kernels: Kernel) -> Selector:
    return Selector(kernels or (SMALL, LARGE), "test-gpu", H100, tuple(figures))


def chosen(shape: str, of: Selector | None = None, dtype: DType = F32) -> str:
    return (of or selector()).select(find_problem(shape), dtype).variant.stage


@given(st.integers(1, 2**31 - 1))
def test_the_fixed_point_logarithm_is_one(value: int) -> None:
    exact = math.log2(value) * 2**BITS
    assert exact - 2 < log2_fixed(value) <= exact + 1e-6


def test_what_was_measured_at_a_size_decides_there() -> None:
    assert [chosen(f"{n}x{n}x{n}") for n in CUBES] == ["small tile16", "large tile32", "large tile32"]
    found = selector().select(Problem(512, 512, 512, beta=1))
    assert (found.measured, found.gflops) == (True, 512)
    assert [f.gflops for f in found.figures] == [512, pytest.approx(0.8 * 512)]


def test_near_sizes_decide_by_their_distance() -> None:
    assert [chosen("70x70x70"), chosen("400x400x400")] == ["small tile16", "large tile32"]
    found = selector().select(Problem(400, 400, 400))
    assert not found.measured
    assert [problem.m for problem in found.found.problems] == [512, 64, 4096]  # type: ignore[union-attr]


def test_one_shape_does_not_outvote_its_neighbours() -> None:
    """At the nearest shape alone, small is ahead by a hair; at the two beyond it is far behind."""
    figures = [
        *(figure(SMALL, Problem(n, n, n), speed) for n, speed in ((512, 100.1), (600, 10), (450, 10))),
        *(figure(LARGE, Problem(n, n, n), 100.0) for n in (512, 600, 450)),
    ]
    assert chosen("512x512x512", selector(figures)) == "small tile16"
    assert chosen("520x520x520", selector(figures)) == "large tile32"


def test_a_config_measured_far_away_has_to_be_clearly_faster() -> None:
    """Both tiles are the same, so only the figures differ."""
    twin = kernel("twin", 32)
    near, far = Problem(512, 512, 512), Problem(4096, 4096, 4096)
    for share, expected in ((1.1, "large tile32"), (1.5, "twin tile32")):
        figures = [figure(LARGE, near, 10.0), figure(LARGE, far, 10.0), figure(twin, far, 10.0 * share)]
        of = selector(figures, LARGE, twin)
        assert chosen("500x500x500", of) == expected
        assert chosen("4000x4000x4000", of) == "twin tile32"


def test_blocks_that_leave_the_last_turn_of_the_sms_empty_cost_a_turn() -> None:
    """Tiles of 16 and 32, equally fast where both fill the SMs; with 11x11 tiles of 32, 13 of 108 SMs have a
    second one."""
    full = Problem(32 * 12, 32 * 9, 4096)  # 108 tiles of 32, 432 of 16
    figures = [figure(SMALL, full, 10.0), figure(LARGE, full, 10.5)]
    assert chosen("384x288x4000", selector(figures)) == "large tile32"
    assert chosen("352x352x4096", selector(figures)) == "small tile16"
    assert block_of(figures[1].variant).turns(Problem(352, 352, 4096), 108) == 2


def test_a_short_c_with_a_long_k_asks_for_parts_of_k() -> None:
    whole, parts = kernel("whole", 32), kernel("parts", 32, split=8)
    figures = [figure(of, Problem(4096, 4096, 4096), speed) for of, speed in ((whole, 10.0), (parts, 9.0))]
    of = selector(figures, whole, parts)
    assert chosen("3000x3000x3000", of) == "whole tile32"
    assert chosen("64x64x100000", of) == "parts tile32"


def test_of_two_figures_the_first_counts() -> None:
    again = figure(SMALL, Problem(512, 512, 512), 1e9)
    assert chosen("512x512x512", selector([*FIGURES, again])) == "large tile32"
    assert chosen("512x512x512", selector([again, *FIGURES])) == "small tile16"


def test_a_faster_kernel_that_refuses_the_problem_is_passed_over() -> None:
    figures = [*FIGURES, *(figure(EVEN, Problem(n, n, n), 1e6) for n in CUBES)]
    of = selector(figures, SMALL, LARGE, EVEN)
    assert chosen("512x512x512", of) == "even tile64"
    for shape in ("513x512x512", "512x512x8", "512x5001x512", "512x512x512-ld513.512.512"):
        assert chosen(shape, of) == "large tile32", shape
    assert chosen("512x512x512-at1.0.0", of) == "large tile32"
    refused = of.select(Problem(513, 512, 512)).found.refused  # type: ignore[union-attr]
    assert [variant.kernel.name for variant in refused] == ["even"]


def test_a_batch_is_chosen_by_batches_and_never_by_kernels_without() -> None:
    figures = [*FIGURES, figure(BATCH, Problem(8, 8, 8, batch=1000), 1.0)]
    of = selector(figures, SMALL, LARGE, BATCH)
    assert chosen("512x512x512-batch4", of) == "batch tile8"
    assert chosen("8x8x8", of) == "small tile16"
    with pytest.raises(SelectError, match="no f32 kernel takes 8x8x8-batch4: large: gemm is not batched"):
        chosen("8x8x8-batch4")


def test_a_grid_that_no_gpu_launches_is_refused() -> None:
    of = selector([figure(SMALL, Problem(64, 64, 64), 1e9), *FIGURES[1:2]])
    assert chosen(f"{65535 * 16}x8x8", of) == "small tile16"
    assert chosen(f"{65535 * 16 + 1}x8x8", of) == "large tile32"
    assert chosen(f"{65535 * 128}x8x8", of) == "large tile128"
    with pytest.raises(SelectError, match="needs more blocks than a launch can have"):
        chosen(f"{65535 * 128 + 1}x8x8")


def test_what_is_illegal_on_the_gpu_is_not_chosen() -> None:
    huge = replace(LARGE, name="huge", min_capability=(10, 0))
    of = selector([figure(huge, Problem(512, 512, 512), 1e9)], SMALL, huge)
    assert chosen("512x512x512", of) == "small tile16"
    assert chosen("512x512x512", replace(of, limits=GpuLimits.of((10, 0)))) == "huge tile32"
    with pytest.raises(SelectError, match="no f32 kernel can run on test-gpu: huge f32 needs compute"):
        chosen("1x1x1", replace(of, kernels=(huge,)))


def test_without_figures_the_first_declared_that_takes_the_problem_is_chosen() -> None:
    of = selector((), kernel("whole", 16, constraints=Constraints({"m": 16})), kernel("other", 128, 32, 4))
    assert [chosen("96x96x96", of), chosen("100x100x100", of)] == ["whole tile16", "other tile128"]
    assert of.select(Problem(100, 100, 100)).gflops is None


def test_figures_of_another_dtype_do_not_decide() -> None:
    both = replace(SMALL, dtypes=(F32, F16))
    of = selector([figure(both, Problem(512, 512, 512), 1.0)], both)
    assert of.select(Problem(512, 512, 512), F16).found is None
    assert of.select(Problem(512, 512, 512), F32).found


# With the stored figures of an H200


def test_the_ladder_on_an_h200() -> None:
    found = select("4096x64x4096", "nvidia-h200", project=PROJECT)
    assert found.variant.kernel in PROJECT.kernels
    assert found.gflops == max(f.gflops for f in found.figures)
    assert (found.measured, bool(found.library_gflops)) == (True, True)
    assert not found.variant.kernel.library


def test_the_number_of_sms_is_that_of_the_measured_gpu(tmp_path: Path) -> None:
    assert Selector.of(PROJECT, "nvidia-h200").sms == 132
    assert Selector.of(load(measured(tmp_path)), SLUG).sms is None  # nothing says what it can do at most


def test_a_tuned_config_is_known_though_nobody_declared_it(tmp_path: Path) -> None:
    project = measured(tmp_path)
    known = {"gpu": SLUG, "machine_info": baselines(project / "baselines")[0].machine_info, "kernel": "tiled"}
    evaluation = stored.Evaluation(Config(TILE_SIZE=24, PADDING=0), 0.001, FLOP / 0.001 / 1e9)
    space = Space({"TILE_SIZE": (24,), "PADDING": (0,)})
    stored.write(tmp_path / "baselines", tuned([evaluation], space, **known))
    found = select("4096x4096x4096", SLUG, project=project)
    assert found.variant.stage == "tiled tile24-pad0"
    assert found.figures[0].source == "tuned/tiled-f32-4096x4096x4096.json"


def test_a_surveyed_config_is_known_and_a_baseline_counts_first(tmp_path: Path) -> None:
    root = measured(tmp_path)
    advised = next(c for c in TILED.advised if c not in TILED.configs)
    cases = [case("tiled"), replace(case("tiled"), config=advised)]
    run = five_runs(cases, median=0.002)[0]
    (tmp_path / "run.json").write_text(json.dumps(run))
    figures.store_survey(tmp_path / "run.json", root / "baselines")
    found = select("4096x4096x4096", SLUG, project=root)
    assert found.variant.config == advised
    assert [f.source for f in found.figures] == ["advice.json", "figures.jsonl"]
    assert "advice.json" in header(Selector.of(load(root), SLUG))


def test_figures_that_cannot_be_trusted_are_told(tmp_path: Path) -> None:
    baselines = measured(tmp_path) / "baselines"
    (baselines / SLUG).rename(baselines / "another-gpu")
    with pytest.raises(BaselineError, match=r"another-gpu/figures.jsonl: has figures of Test GPU 1000"):
        select("4096x4096x4096", "another-gpu", project=tmp_path)
    (file,) = (baselines / "another-gpu").iterdir()
    file.write_text(file.read_text()[:1000])
    with pytest.raises(BaselineError):
        select("4096x4096x4096", "another-gpu", project=tmp_path)


def measured(root: Path) -> Path:
    """A project with the ladder, and a baseline of two cases on a GPU that does not exist."""
    (root / "pyproject.toml").write_text('[tool.gemm-regression]\nkernels = "kernels"\n')
    (root / "kernels").symlink_to(PROJECT.root / "kernels")
    append(root / "baselines", merged(root, five_runs([case("tiled"), case("cublas")])), {})
    return root


def said(printed: Printed, *words: str) -> str:
    assert cli.main(["select", *words]) == 0
    return printed.out


def test_the_command_answers_in_a_line_and_says_why(tmp_path: Path, printed: Printed) -> None:
    project = str(measured(tmp_path))
    line = said(printed, "4096x4096x4096", "--project", project)
    assert line.startswith(f"4096x4096x4096 f32 on {SLUG}: tiled tile32-pad0 (13,744 GFLOPS, the fastest")
    assert line.count("\n") == 1
    why = said(printed, "4096x4096x4096", "--why", "--project", project)
    assert "-D TILE_SIZE=32 -D PADDING=0" in why
    assert "the library: 13,744 GFLOPS, of which this is 100.0%" in why
    near = said(printed, "3000x3000x3000", "--why", "--gpu", SLUG, "--project", project)
    assert "GFLOPS expected, by 4096x4096x4096 and others)" in near
    assert "100%, 0.9 octaves away" in near
    assert "tiled tile32-pad0: 100.0%; 82 of 32x32\n" in near
    assert "nothing was measured" in said(printed, "64x64x64", "--gpu", "sm_80", "--project", project)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name a problem, such as 4096x64x4096"),
        (("4096x64",), "unknown shape '4096x64': write it as MxNxK"),
        (("4x4x4", "--gpu", "nvidia-x9"), f"unknown GPU 'nvidia-x9': measured are {SLUG}"),
        (("4x4x4", "--gpu", "sm_12"), "--gpu sm_12: unknown compute capability 1.2; known: 7.5"),
        (("4x4x4", "--dtype", "f99"), "unknown dtype 'f99'; known: f32"),
        (("4x4x4", "--dtype", "f32_f16"), "no kernel takes f32_f16; there are kernels for f32"),
        (("4x4x4-batch9", "--dtype", "f16"), "no f16 kernel takes 4x4x4-batch9: "),
        (("--header", "no/such/folder.h"), "no/such/folder.h: No such file"),
        (("--header", "any.h", "--gpu", "sm_90"), "sm_90: no figures for a header"),
    ],
)
def test_bad_input_is_told_in_one_line(
    words: tuple[str, ...], message: str, tmp_path: Path, printed: Printed
) -> None:
    project = measured(tmp_path)
    assert cli.main(["select", *words, "--project", str(project)]) == 2
    assert printed.error.startswith(f"error: {message}")


def test_several_measured_gpus_must_be_named(tmp_path: Path) -> None:
    project = load(measured(tmp_path))
    other = project.baselines / "other"
    other.mkdir()
    (other / "figures.jsonl").write_text("{}")
    with pytest.raises(SelectError, match="unknown GPU 'x': measured are other, test-gpu-1000"):
        Selector.of(project, "x")
    assert cli.main(["select", "4x4x4", "--project", str(tmp_path)]) == 2
