"""``python -m tests.mutants.matrix [--check]``: writes docs/results/kill-matrix.md, from every mutant
examined without a GPU.

Exit status: 0 up to date or updated; 1 out of date, or a mutant that nothing catches; 2 without the pinned
compiler.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from gemm_regression.compiler.tools import ToolchainError, pinned_tools
from lab.pages import table
from tests.mutants import MUTANTS, SLOW, Mutant, generated, gpu, operators
from tests.mutants.examine import HAZARDS, Seen, examine, open_device
from tests.mutants.generated import EQUIVALENT, SURVIVORS
from tests.mutants.gpu import Results

FILE = Path(__file__).parents[2] / "docs" / "results" / "kill-matrix.md"
RENEW = "python -m tests.mutants.matrix"
COLUMNS = ("value", *dict.fromkeys(HAZARDS.values()), "static", "counter")

_HEAD, _GENERATED = (
    Path(__file__).with_name(f"{part}.md").read_text(encoding="utf-8") for part in ("head", "generated")
)


def row(mutant: Mutant, seen: Seen, on_gpu: Results) -> str:
    """The row of a mutant."""
    cells = [
        mutant.kind,
        f"`{mutant.name}`",
        mutant.kernel,
        mutant.about,
        *_caught(seen).values(),
        *_on_gpu(mutant, on_gpu),
    ]
    return _line(cells)


def detail(mutant: Mutant, seen: Seen) -> str:
    """The row of a mutant that is correct but slower: how metrics and counters of one problem change."""
    return _line([f"`{mutant.name}`", seen.figures, seen.counters.split("; on ")[0]])


def render(seen: Mapping[str, Seen], on_gpu: Results) -> str:
    """The whole page, of every mutant by name."""
    if on_gpu.gpu:
        note = f"On an {on_gpu.gpu}; – means run but not caught, an empty cell not run."
    else:
        note = "Both are empty: no GPU run has been stored yet."
    parts = [_HEAD.format(renew=RENEW, on_gpu=note), "## By class\n", _summary(seen, on_gpu)]
    columns = ["class", "mutant", "kernel", "planted bug", *COLUMNS, "H200 values", "compute-sanitizer"]
    parts += ["\n## Every mutant\n", table(columns, [])]
    parts += [row(mutant, seen[mutant.name], on_gpu) for mutant in MUTANTS]
    parts += ["\n## Correct but slower: what is reported\n"]
    parts += [table(["mutant", "compiler metrics", "memory counters"], [])]
    parts += [detail(mutant, seen[mutant.name]) for mutant in SLOW]
    parts += ["", *generated_section()]
    return "\n".join(parts) + "\n"


def generated_section() -> Iterator[str]:
    """What came of the mutants that the operators make, as it is stored."""
    made, outcomes = generated.load()
    yield _GENERATED.format(seed=made["seed"], compiler=made["compiler"][0], renew=generated.RENEW)
    columns = ["operator", "edits", generated.BROKEN, generated.SAME, "right", "wrong", "caught", "by values"]
    of = {mutant: outcomes[generated.key(mutant)] for mutant in operators.everything()}
    rows = []
    for kind in [*(operator.kind for operator in operators.OPERATORS), "all"]:
        found = [(m.name, outcome) for m, outcome in of.items() if kind in (m.kind, "all")]
        caught = [outcome for _, outcome in found if outcome.what == generated.CAUGHT]
        broken, same = (sum(o.what == what for _, o in found) for what in (generated.BROKEN, generated.SAME))
        right = sum(name in EQUIVALENT for name, _ in found)
        wrong = len(found) - broken - same - right
        by_values = sum(outcome.by_value for outcome in caught)
        numbers = (len(found), broken, same, right, wrong, len(caught), by_values)
        rows.append([kind, *(str(number or "") for number in numbers)])
    yield table(columns, rows, "l" + "r" * (len(columns) - 1))
    for said, why, argued in (
        ("Those that are right, and why:", "why", EQUIVALENT),
        ("Those that nothing catches, and what it would take:", "what it would take", SURVIVORS),
    ):
        told = [
            [f"`{mutant.name}`", mutant.about.replace("|", "\\|"), argued[mutant.name]]
            for mutant in of
            if mutant.name in argued
        ]
        yield from ("", said, "", table(["mutant", "edit", why], told))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _caught(seen: Seen) -> dict[str, str]:
    """What stands in each column."""
    cells = dict.fromkeys(COLUMNS, "")
    cells |= {
        "value": seen.value,
        "static": "yes" * bool(seen.figures),
        "counter": "yes" * bool(seen.counters),
    }
    for check in seen.hazards:
        column = HAZARDS[check]
        cells[column] = ", ".join(filter(None, (cells[column], check)))
    return cells


def _on_gpu(mutant: Mutant, on_gpu: Results) -> list[str]:
    parts = (on_gpu.values, on_gpu.sanitizer)
    return [(part[mutant.name] or "–") if mutant.name in part else "" for part in parts]


def _summary(seen: Mapping[str, Seen], on_gpu: Results) -> str:
    """How many of each class each column catches."""
    columns = ["class", "mutants", "kernels", "values or hazards"]
    columns += [*COLUMNS, "H200 values", "compute-sanitizer"]
    rows = []
    for kind in [*dict.fromkeys(mutant.kind for mutant in MUTANTS), "all"]:
        of_kind = [mutant for mutant in MUTANTS if kind in (mutant.kind, "all")]
        cells = [[*_caught(seen[m.name]).values(), *_on_gpu(m, on_gpu)] for m in of_kind]
        counts = [sum(cell not in ("", "–") for cell in column) for column in zip(*cells, strict=True)]
        stages = len({mutant.kernel for mutant in of_kind})
        surely = sum(seen[mutant.name].wrong for mutant in of_kind)
        numbers = (len(of_kind), stages, surely, *counts)
        rows.append([kind, *(str(number or "") for number in numbers)])
    return table(columns, rows, "l" + "r" * (len(columns) - 1))


def _examine(number: int) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        return examine(MUTANTS[number], Path(folder), open_device())


def examine_all() -> dict[str, Seen]:
    """What is seen of every mutant, by name, over all cores."""
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return dict(zip((m.name for m in MUTANTS), pool.map(_examine, range(len(MUTANTS))), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=RENEW, description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit status 1 if the page is out of date"
    )
    given = parser.parse_args(arguments)
    try:
        pinned_tools()
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    seen = examine_all()
    if missed := [mutant.name for mutant in MUTANTS if not caught(mutant, seen[mutant.name])]:
        print(f"error: nothing catches {', '.join(missed)}", file=sys.stderr)
        return 1
    if reasons := list(generated.stale()):
        print(
            f"error: {generated.FILE.name} {'; '.join(reasons)}; first `{generated.RENEW}`", file=sys.stderr
        )
        return 1
    text = render(seen, gpu.load())
    before = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    fresh = before == text
    if given.check and not fresh:
        rows = set(before.splitlines())
        other = [m.name for m in MUTANTS if row(m, seen[m.name], gpu.load()) not in rows]
        more = f" and {len(other) - 5} more" if len(other) > 5 else ""
        of = f", in the rows of {', '.join(other[:5])}{more}" if before and other else ""
        print(f"error: {FILE.name} is out of date{of}; `{RENEW}` updates it", file=sys.stderr)
        return 1
    if not fresh:
        FILE.write_text(text, encoding="utf-8")
    return 0


def caught(mutant: Mutant, seen: Seen) -> bool:
    """Whether it is seen as what it is: wrong; or right, and no longer what was stored."""
    return seen.wrong if mutant.wrong else not seen.wrong and bool(seen.figures or seen.counters)


if __name__ == "__main__":
    sys.exit(main())
