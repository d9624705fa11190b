"""The tests that judge a project's kernels. A project's own test files import them, one line each.

Of timed cases it adapts pytest-benchmark to GPUs, closes its silent passes (listed in docs/architecture.md),
and judges the machine once, by a test that every run with a timed case has."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable
from typing import Any, NoReturn

import pytest

from gemm_regression.compiler.static import Check, StaticEntry, StaticFigures
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.check import CounterCheck, CounterEntry
from gemm_regression.counters.traffic import TrafficData
from gemm_regression.devices import DeviceError
from gemm_regression.devices.emulated import EmulatedDevice
from gemm_regression.judge.evidence import MACHINES, UNUSABLE
from gemm_regression.judge.machine import MachineVerdict
from gemm_regression.judge.vocabulary import NO_BASELINE_FILE, VerdictKind
from gemm_regression.model import Case, Finding
from gemm_regression.pytest_plugin.session import KEY, Session, parameters
from gemm_regression.report import wording
from gemm_regression.report.failures import NOT_STORED, of_check, of_error
from gemm_regression.run.checked import CORRECT, NOT_EMULATED, UNSUPPORTED, Checked, failed
from gemm_regression.run.paths import PathsEntry, paths
from gemm_regression.run.timed import Board, SampleClock, TimedCase, extra_info, judge_board
from ptxsan.frontend import PtxError

NAME = "test_machine"
DEVICE_CLOCK = SampleClock()
_LEGEND = "  OPS: 1 / Median; GFLops/s are GFLOPS, 2·M·N·K·batch / Median, GB/s all operands / Median"
_BYTES = "OPS (GBops/s)", "   OPS (GB/s)"  # of the same width
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
    _says("note", checked.notes, gemm_record)
    if checked.waived:
        gemm_record("waived", "\n".join(map(str, checked.waived)))
    _conclude(checked, gemm_record)


def test_paths(
    paths_entry: PathsEntry, device: EmulatedDevice, checks: Callable[[Case], Checked], gemm_record: Record
) -> None:
    """A variant is correct where conditions of its parameters meet that no problem of the suite brings
    together."""
    gemm_record("variant", paths_entry.name)
    try:
        found = paths(device, paths_entry.cases)
    except DeviceError as error:
        _conclude(failed(paths_entry.name, paths_entry.cases[0].kernel, error), gemm_record)
        return
    except PtxError as error:
        pytest.skip(f"its conditions cannot be evaluated: {error}")
    results = [checks(case) for case in found.cases]
    wrong = [result for result in results if result.outcome != CORRECT]
    gemm_record("problem", " ".join(case.problem.id for case in found.cases))
    gemm_record("wrong", len(wrong))
    gemm_record("combinations", found.others)
    gemm_record("findings", " ".join(finding.check for result in wrong for finding in result.findings))
    for result in results:
        _says("note", result.notes, gemm_record)
    if waived := [str(waiver) for result in results for waiver in result.waived]:
        gemm_record("waived", "\n".join(waived))
    if found.cases:
        worst = (wrong or results)[0]
        gemm_record("verdict", str(worst.outcome))
        _conclude(worst, gemm_record)


@pytest.mark.gpu
@pytest.mark.benchmark(timer=DEVICE_CLOCK)
def test_performance(timed_case: Case, gate: Callable[[Case], None]) -> None:
    """A timed case is not slower than the stored baseline of this GPU."""
    gate(timed_case)


@pytest.mark.gpu
def test_no_orphans(request: pytest.FixtureRequest) -> None:
    """Every case of the baseline is still in the suite."""
    session = request.config.stash[KEY]
    if not session.policy.allow_orphans and (orphans := session.orphans):
        pytest.fail(wording.orphans_text(orphans), pytrace=False)


@pytest.mark.static
def test_compiler_metrics(
    figures_entry: StaticEntry, check: Check, stores_figures: bool, gemm_record: Record
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
        _fail(finding, [_stored("compiler metrics", finding)], gemm_record)
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
    new = bool(counts_entry.variant and not stores_figures)
    try:
        finding = "" if new else counter_check.finding(counts_entry)
    except StoreError as error:
        finding = str(error)
    try:
        for counts in list(counter_check.made(counts_entry).values())[:1] if counts_entry.variant else ():
            reads, stores = (of.sectors_per_request for of in (counts.total.reads, counts.total.stores))
            gemm_record("sectors_per_request", f"{reads:.2f}, {stores:.2f}")
            gemm_record("conflicts", counts.total.shared.conflicts)
    except DeviceError as error:  # others are in the finding
        if (new or error.code == UNSUPPORTED) and counts_entry.variant:
            checked = failed(counts_entry.name, counts_entry.variant[0], error)
            if checked.outcome == NOT_EMULATED:
                gemm_record("verdict", str(checked.outcome))
            _conclude(checked, gemm_record)
    if new:
        pytest.skip(NOTHING_STORED)
    gemm_record("arch", "counters")
    gemm_record("change", finding)
    if finding:
        _fail(finding, [_stored("memory counters", finding)], gemm_record)


def _conclude(checked: Checked, gemm_record: Record) -> None:
    """Ends the test, unless all is correct. A kernel with declared features that cannot be emulated is
    skipped; without the declaration it fails, and the message says how to declare it."""
    if checked.outcome.kind in SKIPPED:
        pytest.skip(wording.checked_text(checked))
    if checked.outcome != CORRECT:
        _fail(wording.checked_text(checked), of_check(checked), gemm_record)


def _stored(what: str, finding: str) -> Finding:
    """A finding of stored metrics, without how to accept it, which is said once for all."""
    return of_error(finding.partition("\nto accept it: ")[0], what)


def _fail(why: str, findings: Iterable[Finding], gemm_record: Record) -> NoReturn:
    _says("finding", findings, gemm_record)
    pytest.fail(why, pytrace=False)


def _says(name: str, findings: Iterable[Finding], gemm_record: Record) -> None:
    for finding in findings:
        gemm_record(name, finding.to_json())


# Timed cases, and the machine


def known_traffic(session: Session) -> TrafficData:
    """What cases move, as far as it is stored: it tells what bounds them."""
    with contextlib.suppress(StoreError):
        return TrafficData.of(session.project.baselines)
    return TrafficData()


def machines(session: Session) -> dict[Board, MachineVerdict]:
    """The verdict on each GPU that timed a case; judged at the first call."""
    if session.seen.machines is None:
        known, session.seen.machines = known_traffic(session), {}
        for board in session.boards:
            if results := [result for by, result in session.seen.results if by is board]:
                session.seen.machines[board] = judge_board(board, results, known)
    return session.seen.machines


def lines_of(session: Session, board: Board, verdict: MachineVerdict) -> list[str]:
    """What is said of a machine, with its GPU where there are several."""
    first, *more = wording.machine_lines(verdict)
    return [f"GPU {board.label}: {first}" if len(session.boards) > 1 else first, *more]


@pytest.mark.gpu
def test_machine(request: pytest.FixtureRequest) -> None:
    """The machine is as it should be: tested once in a run, after the cases, for each GPU that timed any."""
    session = request.config.stash[KEY]
    failed = {board: verdict for board, verdict in machines(session).items() if verdict.failed}
    if failed and session.policy.fail_on_drift:
        lines = (line for board, verdict in failed.items() for line in lines_of(session, board, verdict))
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whichever timed cases were chosen, the machine is asked for after them."""
    fixtures = (getattr(item, "fixturenames", ()) for item in items)
    cases = [any(isinstance(value, Case) for value in parameters(item)) for item in items]
    found = zip(items, fixtures, cases, strict=True)
    timed = [item for item, names, case in found if "timed_case" in names and case]
    module = timed[-1].getparent(pytest.Module) if timed else None
    if module is None or config.stash[KEY].gpu is None or config.option.benchmark_skip:
        return
    shard = config.option.shard  # each part has a machine of its own
    name = f"{NAME}[{shard}]" if shard else NAME
    items.append(pytest.Function.from_parent(module, name=name, callobj=test_machine))


