"""The planted bugs of tests/tools: ptxsan finds what the table says, and nothing in the right twins."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.tools import gpu, page
from tests.tools.bugs import BUGS, Bug
from tests.tools.emulated import digest, launch, said
from tests.tools.gpu import Done

STORED = page.load()
RIGHT, WRONG = "a" * 64, "b" * 64


@pytest.mark.compile
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_found_and_its_twin_is_clean(bug: Bug) -> None:
    """By the first message, which the stored results have, too."""
    twin = launch(bug, "twin")
    assert said(twin) == []
    messages = said(launch(bug, "bug"))
    assert re.match(bug.says, messages[0]) if bug.says else messages == []
    stored = STORED["results"]["ptxsan"][bug.name]
    assert (messages or [""])[0].startswith(stored["bug"])
    assert bool(stored["bug"]) == bool(messages)
    assert stored["digest"] == digest(twin)


def test_there_are_forty_each_in_every_result() -> None:
    names = [bug.name for bug in BUGS]
    assert len(set(names)) == 40
    wanted = {"numba": [b.name for b in BUGS if b.numba], "consan": [b.name for b in BUGS if b.gluon]}
    assert [len(rows) for rows in wanted.values()] == [15, 5]  # as the page says
    for tool, rows in STORED["results"].items():
        assert sorted(rows) == sorted(wanted.get(tool, names))


def test_a_gpu_leaves_the_same_bytes_in_the_twins() -> None:
    if "values" not in STORED["results"]:
        pytest.skip("not run on a GPU yet")
    both = [{name: row["digest"] for name, row in STORED["results"][t].items()} for t in ("ptxsan", "values")]
    assert both[0] == both[1]


RACE = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at reverse+0x70 in shared.cu:8
=========     and Read access at reverse+0xb0 in shared.cu:12 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
CLEAN = f"========= COMPUTE-SANITIZER\n{RIGHT}\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("done", "wanted"),
    [
        (Done(9, RACE), "Error: Race reported between Write access at reverse+0x70 in shared.cu:8"),
        (Done(0, CLEAN), ""),
        (Done(None, "========= COMPUTE-SANITIZER\n"), "hang"),
        (Done(None, RACE), "Error: Race reported between Write access at reverse+0x70 in shared.cu:8"),
        (Done(None, gpu.LATE), gpu.LATE),
        (
            Done(3, CLEAN.replace(RIGHT, "CUDA_ERROR_MISALIGNED_ADDRESS")),
            "stopped: CUDA_ERROR_MISALIGNED_ADDRESS",
        ),
        (Done(1, "no such tool"), "failed: no such tool"),
        (Done(9, CLEAN.replace("0 errors", "2 errors").replace(RIGHT, "========= Odd words")), "Odd words"),
    ],
)
def test_what_a_sanitizer_reports(done: Done, wanted: str) -> None:
    assert gpu.report(done) == wanted


@pytest.mark.parametrize(
    ("bug", "twin", "wanted"),
    [
        (f"{RIGHT} {WRONG} {WRONG}", RIGHT, ("wrong in 2 of 20 launches", "")),
        (f"{RIGHT} {RIGHT}", RIGHT, ("", "")),
        ("hang", RIGHT, ("hang", "")),
        (WRONG, f"{RIGHT} {WRONG}", ("", "launches differ: 2")),
        (WRONG, "CUDA_ERROR_UNKNOWN", ("wrong in 1 of 20 launches", "CUDA_ERROR_UNKNOWN")),
    ],
)
def test_values_are_compared_with_the_twins(bug: str, twin: str, wanted: tuple[str, str]) -> None:
    found = gpu.compared(bug, twin)
    assert (found["bug"], found["twin"]) == wanted


@pytest.mark.parametrize(
    ("tool", "text", "shown", "counts"),
    [
        ("ptxsan", "race", "race", True),
        ("ptxsan", "note: race", "note: race", False),
        ("ptxsan", "", "–", False),
        ("ptxsan", None, "not run", False),
        ("ptxsan", "hang", "hang", True),
        ("values", "hang", "hang", True),
        ("values", "wrong in 3 of 20 launches", "3 of 20 wrong", True),
        ("values", "CUDA_ERROR_MISALIGNED_ADDRESS", "error", True),
        ("memcheck", "hang", "hang", False),
        ("memcheck", "stopped: CUDA_ERROR_MISALIGNED_ADDRESS", "stops", False),
        ("memcheck", "failed: no such tool", "no result", False),
        ("memcheck", "Invalid __global__ read of size 4 bytes", "found", True),
        ("memcheck", gpu.LATE, "not run", False),
        ("numba", "IndexError: index 8", "IndexError", True),
        ("consan", "Accessing buffer with pending access", "n/a", False),
    ],
)
def test_a_cell_says_it_in_a_word(tool: str, text: str | None, shown: str, counts: bool) -> None:
    (bug,) = (bug for bug in BUGS if bug.name == "reverse")
    results: dict[str, Any] = {tool: {"reverse": {"bug": text}}} if text is not None else {}
    found = page.cell(tool, bug, results)
    assert (found, page.found(tool, found)) == (shown, counts)


@pytest.mark.parametrize(("twin", "shown"), [("", "found"), ("Error: Race", "both"), ("hang", "found")])
def test_what_a_tool_says_of_the_twin_too_is_not_found(twin: str, shown: str) -> None:
    results = {"racecheck": {BUGS[0].name: {"bug": "Error: Race", "twin": twin}}}
    text = page.told_apart("racecheck", BUGS[0], results)
    assert (text, page.found("racecheck", text)) == (shown, shown == "found")


def test_a_process_that_hangs_ends_with_its_children() -> None:
    done = gpu.process(["sh", "-c", "echo began; sleep 600 & sleep 600"], 0.5)
    assert done == Done(None, "began\n")
