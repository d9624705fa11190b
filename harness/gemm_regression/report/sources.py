"""What a report shows: stored baselines, the JSON of runs and of comparisons, the JUnit XML of tests; and
their verdicts, judged again from what is stored."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from pydantic import ValidationError

from gemm_regression.baselines import Baseline, BaselineError
from gemm_regression.baselines.merge import File, commit_of, machine_of, read_file
from gemm_regression.baselines.records import checked, read_json
from gemm_regression.baselines.store import derived, history, slugs
from gemm_regression.counters.traffic import TrafficData
from gemm_regression.files import fault, read_whole
from gemm_regression.hints import typed
from gemm_regression.judge import machine
from gemm_regression.judge.evidence import MACHINES, UNUSABLE, Evidence, conclude, recall
from gemm_regression.judge.vocabulary import Outcome, Verdict, VerdictKind, red
from gemm_regression.model import Finding
from gemm_regression.report import wording
from gemm_regression.report.failures import Failure, grouped
from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.run.replay import SCHEMA
from gemm_regression.run.replay import verdicts as compared_again
from gemm_regression.tune.stored import Tuned, find

_REMEDY = "give an exported baseline, or what `--benchmark-json`, `compare --json` or `--junitxml` wrote"
# What needs somebody to act comes first.
_ORDER = [
    *("FAILED", VerdictKind.WRONG, VerdictKind.NOT_COMPILED, VerdictKind.NOT_LAUNCHED, VerdictKind.CRASHED),
    *(VerdictKind.REGRESSED, VerdictKind.DRIFTED, VerdictKind.AMBIGUOUS, VerdictKind.NO_BASELINE),
    *(VerdictKind.ORPHAN, VerdictKind.IMPROVED, VerdictKind.PASS, VerdictKind.NOT_EMULATED),
    VerdictKind.REFUSED,
]


@dataclass(frozen=True)
class VerdictSummary:
    """A verdict in words.

    Attributes:
        source: the label of what said it.
        case: the case id; of failed tests, the kernel and the finding.
        verdict, reason: kind and reason code.
        red: whether it fails.
        message: the verdict in one line.
        evidence: what it is based on, as names and texts.
        command: judges the case again.
    """

    source: str
    case: str
    verdict: str
    reason: str
    red: bool
    message: str
    evidence: tuple[tuple[str, str], ...]
    command: str


@dataclass(frozen=True)
class Measured:
    """A case as stored: its ``extra_info``, the machine and the commit that it was measured with,
    pytest-benchmark's statistics of the seconds (empty without samples), and the seconds of each round (empty
    in a baseline)."""

    info: Mapping[str, Any]
    machine: Mapping[str, Any]
    commit: str
    stats: Mapping[str, Any] = field(default_factory=dict)
    seconds: tuple[float, ...] = ()

    @property
    def case(self) -> str:
        return str(self.info["case"])

    @property
    def median(self) -> float:
        """Seconds, of a case with samples."""
        return float(self.info.get("median_s") or self.stats["median"])


@dataclass(frozen=True)
class ReportSource:
    """A baseline or a run, with verdicts if ``judged``. ``label`` is unique in a report; ``machine`` is the
    newest measurement's; ``machines``: the verdicts on a run's machines, by the number of the GPU."""

    label: str
    machine: Mapping[str, Any]
    when: str
    cases: tuple[Measured, ...]
    judged: bool = False
    machines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def gpu(self) -> str:
        return str(self.machine["name"])


@dataclass(frozen=True)
class Tested:
    """A run's tests: how many, how many are ``red``, and why, equal findings of a kernel once: ``failed``."""

    label: str
    tests: int
    red: int
    failed: tuple[VerdictSummary, ...]


