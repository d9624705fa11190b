"""``check``, ``gpu``, ``static`` and ``sanitize``: run a project's tests with pytest.

Exit status: pytest's; 0 everything passed; 1 something failed; 2 or more nothing could be judged.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from gemm_regression.cli import common
from gemm_regression.cli import watch as watching
from gemm_regression.cli.common import command, files_of_tests, for_pytest, option, project_of
from gemm_regression.cli.options import OF_CHECKS, OF_TESTS, OF_TIMING, SELECTION
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.compiler import tools
from gemm_regression.compiler.static import Check, StaticEntry, architectures, entries, store
from gemm_regression.compiler.static.store import ACCEPT, StoreError
from gemm_regression.counters import check as counts
from gemm_regression.devices import DeviceError
from gemm_regression.devices.work import EXACT
from gemm_regression.model import Kernel
from gemm_regression.project.loader import Project
from gemm_regression.report.figures import count_text

T = TypeVar("T")


def _run(given: argparse.Namespace, files: Sequence[str], *shown: str) -> int:
    return int(pytest.main([*files, *for_pytest(given, *common.SHOWN, *shown)]))


@command(
    "check",
    option("--watch", action="store_true", help="check again whenever a file of the project is saved"),
    pytests=(*SELECTION, *OF_TESTS, *OF_CHECKS),
)
def check(given: argparse.Namespace) -> int:
    """Executes the PTX of every kernel on the CPU. Compares compiler metrics and memory counters with stored
    values."""
    if given.watch:
        return _watched(project_of(given))
    files = files_of_tests(project_of(given), common.KERNELS, common.STATIC, given=given.rest)
    # Neighbours run in one process, so that the PTX of a variant is parsed by few.
    alone = not files or {"-n", "--list-cases"}.intersection(given.rest)
    spread = () if alone else ("-n", "auto", "--dist", "worksteal")
    unchanged = ("--from-cache",) if files else ()  # a test picked by its id is run
    return _run(given, files, "check", "--device", "emulated", *unchanged, *spread)


def _watched(project: Project) -> int:
    """Each check in a process of its own: a changed declaration is another module."""
    words = [word for word in sys.argv[1:] if word != "--watch"]
    again = [sys.executable, "-m", "gemm_regression", *words]
    roots = watching.folders(project)
    return watching.watch(
        lambda: subprocess.run(again, check=False).returncode, lambda: watching.state(roots)
    )


@command("gpu", pytests=(*SELECTION, *OF_TESTS, *OF_TIMING))
def gpu(given: argparse.Namespace) -> int:
    """Checks and times every kernel on this GPU, and compares the times with its baseline. Fails without a
    GPU."""
    files = files_of_tests(project_of(given), common.KERNELS, common.PERFORMANCE, given=given.rest)
    return _run(given, files, "gpu", "--device", "cuda", "-m", "gpu")


# Figures of the compiler, and memory counters


@command(
    "static",
    option("--refresh", action="store_true", help="show and store the changes of the selected kernels"),
    failed=1,
    pytests=(*SELECTION, *OF_TESTS),
)
def static(given: argparse.Namespace) -> int:
    """Compares registers, occupancy, SASS and memory counters of every kernel with stored values."""
    project = project_of(given)
    files = files_of_tests(project, common.STATIC, given=given.rest)
    tools.pinned_tools()
    if given.refresh:
        return refresh(project, [*files, *for_pytest(given, "-m", "static")])
    require_stored(project.static, project.table.architectures)
    return _run(given, files, "static", "--every-architecture", "-m", "static")


def require_stored(root: Path, names: str = "") -> None:
    """Raises StoreError if stored metrics cannot be read, or there are none for this compiler."""
    nvcc, nvdisasm = tools.pins()
    if missing := [arch for arch in architectures(names) if not store.load(arch, nvcc, nvdisasm, root)]:
        there = ", ".join(sorted(path.name for path in root.glob("nvcc-*"))) or "nothing"
        raise StoreError(
            f"no metrics are stored for nvcc {nvcc} and {', '.join(missing)} (stored: {there}); "
            f"store them with `{ACCEPT}`"
        )
    if not counts.load_counters(nvcc, root):
        path = store.shown(counts.counters_path(root))
        raise StoreError(f"no counters are stored in {path}; store them with `{ACCEPT}`")


def refresh(project: Project, tests: Sequence[str]) -> int:
    """Shows and then stores the metrics and counters of the entries that pytest collects."""
    found = selected(tests)
    # Entries that cannot be counted are found before anything is written; kernels that declare so are not.
    counted = [entry for entry in found if isinstance(entry, counts.CounterEntry)]
    check = counts.CounterCheck(project.static)
    emulated = []
    with progress("counters", len(counted), quiet(tests)) as step:
        for entry in counted:
            step.now(entry.name)
            try:
                check.made(entry)
                emulated.append(entry)
            except DeviceError as error:
                if error.code != "UNSUPPORTED" or not entry.variant or not entry.variant[0].features:
                    raise
                print(f"{entry.name}: not emulated, so not counted", flush=True)
            step(entry.name)
    _refresh_figures(project, [entry for entry in found if isinstance(entry, StaticEntry)], quiet(tests))
    if emulated:
        _refresh_counts(project, emulated, check)
    return 0


def selected(tests: Sequence[str]) -> list[StaticEntry | counts.CounterEntry]:
    """The entries that pytest collects with these arguments. Exits with pytest's status if that fails."""
    collected: list[StaticEntry | counts.CounterEntry] = []

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            parameters = (item.callspec.params for item in session.items)  # type: ignore[attr-defined]
            collected.extend(entry for of in parameters for entry in of.values())

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([*tests, "--collect-only"], plugins=[Collector()])
    if code:
        print(said.getvalue())
        raise SystemExit(int(code))
    return collected


