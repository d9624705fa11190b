"""What a suite asks of a kernel that does not take everything: narrowed, refused and told, or near."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.counters import counted
from gemm_regression.model import (
    F32,
    GEMM_BATCHED,
    S8,
    BlockShape,
    Case,
    Config,
    Constraints,
    Kernel,
    Problem,
)
from gemm_regression.model import gemm as gemm_of
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, Selection, fitting, listing, select, timed_by_any
from gemm_regression.project.suites import MOST_FLOP, SPARSE, VERIFIED

H200 = (9, 0)
TIGHT = "float *C, float *A, float *B, int wA=K, int wB=N"
PLAIN = Kernel("plain", Path("plain.cu"), "plain", BlockShape((16, 16), (16, 16)), configs=(Config(TILE=16),))
MULTIPLES: dict[str, int | str] = {
    **dict.fromkeys("mnk", "TILE"),
    **dict.fromkeys(("lda", "ldb", "ldc", "B"), 4),
}
TILED = replace(PLAIN, name="tiled", constraints=Constraints(MULTIPLES))
NARROW = replace(PLAIN, name="narrow", parameters=TIGHT)


EVERYTHING = Choice()


def chosen(*kernels: Kernel, choice: Choice = EVERYTHING, emulated: bool = False) -> Selection:
    return select(Project(Path(), kernels, Path()), choice, H200, emulated)


def ids(cases: tuple[Case, ...]) -> list[str]:
    return [case.problem.id for case in cases]


def test_a_kernel_that_takes_everything_gets_the_suite_as_it_is() -> None:
    found = chosen(PLAIN)
    assert ids(found.verify) == [problem.id for problem in VERIFIED]
    assert (found.refused, found.refused_text) == ((), "")


def test_what_parameters_cannot_say_is_left_out_and_no_problem_comes_twice() -> None:
    found = chosen(NARROW)
    assert all(c.problem.tight and (c.problem.alpha, c.problem.beta) == (1, 0) for c in found.verify)
    assert len(set(ids(found.verify))) == len(found.verify) == len(VERIFIED)
    assert found.refused == ()


@pytest.mark.parametrize("emulated", [True, False])
def test_multiples_of_a_tile_are_verified_near_what_they_refuse(emulated: bool) -> None:
    found = chosen(TILED, emulated=emulated)
    problems = [case.problem for case in found.verify]
    assert len(set(problems)) == len(problems) > 8
    assert all(p.m % 16 == p.n % 16 == p.k % 16 == p.ldc % 4 == 0 for p in problems)
    assert not any(TILED.refusals(TILED.configs[0], problem) for problem in problems)
    assert any(not problem.tight for problem in problems)
    assert len({(p.m, p.n, p.k) for p in problems}) > 8, "on more than one shape"
    assert all(problem.flops <= MOST_FLOP for problem in problems)


def test_rows_far_apart_are_so_where_a_kernel_takes_them() -> None:
    """Indices of more than 32 bits are looked for in every kernel whose rows can be that far apart."""
    aligned = replace(PLAIN, name="aligned", constraints=Constraints(multiples={"lda": 8, "ldb": 8}))

    def far(kernel: Kernel) -> list[str]:
        return [p.id for c in chosen(kernel, emulated=True).verify if (p := c.problem).lda > 2**24]

    assert far(PLAIN) == [SPARSE.id]
    assert far(aligned) == ["261x6x41-beta1-ld1073741832.1073741832.1073741836"]
    turned = replace(aligned, name="turned", operation=gemm_of("NT"))
    assert far(turned) == ["261x6x41-nt-beta1-ld1073741832.1073741872.1073741836"]
    assert far(TILED) == ["272x16x48-beta1-ld1073741836.1073741844.1073741848"]
    assert far(NARROW) == []


def test_a_suite_that_a_kernel_takes_nothing_of_has_no_case_and_the_others_do() -> None:
    """A baseline is not asked of a suite that cannot be run."""
    takes = Constraints(unless=lambda problem, config: None if problem.m > 2000 else "too few rows")
    odd = replace(PLAIN, name="odd", constraints=takes)
    project = Project(Path(), (PLAIN, odd), Path())
    with pytest.raises(ValueError, match="odd accepts no problem of suite 'smoke'"):
        select(project, Choice("smoke"), H200)
    assert timed_by_any(project, H200) >= {case.id for case in select(project, Choice(), H200).timed} > set()


def test_what_is_refused_is_listed_with_reasons_and_what_runs_in_its_place() -> None:
    found = chosen(TILED, PLAIN)
    lines = listing(Project(Path(), (TILED, PLAIN), Path()), found, H200)
    told = next(line for line in lines if "137x131x45" in line)
    sizes = {"m": 137, "n": 131, "k": 45}
    reasons = [f"{name} {size} is not a multiple of TILE = 16" for name, size in sizes.items()]
    reasons += ["B starts at element 1, not at a multiple of 4"]
    refused = "137x131x45-alpha-1-beta3-ld256.140.144-at4.1.0"
    instead = "144x144x48-alpha-1-beta3-ld260.156.160-at4.4.0"
    assert told == f"  tiled-f32-tile16 {refused}: {'; '.join(reasons)}; {instead} runs instead"
    assert "  tiled-f32-tile16 1000x1000x1000: m 1000 is not a multiple of TILE = 16; " in "\n".join(lines)
    count = len({each.asked for each in found.refused})
    assert found.refused_text == f"{count} problems of 1 kernel; --list-cases shows the reasons"


def test_timed_problems_are_refused_and_not_replaced() -> None:
    timed = ids(chosen(TILED).timed)
    assert "4096x4096x4096" in timed
    assert not [problem for problem in timed if problem.startswith(("1000", "1008", "4095", "4097"))]


def test_a_batched_operation_gets_batches() -> None:
    kernel = replace(PLAIN, name="many", operation=GEMM_BATCHED)
    found = chosen(kernel)
    batches = [case.problem for case in found.verify if case.problem.batch > 1]
    assert any(p.batch == 3 and p.gap and p.lda % 2 and not p.tight for p in batches)
    assert {c.problem.batch > 1 for c in found.timed} == {True}
    assert all(c.problem.batch <= 65535 for c in found.timed)
    assert not [case for case in chosen(PLAIN).verify if case.problem.batch > 1]
    assert {case.problem.batch for case in counted((kernel, kernel.configs[0], F32))} == {3}


def test_integers_get_a_sum_that_fp32_does_not_hold() -> None:
    assert Problem(3, 5, 2113).id in ids(chosen(replace(PLAIN, dtypes=(S8,))).verify)
    assert Problem(3, 5, 2113).id not in ids(chosen(PLAIN).verify)
    assert 2113 * 127 * 127 > 2**24


def test_a_layout_is_the_operations_own() -> None:
    found = chosen(replace(PLAIN, operation=gemm_of("TN")))
    assert {case.problem.layout for case in (*found.verify, *found.timed)} == {"TN"}


def test_a_shape_is_taken_as_it_is_or_refused() -> None:
    found = chosen(TILED, PLAIN, choice=Choice(shapes=("100x100x100", "64x64x64")))
    assert [case.id for case in found.verify] == [
        "plain-f32-tile16-100x100x100",
        "tiled-f32-tile16-64x64x64",
        "plain-f32-tile16-64x64x64",
    ]
    assert len(found.refused) == 1
    with pytest.raises(
        ValueError, match=r"^no selected kernel accepts this shape: tiled-.* m 100 is not [^\n]*$"
    ):
        chosen(TILED, choice=Choice(shapes=("100x100x100",)))
    with pytest.raises(ValueError, match="it has no parameter beta"):
        chosen(NARROW, choice=Choice(shapes=("64x64x64-beta1",)))


def test_a_library_call_that_has_no_batch_refuses_one() -> None:
    library = replace(PLAIN, name="library", source=None, configs=(Config(),))
    with pytest.raises(ValueError, match="gemm is not batched"):
        chosen(library, choice=Choice(shapes=("64x64x64-batch1000",)))


def test_counts_are_of_problems_near_those_that_are_always_counted() -> None:
    config = TILED.configs[0]
    assert ids(tuple(counted((PLAIN, config, F32)))) == ["96x160x64", "67x45x33"]
    assert ids(tuple(counted((TILED, config, F32)))) == ["96x160x64", "80x48x48"]


@pytest.mark.parametrize("expression", ["TILED and 64", "not (naive or tiled_)", "[tiled", "iled-f32", ""])
def test_expressions_are_pytests(expression: str) -> None:
    assert fitting(expression)("tiled-f32-64x64x64")
    assert not fitting("not (naive or tiled)")("tiled-f32-64x64x64")


def test_an_expression_that_leaves_nothing_is_refused() -> None:
    assert chosen(PLAIN, TILED, choice=Choice(expression="tiled and 4096x64")).verify == ()
    with pytest.raises(ValueError, match="-k 'nothing' matches no case"):
        chosen(PLAIN, choice=Choice(expression="nothing"))
    with pytest.raises(ValueError, match="-k 'a and': expected"):
        chosen(PLAIN, choice=Choice(expression="a and"))


def test_a_kernel_that_takes_nothing_of_the_suite_is_an_error() -> None:
    """Else it would be among the kernels of a green run."""
    never = replace(PLAIN, name="never", constraints=Constraints(unless=lambda problem, config: "not today"))
    with pytest.raises(ValueError, match="never accepts no problem of suite 'full', so it would not be "):
        chosen(PLAIN, never)
    assert ids(chosen(PLAIN, never, choice=Choice(kernels=("plain",))).verify)
