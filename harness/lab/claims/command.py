"""``nox -s lab -- claims``: what the course notes say, judged by what is stored, as docs/results/claims.md.

Exit status: 0; 1 for a page that is out of date (``--check``) or stored figures that cannot be trusted; 2 for
a wrong command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from gemm_regression.model import CaseId
from gemm_regression.tune.figures import Surveyed
from lab import pages
from lab.claims import CLAIMS, Claim, Facts, Judged, Status, judge
from lab.claims.own import SWEEP, valid
from lab.claims.rules import LARGE, number, speed

_MANY = 4  # variants that a cell names; more are folded


def main(arguments: Sequence[str]) -> int:
    given = pages.parser("claims", __doc__).parse_args(arguments)
    return pages.write(given, "claims", lambda project: page(CLAIMS, Facts.of(project)))


def page(claims: Iterable[Claim], facts: Facts) -> str:
    """The whole page: the number of each verdict, then the claims by note, and the notes' sweep."""
    judged = [(claim, judge(claim, facts)) for claim in claims]
    said = Counter(of.verdict for _, of in judged)
    files = [f"`baselines/{gpu.slug}/{name}`" for gpu in facts.gpus for name in gpu.files]
    parts = [
        "# Claims of the course notes, checked by measurements",
        "Written by `nox -s lab -- claims` from stored measurements; do not edit. The ladder of this "
        "repository is based on course notes on CUDA GEMM. Each row has a statement of a note in at most "
        "twelve words, and the condition under which the note says it. `harness/lab/claims/claims.toml` "
        "names for each the rule that computes the verdict from stored speeds, compiler metrics, memory "
        "counters and the legality rules, so the verdict changes when the measurements do.",
        "A claim is judged against the stage that it speaks of: a recommended config HOLDS if it has at "
        "least 90 % of the fastest config of its own stage, on average over the shapes that its condition "
        "has ([advice](advice.md) compares it with all stages). HOLDS IF: it holds for some of what was "
        "measured; the reason has the condition. What the notes measured on an A100 is NOT MEASURED here; "
        "figures of other GPUs stand beside, without a verdict.",
        f"Speeds, in GFLOPS, are from {', '.join(files) or 'no GPU yet'}. Memory counters are of kernels "
        "compiled for sm_90a, run on the emulated device at M = 96, N = 160, K = 64.",
        pages.table(("verdict", "claims"), [(str(kind), str(said[kind])) for kind in Status]),
    ]
    names = [gpu.name.removeprefix("NVIDIA ").partition(" ")[0] for gpu in facts.gpus]
    heads = ("§", "the note", "condition", "measured", *names, "verdict", "why")
    for note in dict.fromkeys(claim.title for claim, _ in judged):
        rows = [_row(claim, of, facts) for claim, of in judged if claim.title == note]
        parts += [f"## {note}", pages.table(heads, rows)]
    parts += ["## The sweep of the note on sizes", _ABOUT_SWEEP, *(_grid(gpu) for gpu in facts.gpus)]
    return "\n\n".join(parts) + "\n"


def _row(claim: Claim, of: Judged, facts: Facts) -> tuple[str, ...]:
    cells = [_on(gpu, of, facts) for gpu in facts.gpus]
    return (claim.at, claim.says, claim.when, _measured(of), *cells, str(of.verdict), claim.why(of.verdict))


def _measured(of: Judged) -> str:
    """The variants that were timed or counted on a GPU, and what was seen without one."""
    names = dict.fromkeys(f"`{CaseId.parse(case).variant}`" for one in of.seen for case in one.cases)
    alone = [one.said for one in of.seen if not one.gpu]
    listed = "<br>".join(names)
    if len(names) > _MANY:
        listed = f"<details><summary>{len(names)} variants</summary>{listed}</details>"
    return "<br>".join(filter(None, [listed, *alone]))


def _on(gpu: Surveyed, of: Judged, facts: Facts) -> str:
    """What was seen on one GPU, and the commits that were measured."""
    mine, known = [one for one in of.seen if one.gpu == gpu.slug], facts.commits.get(gpu.slug, {})
    measured = (one.commit or known.get(case, "") for one in mine for case in one.cases)
    commits = dict.fromkeys(commit[:8] for commit in measured if commit)
    return "<br>".join([*(one.said for one in mine), *([f"({', '.join(commits)})"] if commits else [])])


_ABOUT_SWEEP = (
    "A row per tile (square, as deep as wide), a column per number of threads and thread tile. –: refused by "
    "the note's own test, `is_valid_config`. *n threads*: it passes, but only n of the threads have a thread "
    "tile. GFLOPS of `register` at 4096³ where it was timed."
)


def _grid(gpu: Surveyed) -> str:
    tiles, blocks, threads = SWEEP

    def cell(tile: int, block: int, thread: int) -> str:
        if not valid(tile, block, thread):
            return "–"
        if (work := (tile // thread) ** 2) != block or tile % thread:
            return f"{work} threads"
        of = speed(gpu, f"register-f32-tile{tile}x{tile}x{tile}-thread{thread}x{thread}-pad0", LARGE)
        return f"**{number(of)}**" if of else "not timed"

    columns = [(block, thread) for block in blocks for thread in threads]
    rows = [(f"{tile}×{tile}", *(cell(tile, *column) for column in columns)) for tile in tiles]
    return pages.table((gpu.name, *(f"{block}, {thread}×{thread}" for block, thread in columns)), rows)
