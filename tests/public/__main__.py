"""``python -m tests.public FOLDER``: checks the kernels of every project in a folder without a GPU, and lists
what was reported of them.

Exit status: 0 every report is explained; 1 one is not; 2 a project could not be checked.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.public.results import FILE, Judged, Source, counts, judge, read_results, read_source, render

ROOT = Path(__file__).parents[2]
REPORT = "check.xml"
COMMAND = "python -m tests.public FOLDER --suite {} --markdown docs/results/public.md"


def check(project: Path, suite: str, jobs: int, seconds: float) -> None:
    """Checks a project in a process of its own, which leaves its report in the project's folder. Raises
    ValueError if it did not run."""
    report = project / REPORT
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gemm_regression", "check", "--project", str(project), "--suite", suite]
    command += ["--no-cache", "-n", str(jobs)]  # what is answered from the cache is not in the report
    command += ["--time-limit", str(seconds), "--junitxml", str(report), "-o", "junit_family=xunit1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode > 1 or not report.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ValueError(
            f"{project}: the check ended with status {done.returncode}: {said[-1] if said else ''}"
        )


def judged(project: Path) -> tuple[Source, list[Judged]]:
    """The results of a project's last check. Raises ValueError if there is none."""
    source, report = read_source(project), project / REPORT
    if not report.exists():
        raise ValueError(f"{project}: not checked yet")
    try:
        return source, list(judge(source, read_results(report.read_text(encoding="utf-8"))))
    except ValueError as error:
        raise ValueError(f"{report}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.public", description=__doc__)
    parser.add_argument("folder", type=Path, help=f"the folder of projects; each has a {FILE}")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="check these; the others' last results count"
    )
    parser.add_argument("--suite", default="full", help="as in `check`; default full")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes; default 1")
    parser.add_argument("--time-limit", type=float, default=60, metavar="S", help="as in `check`; default 60")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    given = parser.parse_args(arguments)
    projects = {path.parent.name: path.parent.resolve() for path in sorted(given.folder.glob(f"*/{FILE}"))}
    try:
        if not projects:
            raise ValueError(f"{given.folder}: no folder in it has a {FILE}")
        if unknown := set(given.only or ()) - projects.keys():
            raise ValueError(f"--only {min(unknown)}: there is {', '.join(projects)}")
        for name in given.only or projects:
            check(projects[name], given.suite, given.jobs, given.time_limit)
            print(f"{name}: {counts(judged(projects[name])[1])}", flush=True)
        found = {name: judged(project) for name, project in projects.items()}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    every = [kernel for _, kernels in found.values() for kernel in kernels]
    for kernel in every:
        if kernel.failed:
            print(f"{kernel.result}: {kernel.kernel}: {kernel.line}")
    print(counts(every))
    if given.markdown:
        given.markdown.write_text(render(found, COMMAND.format(given.suite)), encoding="utf-8")
    return int(any(kernel.failed for kernel in every))


if __name__ == "__main__":
    sys.exit(main())