@dataclass(frozen=True)
class Content:
    """All that a report shows: the given ``runs``; the ``comparisons`` of two commits, each a label and what
    ``compare --json`` wrote; what is current of each GPU model, ``baselines``; all its measurements, by
    model, oldest first, ``histories``; ``tuned`` spaces; the tests of given runs, ``tested``; and what is
    counted of their cases, ``known``."""

    runs: tuple[ReportSource, ...] = ()
    comparisons: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    baselines: tuple[ReportSource, ...] = ()
    histories: Mapping[str, Sequence[Baseline]] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()
    tested: tuple[Tested, ...] = ()
    known: TrafficData = field(default_factory=TrafficData)

    @property
    def sources(self) -> tuple[ReportSource, ...]:
        """Everything with times: runs first, then baselines, of the GPU of which most is measured first."""
        return (*self.runs, *self.baselines)


def gather(root: Path, files: Iterable[Path] = ()) -> Content:
    """The stored baselines of a folder and the given files. Raises BaselineError and StoreError, in one line,
    for whatever cannot be read."""
    paths = list(files)
    tests = [path for path in paths if path.suffix == ".xml"]
    given = {path: read(path) for path in paths if path not in tests}
    histories = {slug: measured for slug in slugs(root) if (measured := history(root, slug))}
    sources = [*map(_of_baseline, map(derived, histories.values()))]
    sources += [one for one in given.values() if isinstance(one, ReportSource)]
    runs = _named_apart([one for one in sources if one.judged])
    baselines = {one.label: one for one in sources if not one.judged}.values()
    most = {one.gpu: len(one.cases) for one in sorted(baselines, key=lambda one: len(one.cases))}
    timed = {case.case for run in runs for case in run.cases}
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return Content(
        runs=tuple(runs),
        comparisons=tuple(
            (path.name, one) for path, one in given.items() if not isinstance(one, ReportSource)
        ),
        baselines=tuple(sorted(baselines, key=lambda one: -most[one.gpu])),
        histories=histories,
        tuned=tuple(one for name in folders for one in find(root, name)),
        tested=tuple(read_tests(path, timed) for path in tests),
        known=TrafficData.of(root),
    )


def read(path: Path) -> ReportSource | Mapping[str, Any]:
    """One file of JSON: a run, a baseline, or the document of a comparison. Raises BaselineError."""
    document = read_json(path, _REMEDY)
    if "gemm_comparison" in document:
        if document["gemm_comparison"] != SCHEMA:
            raise BaselineError(f"{path}: comparison of another version ({SCHEMA} is read); compare again")
        return document
    if "gemm_baseline" in document:
        return _of_baseline(read_file(path), f" {path.name}")
    try:
        checked(document, File)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; {_REMEDY}") from None
    about, commit = machine_of(document), _commit_text(commit_of(document))
    every = [(b["extra_info"], b["stats"], b["stats"]["data"]) for b in document["benchmarks"]]
    every += [(info, {}, info.get("seconds", ())) for info in document.get(UNUSABLE, ())]
    cases = tuple(Measured(info, about, commit, stats, tuple(seconds)) for info, stats, seconds in every)
    if not cases or any("verdict" not in one.info or "case" not in one.info for one in cases):
        raise BaselineError(f"{path}: contains no judged case; {_REMEDY}")
    label = f"{path.stem}: {about['name']}, {document['datetime'][:16].replace('T', ' ')}"
    return ReportSource(label, about, document["datetime"], cases, True, document.get(MACHINES, {}))


def _of_baseline(baseline: Baseline, file: str = "") -> ReportSource:
    cases = (
        Measured(entry.info, entry.machine, _commit_text(entry.commit_info), entry.stats)
        for entry in baseline.entries.values()
    )
    return ReportSource(
        f"{baseline.name}: baseline{file}", baseline.machine_info, baseline.datetime, tuple(cases)
    )


def _commit_text(commit: Mapping[str, Any]) -> str:
    return f"{str(commit.get('id') or 'unknown')[:12]}{' with changes' if commit.get('dirty') else ''}"


def _named_apart(sources: Sequence[ReportSource]) -> list[ReportSource]:
    """The same sources; labels that several have are numbered."""
    labels = [source.label for source in sources]
    return [
        replace(source, label=f"{source.label} ({number})") if labels.count(source.label) > 1 else source
        for number, source in enumerate(sources, start=1)
    ]


