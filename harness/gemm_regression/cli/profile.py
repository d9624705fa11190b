"""``gemm-regression profile``: hardware counters of cases, with ncu; ``counters``: emulated ones.

Exit status of ``profile``: 2 if ncu is missing or measured something other than requested, 1 if global-memory
counts that must be equal differ. Of ``counters``: 1 for a kernel that cannot be counted; 2 for a case that
does not exist, or without a compiler.
"""

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
from gemm_regression.cli.common import add_options, fail, folder_exists, project_of
from gemm_regression.cli.main import parsed
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.objects import names_it
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import ToolchainError, find_tool
from gemm_regression.counters import Counts, count, profiler, traffic
from gemm_regression.counters import ncu as compared
from gemm_regression.counters import tables as counted
from gemm_regression.counters.counts import chosen
from gemm_regression.counters.ncu import Comparison
from gemm_regression.counters.profiler import GROUPS, METRICS, STORED, TIME, Launch, ProfileError, value
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.files import write_whole
from gemm_regression.model import F32, Case
from gemm_regression.project.commit import Commit, CommitError, checked_out
from gemm_regression.project.loader import Project
from gemm_regression.project.selection import Choice, add_selection, find_case, select
from gemm_regression.report.comparison import Column, tables
from gemm_regression.report.terminal import fitted, room

# profile.py


def timed_cases(
    project: Project, choice: Choice, capability: tuple[int, int], suite: bool = False
) -> list[Case]:
    """Without a selection every kernel's default config and first dtype at 1024×1024×1024, or with ``suite``
    every timed case; otherwise the selected timed cases of the suite or the given shapes. Raises ValueError
    if there is none."""
    if choice == replace(Choice(), kernels=choice.kernels) and not suite:
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


def _measured(
    ncu: str,
    root: Path,
    cases: Sequence[Case],
    metrics: Sequence[str],
    optional: Collection[str] = (),
    export: Path | None = None,
) -> list[Launch]:
    with progress("ncu", len(cases)) as step:
        return profiler.measure(ncu, root, cases, metrics, optional, export, step)


def beside(ncu: str, project: Project, cases: Sequence[Case], arch: str) -> list[Comparison]:
    """The emulated counters and those of ncu for the same cases. Raises ProfileError."""
    metrics = compared.metrics(profiler.offered(ncu))
    wanted = [metric for ways in metrics.values() for metric in ways]
    # Cases that cannot be emulated are found before the GPU is used.
    counts = _counts("emulate", cases, arch)
    launches = _measured(ncu, project.root, cases, wanted, wanted)
    for case, launch in zip(cases, launches, strict=True):
        if not names_it(entry := case.kernel.entry_of(case.config, case.dtype), launch.name):
            raise ProfileError(f"{case.id} launched {launch.name}, not {entry}")
    return compared.compare(counts, [launch.values for launch in launches], metrics)


def made_by(ncu: str) -> dict[str, str]:
    """GPU, driver, tools and commit, as far as known."""
    said = subprocess.run([ncu, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"Version (\S+)", said)
    tools = {"ncu": found[1] if found else "of unknown version", "nvcc": nvcc_version()}
    commit = get_commit_info()  # type: ignore[no-untyped-call]
    if commit["id"] != "unversioned":
        tools["commit"] = commit["id"][:12] + (" with changes" if commit["dirty"] else "")
    try:
        from gemm_regression.devices import NoDevice
        from gemm_regression.devices.cuda.environment import NvmlGpu
    except ImportError:
        return tools
    try:
        info = NvmlGpu().info()
    except NoDevice:
        return tools
    return {"gpu": info.name, "board": info.board or "", "driver": info.driver, **tools}


def versions(made: dict[str, str]) -> str:
    """`made_by` as a sentence."""
    gpu = f"{made['gpu']}, driver {made['driver']}, " if "gpu" in made else ""
    commit = f", commit {made['commit']}" if "commit" in made else ""
    return f"{gpu}Nsight Compute {made['ncu']}, nvcc {made['nvcc']}{commit}."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gemm-regression profile",
        description="Hardware counters of selected cases, with ncu: of those named by id; of the timed cases "
        "that the options below select, as for the other commands; or, without either, of every kernel's "
        "default config at 1024x1024x1024. Two cases are compared with each other.",
    )
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE_ID", help="such as gemm-f32-tile32-512x512x512")
    add_selection(parser)
    add("--against", metavar="BASE", help="beside the same cases of a commit, such as main, or a folder")
    add("--export", type=Path, metavar="FILE", help="keep the .ncu-rep for Nsight Compute's window")
    add(
        "--store",
        action="store_true",
        help="keep the traffic in baselines/<gpu>/counters.json, for "
        "rooflines; without a selection: of every timed case of the suite",
    )
    add("--emulated", action="store_true", help="compare the emulated counters with those of ncu")
    add("--json", type=Path, metavar="FILE", help="all metrics; with --emulated the counts of both")
    add("--markdown", type=Path, metavar="FILE", help="with --emulated: the table")
    add_options(add, "--arch")
    return parser


def main(args: Sequence[str]) -> int:
    options = parsed(_parser(), args)
    try:
        _refuse(options)
        project, choice, capability = project_of(options), Choice.of(options), ARCHES[options.arch]
        if options.cases:
            cases = [find_case(project, case, capability) for case in options.cases]
        elif options.emulated:
            cases = [case for case in chosen(project, choice, capability) if case.dtype is F32]
        else:
            cases = timed_cases(project, choice, capability, options.store)
        ncu = find_tool("ncu")
        if options.emulated:
            return _emulated(ncu, project, cases, options)
        if options.store:
            return _store(ncu, project, cases)
        return _shown(ncu, project, cases, options)
    except (CommitError, DeviceError, ProfileError, StoreError, ToolchainError, ValueError) as error:
        return fail(error, 2)
    except OSError as error:
        return fail(f"{error.filename} cannot be written: {error.strerror}", 2)


