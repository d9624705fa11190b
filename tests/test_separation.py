"""No mistake of one quantity for another is hidden by the problems of the suite; the search finds a hidden
one; and what it says of a problem is what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import verify
from tests.mutants import Mutant, build
from tests.separation import EQUIVALENT, ROLES, Duty, Tile, duties, hidden, shown, verified

TILES = verified()
REGISTER = Tile(128, 128, 8, 4)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_no_pair_of_quantities_is_left_unseparated(tile: Tile) -> None:
    assert not hidden(TILES[tile], tile)


@pytest.mark.parametrize(
    ("problem", "lost"),
    [
        (Problem(261, 6, 41, beta=1, lda=2**30 + 4, ldb=2**30 + 8, ldc=2**30 + 12), "offset of a tile of B"),
        (Problem(5, 256, 12, beta=2, lda=20, ldb=257, ldc=512, starts=(4, 0, 1)), "B's rows are aligned"),
        (Problem(132, 36, 5, lda=5, ldb=48, ldc=42, starts=(4, 4, 0)), "C's rows are aligned"),
        (Problem(127, 37, 1, alpha=3, beta=1, lda=12, ldb=37, ldc=256, starts=(0, 4, 0)), "one step"),
    ],
)
def test_without_a_problem_something_is_hidden(problem: Problem, lost: str) -> None:
    rest = [p for p in TILES[REGISTER] if p != problem]
    assert len(rest) == len(TILES[REGISTER]) - 1
    assert lost in {duty.role for duty in hidden(rest, REGISTER)}


@pytest.mark.parametrize(
    ("problem", "shows", "hides"),
    [
        # The guard of A's rows: n in place of m shows where they differ; not where both end past the tile.
        (Problem(5, 7, 9), Duty("guard of A's rows", "n"), Duty("guard of A's columns", "lda")),
        (Problem(128, 132, 9), Duty("guard of B's columns", "m"), Duty("guard of A's rows", "n")),
        # What is read past the end of a row of B shows only past the end of the memory.
        (
            Problem(5, 7, 9, ldb=12, lda=200),
            Duty("guard of B's columns", "lda"),
            Duty("guard of B's columns", "k"),
        ),
        # A test of ldb in place of lda: misaligned where B is aligned and A is not.
        (Problem(5, 6, 9, ldb=8), Duty("A's rows are aligned", "ldb"), Duty("B's rows are aligned", "lda")),
        (
            Problem(5, 8, 16, starts=(1, 0, 0)),
            Duty("A's start is aligned", "start of B"),
            Duty("B's start is aligned", "no test"),
        ),
        (
            Problem(300, 8, 16, lda=2**30),
            Duty("offset of a tile of A", "32 bits"),
            Duty("offset of a tile of C", "31 bits"),
        ),
    ],
)
def test_what_a_problem_shows(problem: Problem, shows: Duty, hides: Duty) -> None:
    known = {duty for duty, _ in duties(REGISTER)}
    assert {shows, hides} <= known
    found = shown(problem, REGISTER)
    assert shows in found
    assert hides not in found


def test_what_is_called_equivalent_is_a_mistake_that_no_problem_would_show() -> None:
    of = {role.name: role for role in ROLES}
    for role, other in EQUIVALENT:
        for tile, problems in TILES.items():
            value = of[role].others[other]
            assert not any(of[role].shows(p, tile, value(p, tile)) for p in problems)


@pytest.mark.compile
@pytest.mark.parametrize(
    ("old", "new", "duty"),
    [
        ("rows_aligned(A, lda)", "rows_aligned(A, ldb)", Duty("A's rows are aligned", "ldb")),
        ("rows_aligned(B, ldb)", "rows_aligned(C, ldb)", Duty("B's start is aligned", "start of C")),
        ("k0 + k < K ? N : 0", "k0 + k < N ? N : 0", Duty("guard of B's rows", "n")),
        ("row < M ? K : 0", "row < M ? lda : 0", Duty("guard of A's columns", "lda")),
        ("N - col, c_aligned", "ldc - col, c_aligned", Duty("guard of C's columns", "ldc")),
        ("A + (size_t)row", "A + row", Duty("offset of a row within a tile of A", "31 bits")),
    ],
    ids=lambda value: value.other if isinstance(value, Duty) else "",
)
def test_what_a_problem_shows_is_what_happens_to_a_kernel_with_the_mistake(
    old: str, new: str, duty: Duty, tmp_path: Path
) -> None:
    """On every problem of the suite; one with alpha 0 is small, and launched with other alphas, too."""
    kernel = build(Mutant("planted", "vectorized", "", ((old, new),)), tmp_path)
    device = EmulatedDevice(by_source=False)
    tile = Tile(128, 128, 8, 4)
    said, happens = {}, {}
    for problem in TILES[tile]:
        if problem.alpha:
            said[problem.id] = duty in shown(problem, tile)
            happens[problem.id] = bool(
                verify(device, Case(kernel, kernel.dtypes[0], kernel.configs[0], problem))
            )
    assert said == happens
    assert set(said.values()) == {True, False}
