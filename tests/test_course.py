"""The listings of the course notes: what the check finds of each version is what their page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.model import F32, Case, Config, Kernel, Problem
from gemm_regression.run.checked import CORRECT, Checked, check
from tests.course.__main__ import PAGE, difference, findings, lay_out, row
from tests.course.declarations import LISTINGS, kernels, mended, versions

USUAL = ((1, 1, 1), (37, 29, 21), (64, 64, 64))
VERSIONS = {
    name: (listing, kernel, {**listing, "on": USUAL, **mend})
    for listing in LISTINGS
    for name, kernel, mend in zip(
        versions(listing), kernels(listing), [listing, *listing.get("mend", [])], strict=True
    )
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    lay_out(folder)
    return folder / "kernels"


def checked(device: EmulatedDevice, project: Path, kernel: Kernel, sizes: tuple[int, int, int]) -> Checked:
    of = replace(kernel, source=project / f"{kernel.name}.cu")
    problem = of.constraints.near(of.narrowed(Problem(*sizes)), Config())
    return check(device, Case(of, F32, Config(), problem))


@pytest.mark.parametrize("name", VERSIONS)
def test_the_check_finds_of_a_version_what_is_told(
    name: str, emulated: EmulatedDevice, project: Path
) -> None:
    _, kernel, told = VERSIONS[name]
    found = [checked(emulated, project, kernel, sizes) for sizes in told["on"]]
    seen = [f"{finding.check} {finding.line}" for one in found for finding in one.findings]
    assert sorted(set(seen)) == sorted(told["finds"])
    assert told["finds"] or {one.outcome for one in found} == {CORRECT}


def test_the_last_version_of_each_listing_is_right_and_the_page_says_so() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for listing in LISTINGS:
        *_, last = versions(listing)
        _, _, part = text.partition(f"## {listing['name']}\n")
        rows = [
            line for line in part.partition("\n## ")[0].splitlines() if line.startswith(("| as", "| mend"))
        ]
        assert (len(rows), rows[-1].endswith("| PASS |")) == (len(versions(listing)), True)
        assert VERSIONS[last][2]["finds"] == []


@pytest.mark.parametrize("name", VERSIONS)
def test_the_page_has_the_findings_and_mends_of_every_version(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    listing, _, told = VERSIONS[name]
    for finding in told["finds"]:
        what, line = finding.split()
        assert f"{name}: {what} at {name}.cu:{line} " in text
    before = ""
    for source in versions(listing).values():
        assert "\n".join(difference(before or source, source)) in text
        before = source
    assert listing["about"] in text


def test_a_mend_of_what_is_not_there_once_is_refused() -> None:
    for text in ("b", "aa"):
        with pytest.raises(ValueError, match="not once: 'a'"):
            mended(text, [{"edits": [["a", "c"]]}])


PRINTED = """
================================= what failed ==================================
one: race at one.cu:3   (2 tests, 1 variant)
  thread (0, 0, 0)
one: bounds at one.cu:2   (1 test, 1 variant)
  thread (1, 0, 0)
one_mend1: bounds at one_mend1.cu:2   (1 test, 1 variant)
  thread (2, 0, 0)
one: CRASHED STOPPED   (1 test, 1 variant)
  cannot be counted
======================== kernels without a GPU, sm_90a =========================
! one      f32    4/31   0                32   100.0% (threads)   bounds 21   WRONG
one_mend1  f32    31/31  0  4.00, 2.00 7  30   100.0% (threads)   PASS
one: race at one.cu:9: of a note
=========================== short test summary info ============================
"""


def test_what_was_printed_is_taken_apart_by_version() -> None:
    assert findings("one", PRINTED) == [
        "one: bounds at one.cu:2   (1 test, 1 variant)",
        "  thread (1, 0, 0)",
        "one: race at one.cu:3   (2 tests, 1 variant)",
        "  thread (0, 0, 0)",
        "note: one: race at one.cu:9: of a note",
    ]
    assert row("one", PRINTED) == ["4/31", "–", "–", "32", "WRONG"]
    assert row("one_mend1", PRINTED) == ["31/31", "4.00, 2.00", "7", "30", "PASS"]
    with pytest.raises(ValueError, match="no row of two"):
        row("two", PRINTED)
