"""``gemm-regression profile [CASE_ID ...]``: hardware counters of selected cases, with ncu.

Without a selection: every kernel's default config at 1024×1024×1024. With ``--emulated``, the emulated
counters next to ncu's: every FP32 kernel on two small problems. Exit status: 2 if ncu is missing or measured
something other than requested, 1 if global-memory counts that must be equal differ.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pytest_benchmark.utils import get_commit_info
from rich.table import Table

from harness import counters
from harness.baselines.provenance import nvcc_version
from harness.commands.common import project_of
from harness.commands.progress import progress
from harness.compiler.entry import names_it
from harness.compiler.errors import ToolchainError
from harness.compiler.static import ARCHES
from harness.compiler.tools import find_tool
from harness.counters import ncu as compared
from harness.counters.chosen import chosen
from harness.counters.ncu import Comparison
from harness.devices import DeviceError
from harness.devices.emulated.device import EmulatedDevice
from harness.files import write_whole
from harness.model import F32, Case
from harness.project.loader import Project
from harness.project.selection import Choice, add_selection, find_case, select
from harness.reports.terminal import fitted, room

Row = dict[str, float]


class Column(NamedTuple):
    """A column of the table: its ``title``, the ncu ``metrics`` it needs, and ``show``, which formats
    them."""

    title: str
    metrics: tuple[str, ...]
    show: Callable[..., str]


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _per(sectors: float, requests: float) -> str:
    """Sectors of 32 bytes per request: 4 for a full 128-byte load of a warp; a dash without requests."""
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
    """ncu did not measure what was requested. One line."""


def parse(
    text: str, metrics: Iterable[str] = METRICS, optional: Collection[str] = ()
) -> list[tuple[str, Row]]:
    """(kernel name, metric -> value in base units) of each launch, from the output of ncu --csv --page raw.

    Lines before the header (==PROF==, warnings) are messages of ncu; the row below the header contains units.
    Raises ProfileError if there is no table or a metric is missing, unless it is ``optional``.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = " ".join(
            line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")
        )
        raise ProfileError(f"ncu profiled no kernel{': ' + said if said else ''}")
    _units, *rows = csv.DictReader(line for line in lines[start:] if not line.startswith("=="))
    return [(row["Kernel Name"], dict(_values(row, metrics, optional))) for row in rows]


def _values(
    row: Mapping[str, str], metrics: Iterable[str], optional: Collection[str]
) -> Iterator[tuple[str, float]]:
    for metric in metrics:
        try:
            yield metric, float(row[metric].replace(",", ""))
        except KeyError:
            if metric not in optional:
                raise ProfileError(f"ncu does not provide {metric} on this GPU") from None
        except ValueError as error:
            if metric not in optional:
                raise ProfileError(f"ncu provides no number for {row['Kernel Name']}: {error}") from None


def timed_cases(project: Project, choice: Choice, capability: tuple[int, int]) -> list[Case]:
    """Without a selection every kernel's default config and first dtype at 1024×1024×1024; otherwise the
    selected timed cases of the suite or the given shapes. Raises ValueError if there is none."""
    if choice == replace(Choice(), kernels=choice.kernels):
        choice = replace(choice, shapes=("1024x1024x1024",))
        found = [
            case
            for case in select(project, choice, capability).timed
            if (case.dtype, case.config) == (case.kernel.dtypes[0], case.kernel.configs[0])
        ]
    else:
        found = list(select(project, choice, capability).timed)
    found = [case for case in found if case.kernel.compiled]
    if not found:
        raise ValueError(
            "no case of a kernel with a source is selected; `nox -s check -- --list-cases` lists them"
        )
    return found


def command(
    ncu: str, log: Path, project: Project, cases: Sequence[Case], metrics: Iterable[str] = METRICS
) -> list[str]:
    return [
        # Leave the clocks as in the suite's own runs; ncu would lock them to the base clock.
        *(ncu, "--clock-control", "none", "--target-processes", "all"),
        *("--kernel-name", f"regex:^({'|'.join(dict.fromkeys(map(function, cases)))})$"),
        *("--metrics", ",".join(dict.fromkeys(metrics)), "--csv", "--page", "raw", "--print-units", "base"),
        *("--log-file", str(log), sys.executable, "-m", "harness.devices.cuda.once", str(project.root)),
        *(case.id for case in cases),
    ]


def function(case: Case) -> str:
    """The name of a case's function without namespaces and template arguments, as ncu shows it."""
    return case.kernel.entry_of(case.config, case.dtype).split("<")[0].rpartition("::")[2]


