"""``gemm-regression static [--refresh]``: compares compiler metrics and memory counters with the stored ones.

``--refresh`` shows what changed and then stores it, for the selected variants only. Exit status: 0 as stored,
or updated; 1 something differs, or nothing could be compared; otherwise pytest's own.
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

from gemm_regression.cli.common import SHOWN, STATIC, files_of_tests, for_pytest
from gemm_regression.cli.progress import progress, quiet
from gemm_regression.compiler import tools
from gemm_regression.compiler.static import store
from gemm_regression.compiler.static.check import Check, Entry, entries
from gemm_regression.compiler.static.metrics import ARCHES
from gemm_regression.compiler.static.store import ACCEPT, StoreError
from gemm_regression.compiler.tools import CompileError, ToolchainError
from gemm_regression.counters import check as counts
from gemm_regression.counters.check import CounterCheck, CounterEntry
from gemm_regression.counters.check import entries as counter_entries
from gemm_regression.devices import DeviceError
from gemm_regression.project.loader import Project

T = TypeVar("T")
ABOUT = (
    "Compares registers, occupancy, SASS and memory counters of every kernel with the stored ones; --refresh "
    "shows what changed and stores it."
)


def main(arguments: Sequence[str]) -> int:
    rest = [argument for argument in arguments if argument != "--refresh"]
    try:
        project, options = for_pytest("gemm-regression static [--refresh]", ABOUT, rest)
        tests = [*files_of_tests(project, STATIC, given=options), "-m", "static", *options]
        tools.pinned_tools()
        if "--refresh" in arguments:
            return refresh(project, tests)
        require_stored(project.static)
    except (CompileError, DeviceError, StoreError, ToolchainError, ValueError) as error:
        print(f"static: {error}", file=sys.stderr)
        return 1
    return int(pytest.main([*SHOWN, "static", "--every-architecture", *tests]))


def require_stored(root: Path) -> None:
    """Raises StoreError if stored metrics cannot be read, or there are none for this compiler."""
    nvcc, nvdisasm = tools.pins()
    missing = [arch for arch in ARCHES if not store.load(arch, nvcc, nvdisasm, root)]
    if missing:
        there = ", ".join(sorted(path.name for path in root.glob("nvcc-*"))) or "nothing"
        raise StoreError(
            f"no metrics are stored for nvcc {nvcc} and {', '.join(missing)} (stored: {there}); "
            f"store them with `{ACCEPT}`"
        )
    if not counts.load_counters(nvcc, root):
        raise StoreError(
            f"no counters are stored in {store.shown(counts.counters_path(root))}; store them with `{ACCEPT}`"
        )


def refresh(project: Project, tests: Sequence[str]) -> int:
    """Shows and then stores the metrics and counters of the entries that pytest collects."""
    found = selected(tests)
    # Entries that cannot be counted are found before anything is written.
    counted = [entry for entry in found if isinstance(entry, CounterEntry)]
    check = CounterCheck(project.static)
    emulated = []
    with progress("counters", len(counted), quiet(tests)) as step:
        for entry in counted:
            step.now(entry.name)
            emulated += [] if not_emulated(entry, check) else [entry]
            step(entry.name)
    refresh_figures(project, [entry for entry in found if isinstance(entry, Entry)], quiet(tests))
    refresh_counts(project, emulated, check)
    return 0


def not_emulated(entry: CounterEntry, check: CounterCheck) -> bool:
    """Whether a kernel cannot be emulated, as its declared features say; prints that. Raises DeviceError for
    any other failure."""
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
    print(f"wrote {store.shown(counts.write_counters(before, check.version, root))}", flush=True)


def refresh_figures(project: Project, chosen: Sequence[Entry], silent: bool = False) -> None:
    root = project.static
    check = Check(chosen, root)
    every = entries(project.kernels, root)
    for arch in dict.fromkeys(entry.arch for entry in chosen):
        variants = [entry for entry in chosen if entry.arch == arch and entry.variant]
        with progress(f"compile for {arch}", len(variants), silent) as step:
            check.made(arch, step)
        others = [e for e in every if e.arch == arch and e not in chosen]
        before = _trusted(partial(check.stored, arch), others)
        lines, after = list(check.changes(arch, before)), check.after(arch, before)
        if not lines and all(figures.made_of == before[name].made_of for name, figures in after.items()):
            print(f"{arch}: nothing changed")
            continue
        print("\n".join(lines or [f"{arch}: of other sources, the same metrics"]), flush=True)
        path = store.write(after, arch, *check.versions, root)
        print(f"wrote {store.shown(path)}", flush=True)


def _trusted(load: Callable[[], dict[str, T]], others: Sequence[object]) -> dict[str, T]:
    """What is stored. A file that cannot be trusted counts as empty if all of it is replaced."""
    try:
        return load()
    except StoreError as error:
        if others:
            raise StoreError(f"{error} (without -k, so that all of it is replaced)") from None
        print(f"regenerated: {error}")
        return {}


def selected(tests: Sequence[str]) -> list[Entry | CounterEntry]:
    """The entries that pytest collects with these arguments. Exits with pytest's status if that fails."""
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