def read_tests(path: Path, timed: Collection[str] = ()) -> Tested:
    """The tests in a file, but for the ``timed`` cases, which a run's JSON describes better. Raises
    BaselineError for one that is not pytest's JUnit XML."""
    remedy = "give what pytest's --junitxml wrote of this suite's tests"
    try:
        tests = list(ElementTree.fromstring(read_whole(path)).iter("testcase"))
    except OSError as error:
        raise BaselineError(f"{path}: cannot be read ({error.strerror})") from None
    except ElementTree.ParseError as error:
        raise BaselineError(f"{path}: not valid XML: truncated or damaged ({error}); {remedy}") from None
    if not tests:
        raise BaselineError(f"{path}: contains no test; {remedy}")
    failures = [failure for test in tests if (failure := _failure(test))]
    told, said = tuple(f"::test_performance[{case}]" for case in timed), []
    for group in grouped(one for one in failures if not one.test.endswith(told)):
        first, variants = group.tests[0], ", ".join(sorted(filter(None, group.variants))) or "–"
        evidence = (("tests", str(len(group.tests))), ("variants", variants), ("first", first))
        command = typed("gpu" if "::test_performance[" in first else "judge", f'"{first}"')
        text = group.finding.message
        said.append(VerdictSummary(path.name, group.title, "FAILED", "", True, text, evidence, command))
    return Tested(path.name, len(tests), len(failures), tuple(said))


def _failure(test: ElementTree.Element) -> Failure | None:
    told = next((one for one in test if one.tag in ("failure", "error")), None)
    if told is None:
        return None
    said = [(p.get("name", ""), p.get("value", "")) for p in test.iter("property")]
    head, _, rest = (told.text or told.get("message") or "").partition("\n")
    findings = [Finding.from_json(value) for name, value in said if name == "finding"]
    node = f"{test.get('classname', '').replace('.', '/')}.py::{test.get('name')}"
    return Failure(node, dict(said).get("variant", ""), tuple(findings or [Finding(head, rest)]))


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raises BaselineError, in one line, for what is not as a run or a comparison stores it."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        other = f"not a verdict of this suite ({error})"
        said = fault(error) if isinstance(error, ValidationError) else other
        raise BaselineError(f"{what}: {said}") from None


def judged(content: Content) -> list[VerdictSummary]:
    """Every verdict of the runs and comparisons, and why tests failed. Raises BaselineError for what cannot
    be judged again."""
    of_runs = [one for source in content.runs for one in of_run(source)]
    of_pairs = [one for each in content.comparisons for one in of_comparison(*each)]
    return [*of_runs, *(one for each in content.tested for one in each.failed), *of_pairs]


def of_run(source: ReportSource) -> list[VerdictSummary]:
    """The verdicts of a run on its cases and its machines. Raises BaselineError."""
    said, allowed = [], False
    for one in source.cases:
        with _readable(f"{source.label}: {one.case}"):
            evidence, policy = recall(one.info, one.seconds)
            verdict = conclude(evidence, policy)
        allowed, fails = not policy.fail_on_drift, verdict.failed(policy)
        text = wording.told(one.case, verdict, evidence, one.info.get("unit", "GFLOPS"))
        command = wording.following(one.case, verdict)
        found = tuple(_evidence(verdict, evidence, one.info))
        said.append(VerdictSummary(source.label, one.case, *verdict.outcome, fails, text, found, command))
    for number, recorded in source.machines.items():
        name = f"machine of GPU {number}"
        with _readable(f"{source.label}: {name}"):
            on = machine.again(recorded)
        first, *more = wording.machine_lines(on)
        found, fails = tuple(("found", line.strip()) for line in more), on.failed and not allowed
        said.append(VerdictSummary(source.label, name, on.kind, on.reason, fails, first, found, typed("gpu")))
    return in_order(said)


