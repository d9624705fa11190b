"""Reading ncu's table, and refusing one that is not about the cases asked for; the counts beside it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from gemm_regression.cli import profile
from gemm_regression.compiler import tools
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import ToolchainError
from gemm_regression.counters import nsight, profiler, traffic
from gemm_regression.counters.counts import chosen
from gemm_regression.counters.nsight import ProfileError
from gemm_regression.counters.profiler import GROUPS, METRICS
from gemm_regression.counters.traffic import of_ncu
from gemm_regression.model import F32
from gemm_regression.project.selection import Choice
from gemm_regression.report.comparison import Column, tables
from gemm_regression.timing.bounds import Level, Roofs, bound, shares
from tests.ladder import H200, LADDER, PROJECT, find_kernel

try:
    NVCC: tools.Nvcc | None = tools.find_nvcc()
except ToolchainError:
    NVCC = None
SOME, OTHER = "naive-f32-block32x32-512x512x512", "naive-f32-block16x16-512x512x512"
FIXED = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream")
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
LOAD_REQUESTS, LOAD_SECTORS, STORE_REQUESTS, STORE_SECTORS = (
    f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
    for op in ("ld", "st")
    for what in ("requests", "sectors")
)
VALUES = {
    **{"gpu__time_duration.sum": "1,024,512", ACHIEVED: "97.25"},
    **{LOAD_SECTORS: "4,194,304", LOAD_REQUESTS: "1,048,576", STORE_SECTORS: "0", STORE_REQUESTS: "0"},
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
            [str(n), "77", "python3", "host", kernel, "1", "7", *(values.get(m, str(n)) for m in metrics)]
            for n, kernel in enumerate(kernels)
        ),
    ]
    table = "\n".join(",".join(f'"{cell}"' for cell in row) for row in rows)
    return f'==PROF== Connected to process 77\n==PROF== Profiling "gemm_naive" - 0: 100%\n{table}\n'


def launches(text: str) -> list[nsight.NcuLaunch]:
    return nsight.parse(text, METRICS)


def rows(said: str) -> dict[str, list[str]]:
    """The cells of each row of a table of figures, by its title."""
    split = [re.split(r"  +", line.strip()) for line in reversed(said.splitlines())]
    return {cells[0]: cells[1:] for cells in split}


def test_a_launch_is_read_with_its_figures() -> None:
    one, second = launches(csv("gemm_naive", "gemm_tiled"))
    assert (one.name, second.name) == ("gemm_naive", "gemm_tiled")
    assert one.values["gpu__time_duration.sum"] == 1024512
    found = rows(tables([Column(SOME, one.values)], "", 80))
    assert (found["A"], found["time, µs"], found["sectors per load"]) == ([SOME], ["1,025"], ["4"])
    assert "sectors per store" not in found
    assert found["achieved, %"] == ["97.25"]


def test_what_ncu_wrote_on_an_h200_is_read() -> None:
    """naive, warp_tiled, wmma in BF16 and split_k at 1024³: each a column, with every group of figures."""
    found = launches((Path(__file__).parents[1] / "judge" / "recorded" / "ncu_h200_8d5e20e.csv").read_text())
    names = ["gemm_naive", "gemm_warp_tiled", "gemm_wmma", "gemm_split_k"]
    assert [launch.name for launch in found] == names
    said = tables([Column(launch.name, launch.values) for launch in found], "", 0)
    assert all(f"\n{group}\n" in said for group in GROUPS)
    cells = rows(said)
    assert cells["sectors per load"] == ["2.5", "5.333", "16", "12"]
    assert cells["bytes used per sector, load, B"] == ["26.4", "–", "–", "32"]  # cp.async; ncu has 128 of 32
    assert cells["load wavefronts"] == ["0", "3,145,728", "851,969", "12,630,857"]
    assert cells["achieved, %"] == ["93.66", "12.5", "12.5", "34.04"]
    assert (cells["L1 hit rate, %"][0], cells["lg throttle"][0]) == ("94.96", "12.59")
    naive = of_ncu(found[0].values, 2 * 1024**3)
    assert naive.dram == 8_395_520 + 256  # A and B once; C stays in L2
    assert naive.shared == 128 * 67_267_584
    roofs = Roofs({"f32": 65_980.0}, {"dram": 4105.0, "l2": 8328.0, "shared": 33_304.0}, "measured", 1044.0)
    near = bound(shares(naive, roofs, "f32", 337.1e-6))
    assert near is not None
    assert near[0] is Level.SHARED
    assert near[1] == pytest.approx(0.767, abs=0.001)


def pair() -> list[Column]:
    """Two launches, of which the second takes 10 % less time, with a tenth of the occupancy."""
    other = VALUES | {"gpu__time_duration.sum": "922,061", ACHIEVED: "9"}
    (one,), (two,) = launches(csv("gemm_naive")), launches(csv("gemm_naive", values=other))
    return [Column(SOME, one.values), Column(SOME.replace("512x512x512", "8x8x8"), two.values)]


@pytest.mark.parametrize("base", ["", "main (1a2b3c4d5e6f)"])
def test_two_cases_or_commits_are_compared(base: str) -> None:
    one, two = pair()
    said = tables([Column(SOME, two.values, one.values)] if base else [one, two], base, 80)
    found = rows(said)
    assert not base or found[f"base: {base}"] == []
    assert found["time, µs"] == ["1,025", "922.1", "-10.0 %"]
    assert found["achieved, %"] == ["97.25", "9", "-88.2"]
    assert found["sectors per load"] == ["4", "4", "+0.0 %"]
    assert max(map(len, said.splitlines())) <= 80


@pytest.mark.parametrize("width", [80, 120, 0])
def test_many_cases_are_as_wide_as_there_is_room(width: int) -> None:
    columns = pair() * 5
    said = tables(columns, "", width)
    heads = [line.split() for line in said.splitlines() if re.fullmatch(r"[ A-J]+", line)]
    assert [letter for head in heads for letter in head] == list("ABCDEFGHIJ")
    assert len(heads) == {80: 4, 120: 2, 0: 1}[width]
    assert max(map(len, said.splitlines())) <= (width or 400)


def test_reasons_to_stall_are_those_that_matter_and_the_worst_first() -> None:
    stalled = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
    reasons = {"barrier": "0.5", "long_scoreboard": "7.25", "wait": "0.04"}
    values = dict.fromkeys(METRICS, "0") | {stalled.format(name): v for name, v in reasons.items()}
    (one,) = launches(csv("gemm_naive", values=values))
    lines = tables([Column(SOME, one.values)], "", 80).partition("warps stalled per instruction\n")[2]
    found = [line.split() for line in lines.splitlines()]
    assert found == [["long", "scoreboard", "7.25"], ["barrier", "0.5"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (csv("gemm_naive", leave_out=METRICS[0]), f"ncu does not provide {METRICS[0]}"),
        (csv("gemm_naive", values={METRICS[0]: "n/a"}), "no number for gemm_naive"),
        ("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - no permission.\n", "no kernel: ERR_NVGPUCTRPERM"),
    ],
)
def test_a_table_without_a_metric_is_refused(text: str, said: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(said)):
        launches(text)


def test_the_default_is_every_stage_once_and_an_expression_finds_timed_cases() -> None:
    cases = profile.timed_cases(PROJECT, Choice(), H200)
    assert len(cases) == len({case.kernel.name for case in cases}) > 2
    assert {case.problem.id.removesuffix("-nt") for case in cases} == {"1024x1024x1024"}
    cases = profile.timed_cases(PROJECT, Choice(expression="tiled and 1024 and not (warp or un)"), H200)
    assert {case.kernel.name for case in cases} == {"tiled"}
    assert len(cases) == len(find_kernel("tiled").configs) - 2  # of tiles that are legal


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
    find += "case $log in --*) log=/dev/null;; esac\n"  # it is asked for its metrics
    ncu.write_text(f"#!/bin/sh\n{find}{script}")
    ncu.chmod(0o755)


TABLE = """case $args in
*--query-metrics*) exit 1;;
*--version*) echo 'Version 2025.3.1.0 (build 1)'; exit;;
esac
"""


def printing(ncu: Path, *kernels: str, said: str = "") -> None:
    """It notes what it was asked for, and tells the figures of these launches."""
    write(ncu, f"{TABLE}echo \"$args\" >> {ncu}.args\n{said}\ncat > $log <<'END'\n{csv(*kernels)}END\n")


def test_main_prints_the_cases_asked_for_and_refuses_other_launches(
    ncu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printing(ncu, "gemm_naive", said=f"echo launched {SOME}")
    assert profile.main([SOME]) == 0
    said, progress = capsys.readouterr()
    assert progress.startswith(f"ncu: 1 of 1: {SOME}, ")
    assert "97.25" in said
    assert "Nsight Compute 2025.3.1.0" in said
    args = Path(f"{ncu}.args").read_text()
    assert args.endswith(f"-m gemm_regression.devices.cuda.once {PROJECT.root} {SOME}\n")
    assert "--clock-control none" in args
    printing(ncu, "gemm_naive", "gemm_tiled")
    assert profile.main([SOME]) == 2
    assert "1 cases made 2 launches (gemm_naive, gemm_tiled)" in capsys.readouterr().err


def test_the_report_of_ncu_is_kept_and_read(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printing(ncu, "gemm_naive")
    kept = ncu.with_name("kept.ncu-rep")
    assert profile.main([SOME, "--export", str(kept), "--json", f"{ncu}.json"]) == 0
    first, second = Path(f"{ncu}.args").read_text().splitlines()
    assert ["--set full" in first, f"--export {kept} " in first, "--csv" in first] == [True, True, False]
    assert [f"--import {kept} --csv --page raw" in second, "once" in second] == [True, False]
    (case,) = json.loads(Path(f"{ncu}.json").read_text())["cases"]
    assert case["figures"]["occupancy: achieved"] == 97.25
    assert case["metrics"]["gpu__time_duration.sum"] == 1024512


def test_another_copy_of_the_project_is_measured_beside(
    ncu: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printing(ncu, "gemm_naive")
    other = tmp_path / "old"
    shutil.copytree(PROJECT.root / "kernels", other / "kernels")
    shutil.copy(PROJECT.root / "pyproject.toml", other)
    declared = other / "kernels" / "__init__.py"
    declared.write_text(declared.read_text().replace('name="strided"', 'name="gone"'))
    assert profile.main([SOME, "--against", f"{other}/"]) == 0
    assert "base: the folder old" in capsys.readouterr().out
    roots = re.findall(r"cuda\.once (\S+) ", Path(f"{ncu}.args").read_text())
    assert roots == [str(other), str(PROJECT.root)]
    strided = SOME.replace("naive-f32-block32x32", "strided-f32-block16x16")
    assert profile.main([strided, "--against", f"{other}/"]) == 2
    assert f"{strided}: the folder old has no kernel strided" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--markdown", "x.md"], "--markdown goes with --emulated"),
        (["--emulated", "--store"], "--emulated and --store do not go together"),
        (["--store", "--against", "main"], "--store and --against do not go together"),
        (["--export", "x.rep"], "--export x.rep: the name must end in .ncu-rep"),
        (["--export", "nowhere/x.ncu-rep"], "nowhere/x.ncu-rep: its folder does not exist"),
        (["--json", "nowhere/x.json"], "nowhere/x.json: its folder does not exist"),
        ([SOME, "--against", "no-such-commit"], "no commit no-such-commit in this repository"),
        (["naiv-f32-block32x32-512x512x512"], "naive"),
        (["-k", "nothing-like-it"], "-k 'nothing-like-it' matches no case"),
        (["--emulated", "--json", "x.json"], "--emulated and --json do not go together"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    words: list[str], why: str, ncu: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printing(ncu, "gemm_naive")
    assert profile.main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert why in line


def test_what_ncu_counted_is_stored_by_case(
    ncu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"gpu": "NVIDIA H200", "board": "a333", "driver": "580", "ncu": "2025.3", "nvcc": "13.0.88"}
    monkeypatch.setattr(profile, "made_by", lambda ncu: here)
    monkeypatch.setattr(type(PROJECT), "baselines", property(lambda self: tmp_path))
    printing(ncu, "gemm_naive", said=f"echo 'launched {SOME} {'a' * 64}'")
    assert profile.main([SOME, "--store"]) == 0
    stored = traffic.load_seen(tmp_path / "nvidia-h200")
    assert (list(stored), stored[SOME].cubin, stored[SOME].made) == ([SOME], "a" * 64, here)
    assert stored[SOME].values["gpu__time_duration.sum"] == 1024512
    assert profile.main([OTHER, "--store"]) == 2
    assert "which binary was launched is not known" in capsys.readouterr().err
    printing(ncu, "gemm_naive", said=f"echo 'launched {OTHER} {'b' * 64}'")
    assert profile.main([OTHER, "--store"]) == 0
    assert set(traffic.load_seen(tmp_path / "nvidia-h200")) == {SOME, OTHER}


def test_edited_counts_are_refused(tmp_path: Path) -> None:
    counted = traffic.NcuCounts("a" * 64, {"dram__bytes_read.sum": 12.0}, {"gpu": "NVIDIA H200"})
    traffic.write_seen(tmp_path, {SOME: counted})
    file = tmp_path / traffic.COUNTED
    file.write_text(file.read_text().replace("12", "13"))
    with pytest.raises(StoreError, match=r"naive.*edited by hand or damaged; .*nox -s profile -- --store"):
        traffic.load_seen(tmp_path)


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


def test_without_the_tool_it_asks_for_it(ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile.main([]) == 2
    assert capsys.readouterr().err.startswith("error: no ncu found (searched PATH): ")


# Beside the emulated device

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


def test_optional_metrics_may_be_missing() -> None:
    values = {LOAD_REQUESTS: "12", LOAD_SECTORS: "n/a"}
    text = csv("gemm_naive", named=[*values], values=values)
    wanted = [LOAD_REQUESTS, LOAD_SECTORS, STORE_REQUESTS]
    assert nsight.parse(text, wanted, wanted) == [("gemm_naive", {LOAD_REQUESTS: 12}, "")]
    with pytest.raises(ProfileError, match="no number for gemm_naive"):
        nsight.parse(text, wanted, [STORE_REQUESTS])


def test_every_fp32_stage_is_compared_on_two_problems() -> None:
    cases = [case.id for case in chosen(PROJECT, Choice(), H200) if case.dtype is F32]
    stages = {case.split("-")[0] for case in cases}
    assert stages == {kernel.name for kernel in LADDER if F32 in kernel.dtypes and kernel.compiled}
    assert len(cases) == 2 * len(stages) >= 20
    assert all("-f32-" in case for case in cases)


def beside(ncu: Path, kernel: str = "gemm_naive", leave_out: str = "", **values: str) -> int:
    """A run of one case, for which ncu tells these values and 0 for all others."""
    named = list(dict.fromkeys(m for quantity in profiler.QUANTITIES.values() for m in quantity.metrics))
    told = dict.fromkeys(named, "0") | NAIVE | values
    names = "\n".join(f"{name.removesuffix('.sum')}  Counter" for name in named)
    write(
        ncu,
        TABLE.replace("exit 1;;", f"cat <<'END'\n{names}\nEND\nexit;;") + f'echo "$args" > {ncu}.args\n'
        f"cat > $log <<'END'\n{csv(kernel, named=named, values=told, leave_out=leave_out)}END\n",
    )
    return profile.main([CASE, "--emulated", "--markdown", f"{ncu}.md"])


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
        assert "4 of 4 global-memory counts of 1 cases are equal." in said
        assert "Nsight Compute 2025.3.1.0" in said
        assert "PTX count; ptxas" in said
        page = Path(f"{ncu}.md").read_text()
        assert page in said
        assert f"| {CASE} | load requests | 330 | 330 | 0 |" in page.splitlines()
        assert Path(f"{ncu}.args").read_text().count("gemm_regression.devices.cuda.once") == 1

    @pytest.mark.parametrize(
        ("status", "values", "row"),
        [
            (1, {LOAD_REQUESTS: "300"}, "load requests | 330 | 300 | +30 (+10.0%) |"),
            (1, {COPIES[0]: "7"}, "cp.async requests | 0 | 7 | -7 (-100.0%) |"),
            (0, {LANES.format("fadd"): "1"}, "FP32 FLOP | 6,534 | 6,535 | -1 (-0.0%) |"),
        ],
        ids=["global memory", "only the GPU", "FLOP"],
    )
    def test_another_count_of_global_memory_is_red(
        self, ncu: Path, status: int, values: dict[str, str], row: str
    ) -> None:
        assert beside(ncu, **values) == status
        assert f"| {CASE} | {row}" in Path(f"{ncu}.md").read_text()

    def test_what_was_not_measured_is_no_pass(self, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert beside(ncu, leave_out=STORE_SECTORS) == 1
        said = capsys.readouterr().out
        assert "3 of 4 global-memory counts of 1 cases are equal; 1 were not measured" in said
        assert f"| store sectors | {sum(ROWS)} | – | not measured |" in said

    def test_another_kernel_is_refused(self, ncu: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert beside(ncu, "gemm_tiled") == 2
        assert f"{CASE} launched gemm_tiled, not gemm_naive" in capsys.readouterr().err
