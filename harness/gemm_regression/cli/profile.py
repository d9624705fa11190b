"""``profile``: hardware counters of cases, with ncu; ``counters``: emulated ones."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_benchmark.utils import get_commit_info

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.cli.common import can_be_written, command, option, project_of
from gemm_regression.cli.options import SELECTION
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.objects import names_it
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.tools import find_tool
from gemm_regression.counters import Counts, count, nsight, profiler, traffic
from gemm_regression.counters import counts as counted
from gemm_regression.counters.counts import chosen
from gemm_regression.counters.nsight import NcuLaunch, ProfileError
from gemm_regression.counters.profiler import GROUPS, METRICS, STORED, TIME, value
from gemm_regression.devices import NoDevice
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.files import write_whole
from gemm_regression.hints import typed
from gemm_regression.model import F32, Case
from gemm_regression.project.commit import checked_out
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, find_case, select
from gemm_regression.report.comparison import Column, tables
from gemm_regression.report.figures import fitted, room

_CASES = option("cases", nargs="*", metavar="CASE_ID", help="such as gemm-f32-tile32-512x512x512")


@command(
    "counters",
    _CASES,
    *SELECTION,
    option("--lines", action="store_true", help="also show a table by source line for each case"),
    "--arch",
    "--quiet",
)
def counters(given: argparse.Namespace) -> int:
    """Counts memory requests, sectors, bank conflicts and FLOP of kernels, by executing their PTX.

    Exit status: 0 done; 2 a kernel cannot be counted, a case does not exist, or there is no compiler.
    """
    cases = chosen(project_of(given), Choice.of(given), ARCHES[given.arch], given.cases)
    found = _counts("counters", cases, given.arch, given.quiet)
    width = room()
    print(fitted(counted.table(found), width, names=4))
    for line in counted.LEGEND.splitlines():
        print(textwrap.fill(line, width or 110, subsequent_indent="  "))
    for one in found if given.lines else ():
        print(f"\n{fitted(counted.lines_table(one), width)}")
    return 0


def _counts(title: str, cases: Sequence[Case], arch: str, quiet: bool = False) -> list[Counts]:
    device, found = EmulatedDevice(arch), []
    with progress(title, len(cases), quiet) as step:
        for case in cases:
            step.now(case.id)
            found.append(count(case, device=device))
            step(case.id)
    return found


@command(
    "profile",
    _CASES,
    *SELECTION,
    option("--against", metavar="BASE", help="compare with the same cases of a commit or folder"),
    option("--export", type=Path, metavar="FILE", help="write the report for Nsight Compute (.ncu-rep)"),
    option("--store", action="store_true", help="store the counters for bounds and rooflines"),
    option("--emulated", action="store_true", help="compare the emulated counters with those of ncu"),
    "--json",
    "--markdown",
    "--arch",
)
def main(given: argparse.Namespace) -> int:
    """Shows hardware counters from ncu. The cases are named by their ids, or selected by the options below.
    By default they are every kernel's default config at 1024x1024x1024; with ``--store``, every timed case of
    the suite. Two cases are compared with each other.

    Exit status: 0 done; 1 with ``--emulated``, counts of global memory differ; 2 ncu is missing, or measured
    another kernel than requested.
    """
    if given.markdown and not given.emulated:
        raise ProfileError("--markdown goes with --emulated")
    asked = [name for name in ("emulated", "store", "against", "export") if getattr(given, name)]
    if len(asked) > 1 and asked != ["against", "export"]:
        raise ProfileError(f"--{asked[0]} and --{asked[1]} do not go together")
    if given.json and (given.store or given.emulated):
        raise ProfileError(f"--{asked[0]} and --json do not go together")
    if given.export and given.export.suffix != ".ncu-rep":
        raise ProfileError(f"--export {given.export}: the name must end in .ncu-rep")
    for name in ("json", "markdown", "export"):
        can_be_written(f"--{name}", getattr(given, name))
    project, choice, capability = project_of(given), Choice.of(given), ARCHES[given.arch]
    if given.cases:
        cases = [find_case(project, case, capability) for case in given.cases]
    elif given.emulated:
        cases = [case for case in chosen(project, choice, capability) if case.dtype is F32]
    else:
        cases = timed_cases(project, choice, capability, given.store)
    ncu = find_tool("ncu")
    if given.emulated:
        return _emulated(ncu, project, cases, given)
    return _store(ncu, project, cases) if given.store else _shown(ncu, project, cases, given)


def timed_cases(
    project: Project, choice: Choice, capability: tuple[int, int], suite: bool = False
) -> list[Case]:
    """Without a selection every kernel's default config and first dtype at 1024×1024×1024, or with ``suite``
    every timed case; otherwise the selected timed cases of the suite or the given shapes. Raises ValueError
    if there is none."""
    default = choice == replace(Choice(), kernels=choice.kernels) and not suite
    if default:
        choice = replace(choice, shapes=("1024x1024x1024",))
    found = [
        case
        for case in select(project, choice, capability).timed
        if case.kernel.compiled
        and (not default or (case.dtype, case.config) == (case.kernel.dtypes[0], case.kernel.configs[0]))
    ]
    if not found:
        raise ValueError(
            f"no case of a kernel with a source is selected; `{typed('check', '--list-cases')}` lists them"
        )
    return found


def _measured(
    ncu: str,
    root: Path,
    cases: Sequence[Case],
    metrics: Sequence[str],
    optional: Collection[str] = (),
    export: Path | None = None,
) -> list[NcuLaunch]:
    with progress("ncu", len(cases)) as step:
        return nsight.measure(ncu, root, cases, metrics, optional, export, step)


def made_by(ncu: str) -> dict[str, str]:
    """GPU, driver, tools and commit, as far as known."""
    said = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", said)
    made = {"ncu": found[1] if found else "of unknown version", "nvcc": nvcc_version()}
    commit = get_commit_info()  # type: ignore[no-untyped-call]
    if commit["id"] != "unversioned":
        made["commit"] = commit["id"][:12] + (" with changes" if commit["dirty"] else "")
    try:
        from gemm_regression.devices.cuda.environment import NvmlGpu

        info = NvmlGpu().info()
    except (ImportError, NoDevice):
        return made
    return {"gpu": info.name, "board": info.board or "", "driver": info.driver, **made}


def versions(made: dict[str, str]) -> str:
    """`made_by` as a sentence."""
    gpu = f"{made['gpu']}, driver {made['driver']}, " if "gpu" in made else ""
    commit = f", commit {made['commit']}" if "commit" in made else ""
    return f"{gpu}Nsight Compute {made['ncu']}, nvcc {made['nvcc']}{commit}."


def _emulated(ncu: str, project: Project, cases: Sequence[Case], given: argparse.Namespace) -> int:
    """The emulated counters and those of ncu for the same cases."""
    every = [metric for quantity in profiler.QUANTITIES.values() for metric in quantity.metrics]
    wanted = nsight.among(every, nsight.offered(ncu))
    # Cases that cannot be emulated are found before the GPU is used.
    counts = _counts("emulate", cases, given.arch)
    launches = _measured(ncu, project.root, cases, wanted, wanted)
    for case, launch in zip(cases, launches, strict=True):
        if not names_it(entry := case.kernel.entry_of(case.config, case.dtype), launch.name):
            raise ProfileError(f"{case.id} launched {launch.name}, not {entry}")
    rows = profiler.compare(counts, [launch.values for launch in launches])
    text = profiler.markdown(rows, versions(made_by(ncu)))
    print(text)
    if given.markdown:
        write_whole(given.markdown, text)
    return 0 if profiler.agrees(rows) else 1


def _store(ncu: str, project: Project, cases: Sequence[Case]) -> int:
    made = made_by(ncu)
    if "gpu" not in made:
        raise ProfileError("no GPU is found whose counters could be stored")
    found = {}
    for case, launch in zip(cases, _measured(ncu, project.root, cases, STORED), strict=True):
        if not launch.cubin:
            raise ProfileError(f"{case.id}: which binary was launched is not known")
        found[case.id] = traffic.NcuCounts(launch.cubin, launch.values, made)
    folder = project.baselines / gpu_slug(made["gpu"])
    folder.mkdir(parents=True, exist_ok=True)
    print(f"wrote {len(found)} cases to {traffic.write_seen(folder, found)}; {versions(made)}")
    return 0


def _shown(ncu: str, project: Project, cases: Sequence[Case], given: argparse.Namespace) -> int:
    metrics = nsight.among(METRICS, nsight.offered(ncu))
    optional = [metric for metric in metrics if metric != TIME]
    base, label = [], ""
    if given.against:
        with checked_out(given.against, project) as commit:
            label, theirs = commit.label, list[Case]()
            for case in cases:
                if isinstance(other := commit.counterpart(case), str):
                    raise ProfileError(f"{case.id}: {other}")
                theirs.append(other)
            assert commit.root is not None
            file = given.export and given.export.with_stem(f"{given.export.stem}-base")
            base = _measured(ncu, commit.root, theirs, metrics, optional, file)
    found = _measured(ncu, project.root, cases, metrics, optional, given.export)
    columns = [
        Column(case.id, launch.values, base[number].values if base else None)
        for number, (case, launch) in enumerate(zip(cases, found, strict=True))
    ]
    print(tables(columns, label, room(), sys.stdout.isatty()))
    made = made_by(ncu)
    print(f"\n{versions(made)}")
    if given.json:
        document = {"made": made, "base": label, "cases": list(map(_record, columns))}
        write_whole(given.json, json.dumps(document, indent=1) + "\n")
    return 0


def _record(column: Column) -> dict[str, object]:
    """The figures and all metrics of a case, as json can write them."""
    figures = {
        f"{group}: {figure.title}": value(figure, column.values)
        for group, each in GROUPS.items()
        for figure in each
    }
    base = {} if column.base is None else {"base_metrics": dict(column.base)}
    return {"case": column.label, "figures": figures, "metrics": dict(column.values), **base}
