"""``gemm-regression static [--refresh]``: the compiler's figures and the emulated device's counts against the
stored ones.

``--refresh`` shows what changed and then stores it, of the chosen variants only. Exit status:
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

from harness.commands.common import STATIC, for_pytest, test_files
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
from harness.project.loader import Project

T = TypeVar("T")
ABOUT = (
    "Registers, occupancy, SASS and counts of every kernel against the stored ones; --refresh shows what "
    "changed and stores it."
)


def main(arguments: Sequence[str]) -> int:
    rest = [argument for argument in arguments if argument != "--refresh"]
    try:
        project, options = for_pytest("gemm-regression static [--refresh]", ABOUT, rest)
        tests = [*test_files(project, STATIC), "-m", "static", *options]
        tools.pinned_tools()
        if "--refresh" in arguments:
            return refresh(project, tests)
        require_stored(project.static)
    except (CompileError, DeviceError, StoreError, ToolchainError, ValueError) as error:
        print(f"static: {error}", file=sys.stderr)
        return 1
    return int(pytest.main(tests))


def require_stored(root: Path) -> None:
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


def refresh(project: Project, tests: Sequence[str]) -> int:
    """Shows and then stores the figures and counts of the entries that pytest collects so."""
    found = selected(tests)
    # What cannot be counted is found before anything is written.
    counted = [entry for entry in found if isinstance(entry, CounterEntry)]
    check = CounterCheck(project.static)
    emulated = [entry for entry in counted if not not_emulated(entry, check)]
    refresh_figures(project, [entry for entry in found if isinstance(entry, Entry)])
    refresh_counts(project, emulated, check)
    return 0


def not_emulated(entry: CounterEntry, check: CounterCheck) -> bool:
    """Whether no emulation is expected of a kernel, and there is none; says so. Raises DeviceError for what
    else fails."""
    try:
        check.made(entry)
    except DeviceError as error:
        if error.code != "UNSUPPORTED" or not entry.variant or not entry.variant[0].features:
            raise
        print(f"{entry.name}: not emulated, so not counted", flush=True)
        return True
    return False


def refresh_counts(project: Project, chosen: Sequence[CounterEntry], check: CounterCheck) -> None:
    if not chosen:
        return
    root = project.static
    names = {entry.name for entry in chosen}
    others = [entry for entry in counter_entries(project.kernels, root) if entry.name not in names]
    before = _trusted(lambda: dict(check.stored), others)
    lines = list(check.refresh(chosen, before))
    if not lines:
        print("counters: nothing changed")
        return
    print("\n".join(lines), flush=True)
    print(f"wrote {store.shown(counts.write(before, check.version, root))}", flush=True)


def refresh_figures(project: Project, chosen: Sequence[Entry]) -> None:
    root = project.static
    check = Check(chosen, root)
    every = entries(project.kernels, root)
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


def selected(tests: Sequence[str]) -> list[Entry | CounterEntry]:
    """The entries that pytest collects with these arguments. Ends the program as pytest does where that goes
    wrong."""
    collected: list[Entry | CounterEntry] = []

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            parameters = (item.callspec.params for item in session.items)  # type: ignore[attr-defined]
            collected.extend(entry for of in parameters for entry in of.values())

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main([*tests, "--collect-only"], plugins=[Collector()])
    if code:
        print(said.getvalue())
        raise SystemExit(int(code))
    return collected


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
