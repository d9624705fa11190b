"""``python -m tests.course``: checks the listings of the course notes without a GPU, as printed and after
each mend, and writes docs/results/listings.md.

Exit status: 0 written or up to date; 1 out of date (``--check``); 2 the check did not run.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gemm_regression.cli import init
from gemm_regression.cli.common import about
from gemm_regression.files import write_whole
from lab.pages import table
from tests.course.declarations import FOLDER, LISTINGS, versions

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "results" / "listings.md"
_FOUND = "= what failed ="
_TABLE = "= kernels without a GPU"
_ROW = re.compile(
    r"(?P<name>\w+) +f32 +(?P<correct>\d+/\d+) +\d+ +(?P<sectors>[\d.]+, [\d.]+)? +(?P<conflicts>\d+)? +"
    r"(?P<registers>\d+) +[\d.]+% \(.*?\) .*(?P<verdict>PASS|WRONG)"
)
_HEADS = ("version", "correct", "sectors/request", "conflicts", "registers", "verdict")


def lay_out(folder: Path) -> None:
    """Writes the project: what ``init`` writes, with every version of the listings as its kernels."""
    with contextlib.redirect_stdout(io.StringIO()):
        init.main(["--project", str(folder)])
    kernels = folder / "kernels"
    (kernels / "sgemm.cu").unlink()
    write_whole(kernels / "__init__.py", (FOLDER / "declarations.py").read_text(encoding="utf-8"))
    for file in (FOLDER / "listings.toml", *FOLDER.glob("*.cu")):
        write_whole(kernels / file.name, file.read_text(encoding="utf-8"))
    for listing in LISTINGS:
        for name, text in versions(listing).items():
            write_whole(kernels / f"{name}.cu", text)


def check() -> str:
    """What the check of the project prints. Raises RuntimeError if it did not run."""
    with tempfile.TemporaryDirectory() as made:
        lay_out(Path(made))
        subprocess.run(["git", "init", "-q"], cwd=made, check=True)
        command = f"-m gemm_regression check --project {made} --no-cache -n 1 -v"
        there = Path(made, "kernels")  # where the files are that findings name
        done = subprocess.run([sys.executable, *command.split()], cwd=there, capture_output=True, text=True)
    if done.returncode > 1 or _TABLE not in done.stdout:
        raise RuntimeError(f"the check ended with status {done.returncode}: {done.stderr or done.stdout}")
    return done.stdout


def _part(printed: str, mark: str) -> list[str]:
    """The lines of a section of what was printed."""
    lines = printed.splitlines()
    start = next((number for number, line in enumerate(lines, 1) if mark in line), len(lines))
    end = next((n for n in range(start, len(lines)) if lines[n].startswith("====")), len(lines))
    return lines[start:end]


def findings(name: str, printed: str) -> list[str]:
    """What failed of a version, in order of its lines, and the notes on it."""
    lines = _part(printed, _FOUND)
    pairs = [lines[n : n + 2] for n, line in enumerate(lines) if line.startswith(f"{name}: ")]
    found = sorted(pair for pair in pairs if "STOPPED" not in pair[0])  # that is of the same findings
    notes = [line for line in _part(printed, _TABLE) if line.startswith(f"{name}: ")]
    return [*(line for pair in found for line in pair), *(f"note: {line}" for line in notes)]


def row(name: str, printed: str) -> list[str]:
    """The cells of a version. Raises ValueError if the check printed no such row."""
    matches = [_ROW.fullmatch(line.removeprefix("! ")) for line in _part(printed, _TABLE)]
    of = next((match for match in matches if match and match["name"] == name), None)
    if of is None:
        raise ValueError(f"the check printed no row of {name}")
    return [of[cell] or "–" for cell in ("correct", "sectors", "conflicts", "registers", "verdict")]


def difference(before: str, after: str) -> list[str]:
    """The lines that a mend takes away and adds, with no line around them."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _block(kind: str, lines: Sequence[str]) -> str:
    return "\n".join([f"```{kind}", *lines, "```"])


def _section(listing: dict[str, Any], printed: str) -> Iterator[str]:
    sources = versions(listing)
    yield f"## {listing['name']}"
    file = f"[{listing['name']}.cu](../../tests/course/{listing['name']}.cu)"
    yield f"{file}, of the note *{listing['note']}*, section {listing['section']}. {listing['about']}"
    said = ["as printed", *(f"mend {count}" for count in range(1, len(sources)))]
    rows = ([what, *row(name, printed)] for what, name in zip(said, sources, strict=True))
    yield table(_HEADS, rows, "lrrrrl")
    before, mends = "", [{}, *listing.get("mend", [])]
    for what, (name, text), mend in zip(said, sources.items(), mends, strict=True):
        if mend:
            yield f"**{what.capitalize()}.** {mend['what']}"
        if before and (lines := difference(before, text)):
            yield _block("diff", lines)
        if lines := findings(name, printed):
            yield _block("text", lines)
        before = text


def page(printed: str) -> str:
    """The page, of what the check printed."""
    parts = [(FOLDER / "head.md").read_text(encoding="utf-8").strip()]
    for listing in LISTINGS:
        parts += _section(listing, printed)
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.course", description=about(__doc__))
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 if out of date")
    given = parser.parse_args(arguments)
    try:
        made = page(check())
    except (RuntimeError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.check:
        stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != made
        return int(stale)
    write_whole(PAGE, made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