def _evidence(v: Verdict, e: Evidence, info: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    unit = info.get("unit", "GFLOPS")
    if v.gflops is not None:
        yield unit, f"{gflops_text(v.gflops)}, baseline {gflops_text(v.baseline_gflops)}"
        how = "side by side" if e.paired else "from the stored figure"
        yield f"change of {unit}", f"{percent_text(v.change, 2)}, {how}"
    if (p := e.paired) and p.log_ratios and p.miss is not None:
        second = f", {len(p.second)} in a second process, which decide" if p.second else ""
        yield "pair", f"{len(p.log_ratios)} blocks{second}; {_miss(p.miss)}"
    if r := e.reference:
        yield "baseline", f"commit {r.commit[:12] or 'unknown'}, board {r.board or 'unknown'}"
    if o := e.seen:
        values = ((o.sm_clock_mhz, "MHz"), (o.power_w, "W"), (o.temperature_c, "°C"))
        known = [f"{value:.0f} {unit}" for value, unit in values if value]
        yield "GPU", ", ".join((*known, _reasons(o.clock_event_reasons)))
        if o.launch:
            yield "launch", o.launch
        yield "rounds", f"{len(o.seconds)}, L2 {o.l2}; discarded {info.get('discarded', 0)}"
        if e.reference and o.cubin_sha256:
            same = o.cubin_sha256 == e.reference.cubin_sha256
            yield "binary", "the baseline's" if same else "differs from the baseline's"
    recorded = f"{info['verdict']} {info.get('verdict_reason', '')}".strip()
    if recorded != str(v.outcome):
        yield "recorded as", recorded


def _reasons(bits: int) -> str:
    return f"clock-event reasons: {wording.reasons_text(bits)}"


def _miss(share: float) -> str:
    return f"probability of a false verdict {100 * share:.2g} %"


def of_comparison(label: str, document: Mapping[str, Any]) -> list[VerdictSummary]:
    """The verdicts of a comparison, from its samples; a control that failed is told by the cases that it
    leaves unjudged. Raises BaselineError for a document that cannot be judged."""
    with _readable(label):
        controls, outcomes = compared_again(document)
        base = document["base"]["name"]
        if nvcc := document["base"]["nvcc"]:
            base = f"--nvcc NVCC {base}".rstrip() + f"  # NVCC is nvcc {nvcc}"
        made = [_of_pair(label, base, record, outcomes[record["case"]]) for record in document["cases"]]
        for record, outcome in zip(document["controls"], controls, strict=True):
            told = _of_pair(f"{label}, control", base, {**record, "detail": record["why"]}, outcome)
            made.append(replace(told, red=False))
    return in_order(made)


def _of_pair(label: str, base: str, record: Mapping[str, Any], outcome: Outcome) -> VerdictSummary:
    case, found = record["case"], []
    message = f"{case}: {record['detail'] or outcome.reason}"
    if record.get("change") is not None:
        change, low, high = (percent_text(each, 2) for each in (record["change"], *record["interval"]))
        blocks = len(record.get("second") or record["log_ratios"])
        message = f"{case}: its time changes by {change} ({low} … {high}) in {blocks} blocks"
        found.append(("margin", f"{percent_text(record['margin'], 2)}; {_miss(record['miss'])}"))
    if "base_s" in record:
        found.append(("time", f"{1e6 * record['base_s']:.2f} µs → {1e6 * record['new_s']:.2f} µs"))
        found.append(("change in SM cycles", percent_text(record["cycles_change"], 2)))
        discarded = f"launches discarded: {record['discarded']}"
        found.append(("GPU", f"{_reasons(record['clock_event_reasons'])}; {discarded}"))
    more = (("beside", record.get("base", "")), ("detail", record["detail"]))
    found += [(what, text) for what, text in more if text]
    command = typed("compare", f'-k "[{case}]" {base}')
    return VerdictSummary(label, case, *outcome, red(outcome), message, tuple(found), command)


def in_order(said: Iterable[VerdictSummary]) -> list[VerdictSummary]:
    """Red ones first, then by the kind of verdict."""
    return sorted(said, key=lambda one: (not one.red, _ORDER.index(one.verdict)))


def counts(said: Iterable[VerdictSummary]) -> list[tuple[str, int, bool]]:
    """Each kind of verdict with its number, and whether any of them is red; in the order of a report."""
    said = in_order(said)
    red_ones = {one.verdict for one in said if one.red}
    return [(kind, many, kind in red_ones) for kind, many in Counter(one.verdict for one in said).items()]
