"""``nox -s lab -- claims``: what the course notes say, judged by what is stored, as docs/results/claims.md.

Exit status: 0; 1 for a page that is out of date (``--check``) or stored figures that cannot be trusted; 2 for
a wrong command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lab import pages
from lab.claims import CLAIMS, Claim, Facts, Judged, Verdict


def main(arguments: Sequence[str]) -> int:
    given = pages.parser("claims", __doc__).parse_args(arguments)
    return pages.write(given, "claims", lambda project: page(CLAIMS, Facts.of(project)))


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
        pages.table(("verdict", "claims"), [(str(kind), str(said[kind])) for kind in Verdict]),
    ]
    for note in dict.fromkeys(claim.note for claim, _ in judged):
        parts.append(f"## {note}")
        rows = [_row(claim, of) for claim, of in judged if claim.note == note]
        parts.append(pages.table(("§", "claim", "of", "verdict", "figures", "why"), rows))
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, of: Judged) -> tuple[str, ...]:
    figures = "<br>".join(of.figures)
    return claim.section, claim.gist, claim.gpu or "any", str(of.verdict), figures, claim.why(of.verdict)
