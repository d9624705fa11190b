"""Every broken kernel is caught; every edit still fits its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.compiler import tools
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.devices import DeviceError, NoDevice
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import Case, Problem
from gemm_regression.oracle import verify
from gemm_regression.project.suites import VERIFIED
from gemm_regression.timing.plan import Plan
from tests.ladder import LADDER
from tests.mutants import MUTANTS, SLOW, WRONG, Mutant, Rotten, build, generated, gpu, matrix, operators
from tests.mutants.examine import caught_by_check, emulate, examine, open_device

pytestmark = pytest.mark.mutants
STALE = "`nox -s docs` says what changed and how to refresh it"


def _names(mutants: tuple[Mutant, ...]) -> list[str]:
    return [mutant.name for mutant in mutants]


def test_names_are_unique_and_classes_many() -> None:
    assert len(set(_names(MUTANTS))) == len(MUTANTS) >= 48
    assert all(mutant.kind and mutant.about and "|" not in mutant.about for mutant in MUTANTS)
    sure = [mutant for mutant in WRONG if not mutant.by_luck]
    assert len({mutant.kind for mutant in sure}) >= 12
    assert len({mutant.kernel for mutant in sure}) >= 12


def test_an_edit_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    with pytest.raises(Rotten, match=r"occurs 0 times in s01_naive\.cu: 'no such line'"):
        build(Mutant("rotten", "naive", "", (("no such line", ""),)), tmp_path)


# Without a GPU


@pytest.fixture(scope="module")
def emulated() -> EmulatedDevice:
    try:
        device = open_device()
    except NoDevice as error:
        pytest.skip(str(error))
    device.cubins = False  # those of wrong ones are not asked for
    return device


@pytest.fixture(scope="module")
def page() -> list[str]:
    return matrix.FILE.read_text(encoding="utf-8").splitlines()


@pytest.mark.turns
@pytest.mark.compile
@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught_without_a_gpu(mutant: Mutant, emulated: EmulatedDevice, tmp_path: Path) -> None:
    """On the problems of the check, by a hazard or a value; what else shows it is for `nox -s docs`."""
    assert caught_by_check(mutant, tmp_path, emulated)


@pytest.mark.turns
@pytest.mark.compile
@pytest.mark.parametrize("mutant", SLOW, ids=lambda mutant: mutant.name)
def test_a_slow_mutant_is_right_and_shows_in_the_figures(
    mutant: Mutant, emulated: EmulatedDevice, page: list[str], tmp_path: Path
) -> None:
    try:
        tools.pinned_tools()
    except ToolchainError as error:
        # What a compiler makes of a kernel depends on its version; whether the result is right does not.
        assert not emulate(mutant, tmp_path, emulated).wrong
        pytest.skip(f"the kill matrix is of the pinned compiler: {error}")
    seen = examine(mutant, tmp_path, emulated)
    assert matrix.caught(mutant, seen), seen
    if not {matrix.row(mutant, seen, gpu.load()), matrix.detail(mutant, seen)} <= set(page):
        pytest.skip(f"it is caught, but not as the kill matrix has it: {STALE}")


def test_the_kill_matrix_has_the_mutants_that_there_are(page: list[str]) -> None:
    rows = [cells for line in page if len(cells := line.split(" | ")) > 4 and cells[1].startswith("`")]
    if [cells[1].strip("`") for cells in rows] != _names(MUTANTS):
        pytest.skip(f"the kill matrix has other mutants: {STALE}")
    assert {cells[0].removeprefix("| ") for cells in rows} == {mutant.kind for mutant in MUTANTS}


# Made by mutation operators

OUTCOMES = generated.load()[1]
FOUND = [
    m for m in operators.everything() if (o := OUTCOMES.get(generated.key(m))) and o.what == generated.CAUGHT
]
EXAMINED = not list(generated.stale())
examined = pytest.mark.skipif(not EXAMINED, reason=f"some were not examined: {STALE}")


@examined
def test_of_the_generated_mutants_that_are_wrong_nearly_all_are_caught() -> None:
    assert not list(generated.missed(OUTCOMES))
    assert len(FOUND) >= 120
    assert len(FOUND) / (len(FOUND) + len(generated.SURVIVORS)) >= 0.98
    assert {mutant.kernel for mutant in FOUND} == {kernel.name for kernel in LADDER if kernel.compiled}
    assert len({mutant.kind for mutant in FOUND}) == len(operators.OPERATORS)


@examined
def test_the_page_has_the_generated_mutants(page: list[str]) -> None:
    if "\n".join(matrix.generated_section()) not in "\n".join(page):
        pytest.skip(f"the page has others: {STALE}")


def test_an_operator_changes_the_code_and_nothing_beside_it() -> None:
    for mutant in operators.everything():
        ((old, new),) = mutant.edits
        assert old != new
        assert [line.strip()[:2] for line in old.split("\n") if line.strip()[:1] in ("#", "/")] == [
            line.strip()[:2] for line in new.split("\n") if line.strip()[:1] in ("#", "/")
        ]


@pytest.mark.turns
@pytest.mark.compile
@pytest.mark.parametrize("mutant", FOUND[:: max(1, len(FOUND) // 12)], ids=lambda mutant: mutant.name)
def test_a_generated_mutant_is_caught_again(mutant: Mutant, emulated: EmulatedDevice, tmp_path: Path) -> None:
    outcome = OUTCOMES[generated.key(mutant)]
    assert set(generated.again(mutant, outcome, tmp_path, emulated)) & set(outcome.checks)


# On a GPU


@pytest.fixture(scope="module")
def impatient() -> Iterator[Any]:
    """A worker of the mutants' own: what they crash is not the suite's, and a hang is seen soon."""
    from gemm_regression.devices import open_cuda

    device = open_cuda(8.0)
    yield device
    device.close()


@pytest.mark.gpu
@pytest.mark.parametrize("mutant", WRONG, ids=_names(WRONG))
def test_a_wrong_kernel_is_caught(
    mutant: Mutant,
    impatient: Any,
    device: Any,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    if mutant.sparse:
        pytest.skip("it shows only on matrices larger than a GPU holds")
    caught = gpu.caught_by_values(mutant, tmp_path, impatient)
    record_property("caught_by", caught)
    if not caught and mutant.by_luck:
        pytest.skip(f"values on a GPU show it only by luck: {mutant.by_luck}")
    assert caught, f"{mutant.name} ({mutant.kind}) of {mutant.kernel} passed on all {len(VERIFIED)} problems"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["stale", "k_cut_by_one", "beta_0_reads_c", "does_nothing", "one_row_too_far"]
)
def test_a_wrong_kernel_is_not_timed(name: str, impatient: Any, device: Any, tmp_path: Path) -> None:
    mutant = next(mutant for mutant in WRONG if mutant.name == name)
    kernel = build(mutant, tmp_path)
    # No multiple of a tile: in 1024 no thread would stand past the edge, where the guards count.
    case = Case(kernel, kernel.dtypes[0], kernel.configs[0], Problem(1000, 1000, 1000))
    with pytest.raises(DeviceError) as caught:
        impatient.time(case, Plan())
    assert caught.value.code == "WRONG"


@pytest.mark.gpu
@pytest.mark.parametrize("mutant", SLOW, ids=_names(SLOW))
def test_a_slow_kernel_is_right(mutant: Mutant, impatient: Any, device: Any, tmp_path: Path) -> None:
    kernel = build(mutant, tmp_path)
    for problem in VERIFIED:
        assert verify(impatient, Case(kernel, kernel.dtypes[0], kernel.configs[0], problem)) == []