def _refuse(options: argparse.Namespace) -> None:
    """Raises ProfileError for options that do not go together, and files that cannot be written."""
    if options.markdown and not options.emulated:
        raise ProfileError("--markdown goes with --emulated")
    given = [name for name in ("emulated", "store", "against", "export") if getattr(options, name)]
    if len(given) > 1 and given != ["against", "export"]:
        raise ProfileError(f"--{given[0]} and --{given[1]} do not go together")
    if options.store and options.json:
        raise ProfileError("--store and --json do not go together")
    if options.export and options.export.suffix != ".ncu-rep":
        raise ProfileError(f"--export {options.export}: the name must end in .ncu-rep")
    for name in ("json", "markdown", "export"):
        folder_exists(f"--{name}", getattr(options, name))


def _emulated(ncu: str, project: Project, cases: Sequence[Case], options: argparse.Namespace) -> int:
    rows, said = beside(ncu, project, cases, options.arch), versions(made_by(ncu))
    print(fitted(compared.table(rows), room()))
    print(f"{compared.summary(rows)}; {said}")
    if options.json:
        write_whole(options.json, json.dumps(compared.document(rows, said), indent=1) + "\n")
    if options.markdown:
        write_whole(options.markdown, compared.markdown(rows, said))
    return 0 if compared.agrees(rows) else 1


def _store(ncu: str, project: Project, cases: Sequence[Case]) -> int:
    made = made_by(ncu)
    if "gpu" not in made:
        raise ProfileError("no GPU is found whose counters could be stored")
    found = {}
    for case, launch in zip(cases, _measured(ncu, project.root, cases, STORED), strict=True):
        if not launch.cubin:
            raise ProfileError(f"{case.id}: which binary was launched is not known")
        found[case.id] = traffic.Seen(launch.cubin, launch.values, made)
    folder = project.baselines / gpu_slug(made["gpu"])
    folder.mkdir(parents=True, exist_ok=True)
    print(f"wrote {len(found)} cases to {traffic.write_seen(folder, found)}; {versions(made)}")
    return 0


def _shown(ncu: str, project: Project, cases: Sequence[Case], options: argparse.Namespace) -> int:
    metrics = profiler.among(METRICS, profiler.offered(ncu))
    optional = [metric for metric in metrics if metric != TIME]
    base, label = [], ""
    if options.against:
        with checked_out(options.against, project) as commit:
            label = commit.label
            theirs = _counterparts(commit, cases)
            assert commit.root is not None
            file = options.export and options.export.with_stem(f"{options.export.stem}-base")
            base = _measured(ncu, commit.root, theirs, metrics, optional, file)
    found = _measured(ncu, project.root, cases, metrics, optional, options.export)
    columns = [
        Column(case.id, launch.values, base[number].values if base else None)
        for number, (case, launch) in enumerate(zip(cases, found, strict=True))
    ]
    print(tables(columns, label, room(), sys.stdout.isatty()))
    print(f"\n{versions(made_by(ncu))}")
    if options.json:
        write_whole(options.json, json.dumps(_document(columns, label, made_by(ncu)), indent=1) + "\n")
    return 0


def _counterparts(commit: Commit, cases: Sequence[Case]) -> list[Case]:
    """The same cases of the other commit. Raises ProfileError for one that it does not have."""
    found = []
    for case in cases:
        other = commit.counterpart(case)
        if isinstance(other, str):
            raise ProfileError(f"{case.id}: {other}")
        found.append(other)
    return found


def _document(columns: Sequence[Column], base: str, made: dict[str, str]) -> dict[str, object]:
    """The figures and all metrics, as json can write them."""
    return {
        "made": made,
        "base": base,
        "cases": [
            {
                "case": column.label,
                "figures": {
                    f"{group}: {figure.title}": value(figure, column.values)
                    for group, figures in GROUPS.items()
                    for figure in figures
                },
                "metrics": dict(column.values),
                **({"base_metrics": dict(column.base)} if column.base is not None else {}),
            }
            for column in columns
        ],
    }


# counters.py


def counters(args: Sequence[str]) -> int:
    """Memory counters and FLOP of kernels, from their PTX."""
    parser = argparse.ArgumentParser(
        prog="gemm-regression counters",
        description="Memory requests, sectors, bank conflicts and FLOP of kernels, from their PTX.",
    )
    parser.add_argument("cases", nargs="*", metavar="CASE_ID", help="such as gemm-f32-tile32-96x160x64")
    add_selection(parser)
    parser.add_argument("--lines", action="store_true", help="also a table by source line for each case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all counters")
    add_options(parser.add_argument, "--arch", "--quiet")
    given = parsed(parser, args)
    try:
        cases = chosen(project_of(given), Choice.of(given), ARCHES[given.arch], given.cases)
        found = _counts("counters", cases, given.arch, given.quiet)
        if given.json:
            write_whole(given.json, json.dumps(counted.document(found), indent=1) + "\n")
    except (ValueError, ToolchainError) as error:
        return fail(error, 2)
    except DeviceError as error:
        return fail(error)
    except OSError as error:
        return fail(f"{error.filename} cannot be written: {error.strerror}")
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
