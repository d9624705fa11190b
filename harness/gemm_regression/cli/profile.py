"""``gemm-regression profile [CASE_ID ...]``: hardware counters of selected cases, with ncu.

Without a selection: every kernel's default config at 1024×1024×1024. ``--against BASE`` shows those of
another commit beside them, ``--store`` keeps what the rooflines of a report are drawn from. With
``--emulated``, the emulated counters next to ncu's: every FP32 kernel on two small problems. Exit status: 2
if ncu is missing or measured something other than requested, 1 if global-memory counts that must be equal
differ.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_benchmark.utils import get_commit_info

from gemm_regression import counters
from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.provenance import nvcc_version
from gemm_regression.cli.common import project_of
from gemm_regression.cli.progress import progress
from gemm_regression.compiler.objects import names_it
from gemm_regression.compiler.static import ARCHES
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.compiler.tools import ToolchainError, find_tool
from gemm_regression.counters import ncu as compared
from gemm_regression.counters import profiler, traffic
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
from gemm_regression.report.profile import Column, tables
from gemm_regression.report.terminal import fitted, room


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
    device = EmulatedDevice(arch)
    counts = []
    with progress("emulate", len(cases)) as step:
        for case in cases:
            counts.append(counters.count(case, device=device, by_source=False))
            step(case.id)
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
        from gemm_regression.devices.cuda.environment import Gpu
    except ImportError:
        return tools
    try:
        info = Gpu().info()
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
    add("cases", nargs="*", metavar="CASE_ID", help="such as naive-f32-block32x32-512x512x512")
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
    add("--arch", choices=ARCHES, default="sm_90a", help="architecture to emulate (default sm_90a)")
    add("--json", type=Path, metavar="FILE", help="all metrics; with --emulated the counts of both")
    add("--markdown", type=Path, metavar="FILE", help="with --emulated: the table")
    return parser


def main(args: list[str]) -> int:
    options = _parser().parse_args(args)
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
        print(f"profile: {error}", file=sys.stderr)
    except OSError as error:
        print(f"profile: {error.filename} cannot be written: {error.strerror}", file=sys.stderr)
    return 2


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
    for file in filter(None, (options.json, options.markdown, options.export)):
        if not file.absolute().parent.is_dir():
            raise ProfileError(f"{file}: its folder does not exist")


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
