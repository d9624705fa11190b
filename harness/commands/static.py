"""``python -m harness static [--refresh] [pytest options]``: the compiler's figures and the emulated device's
counts against the stored ones.

``--refresh`` shows what changed and then stores it; with ``-k`` for the chosen variants only. Exit status:
0 as stored, or refreshed; 1 something is red, or nothing could be compared; pytest's own beyond that.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from harness.compiler import tools
from harness.compiler.errors import CompileError, ToolchainError
from harness.compiler.static import store
from harness.compiler.static.check import Check, Entry, entries
from harness.compiler.static.compiled import ARCHES
from harness.compiler.static.store import ACCEPT, StoreError
from harness.counters import stored as counts
from harness.counters.check import CounterCheck, CounterEntry
from harness.counters.check import entries as counter_entries
from harness.devices import DeviceError
from kernels import LADDER

T = TypeVar("T")
TESTS = str(Path(__file__).resolve().parents[2] / "tests" / "test_static.py")


def main(arguments: Sequence[str]) -> int:
    options = [argument for argument in arguments if argument != "--refresh"]
    refreshing = "--refresh" in arguments
    try:
        tools.pinned_tools()
        if refreshing:
            return refresh(options)
        require_stored()
    except (CompileError, DeviceError, StoreError, ToolchainError) as error:
        print(f"static: {error}", file=sys.stderr)
        return 1
    return int(pytest.main([TESTS, "-m", "static", *options]))


def require_stored(root: Path = store.ROOT) -> None:
    """Raises StoreError where stored figures cannot be read, or are none of this compiler's."""
    nvcc, nvdisasm = tools.pins()
    missing = [arch for arch in ARCHES if not store.load(arch, nvcc, nvdisasm, root)]
    if missing:
        there = ", ".join(sorted(path.name for path in root.glob("nvcc-*"))) or "nothing"
        raise StoreError(
            f"no figures of nvcc {nvcc} for {', '.join(missing)} are stored (there is {there}): "
            f"store them with `{ACCEPT}`"
        )
    if not counts.load(nvcc, root):
        raise StoreError(f"no counts are stored in {store.shown(counts.path_of(root))}: `{ACCEPT}`")


def refresh(options: Sequence[str], root: Path = store.ROOT) -> int:
    """Shows and then stores the figures and counts of the entries that pytest's options choose."""
    found = selected(options)
    refresh_figures([entry for entry in found if isinstance(entry, Entry)], root)
    refresh_counts([entry for entry in found if isinstance(entry, CounterEntry)], root)
    return 0


def refresh_counts(chosen: Sequence[CounterEntry], root: Path) -> None:
    if not chosen:
        return
    check = CounterCheck(root)
    names = {entry.name for entry in chosen}
    others = [entry for entry in counter_entries(LADDER, root) if entry.name not in names]
    before = _trusted(lambda: dict(check.stored), others)
    lines = list(check.refresh(chosen, before))
    if not lines:
        print("counters: nothing changed")
        return
    print("\n".join(lines), flush=True)
    print(f"wrote {store.shown(counts.write(before, check.version, root))}", flush=True)


def refresh_figures(chosen: Sequence[Entry], root: Path) -> None:
    check = Check(chosen, root)
    every = entries(LADDER, root)
    for arch in dict.fromkeys(entry.arch for entry in chosen):
        others = [e for e in every if e.arch == arch and e not in chosen]
        before = _trusted(partial(check.stored, arch), others)
        lines = list(check.changes(arch, before))
        if not lines:
            print(f"{arch}: nothing changed")
            continue
        print("\n".join(lines), flush=True)
        path = store.write(check.after(arch, before), arch, *check.versions, root)
        print(f"wrote {store.shown(path)}", flush=True)


def _trusted(load: Callable[[], dict[str, T]], others: Sequence[object]) -> dict[str, T]:
    """What is stored. A file that cannot be trusted is none if nothing of it is to stay."""
    try:
        return load()
    except StoreError as error:
        if others:
            raise StoreError(f"{error} (without -k, so that nothing of it is kept)") from None
        print(f"written anew: {error}")
        return {}


def selected(options: Sequence[str]) -> list[Entry | CounterEntry]:
    """The entries that pytest's options choose. Ends the program as pytest does where that goes wrong."""
    collected: list[Entry | CounterEntry] = []

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
