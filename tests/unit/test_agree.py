"""Two runs, or baselines, of the same binaries: which cases are compared, and by which limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.baselines import BaselineError
from harness.baselines.agree import Agreement, agreement, boards, summary
from harness.commands.baseline import main
from tests.unit import synthetic

STORED = sorted((Path(__file__).parents[2] / "baselines" / "nvidia-h200").glob("*.json"))
SIMT, TENSOR = "tiled-f32-tile32-pad0-1024x1024x1024", "wmma-bf16-tile128x128x32-warp64x32-1024x1024x1024"


@pytest.mark.parametrize(
    ("case", "seconds", "change", "agrees"),
    [
        (SIMT, 1e-3, 0.0029, True),
        (SIMT, 1e-3, 0.0031, False),
        (SIMT, 1e-3, -0.0031, False),
        (TENSOR, 1e-3, 0.0031, True),
        (TENSOR, 1e-3, 0.011, False),
        ("cublas-tf32-1024x1024x1024", 1e-3, -0.009, True),
        (SIMT, 0.9e-4, 0.05, True),  # too short to be judged
    ],
)
def test_the_limit_is_that_of_the_unit_that_computes(
    case: str, seconds: float, change: float, agrees: bool
) -> None:
    assert Agreement(case, (seconds, seconds * (1 + change))).agrees is agrees


def test_what_a_refresh_took_over_is_no_measurement_of_its_own() -> None:
    with pytest.raises(BaselineError, match="no case that both measured with the same binary"):
        agreement(STORED[0], STORED[0])
    found = agreement(STORED[0], STORED[1])
    assert all(a.seconds[0] != a.seconds[1] for a in found)
    assert [abs(a.change) for a in found] == sorted((abs(a.change) for a in found), reverse=True)


def test_summary_counts_each_kind_and_what_is_too_short() -> None:
    ms = 1e-3
    found = [
        Agreement(SIMT, (ms, 1.004 * ms)),
        Agreement(SIMT, (ms, 1.001 * ms)),
        Agreement(TENSOR, (ms, 0.995 * ms)),
        Agreement(SIMT, (1e-5, 1.1e-5)),
    ]
    simt, tensor, short = summary(found)
    assert "1 of 2 cases agree within 0.3 %" in simt
    assert "all within 0.40 %" in simt
    assert "1 of 1 cases agree within 1 %" in tensor
    assert short.startswith("1 shorter cases, not judged")


def test_command_is_red_where_they_disagree(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    found = agreement(STORED[0], STORED[1])
    status = main(["agree", str(STORED[0]), str(STORED[1])])
    said = capsys.readouterr().out
    assert status == int(not all(a.agrees for a in found))
    assert sum(a.case in said for a in found) == sum(not a.agrees for a in found)
    assert main(["agree", str(STORED[0]), str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_only_what_is_timed_alike_is_compared(tmp_path: Path) -> None:
    """A launch that an old file does not tell is no difference; another duty cycle or binary is."""
    cases = [synthetic.case(name) for name in ("tiled", "naive", "warp_tiled", "register", "cublas")]
    files = []
    for number in (0, 1):
        cubins = {case: None if case.kernel.source is None else synthetic.NEW for case in cases}
        seconds = 0.01 + 1e-5 * number
        run = synthetic.run(number, {c: synthetic.measurement(seconds, cubin=cubins[c]) for c in cases})
        for bench in run["benchmarks"]:
            bench["extra_info"] |= {"duty": 1.0, "launch": "grid 1x1x1"}
        files.append(run)
    of = [bench["extra_info"] for bench in files[1]["benchmarks"]]
    of[1]["launch"] = "grid 2x1x1"
    of[2]["duty"] = 0.25
    of[3]["cubin_sha256"] = "c" * 64
    del files[0]["benchmarks"][0]["extra_info"]["launch"]
    files[1]["machine_info"] |= {"cublas": "13.1.0", "board": "0a0a0a0a"}
    paths = synthetic.saved(tmp_path / "runs", files)
    assert [a.case for a in agreement(*paths)] == [cases[0].id]
    files[0]["machine_info"] |= {"cublas": "13.1.0"}
    paths = synthetic.saved(tmp_path / "runs", files)
    assert {a.case for a in agreement(*paths)} == {cases[0].id, cases[4].id}
    assert boards(*paths) == "boards unknown and 0a0a0a0a"


def test_a_run_that_no_baseline_may_rest_on_is_refused_as_a_run(tmp_path: Path) -> None:
    run = synthetic.run(0, {synthetic.case(): synthetic.measurement()})
    run["benchmarks"][0]["extra_info"]["verdict"] = "AMBIGUOUS"
    (path,) = synthetic.saved(tmp_path / "runs", [run])
    with pytest.raises(BaselineError, match=r"run_1.json: .* AMBIGUOUS .* run it again"):
        agreement(path, path)
