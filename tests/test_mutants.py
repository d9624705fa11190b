"""Every broken kernel is caught; every edit still fits its kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import toolchain
from harness.devices import DeviceError
from harness.devices.cuda.protocol import Plan
from harness.model import Case, Problem
from harness.oracle import verify
from harness.suites import VERIFIED, find_kernel
from tests.mutants import MUTANTS, SLOW, WRONG, Mutant, Rotten, build

pytestmark = pytest.mark.mutants


def _names(mutants: tuple[Mutant, ...]) -> list[str]:
    return [mutant.name for mutant in mutants]


def test_names_are_unique_and_kinds_many() -> None:
    assert len(set(_names(MUTANTS))) == len(MUTANTS)
    sure = [mutant for mutant in WRONG if not mutant.by_luck]
    assert len({mutant.kind for mutant in sure}) >= 12
    assert len({mutant.kernel for mutant in sure}) >= 12


def test_an_edit_that_no_longer_fits_is_told(tmp_path: Path) -> None:
    with pytest.raises(Rotten, match=r"occurs 0 times in s01_naive\.cu: 'no such line'"):
        build(Mutant("rotten", "naive", "", (("no such line", ""),)), tmp_path)


@pytest.mark.compile
@pytest.mark.parametrize("mutant", MUTANTS, ids=_names(MUTANTS))
def test_a_mutant_compiles_to_another_binary(mutant: Mutant, tmp_path: Path) -> None:
    """A mutant that the compiler makes the same code of would prove nothing."""
    kernel, real = build(mutant, tmp_path), find_kernel(mutant.kernel)
    config, dtype = kernel.configs[0], kernel.dtypes[0]
    mutated = toolchain.compile_cubin(kernel, config, dtype, "sm_90a")
    assert mutated.cubin != toolchain.compile_cubin(real, config, dtype, "sm_90a").cubin


@pytest.fixture(scope="module")
def impatient() -> Iterator[Any]:
    """A worker of the mutants' own: what they crash is not the suite's, and a hang is seen soon."""
    from harness.devices import open_cuda

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
    if mutant.by_luck:
        pytest.skip(f"values on a GPU show it only by luck: {mutant.by_luck}")
    kernel = build(mutant, tmp_path)
    for problem in VERIFIED:
        try:
            findings = verify(impatient, Case(kernel, kernel.dtypes[0], kernel.configs[0], problem))
        except DeviceError as error:
            record_property("caught_by", error.code)
            return
        if findings:
            record_property("caught_by", findings[0].check)
            return
    pytest.fail(f"{mutant.name} ({mutant.kind}) of {mutant.kernel} passed on all {len(VERIFIED)} problems")


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