@pytest.fixture
def gate(request: pytest.FixtureRequest, benchmark: Any, gemm_record: Record) -> Callable[[Case], None]:
    """Measures, judges and records one timed case; a verdict that fails becomes one pytest failure."""
    session = request.config.stash[KEY]

    def judge(case: Case) -> None:
        if benchmark.disabled:
            pytest.fail(
                "timing is disabled (by pytest-xdist's -n or --benchmark-disable), so this case cannot be "
                "judged: run without that option, or deselect with --benchmark-skip; for several GPUs there "
                "is --gpus all",
                pytrace=False,
            )
        board, result = session.ahead.judged(case)
        session.seen.results.append((board, result))
        if len(session.boards) > 1:
            benchmark.extra_info["gpu"] = board.number
            gemm_record("gpu", board.label)
        _record(benchmark, result, board)
        verdict, gpu = result.verdict, board.gpu.info.name
        if not verdict.failed(session.policy):
            return
        said, variant = f"{verdict.kind}: {_message(result)}", case.variant
        finding = Finding(str(verdict.outcome), _message(result))
        if verdict.reason == NO_BASELINE_FILE:  # one failure, whatever the number of cases
            if gpu in session.seen.without_baseline:
                pytest.skip(f"{VerdictKind.NO_BASELINE}: timed, and compared with nothing")
            session.seen.without_baseline.add(gpu)
            said, variant = wording.no_baseline(gpu), ""
            finding = Finding(said, "")
        elif verdict.kind is VerdictKind.NO_BASELINE:  # all such cases have one reason, and one remedy
            finding = NOT_STORED
        gemm_record("variant", variant)
        _fail(said, [finding], gemm_record)

    return judge


