"""Reading ncu's table, and refusing one that is not about the cases asked for; the counts beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from harness.commands import profile
from harness.commands.profile import METRICS, ProfileError
from harness.compiler import tools
from harness.compiler.errors import ToolchainError
from harness.counters import ncu as compared
from harness.counters.chosen import chosen
from harness.model import F32, Case
from harness.project.selection import Choice
from tests.ladder import H200, LADDER, PROJECT, find_case, find_kernel

try:
    NVCC: tools.Nvcc | None = tools.find_nvcc()
except ToolchainError:
    NVCC = None
SOME = "naive-f32-block32x32-512x512x512"
FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
VALUES = {
    "gpu__time_duration.sum": "1,024,512",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": "4,194,304",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": "1,048,576",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum": "0",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum": "0",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "97.25",
}


def csv(
    *kernels: str, leave_out: str = "", values: dict[str, str] = VALUES, named: Sequence[str] = METRICS
) -> str:
    """ncu's --page raw: its own lines, the header, a row of units, a row a launch."""
    metrics = [metric for metric in named if metric != leave_out]
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


def shown(cases: list[Case], text: str) -> str:
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
    row = next(line for line in shown([find_case(SOME)], csv("gemm_naive")).splitlines() if SOME in line)
    cells = [cell.strip() for cell in row.strip("│").split("│")]
    assert cells[:4] == [SOME, "1024.5", "4.00", "–"]
    assert cells[8] == "97.2, 0.0"


def test_other_launches_than_cases_are_refused() -> None:
    with pytest.raises(ProfileError, match=r"1 cases made 2 launches \(gemm_naive, gemm_tiled\)"):
        shown([find_case(SOME)], csv("gemm_naive", "gemm_tiled"))


def test_a_missing_metric_is_named() -> None:
    with pytest.raises(ProfileError, match=r"ncu does not provide gpu__time_duration\.sum"):
        profile.parse(csv("gemm_naive", leave_out="gpu__time_duration.sum"))


def test_a_metric_without_a_value_is_refused() -> None:
    with pytest.raises(ProfileError, match="no number for gemm_naive"):
        profile.parse(csv("gemm_naive", values={METRICS[0]: "n/a"}))


def test_without_a_table_the_reason_of_ncu_is_given() -> None:
    said = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission to access GPU counters.\n"
    with pytest.raises(ProfileError, match="profiled no kernel: ERR_NVGPUCTRPERM"):
        profile.parse(said)


def test_the_default_is_every_stage_once() -> None:
    cases = profile.timed_cases(PROJECT, Choice(), H200)
    assert len(cases) == len({case.kernel.name for case in cases}) > 2
    assert all(case.id.endswith("-1024x1024x1024") for case in cases)


