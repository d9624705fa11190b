"""ncu over chosen cases: `python -m harness.profile [CASE_ID ...]`.

Without case ids: every stage's default config at 1024×1024×1024. Exit code 2 where ncu is missing or
has measured something else than was asked for.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from harness.model import Case, Problem
from harness.toolchain import ToolchainError, find_tool
from kernels import LADDER

Row = dict[str, float]


class Column(NamedTuple):
    """A figure of the table: the metrics it reads, and how it is shown from their values."""

    title: str
    metrics: tuple[str, ...]
    show: Callable[..., str]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _per(sectors: float, requests: float) -> str:
    """Of 32 bytes each: 4 for a full 128-byte load of a warp; none where a kernel makes no request."""
    return f"{sectors / requests:.2f}" if requests else "–"


def _sectors(op: str) -> tuple[str, ...]:
    return tuple(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum" for what in ("sectors", "requests"))


COLUMNS = (
    Column("µs", ("gpu__time_duration.sum",), lambda ns: f"{ns / 1000:.1f}"),
    Column("sectors/load", _sectors("ld"), _per),
    Column("sectors/store", _sectors("st"), _per),
    Column("shared load wavefronts", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",), _count),
    Column("load conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",), _count),
    Column("shared store wavefronts", ("l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",), _count),
    Column("store conflicts", ("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",), _count),
    Column(
        "occupancy, of possible %",
        ("sm__warps_active.avg.pct_of_peak_sustained_active", "sm__maximum_warps_per_active_cycle_pct"),
        lambda achieved, possible: f"{achieved:.1f}, {possible:.1f}",
    ),
    Column("warp instructions", ("smsp__inst_executed.sum",), _count),
    Column("thread FFMA", ("smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",), _count),
)
METRICS = tuple(metric for column in COLUMNS for metric in column.metrics)


class ProfileError(Exception):
    """ncu did not measure what was asked for. One line."""


def parse(text: str) -> list[tuple[str, Row]]:
    """(kernel name, metric -> value in base units) of each launch, from ncu's --csv --page raw.

    Lines before the header (==PROF==, warnings) are ncu's own; the row below the header holds units.
    Raises ProfileError where there is no table or a metric is missing from it.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = " ".join(
            line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")
        )
        raise ProfileError(f"ncu profiled no kernel{': ' + said if said else ''}")
    _units, *rows = csv.DictReader(line for line in lines[start:] if not line.startswith("=="))
    made = []
    for row in rows:
        try:
            values = {metric: float(row[metric].replace(",", "")) for metric in METRICS}
        except KeyError as error:
            raise ProfileError(f"ncu gives no {error.args[0]} on this GPU") from None
        except ValueError as error:
            raise ProfileError(f"ncu gives no number for {row['Kernel Name']}: {error}") from None
        made.append((row["Kernel Name"], values))
    return made


def default_cases() -> list[str]:
    """Every stage's default config and first dtype at 1024×1024×1024."""
    cube = Problem(1024, 1024, 1024)
    return [Case(k, k.dtypes[0], k.configs[0], cube).id for k in LADDER if not k.library]


def command(ncu: str, log: Path, cases: list[str]) -> list[str]:
    return [
        # The clocks as they are in the suite's own runs; ncu would lock them to base.
        *(ncu, "--clock-control", "none", "--target-processes", "all", "--kernel-name", "regex:^gemm_"),
        *("--metrics", ",".join(METRICS), "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log), sys.executable, "-m", "harness.devices.cuda.once", *cases),
    ]


def table(cases: list[str], launches: list[tuple[str, Row]]) -> Table:
    """A row a case, in the order asked for. Raises ProfileError unless each case made one launch."""
    if len(cases) != len(launches):
        seen = ", ".join(name for name, _ in launches)
        raise ProfileError(f"{len(cases)} cases made {len(launches)} launches ({seen})")
    made = Table("case", *(column.title for column in COLUMNS))
    for case, (_, values) in zip(cases, launches, strict=True):
        made.add_row(case, *(column.show(*(values[m] for m in column.metrics)) for column in COLUMNS))
    return made


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="profile", description="Hardware counters of chosen cases, by ncu.")
    parser.add_argument(
        "cases", nargs="*", metavar="CASE_ID", help="such as naive-f32-block32x32-512x512x512"
    )
    parser.add_argument("-k", default="", metavar="TEXT", help="of these, the cases whose id contains TEXT")
    options = parser.parse_args(args)
    cases = [case for case in options.cases or default_cases() if options.k in case]
    try:
        if not cases:
            raise ProfileError(f"no case contains {options.k!r}; there are {', '.join(default_cases())}")
        ncu = find_tool("ncu")
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder, "ncu.csv")
            ended = subprocess.run(command(ncu, log, cases), stdout=subprocess.DEVNULL).returncode
            text = log.read_text(errors="replace") if log.exists() else ""
        if ended:
            said = [line for line in text.splitlines() if line.startswith("==ERROR==")]
            raise ProfileError(f"ncu ended with exit code {ended}: {' '.join(said) or 'see above'}")
        # A file or a CI log has no width; a table this wide would be cut to 80 columns there.
        Console(width=None if sys.stdout.isatty() else 200).print(table(cases, parse(text)))
    except (ProfileError, ToolchainError) as error:
        print(f"profile: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