def measure(
    ncu: str,
    project: Project,
    cases: Sequence[Case],
    metrics: Iterable[str] = METRICS,
    optional: Collection[str] = (),
) -> list[tuple[str, Row]]:
    """The result of ``parse`` for one launch of each case, all in one run of ncu. Raises ProfileError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "ncu.csv")
        ended = subprocess.run(
            command(ncu, log, project, cases, metrics), stdout=subprocess.DEVNULL
        ).returncode
        text = log.read_text(errors="replace") if log.exists() else ""
    if ended:
        said = [line for line in text.splitlines() if line.startswith("==ERROR==")]
        raise ProfileError(f"ncu ended with exit code {ended}: {' '.join(said) or 'see above'}")
    return parse(text, metrics, optional)


def each(cases: Sequence[Case], launches: list[tuple[str, Row]]) -> list[Row]:
    """The metrics of each case, in the given order. Raises ProfileError unless each made one launch."""
    if len(cases) != len(launches):
        seen = ", ".join(name for name, _ in launches)
        raise ProfileError(f"{len(cases)} cases made {len(launches)} launches ({seen})")
    return [row for _, row in launches]


def table(cases: Sequence[Case], launches: list[tuple[str, Row]]) -> Table:
    """One row per case. Raises ProfileError as ``each`` does."""
    made = Table("case", *(column.title for column in COLUMNS))
    for case, values in zip(cases, each(cases, launches), strict=True):
        made.add_row(case.id, *(column.show(*(values[m] for m in column.metrics)) for column in COLUMNS))
    return made


def offered(ncu: str) -> set[str]:
    """The names of the metrics that ncu can measure on this GPU; empty if unknown."""
    try:
        said = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return set()
    if said.returncode:
        return set()
    return {line.split()[0] for line in said.stdout.splitlines() if "__" in line}


def beside(ncu: str, project: Project, cases: Sequence[Case], arch: str) -> list[Comparison]:
    """The emulated counters and those of ncu for the same cases. Raises ProfileError."""
    metrics = compared.metrics(offered(ncu))
    wanted = [metric for ways in metrics.values() for metric in ways]
    # Cases that cannot be emulated are found before the GPU is used.
    device = EmulatedDevice(arch)
    counts = []
    with progress("emulate", len(cases)) as step:
        for case in cases:
            counts.append(counters.count(case, device=device, by_source=False))
            step(case.id)
    launches = measure(ncu, project, cases, wanted, wanted)
    rows = each(cases, launches)
    for case, (name, _) in zip(cases, launches, strict=True):
        if not names_it(entry := case.kernel.entry_of(case.config, case.dtype), name):
            raise ProfileError(f"{case.id} launched {name}, not {entry}")
    return compared.compare(counts, rows, metrics)


def versions(ncu: str) -> str:
    """GPU, driver, tools and commit, as far as known."""
    said = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", said)
    tools = f"Nsight Compute {found[1] if found else 'of unknown version'}, nvcc {nvcc_version()}"
    if (commit := get_commit_info()["id"]) != "unversioned":  # type: ignore[no-untyped-call]
        tools += f", commit {commit[:12]}"
    tools += "."
    try:
        from harness.devices.cuda.environment import Gpu, NoGpu
    except ImportError:
        return tools
    try:
        info = Gpu().info()
    except NoGpu:
        return tools
    return f"{info.name}, driver {info.driver}, {tools}"


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gemm-regression profile",
        description="Hardware counters of selected cases, with ncu: of those named by id; of the timed cases "
        "that the options below select, as for the other commands; or, without either, of every kernel's "
        "default config at 1024x1024x1024.",
    )
    parser.add_argument(
        "cases", nargs="*", metavar="CASE_ID", help="such as naive-f32-block32x32-512x512x512"
    )
    add_selection(parser)
    parser.add_argument(
        "--emulated", action="store_true", help="compare the emulated counters with those of ncu"
    )
    parser.add_argument(
        "--arch", choices=ARCHES, default="sm_90a", help="architecture to emulate (default sm_90a)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="with --emulated: the counts of both")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="with --emulated: the table")
    options = parser.parse_args(args)
    try:
        if (options.json or options.markdown) and not options.emulated:
            raise ProfileError("--json and --markdown go with --emulated")
        project, choice, capability = project_of(options), Choice.of(options), ARCHES[options.arch]
        if options.cases:
            cases = [find_case(project, case, capability) for case in options.cases]
        elif options.emulated:
            cases = [case for case in chosen(project, choice, capability) if case.dtype is F32]
        else:
            cases = timed_cases(project, choice, capability)
        ncu = find_tool("ncu")
        if not options.emulated:
            print(fitted(table(cases, measure(ncu, project, cases)), room()))
            return 0
        rows = beside(ncu, project, cases, options.arch)
        made_by = versions(ncu)
        print(fitted(compared.table(rows), room()))
        print(f"{compared.summary(rows)}; {made_by}")
        if options.json:
            write_whole(options.json, json.dumps(compared.document(rows, made_by), indent=1) + "\n")
        if options.markdown:
            write_whole(options.markdown, compared.markdown(rows, made_by))
        return 0 if compared.agrees(rows) else 1
    except (DeviceError, ProfileError, ToolchainError, ValueError) as error:
        print(f"profile: {error}", file=sys.stderr)
    except OSError as error:
        print(f"profile: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
