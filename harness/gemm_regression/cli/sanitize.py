"""``gemm-regression sanitize``: runs the small cases under compute-sanitizer.

Exit status: 0 if no tool finds anything and every case is correct, otherwise 1; 2 without compute-sanitizer.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from gemm_regression.cli.common import KERNELS, files_of_tests, for_pytest
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.compiler.tools import ToolchainError, find_tool
from gemm_regression.devices.work import EXACT
from gemm_regression.model import Kernel
from gemm_regression.project.loader import Project
from gemm_regression.report.figures import count_text

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = 9  # The sanitizer's exit code if it finds something.


class Finding(NamedTuple):
    kernel: str
    kind: str


def watched(kernels: Iterable[Kernel]) -> tuple[str, ...]:
    """The common prefix of the kernels' function names, or the names themselves: the sanitizer checks only
    functions whose names contain one of these."""
    entries = (kernel.entry for kernel in kernels if kernel.compiled)
    names = list(dict.fromkeys(entry.split("<")[0].rpartition("::")[2] for entry in entries))
    common = os.path.commonprefix(names)  # noqa: RUF071 - of words, not of paths
    return (common,) if len(common) > 3 else tuple(names)


def findings(output: str, names: Collection[str]) -> Counter[Finding]:
    """The sanitizer's reports, from its ========= lines: the number of each kind by kernel, for functions
    whose names begin with one of ``names``.

    A report is an unindented line and the indented lines after it, which name the kernel.
    """
    said = "\n".join(line[9:] for line in output.splitlines() if line.startswith("========="))
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\w*")
    counts: Counter[Finding] = Counter()
    for report in re.split(r"^ (?=\S)", said, flags=re.MULTILINE):
        if kernel := named.search(report):  # No other kernel is watched.
            kind = re.sub(r"^(?:Error|Warning): | at\b.*", "", report.split("\n")[0])
            counts[Finding(kernel[0], kind)] += 1
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
    if not summaries(output):
        return f"{tool}: ended without a summary, so nothing was checked"
    return ""


def watch(
    sanitizer: str, tool: str, names: Collection[str], program: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Runs a program and its workers under one tool, which checks the suite's kernels but not cuBLAS's;
    ``stdout`` contains all output. Without guard bands, which would hide out-of-bounds accesses from it."""
    command = [
        *(sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--target-processes", "all"),
        *("--require-cuda-init", "no", "--report-api-errors", "no"),
        *(word for name in names for word in ("--kernel-name", f"kernel_substring={name}")),
        *program,
    ]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, EXACT: "1"},
    )


def program(project: Project, options: Sequence[str]) -> list[str]:
    """The smoke suite's correctness cases, except library calls, whose kernels crash under racecheck, and
    choices, which are kernels that run anyway."""
    (tests,) = files_of_tests(project, KERNELS)
    without = [f"{tests}::test_kernel[{kernel.name}" for kernel in project.kernels if not kernel.compiled]
    return [
        *(sys.executable, "-m", "pytest", tests, *(w for name in without for w in ("--deselect", name))),
        *("--device", "cuda", "-m", "gpu"),
        # Everything is many times slower under a sanitizer, so the time limit is in minutes here.
        *("--suite", "smoke", "--time-limit", "600", *options),
    ]


def table(tool: str, counts: Counter[Finding]) -> Table:
    made = Table("kernel", "kind", "count", title=tool)
    for finding, count in sorted(counts.items()):
        made.add_row(finding.kernel, finding.kind, str(count))
    return made


def main(arguments: Sequence[str]) -> int:
    console = Console()
    try:
        about = "Memory errors, races, uninitialised reads and barrier errors, with compute-sanitizer."
        project, options = for_pytest("gemm-regression sanitize", about, arguments)
        sanitizer = find_tool("compute-sanitizer")
        names, under = watched(project.kernels), program(project, options)
    except (ToolchainError, ValueError) as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2
    red = []
    runs: dict[str, subprocess.CompletedProcess[str]] = {}
    with ThreadPoolExecutor(len(TOOLS)) as pool, progress("sanitize", len(TOOLS), quiet(options)) as step:
        started = {pool.submit(watch, sanitizer, tool, names, under): tool for tool in TOOLS}
        for run in as_completed(started):
            runs[started[run]] = run.result()
            step(started[run])
    for tool in TOOLS:
        said = runs[tool]
        why = verdict(tool, said.returncode, said.stdout, names)
        if not why and not passed(said.stdout):
            why = f"{tool}: no case passed under it, so nothing was checked"
        if why:
            red.append(why)
            print(said.stdout)
        if counts := findings(said.stdout, names):
            console.print(table(tool, counts))
    cases = min(passed(runs[tool].stdout) for tool in TOOLS)
    print(
        "sanitize: "
        + ("; ".join(red) or f"nothing found in {count_text(cases, 'case')} by {', '.join(TOOLS)}")
    )
    return 1 if red else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
