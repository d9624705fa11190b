"""What people read of a verdict: one line, the numbers, who set the margin, the command to run next."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_regression.judge import vocabulary
from gemm_regression.judge.evidence import Evidence, conclude
from gemm_regression.judge.vocabulary import CompareFail, Observation, Outcome, Paired, Policy, Reference
from gemm_regression.report.figures import TextTable
from gemm_regression.report.wording import baseline_text, changed_text, message, paired_text, told
from gemm_regression.timing.looks import Estimate, PairFinding
from tests.gemm_regression.samples import find_case

CASE = find_case("tiled-f32-tile32-pad0-1024x1024x1024").id
COMMIT = "1a2b3c4d5e6f" + "0" * 28
POLICY = Policy()
STORED = Reference(0.01, 1012.0, "a" * 64, commit=COMMIT, board="b", stats={"median": 0.01})
SEEN = Observation(1e10, (0.0101,) * 9, cubin_sha256="b" * 64)
AGAIN = f'Reproduce: nox -s gpu -- -k "[{CASE}]"'
MEASURE = f'; measure it: nox -s baseline -- -k "[{CASE}]"'
BESIDE = "beside the baseline's binary (commit 1a2b3c4d5e6f)"
RUNS_NOT = f"{BESIDE[7:]} does not run here"


def pair(change: float, spread: float = 0.0005, margin: float = 0.005, base: str = COMMIT) -> Paired:
    blocks = [math.log1p(change) + spread * sign for sign in (1, -1) * 12]
    finding = PairFinding.of(Estimate.of(blocks), margin, 1e-4)
    return replace(Paired.of(finding, blocks, 0.0, margin), base=base)


def said(e: Evidence, policy: Policy = POLICY) -> str:
    text = message(CASE, conclude(e, policy), e)
    assert "\n" not in text
    return text


def changed(paired: Paired) -> str:
    return said(Evidence(SEEN, STORED, paired=paired))


def test_a_slower_case_has_its_change_first_and_the_command_last() -> None:
    text = changed(pair(0.0121))
    assert text.startswith(f"{CASE}: its time changes by +1.21 % (+1.1")
    assert text.endswith(f") {BESIDE}, more than the margin of 0.5 %; 990.1 GFLOPS. {AGAIN}")


@pytest.mark.parametrize(
    ("change", "spread", "how"),
    [
        (0.02, 0.0005, ", more than the margin"),
        (0.004, 0.0035, ", which may be more than the margin"),
        (0.001, 0.0005, ", not more than the margin"),
        (-0.02, 0.0005, ", faster by more than the margin"),
    ],
)
def test_what_a_pair_says_of_the_margin(change: float, spread: float, how: str) -> None:
    text = changed(pair(change, spread))
    assert how in text
    assert (AGAIN in text) is (change > 0.001)  # green: nothing to do


def test_a_second_process_and_other_bases() -> None:
    paired = pair(0.01)
    second = paired.in_second_process([0.012 + s for s in (1e-4, -1e-4) * 6], 0.0)
    assert f"its time changes by +1.21 % (+1.19 … +1.23 %) {BESIDE} in a second process, more" in changed(
        second
    )
    assert "beside the baseline's binary, more than" in changed(pair(0.01, base="unknown"))
    assert "beside the best binary ever stored, more than the margin of 1 %" in paired_text(
        pair(0.03, margin=0.01, base="the best binary ever stored")
    )


def test_the_same_binary_has_its_figure_beside_the_stored_one() -> None:
    stored = replace(STORED, launch="grid 1")
    same = Evidence(replace(SEEN, cubin_sha256="a" * 64, launch="grid 1"), stored)
    assert said(same) == f"{CASE}: 990.1 GFLOPS, baseline 1,012 (-0.99 %); the baseline's own binary"
    library = Evidence(replace(SEEN, library=True), STORED)
    assert said(library).endswith("baseline 1,012 (-0.99 %); a library call")
    other = "another binary than the baseline's, which was not timed beside it"
    assert said(Evidence(SEEN, stored)).endswith(f"(-0.99 %); {other}. {AGAIN}")


FEW, NONE = replace(SEEN, seconds=(0.1,) * 3), replace(SEEN, seconds=())
TOO_FEW = f"valid rounds, 5 are needed. {AGAIN}"


def unpaired(outcome: Outcome, detail: str, seen: Observation | None = None) -> Evidence:
    return Evidence(seen, STORED, paired=Paired(*outcome, detail=detail, base=COMMIT))


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        (Evidence(SEEN, None), f"990.1 GFLOPS; not in the baseline{MEASURE}"),
        (
            Evidence(SEEN, None, stored=False),
            "990.1 GFLOPS; this GPU has no baseline; measure it: nox -s baseline",
        ),
        (Evidence(FEW), f"3 {TOO_FEW}"),
        (Evidence(NONE, STORED), f"0 {TOO_FEW}"),
        (Evidence(FEW, STORED, paired=pair(0.0)), f"3 {TOO_FEW}"),
        (
            Evidence(replace(SEEN, seconds=(0.0,) * 9)),
            f"0 s is not a valid duration; the timer is broken, check the driver. {AGAIN}",
        ),
        (unpaired(vocabulary.BINARY_NOT_KEPT, "no x.cubin.xz"), f"no x.cubin.xz{MEASURE}"),
        (
            unpaired(vocabulary.BASE_UNUSABLE, "BASE_HANG: no answer"),
            f"{RUNS_NOT}: BASE_HANG: no answer{MEASURE}",
        ),
        (unpaired(vocabulary.CONTROL_FAILED, "two builds differ"), f"not judged, two builds differ. {AGAIN}"),
        (
            unpaired(vocabulary.MAYBE_SLOWER, "3 complete blocks", SEEN),
            f"{BESIDE}: 3 complete blocks. {AGAIN}",
        ),
        (
            unpaired(vocabulary.failed_beside("WRONG"), f"WRONG: {CASE}: C(0, 1) is 2"),
            f"{BESIDE}: WRONG: C(0, 1) is 2. {AGAIN}",
        ),
    ],
)
def test_what_was_not_judged_says_why_and_what_to_run(evidence: Evidence, expected: str) -> None:
    assert said(evidence) == f"{CASE}: {expected}"


def test_what_a_device_said_stands_as_it_is() -> None:
    e = Evidence(None, STORED, error=("COMPILE_ERROR", "t.cu(3): error: x\n  int y"))
    assert message(CASE, conclude(e, Policy()), e) == "t.cu(3): error: x\n  int y"


def test_the_users_own_check_comes_first() -> None:
    policy = Policy(compare_fail=(CompareFail("median", percent=0.5),))
    text = said(Evidence(replace(SEEN, cubin_sha256="a" * 64), STORED), policy)
    assert text.startswith(
        f"{CASE}: median 0.0101 s, baseline 0.01 s, more than 0.5 % slower (--benchmark-compare-fail); 990.1"
    )
    assert text.endswith(AGAIN)
    both = said(Evidence(SEEN, STORED, paired=pair(0.01)), policy)
    assert "(--benchmark-compare-fail); its time changes by +1.00 %" in both


def test_the_command_stands_apart_where_there_is_a_place_for_it() -> None:
    e = Evidence(SEEN, STORED, paired=pair(0.02))
    assert "nox" not in told(CASE, conclude(e, Policy()), e)


# Many cases


def result(number: object, paired: Paired | None, **more: Any) -> Any:
    case = SimpleNamespace(id=f"tiled-{number}")
    return SimpleNamespace(case=case, evidence=Evidence(SEEN, STORED, paired=paired, **more))


def test_the_changed_cases_are_counted() -> None:
    assert changed_text([result(1, None), result(2, None, error=("HANG", "no answer"))]) == ""
    fine = [result(n, pair(0.0)) for n in range(3)]
    what = "with another binary than the baseline's"
    assert changed_text([*fine, result(9, None)]) == f"3 cases {what}: 3 timed beside it"
    assert changed_text(fine[:1]) == f"1 case {what}: 1 timed beside it"


def test_those_that_were_not_judged_are_named_with_the_reason() -> None:
    what = "with another binary than the baseline's"
    mixed = [
        result(0, pair(0.0)),
        result("open", pair(0.004, 0.0035)),  # timed, and red by itself
        *(result(n, Paired(*vocabulary.CONTROL_FAILED, detail=f"differs {n}")) for n in range(1, 8)),
        result(8, Paired(*vocabulary.BINARY_NOT_KEPT, detail="x")),
        result(9, Paired(*vocabulary.failed_beside("HANG"), detail="x")),
    ]
    assert changed_text(mixed) == (
        f"11 cases {what}: 2 timed beside it; 7 not judged, two identical builds differ here "
        "(tiled-1, tiled-2, tiled-3, tiled-4, tiled-5 and 2 more); 1 not judged, the baseline has no binary "
        "of them (tiled-8); 1 failed"
    )


def test_the_header_says_how_much_this_board_has_measured() -> None:
    boards: list[str | None] = ["b1", "b2", None]
    entries = {str(n): SimpleNamespace(board=board) for n, board in enumerate(boards)}
    stored: Any = SimpleNamespace(slug="gpu", entries=entries)
    assert baseline_text(stored, "b1") == "gpu, 3 cases, 1 of them measured on this board"
    assert baseline_text(stored, None) == "gpu, 3 cases, 0 of them measured on this board"
    assert baseline_text(None, "b1") == "none"


def test_a_table_is_the_same_in_a_log_and_in_a_wide_terminal() -> None:
    rows = [("naive", "12", ""), ("tiled at 4096×4096", "3"), ("alone",)]
    table = TextTable(("kernel", "GFLOPS", "note"), "lrl", rows, optional=("note",))
    assert (
        table.text()
        == table.text(width=200)
        == "\n".join(
            [
                "kernel              GFLOPS",
                "naive                   12",
                "tiled at 4096×4096       3",
                "alone",
            ]
        )
    )
