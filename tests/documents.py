"""``nox -s docs [-- --refresh] [WORD ...]``: the recordings and generated pages. Are they those of the
sources, what changed, is it allowed, and how are they refreshed?

WORDs choose those whose path has one of them. ``--refresh`` refreshes what is stale and needs no GPU. Exit
status: 0 none is stale but those that need a GPU; 1 one is, and this machine can refresh it; 2 a wrong
command line, or a check that failed itself.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemm_regression.compiler.tools import CompileError, ToolchainError, pinned_tools
from tests import outputs
from tests.mutants import WRONG, gpu

ROOT = Path(__file__).parents[1]
GPU = "a GPU"
MISSING = "its packages"


@dataclass(frozen=True)
class Document:
    """A file of the repository that nobody writes by hand, an entry of documents.toml.

    ``path``: from the repository's root; ``refresh``: the command's words after ``python -m``; ``allowed``:
    what it means that it is stale; ``needs``: what to refresh it takes; ``changed``: yields what has changed
    since, empty where the command's own ``--check`` says it.
    """

    path: str
    refresh: str
    allowed: str
    needs: str = ""
    changed: Callable[[], Iterator[str]] | None = None

    @property
    def by_hand(self) -> str:
        return f"`python -m {self.refresh}`" + (f", on {GPU}" if self.needs == GPU else "")

    def stale(self) -> list[str]:
        """What has changed, in a line each; empty where it is up to date. Raises RuntimeError where its check
        itself fails."""
        if self.changed:
            return list(self.changed())
        done = python_m(f"{self.refresh} --check", capture=True)
        said = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.strip()]
        if done.returncode not in (0, 1) or "Traceback" in done.stderr:
            raise RuntimeError(said[-1] if said else f"its check ended with {done.returncode}")
        return (said or ["is out of date"]) if done.returncode else []


def python_m(words: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *shlex.split(words)]
    return subprocess.run(command, cwd=ROOT, capture_output=capture, text=True)


def _recorded_outputs() -> Iterator[str]:
    """Which variants are another binary than that of which a GPU's bits were recorded."""
    made = outputs.recorded()["binaries"]
    cases = {case.variant: case for case in outputs.compared()}
    if gone := sorted(set(made) - set(cases)):
        yield f"has {_some(gone)}, which nobody declares"
    if new := [name for name in cases if name not in made]:
        yield f"lacks {_some(new)}"
    if other := [name for name, case in cases.items() if name in made and outputs.binary(case) != made[name]]:
        yield f"has the bits of another binary of {_some(other)}"


def _seen_on_gpu() -> Iterator[str]:
    """Which mutants were not run on a GPU, and which are gone."""
    names, stored = [mutant.name for mutant in WRONG], gpu.load()
    if lacking := [m.name for m in WRONG if m.name not in stored.values and not m.sparse]:
        yield f"lacks the values of {_some(lacking)}"
    for what, part in (("values", stored.values), ("compute-sanitizer", stored.sanitizer)):
        if gone := sorted(set(part) - set(names)):
            yield f"has the {what} of {_some(gone)}, which nobody plants"


def _counted() -> Iterator[str]:
    """Which kernels have changed since the page was made, as far as git knows."""
    page = (ROOT / "docs" / "results" / "counters.md").read_text(encoding="utf-8")
    made_at = re.search(r"commit (\w+)", page)
    since = made_at[1] if made_at else "none"
    done = subprocess.run(
        ["git", "diff", "--name-only", since, "--", "kernels"], cwd=ROOT, capture_output=True, text=True
    )
    if sources := [line for line in done.stdout.splitlines() if not line.endswith(".py")]:
        yield f"was made before {_some(sources)} changed"


def _generated() -> Iterator[str]:
    from tests.mutants.generated import stale

    return stale()


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


# What else than the command's own `--check` says it.
_CHANGED = {
    "tests/mutants/generated.json": _generated,
    "tests/outputs.json": _recorded_outputs,
    "tests/mutants/gpu.json": _seen_on_gpu,
    "docs/results/counters.md": _counted,
}
DOCUMENTS = tuple(
    Document(**of, changed=_CHANGED.get(of["path"]))
    for of in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["document"]
)


def main(arguments: Sequence[str] | None = None) -> int:
    about = (
        "The recordings and generated pages: is each that of the sources, what changed, is it allowed, and "
    )
    parser = argparse.ArgumentParser(prog="nox -s docs --", description=f"{about}how is it refreshed?")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only those whose path has one of these")
    parser.add_argument("--refresh", action="store_true", help="refresh what is stale and needs no GPU")
    given = parser.parse_args(arguments)
    chosen = [d for d in DOCUMENTS if not given.words or any(word in d.path for word in given.words)]
    if not chosen:
        print(f"error: no document has {' or '.join(given.words)} in its path", file=sys.stderr)
        return 2
    try:
        pinned_tools()
    except ToolchainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return max([_one(document, given.refresh) for document in chosen])


def _one(document: Document, refresh: bool) -> int:
    """Says, or refreshes, one; its share of the exit status."""
    try:
        changed = document.stale()
    except (CompileError, RuntimeError, ToolchainError) as error:
        known = document.needs == MISSING
        print(f"{'?' if known else 'error':<6}{document.path}: not looked at: {error}", flush=True)
        return 0 if known else 2
    if not changed:
        print(f"ok    {document.path}", flush=True)
        return 0
    if refresh and document.needs != GPU:
        status = python_m(document.refresh).returncode
        print(f"{'error' if status else 'new':<6}{document.path}", flush=True)
        return 2 if status else 0
    later = document.needs == GPU
    print(f"{'later' if later else 'stale':<6}{document.path}", flush=True)
    for line in changed:
        print(f"      changed: {line}")
    print(f"      allowed: {document.allowed}")
    print(f"      refresh: {document.by_hand}", flush=True)
    return 0 if later else 1


if __name__ == "__main__":
    sys.exit(main())