def _refresh_counts(
    project: Project, chosen: Sequence[counts.CounterEntry], check: counts.CounterCheck
) -> None:
    root = project.static
    names = {entry.name for entry in chosen}
    others = [entry for entry in counts.entries(project.kernels, root) if entry.name not in names]
    before = _trusted(lambda: dict(check.stored), others)
    if lines := list(check.refresh(chosen, before)):
        print("\n".join(lines), flush=True)
        print(f"wrote {store.shown(counts.write_counters(before, check.version, root))}", flush=True)
    else:
        print("counters: nothing changed")


def _refresh_figures(project: Project, chosen: Sequence[StaticEntry], silent: bool) -> None:
    root = project.static
    check = Check(chosen, root)
    every = entries(project.kernels, root, project.table.architectures)
    for arch in dict.fromkeys(entry.arch for entry in chosen):
        variants = [entry for entry in chosen if entry.arch == arch and entry.variant]
        with progress(f"compile for {arch}", len(variants), silent) as step:
            check.made(arch, step)
        others = [e for e in every if e.arch == arch and e not in chosen]
        before = _trusted(partial(check.stored, arch), others)
        lines, after = list(check.changes(arch, before)), check.after(arch, before)
        if not lines and all(now.made_of == before[name].made_of for name, now in after.items()):
            print(f"{arch}: nothing changed")
            continue
        print("\n".join(lines or [f"{arch}: of other sources, the same metrics"]), flush=True)
        print(f"wrote {store.shown(store.write(after, arch, *check.versions, root))}", flush=True)


def _trusted(load: Callable[[], dict[str, T]], others: Sequence[object]) -> dict[str, T]:
    """What is stored. A file that cannot be trusted counts as empty if all of it is replaced."""
    try:
        return load()
    except StoreError as error:
        if others:
            raise StoreError(f"{error} (without -k, so that all of it is replaced)") from None
        print(f"regenerated: {error}")
        return {}


# Under compute-sanitizer

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 9  # The sanitizer's exit code if it finds something.


class Reported(NamedTuple):
    kernel: str
    kind: str


