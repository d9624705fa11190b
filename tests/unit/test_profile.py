"""Reading ncu's table, and refusing one that is not about the cases asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from harness import profile
from harness.profile import METRICS, ProfileError

FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
VALUES = {
    "gpu__time_duration.sum": "1,024,512",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "4,194,304",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "1,048,576",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "0",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "0",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "97.25",
}


def csv(*kernels: str, leave_out: str = "", values: dict[str, str] = VALUES) -> str:
    """ncu's --page raw: its own lines, the header, a row of units, a row a launch."""
    metrics = [metric for metric in METRICS if metric != leave_out]
    rows = [
        [*FIXED, *metrics],
        ["" for _ in FIXED] + ["ns" if "time" in metric else "" for metric in metrics],
        *(
            [
                str(n),
                "77",
                "python3",
                "127.0.0.1",
                kernel,
                "1",
                "7",
                *(values.get(m, str(n)) for m in metrics),
            ]
            for n, kernel in enumerate(kernels)
        ),
    ]
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f'==PROF== Connected to process 77\n==PROF== Profiling "gemm_naive" - 0: 100%\n{table}\n'


def shown(cases: list[str], text: str) -> str:
    console = Console(width=400)
    with console.capture() as capture:
        console.print(profile.table(cases, profile.parse(text)))
    return capture.get()


def test_a_launch_is_read_with_its_figures() -> None:
    (first, values), (second, _) = profile.parse(csv("gemm_naive", "gemm_tiled"))
    assert (first, second) == ("gemm_naive", "gemm_tiled")
    assert values["gpu__time_duration.sum"] == 1024512
    assert values["sm__warps_active.avg.pct_of_peak_sustained_active"] == 97.25


def test_the_table_shows_ratios_and_time() -> None:
    row = next(
        line
        for line in shown(["case"], csv("gemm_naive")).splitlines()
        if "case" in line and "µs" not in line
    )
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:4] == ["case", "1024.5", "4.00", "–"]
    assert cells[8] == "97.2, 0.0"


def test_other_launches_than_cases_are_refused() -> None:
    with pytest.raises(ProfileError, match=r"1 cases made 2 launches \(gemm_naive, gemm_tiled\)"):
        shown(["case"], csv("gemm_naive", "gemm_tiled"))


def test_a_missing_metric_is_named() -> None:
    with pytest.raises(ProfileError, match=r"ncu gives no gpu__time_duration\.sum"):
        profile.parse(csv("gemm_naive", leave_out="gpu__time_duration.sum"))


def test_a_metric_without_a_value_is_refused() -> None:
    with pytest.raises(ProfileError, match="no number for gemm_naive"):
        profile.parse(csv("gemm_naive", values={METRICS[0]: "n/a"}))


def test_without_a_table_the_reason_of_ncu_is_given() -> None:
    said = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission to access GPU counters.\n"
    with pytest.raises(ProfileError, match="profiled no kernel: ERR_NVGPUCTRPERM"):
        profile.parse(said)


def test_the_default_is_every_stage_once() -> None:
    cases = profile.default_cases()
    assert len(cases) == len(set(cases)) > 2
    assert all(case.endswith("-1024x1024x1024") for case in cases)


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which ncu is the one program; the test writes what it does."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return tmp_path / "ncu"


def write(ncu: Path, script: str) -> None:
    """With $log, the file that ncu is told to write to."""
    find = 'args="$*"\nlog=$(echo "$args" | sed "s/.*--log-file \\([^ ]*\\).*/\\1/")\n'
    ncu.write_text(f"#!/bin/sh\n{find}{script}")
    ncu.chmod(0o755)


def test_main_prints_the_cases_asked_for(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(ncu, f"echo \"$args\" > {ncu}.args\ncat > $log <<'END'\n{csv('gemm_naive')}END\n")
    assert profile.main(["some-case"]) == 0
    assert "97.2" in capsys.readouterr().out
    args = Path(f"{ncu}.args").read_text()
    assert args.endswith("-m harness.devices.cuda.once some-case\n")
    assert "--clock-control none" in args


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 2", "ncu ended with exit code 2: see above"),
        ("echo '==ERROR== The application returned an error code (2).' > $log; exit 9", "error code (2)"),
        ("echo '==WARNING== No kernels were profiled.' > $log", "profiled no kernel"),
        ("true", "profiled no kernel"),
    ],
)
def test_main_is_red_where_nothing_was_measured(
    script: str, why: str, ncu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(ncu, script)
    assert profile.main(["some-case"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_main_names_the_cases_where_none_matches(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["-k", "nothing-like-it"]) == 2
    assert "no case contains 'nothing-like-it'; there are strided" in capsys.readouterr().err


def test_without_the_tool_it_asks_for_it(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main([]) == 2
    assert capsys.readouterr().err.startswith("profile: no ncu in PATH: ")