def test_an_expression_finds_the_timed_cases_of_the_suite() -> None:
    cases = profile.timed_cases(PROJECT, Choice(expression="tiled and 1024 and not (warp or un)"), H200)
    assert {case.kernel.name for case in cases} == {"tiled"}
    assert len(cases) == len(find_kernel("tiled").configs) - 2  # of tiles that are legal
    (one,) = profile.timed_cases(PROJECT, Choice(kernels=("tiled",)), H200)
    assert one.config == one.kernel.configs[0]


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
    assert profile.main([SOME]) == 0
    assert "97.2" in capsys.readouterr().out
    args = Path(f"{ncu}.args").read_text()
    assert args.endswith(f"-m harness.devices.cuda.once {PROJECT.root} {SOME}\n")
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
    assert profile.main([SOME]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_main_names_the_cases_where_none_matches(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["-k", "nothing-like-it"]) == 2
    assert "-k 'nothing-like-it' matches no case" in capsys.readouterr().err


def test_without_the_tool_it_asks_for_it(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main([]) == 2
    assert capsys.readouterr().err.startswith("profile: no ncu found (searched PATH): ")


# Beside the emulated device

LOAD_REQUESTS, LOAD_SECTORS = (
    f"l1tex__t_{what}_pipe_lsu_mem_global_op_ld.sum" for what in ("requests", "sectors")
)
STORE_REQUESTS, STORE_SECTORS = (
    f"l1tex__t_{what}_pipe_lsu_mem_global_op_st.sum" for what in ("requests", "sectors")
)
COPIES = [
    f"sm__sass_l1tex_t_requests_pipe_lsu_mem_global_op_ldgsts_{way}.sum"
    for way in ("cache_access", "cache_bypass")
]
LANES = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
CASE = "naive-f32-block32x32-33x18x5"
# 33 rows of C, a warp each: for each of 5 k an element of A and 18 neighbours of B, then 18 of C.
NAIVE = {
    **{LOAD_REQUESTS: "330", LOAD_SECTORS: "{}", STORE_REQUESTS: "33", STORE_SECTORS: "{}"},
    **{LANES.format("ffma"): str(33 * 18 * 5), LANES.format("fmul"): str(33 * 18), LANES.format("fadd"): "0"},
}
# Rows of 18 floats start at every 72 bytes, and touch 3 sectors or 4 by where that lies in a sector.
ROWS = [-(-(72 * row % 32 + 72) // 32) for row in range(33)]
NAIVE[LOAD_SECTORS] = str(165 + 33 * sum(ROWS[:5]))
NAIVE[STORE_SECTORS] = str(sum(ROWS))


def test_metrics_are_the_first_that_the_gpu_offers() -> None:
    every = compared.metrics()
    assert every["cp.async requests"] == tuple(COPIES)
    cache = [f"l1tex__t_requests_pipe_lsu_mem_global_op_ldgsts_cache_{way}" for way in ("access", "bypass")]
    assert compared.metrics(cache)["cp.async requests"] == tuple(f"{name}.sum" for name in cache)
    assert compared.metrics(cache[:1])["cp.async requests"] == ()
    assert compared.metrics(["other"])["load requests"] == ()


def test_optional_metrics_may_be_missing() -> None:
    text = csv(
        "gemm_naive", named=[LOAD_REQUESTS, LOAD_SECTORS], values={LOAD_REQUESTS: "12", LOAD_SECTORS: "n/a"}
    )
    wanted = [LOAD_REQUESTS, LOAD_SECTORS, STORE_REQUESTS]
    assert profile.parse(text, wanted, wanted) == [("gemm_naive", {LOAD_REQUESTS: 12})]
    with pytest.raises(ProfileError, match="no number for gemm_naive"):
        profile.parse(text, wanted, [STORE_REQUESTS])


def test_every_fp32_stage_is_compared_on_two_problems() -> None:
    cases = [case.id for case in chosen(PROJECT, Choice(), H200) if case.dtype is F32]
    stages = {case.split("-")[0] for case in cases}
    assert stages == {kernel.name for kernel in LADDER if F32 in kernel.dtypes and kernel.compiled}
    assert len(cases) == 2 * len(stages) >= 20
    assert all("-f32-" in case for case in cases)


def beside(ncu: Path, kernel: str = "gemm_naive", leave_out: str = "", **values: str) -> int:
    """A run of one case, for which ncu tells these values and 0 for all others."""
    named = [metric for ways in compared.metrics().values() for metric in dict.fromkeys(ways)]
    told = dict.fromkeys(named, "0") | NAIVE | values
    names = "\n".join(f"{name.removesuffix('.sum')}  Counter" for name in named)
    write(
        ncu,
        f"case $args in\n*--query-metrics*) cat <<'END'\n{names}\nEND\nexit;;\n"
        f"*--version*) echo 'Version 2025.3.1.0 (build 1)'; exit;;\nesac\necho \"$args\" > {ncu}.args\n"
        f"cat > $log <<'END'\n{csv(kernel, named=named, values=told, leave_out=leave_out)}END\n",
    )
    return profile.main([CASE, "--emulated", "--json", f"{ncu}.json", "--markdown", f"{ncu}.md"])


@pytest.mark.compile
class TestBeside:
    @pytest.fixture(autouse=True)
    def compiler(self, ncu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The compiler, which the machine of ncu has too."""
        found = Path(NVCC.path).parent if NVCC else None
        if found is None:
            pytest.skip("no nvcc")
        monkeypatch.setenv("PATH", f"{ncu.parent}:{found}:/bin:/usr/bin")

    def test_equal_counts_pass(self, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert beside(ncu) == 0
        said = capsys.readouterr().out
        assert "4 of 4 global-memory counts of 1 cases are equal; " in said
        assert "Nsight Compute 2025.3.1.0" in said
        assert "PTX count; ptxas" in said
        document = json.loads(Path(f"{ncu}.json").read_text())
        assert document["agrees"] is True
        assert {row["count"]: (row["emulated"], row["ncu"]) for row in document["rows"]}["load requests"] == (
            330,
            330,
        )
        assert f"| {CASE} | load requests | 330 | 330 | 0 |  |" in Path(f"{ncu}.md").read_text().splitlines()
        assert Path(f"{ncu}.args").read_text().count("harness.devices.cuda.once") == 1

    def test_another_count_of_global_memory_is_red(
        self, ncu: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert beside(ncu, **{LOAD_REQUESTS: "300"}) == 1
        assert "3 of 4 global-memory counts" in capsys.readouterr().out
        assert f"| {CASE} | load requests | 330 | 300 | +30 (+10.0%) |" in Path(f"{ncu}.md").read_text()

    def test_what_only_the_gpu_counted_is_red(self, ncu: Path) -> None:
        assert beside(ncu, **{COPIES[0]: "7"}) == 1
        assert f"| {CASE} | cp.async requests | 0 | 7 | -7 (-100.0%) |" in Path(f"{ncu}.md").read_text()

    def test_another_flop_count_is_shown_only(self, ncu: Path) -> None:
        assert beside(ncu, **{LANES.format("fadd"): "1"}) == 0
        assert f"| {CASE} | FP32 FLOP | 6,534 | 6,535 | -1 (-0.0%) |" in Path(f"{ncu}.md").read_text()

    def test_what_was_not_measured_is_no_pass(self, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert beside(ncu, leave_out=STORE_SECTORS) == 1
        assert (
            "3 of 4 global-memory counts of 1 cases are equal; 1 were not measured" in capsys.readouterr().out
        )
        assert f"| store sectors | {sum(ROWS)} | – | not measured |" in Path(f"{ncu}.md").read_text()

    def test_another_kernel_is_refused(self, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert beside(ncu, "gemm_tiled") == 2
        assert f"{CASE} launched gemm_tiled, not gemm_naive" in capsys.readouterr().err


def test_files_go_with_the_comparison(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main(["--json", "x.json"]) == 2
    assert "--json and --markdown go with --emulated" in capsys.readouterr().err
