"""``python -m harness.static [--refresh] [pytest options]``: the compiler's figures against the stored ones.

``--refresh`` shows what changed and then stores it; with ``-k`` for the chosen variants only. Exit status:
0 as stored, or refreshed; 1 something is red, or nothing could be compared; pytest's own beyond that.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from harness import toolchain
from harness.static import store
from harness.static.check import Check, Entry, entries
from harness.static.compiled import ARCHES, StaticFigures
from harness.static.store import ACCEPT, StoreError
from harness.toolchain import CompileError, ToolchainError

TESTS = str(Path(__file__).resolve().parents[2] / "tests" / "test_static.py")


def main(arguments: Sequence[str]) -> int:
    options = [argument for argument in arguments if argument != "--refresh"]
    refreshing = "--refresh" in arguments
    try:
        toolchain.pinned_tools()
        if refreshing:
            return refresh(options)
        require_stored()
    except (CompileError, StoreError, ToolchainError) as error:
        print(f"static: {error}", file=sys.stderr)
        return 1
    return int(pytest.main([TESTS, "-m", "static", *options]))


def require_stored(root: Path = store.ROOT) -> None:
    """Raises StoreError where stored figures cannot be read, or are none of this compiler's."""
    nvcc, nvdisasm = toolchain.pins()
    missing = [arch for arch in ARCHES if not store.load(arch, nvcc, nvdisasm, root)]
    if missing:
        there = ", ".join(sorted(path.name for path in root.glob("nvcc-*"))) or "nothing"
        raise StoreError(
            f"no figures of nvcc {nvcc} for {', '.join(missing)} are stored (there is {there}): "
            f"store them with `{ACCEPT}`"
        )


def refresh(options: Sequence[str], root: Path = store.ROOT) -> int:
    """Shows and then stores the compiler's figures of the entries that pytest's options choose."""
    chosen = selected(options)
    check = Check(chosen, root)
    every = entries(root)
    for arch in dict.fromkeys(entry.arch for entry in chosen):
        before = _before(check, arch, [e for e in every if e.arch == arch and e not in chosen])
        lines = list(check.changes(arch, before))
        if not lines:
            print(f"{arch}: nothing changed")
            continue
        print("\n".join(lines), flush=True)
        path = store.write(check.after(arch, before), arch, *check.versions, root)
        print(f"wrote {store.shown(path)}", flush=True)
    return 0


def _before(check: Check, arch: str, others: Sequence[Entry]) -> dict[str, StaticFigures]:
    """What is stored. A file that cannot be trusted is none if nothing of it is to stay."""
    try:
        return check.stored(arch)
    except StoreError as error:
        if others:
            raise StoreError(f"{error} (without -k, so that nothing of it is kept)") from None
        print(f"written anew: {error}")
        return {}


def selected(options: Sequence[str]) -> list[Entry]:
    """The entries that pytest's options choose. Ends the program as pytest does where that goes wrong."""
    collected: list[Entry] = []

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            collected.extend(item.callspec.params["entry"] for item in session.items)  # type: ignore[attr-defined]

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([TESTS, "-m", "static", "--collect-only", *options], plugins=[Collector()])
    if code:
        print(said.getvalue())
        raise SystemExit(int(code))
    return collected


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