def watched(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """The common prefix of the kernels' function names, or the names themselves: the sanitizer checks only
    functions whose names contain one of these."""
    entries = (kernel.entry for kernel in kernels if kernel.compiled)
    names = list(dict.fromkeys(entry.split("<")[0].rpartition("::")[2] for entry in entries))
    common = os.path.commonprefix(names)  # noqa: RUF071 - of words, not of paths
    return (common,) if len(common) > 3 else tuple(names)


def findings(output: str, names: Collection[str]) -> Counter[Reported]:
    """The sanitizer's reports, from its ========= lines: the number of each kind by kernel, for functions
    whose names begin with one of ``names``.

    A report is an unindented line and the indented lines after it, which name the kernel.
    """
    said = "\n".join(line[9:] for line in output.splitlines() if line.startswith("========="))
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\w*")
    counts: Counter[Reported] = Counter()
    for report in re.split(r"^ (?=\S)", said, flags=re.MULTILINE):
        if kernel := named.search(report):  # No other kernel is watched.
            kind = re.sub(r"^(?:Error|Warning): | at\b.*", "", report.split("\n")[0])
            counts[Reported(kernel[0], kind)] += 1
    return counts


def summaries(output: str) -> list[int]:
    """The number of errors (for racecheck, hazards) in the last line of each process."""
    pattern = r"^========= (?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?|hazards?)(?! were not printed)\b"
    return [int(count) for count in re.findall(pattern, output, re.MULTILINE)]


def passed(output: str) -> int:
    """How many cases pytest's last line says to have passed."""
    found = re.findall(r"^=* ?(?:.*, )?(\d+) passed\b", output, re.MULTILINE)
    return int(found[-1]) if found else 0


def verdict(tool: str, returncode: int, output: str, names: Collection[str]) -> str:
    """Why a tool's run failed; empty if it passed. A run that checked nothing has failed."""
    if found := sum(summaries(output)) or sum(findings(output, names).values()):
        return f"{tool}: {found} found"
    if returncode == FOUND:
        return f"{tool}: reported an error that its output does not show"
    if returncode:
        return f"{tool}: the run under it failed (exit code {returncode})"
    return "" if summaries(output) else f"{tool}: ended without a summary, so nothing was checked"


def watch(
    sanitizer: str, tool: str, names: Collection[str], program: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program and its workers under one tool, which checks the suite's kernels but not cuBLAS's;
    ``stdout`` contains all output. Without guard bands, which would hide out-of-bounds accesses from it."""
    words = [
        *(sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all"),
        *("--require-cuda-init", "no", "--report-api-errors", "no"),
        *(word for name in names for word in ("--kernel-name", f"kernel_substring={name}")),
        *program,
    ]
    return subprocess.run(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, EXACT: "1"},
    )


@command("sanitize", pytests=(*SELECTION, "--time-limit"))
def sanitize(given: argparse.Namespace) -> int:
    """Finds memory errors, races, uninitialised reads and barrier errors, with compute-sanitizer.

    Exit status: 0 no errors, and every case is correct; 1 otherwise; 2 compute-sanitizer is missing.
    """
    project, sanitizer = project_of(given), tools.find_tool("compute-sanitizer")
    # Without library calls, whose kernels crash under racecheck, and choices: those kernels run anyway.
    (tests,) = files_of_tests(project, common.KERNELS)
    without = [f"{tests}::test_kernel[{kernel.name}" for kernel in project.kernels if not kernel.compiled]
    # Everything is many times slower under a sanitizer, so the time limit is in minutes here.
    plain = ("--device", "cuda", "-m", "gpu", "--suite", "smoke", "--time-limit", "600")
    program = [sys.executable, "-m", "pytest", tests, *(w for name in without for w in ("--deselect", name))]
    program += for_pytest(given, *plain)
    names = watched(project.kernels)

    def run(tool: str) -> subprocess.CompletedProcess[str]:
        done = watch(sanitizer, tool, names, program)
        step(tool)
        return done

    with ThreadPoolExecutor(len(TOOLS)) as pool, progress("sanitize", len(TOOLS), quiet(given.rest)) as step:
        runs = dict(zip(TOOLS, pool.map(run, TOOLS), strict=True))
    red = []
    for tool, done in runs.items():
        output = done.stdout
        why = verdict(tool, done.returncode, output, names)
        if not why and not passed(output):
            why = f"{tool}: no case passed under it, so nothing was checked"
        if why:
            red.append(why)
            print(output)
        for (kernel, kind), count in sorted(findings(output, names).items()):
            print(f"{tool}: {kernel}: {kind}: {count}")
    cases = count_text(min(passed(done.stdout) for done in runs.values()), "case")
    print("sanitize: " + ("; ".join(red) or f"nothing found in {cases} by {', '.join(TOOLS)}"))
    return 1 if red else 0
