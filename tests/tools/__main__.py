"""``python -m tests.tools``: runs the planted bugs on ptxsan, and on Numba's simulator where it is
installed, and writes results.json and docs/results/tools.md.

``--page`` only writes the page, ``--check`` nothing: exit status 1 if it is out of date. ``--gpu --into
FILE`` runs them on a GPU instead, by their values and under compute-sanitizer and ConSan, where these are
installed; ``--merge FILE`` takes its results in and writes the page.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from pathlib import Path

from tests.tools import page


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tools", description=__doc__)
    parser.add_argument("--page", action="store_true", help="write the page of what is stored")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if it is stale")
    parser.add_argument("--gpu", action="store_true", help="run them on a GPU, and write FILE")
    parser.add_argument("--into", type=Path, metavar="FILE", help="where the GPU's results go")
    parser.add_argument("--merge", type=Path, metavar="FILE", help="take a GPU's results in")
    given = parser.parse_args(words)
    if given.gpu != bool(given.into):
        parser.error("--gpu and --into FILE go together")
    if given.gpu:
        return _gpu(given.into)
    stored = page.load()
    if given.merge:
        stored = page.merged(stored, page.load(given.merge))
    elif not given.page and not given.check:
        stored = page.merged(stored, _emulated())
    text = page.page(stored)
    if given.check:
        if page.PAGE.is_file() and page.PAGE.read_text(encoding="utf-8") == text:
            return 0
        print("error: is out of date", file=sys.stderr)
        return 1
    page.store(stored)
    page.PAGE.write_text(text, encoding="utf-8")
    return 0


def _gpu(into: Path) -> int:
    from tests.tools import gpu

    versions = gpu.versions()
    try:
        gpu.run(lambda found: page.store({"versions": versions, "results": found}, into))
    except (OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _emulated() -> dict[str, dict[str, object]]:
    from tests.tools import emulated

    versions, results = {"nvcc of ptxsan": emulated.nvcc_version()}, {"ptxsan": emulated.on_ptxsan()}
    if (simulated := emulated.on_numba()) is not None:
        results["numba"] = simulated
        versions["numba"] = importlib.metadata.version("numba")
    return {"versions": dict(versions), "results": dict(results)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