def _record(benchmark: Any, result: TimedCase, board: Board) -> None:
    benchmark.group = result.case.problem.id
    benchmark.params = {"timed_case": result.case.id}  # the repr of a Case contains paths of this machine
    benchmark.extra_info |= {**extra_info(result), "board": board.gpu.info.board}
    if result.measurement is None or not result.usable:
        benchmark.extra_info["message"] = _message(result)
        # pytest-benchmark sees an error, so the case is in neither its table nor its "benchmarks".
        with contextlib.suppress(_UnusableError):
            benchmark.pedantic(_no_samples, rounds=1, iterations=1)
        return
    seconds = result.measurement.seconds
    DEVICE_CLOCK.load(seconds)
    benchmark.pedantic(DEVICE_CLOCK.tick, rounds=len(seconds), iterations=1)


def _message(result: TimedCase) -> str:
    unit = result.case.kernel.operation.unit
    return wording.message(result.case.id, result.verdict, result.evidence, unit)


class _UnusableError(Exception):
    """There are no samples to compute statistics from."""


def _no_samples() -> None:
    raise _UnusableError


def pytest_sessionstart(session: pytest.Session) -> None:
    """Files that users save with pytest-benchmark's own options are stored under the GPU's name, too."""
    config = session.config
    made, boards = getattr(config, "_benchmarksession", None), config.stash[KEY].boards
    if made is None or not boards:
        return
    if hasattr(made.storage, "default_machine_id"):
        made.storage.default_machine_id = boards[0].slug
    # The ladder shows the same; -v and --benchmark-compare ask for more.
    if config.option.verbose <= 0 and not config.option.benchmark_compare:
        made.quiet = True
    # pytest-benchmark's own check aborts the run without a failing test; here each case fails individually.
    made.compare_fail = []


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """The GPU instead of the host: no host name, no user name."""
    boards = config.stash[KEY].boards
    if not boards:
        return {"gpu": None}
    found = boards[0].machine()
    with contextlib.suppress(DeviceError):  # what it can do at most: nothing is judged by it
        found["roofs"] = boards[0].gpu.roofs()
    return found


def pytest_benchmark_update_json(
    config: pytest.Config, benchmarks: list[Any], output_json: dict[str, Any]
) -> None:
    """Cases that crashed, were wrong or had too few samples are stored separately, not as benchmarks."""
    session = config.stash[KEY]
    output_json[MACHINES] = {str(board.number): v.recorded() for board, v in machines(session).items()}
    output_json[UNUSABLE] = [dict(bench.extra_info) for bench in benchmarks if bench.has_error]
    if len(session.boards) > 1:
        output_json["gpus"] = {str(board.number): board.gpu.info.as_dict() for board in session.boards}


def pytest_benchmark_update_commit_info(commit_info: dict[str, Any]) -> None:
    """Without git, as in a container, GEMM_COMMIT (or GITHUB_SHA) names the commit."""
    if commit_info.get("id") in (None, "unknown", "unversioned"):
        named = os.environ.get("GEMM_COMMIT") or os.environ.get("GITHUB_SHA")
        commit_info.clear()
        commit_info |= {"id": named or "unknown", "dirty": not named, "time": None}


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(benchmarks: list[Any]) -> Generator[None, Any, Any]:
    """The table's OPS are those of the median, which is judged: for this run and the one it is compared with.
    In JSON they remain pytest-benchmark's own, for other readers."""
    for benchmark in benchmarks:
        if benchmark["median"]:
            benchmark["ops"] = 1 / benchmark["median"]
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_scale_unit(config: Any, unit: str, benchmarks: list[Any]) -> tuple[str, float] | None:
    """Shows the operations of one problem as GFLOPS, ``OPS (GFLops/s)``, or its bytes."""
    infos = (b["extra_info"] for b in benchmarks if unit == "operations")
    work = {(info.get("flops"), info.get("unit", "GFLOPS")) for info in infos}
    if len(work) != 1:
        return None
    ((count, told),) = work
    return ("GFL" if told == "GFLOPS" else "GB", count / 1e9) if count else None


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Corrects the table's heads and legend accordingly."""
    write_line = terminalreporter.write_line

    def write_true_line(line: str, **markup: bool) -> None:
        write_line(_LEGEND if line.startswith("  OPS: ") else line.replace(*_BYTES), **markup)

    terminalreporter.write_line = write_true_line
    try:
        return (yield)
    finally:
        terminalreporter.write_line = write_line


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """A run with a failure is never saved, since it would become the next run's baseline."""
    made = getattr(session.config, "_benchmarksession", None)
    if made is not None and session.testsfailed and (made.save or made.autosave):
        made.save = made.autosave = None
        session.config.get_terminal_writer().line(
            "\nnot saved: a run with failures must not become the baseline of the next one", red=True
        )
    return (yield)
