"""``nox -s lab -- claims``: what the course notes say, judged by what is stored, as docs/results/claims.md.

Exit status: 0; 1 for a page that is out of date (``--check``) or stored figures that cannot be trusted; 2 for
a wrong command line.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from gemm_regression.baselines import BaselineError
from gemm_regression.cli.common import about, project_of
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.files import write_whole
from lab.claims import CLAIMS, Claim, Facts, Judged, Verdict


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s lab -- claims", description=about(__doc__))
    parser.add_argument("--project", type=Path, metavar="PATH", help="the project's folder")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="default: docs/results/claims.md of the project"
    )
    parser.add_argument("--check", action="store_true", help="write nothing: is the page up to date?")
    given = parser.parse_args(arguments)
    try:
        project = project_of(given)
        file = given.markdown or project.root / "docs" / "results" / "claims.md"
        text = page(CLAIMS, Facts.of(project))
        if not given.check:
            write_whole(file, text)
        elif not file.is_file() or file.read_text(encoding="utf-8") != text:
            print(f"error: {file} is out of date; `nox -s lab -- claims` updates it", file=sys.stderr)
            return 1
    except (BaselineError, StoreError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def page(claims: Iterable[Claim], facts: Facts) -> str:
    """The whole page: the number of each verdict, then the claims by note."""
    judged = [(claim, claim.judge(facts)) for claim in claims]
    said = Counter(of.verdict for _, of in judged)
    files = [f"`baselines/{gpu.slug}/{name}`" for gpu in facts.gpus for name in gpu.files]
    parts = [
        "# What the notes say, and what was measured",
        "Written by `nox -s lab -- claims` from what is stored; do not edit. The ladder of this "
        "repository comes from course notes on CUDA GEMM. Each record below is a statement of theirs, in "
        "other words, with a predicate over stored speeds, compiler metrics, memory counters and the rules "
        "of legality (`harness/lab/claims/`): change a stored figure, and its verdict follows.",
        f"Speeds are from {', '.join(files) or 'no GPU yet'}; memory counters are of kernels compiled for "
        "sm_90a. What a note says of an A100 in absolute figures can only be judged there; how its kernels "
        "compare with each other is judged on the GPUs measured here. A recommended config holds if it is "
        "within a tenth of the fastest kernel on average over the timed shapes. DEPENDS: true of some GPUs, "
        "shapes or kernels and not of others. NOT MEASURED HERE: nothing stored can say.",
        _table(("verdict", "claims"), [(str(kind), str(said[kind])) for kind in Verdict]),
    ]
    for note in dict.fromkeys(claim.note for claim, _ in judged):
        parts.append(f"## {note}")
        rows = [_row(claim, of) for claim, of in judged if claim.note == note]
        parts.append(_table(("§", "claim", "of", "verdict", "figures", "why"), rows))
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, of: Judged) -> tuple[str, ...]:
    figures = "<br>".join(of.figures)
    return claim.section, claim.gist, claim.gpu or "any", str(of.verdict), figures, claim.why(of.verdict)


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
