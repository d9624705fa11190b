"""``nox -s lab -- claims``: what the course notes say, judged by what is stored, as docs/results/claims.md.

Exit status: 0; 1 for a page that is out of date (``--check``) or stored figures that cannot be trusted; 2 for
a wrong command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lab import pages
from lab.claims import CLAIMS, Claim, Facts, Judged, Status


def main(arguments: Sequence[str]) -> int:
    given = pages.parser("claims", __doc__).parse_args(arguments)
    return pages.write(given, "claims", lambda project: page(CLAIMS, Facts.of(project)))


def page(claims: Iterable[Claim], facts: Facts) -> str:
    """The whole page: the number of each verdict, then the claims by note."""
    judged = [(claim, claim.judge(facts)) for claim in claims]
    said = Counter(of.verdict for _, of in judged)
    files = [f"`baselines/{gpu.slug}/{name}`" for gpu in facts.gpus for name in gpu.files]
    parts = [
        "# Claims of the course notes, checked by measurements",
        "Written by `nox -s lab -- claims` from stored measurements; do not edit. The ladder of this "
        "repository is based on course notes on CUDA GEMM. Each row below paraphrases a statement of these "
        "notes. A predicate over stored speeds, compiler metrics, memory counters and the legality rules "
        "(`harness/lab/claims/`) computes its verdict, so the verdict changes when the measurements change.",
        f"Speeds are from {', '.join(files) or 'no GPU yet'}. Memory counters are of kernels compiled for "
        "sm_90a. Absolute speeds on an A100 can only be checked there. Ratios between kernels are checked "
        "on the GPUs measured here. A recommended config holds if its speed is at least 90 % of the fastest "
        "kernel's, on average over the timed shapes. DEPENDS: true for some GPUs, shapes or kernels and not "
        "for others. NOT MEASURED HERE: there are no stored measurements for it.",
        pages.table(("verdict", "claims"), [(str(kind), str(said[kind])) for kind in Status]),
    ]
    for note in dict.fromkeys(claim.note for claim, _ in judged):
        parts.append(f"## {note}")
        rows = [_row(claim, of) for claim, of in judged if claim.note == note]
        parts.append(pages.table(("§", "claim", "of", "verdict", "figures", "why"), rows))
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, of: Judged) -> tuple[str, ...]:
    figures = "<br>".join(of.figures)
    return claim.section, claim.gist, claim.gpu or "any", str(of.verdict), figures, claim.why(of.verdict)
