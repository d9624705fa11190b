"""The tests that judge a project's kernels. A project's own test files import them, one line each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from gemm_regression.compiler.static import Check, Entry, StaticFigures
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.check import CounterCheck, CounterEntry
from gemm_regression.devices import DeviceError
from gemm_regression.judge.vocabulary import VerdictKind
from gemm_regression.model import Case, Kernel
from gemm_regression.pytest_plugin.plugin_benchmark import DEVICE_CLOCK, GateFixture
from gemm_regression.report.failures import Reason, of_check, of_error
from gemm_regression.report.wording import checked_text, orphans_text
from gemm_regression.run.checked import CORRECT, NOT_EMULATED, UNSUPPORTED, Checked, failed

Record = Callable[[str, object], None]

SKIPPED = (VerdictKind.NOT_EMULATED, VerdictKind.REFUSED)
LATER = "changed, and compiled for this architecture in CI and by `static` alone"
NOTHING_STORED = "nothing to compare with: `gemm-regression static --refresh` stores the current values"


def test_kernel(verify_case: Case, checks: Callable[[Case], Checked], gemm_record: Record) -> None:
    """A variant is correct for a problem, on whichever device there is."""
    gemm_record("variant", verify_case.variant)
    gemm_record("problem", verify_case.problem.id)
    checked = checks(verify_case)
    gemm_record("verdict", str(checked.outcome))
    gemm_record("findings", " ".join(finding.check for finding in checked.findings))
    if checked.notes:
        gemm_record("notes", "\n".join(map(str, checked.notes)))
    if checked.waived:
        gemm_record("waived", "\n".join(map(str, checked.waived)))
    if checked.outcome.kind in SKIPPED:
        pytest.skip(checked_text(checked))
    if checked.outcome != CORRECT:
        for reason in of_check(checked):
            gemm_record("reason", str(reason))
        pytest.fail(checked_text(checked), pytrace=False)


@pytest.mark.gpu
@pytest.mark.benchmark(timer=DEVICE_CLOCK)
def test_performance(timed_case: Case, gate: GateFixture) -> None:
    """A timed case is not slower than the stored baseline of this GPU."""
    gate(timed_case)


@pytest.mark.gpu
def test_no_orphans(orphans: list[str]) -> None:
    """Every case of the baseline is still in the suite."""
    if orphans:
        pytest.fail(orphans_text(orphans), pytrace=False)


@pytest.mark.static
def test_compiler_metrics(
    figures_entry: Entry, check: Check, stores_figures: bool, gemm_record: Record
) -> None:
    """The compiler metrics of a variant equal the stored ones. Any change, for better or worse, fails until
    it is accepted."""
    gemm_record("variant", figures_entry.name)
    try:
        finding = check.finding(figures_entry) if stores_figures else check.fault(figures_entry)
    except StoreError as error:
        finding = str(error)
    made = check.made(figures_entry.arch).get(figures_entry.name)
    if isinstance(made, StaticFigures):
        gemm_record("arch", figures_entry.arch)
        gemm_record("registers", made.registers)
        gemm_record("occupancy", f"{made.occupancy:.1%} ({made.limited_by})")
        if stores_figures:
            gemm_record("change", finding)
    if finding:
        gemm_record("reason", str(_reason("compiler metrics", finding)))
        pytest.fail(finding, pytrace=False)
    if not stores_figures:
        pytest.skip(NOTHING_STORED)
    if check.later(figures_entry):
        pytest.skip(LATER)


@pytest.mark.static
def test_counts(
    counts_entry: CounterEntry, counter_check: CounterCheck, stores_figures: bool, gemm_record: Record
) -> None:
    """The memory counters of a variant, from its PTX, equal the stored ones."""
    gemm_record("variant", counts_entry.name)
    if counts_entry.variant and not stores_figures:
        with _emulated(counts_entry.name, counts_entry.variant[0], gemm_record):
            _shown(counts_entry, counter_check, gemm_record)
        pytest.skip(NOTHING_STORED)
    try:
        finding = counter_check.finding(counts_entry)
    except StoreError as error:
        finding = str(error)
    if counts_entry.variant:
        with _emulated(counts_entry.name, counts_entry.variant[0], gemm_record), _only_unsupported():
            _shown(counts_entry, counter_check, gemm_record)
    gemm_record("arch", "counters")
    gemm_record("change", finding)
    if finding:
        gemm_record("reason", str(_reason("memory counters", finding)))
        pytest.fail(finding, pytrace=False)


def _reason(what: str, finding: str) -> Reason:
    """A finding of stored metrics, without how to accept it, which is said once for all."""
    error = of_error(finding)
    return error if error.is_compilers else Reason(what, finding.partition("\nto accept it: ")[0])


def _shown(entry: CounterEntry, check: CounterCheck, gemm_record: Record) -> None:
    for counts in list(check.made(entry).values())[:1]:
        reads, stores = counts.sectors_per_request("reads"), counts.sectors_per_request("stores")
        gemm_record("sectors_per_request", f"{reads:.2f}, {stores:.2f}")
        gemm_record("conflicts", counts.conflicts)


@contextlib.contextmanager
def _only_unsupported() -> Iterator[None]:
    """Ignores failures of an emulated launch that the finding has already reported."""
    try:
        yield
    except DeviceError as error:
        if error.code == UNSUPPORTED:
            raise


@contextlib.contextmanager
def _emulated(name: str, kernel: Kernel, gemm_record: Record) -> Iterator[None]:
    """A kernel with declared features that cannot be emulated is skipped as NOT_EMULATED; without the
    declaration it fails, and the message says how to declare it."""
    try:
        yield
        return
    except DeviceError as error:
        checked = failed(name, kernel, error)
    if checked.outcome == NOT_EMULATED:
        gemm_record("verdict", str(checked.outcome))
        pytest.skip(checked_text(checked))
    for reason in of_check(checked):
        gemm_record("reason", str(reason))
    pytest.fail(checked_text(checked), pytrace=False)
