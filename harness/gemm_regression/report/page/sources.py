"""What a report shows: stored baselines, the JSON of runs and of comparisons, the JUnit XML of tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemm_regression.baselines import Baseline, BaselineError
from gemm_regression.baselines.fields import File, checked, commit_of, machine_of, read_json
from gemm_regression.baselines.merge import read_file
from gemm_regression.baselines.store import derived, history, slugs
from gemm_regression.compiler.static.store import StoreError
from gemm_regression.counters.traffic import Known
from gemm_regression.judge.evidence import MACHINES, UNUSABLE
from gemm_regression.report.page import tested
from gemm_regression.report.page.tested import Tested
from gemm_regression.run.replay import SCHEMA
from gemm_regression.tune.stored import Tuned, find

_REMEDY = "give an exported baseline, or what `--benchmark-json`, `compare --json` or `--junitxml` wrote"


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


@dataclass(frozen=True)
class Source:
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
class Compared:
    """A comparison of two commits: the document that ``compare --json`` wrote."""

    label: str
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Content:
    """All that a report shows: the given ``runs`` and ``comparisons``; what is current of each GPU model,
    ``baselines``; all its measurements, by model, oldest first, ``histories``; ``tuned`` spaces; and the
    tests of given runs, ``tested``; and what is counted of their cases, ``known``."""

    runs: tuple[Source, ...] = ()
    comparisons: tuple[Compared, ...] = ()
    baselines: tuple[Source, ...] = ()
    histories: Mapping[str, Sequence[Baseline]] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()
    tested: tuple[Tested, ...] = ()
    known: Known = field(default_factory=Known)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Everything with times: runs first, then baselines, of the GPU of which most is measured first."""
        return (*self.runs, *self.baselines)


def gather(root: Path, files: Iterable[Path] = ()) -> Content:
    """The stored baselines of a folder and the given files. Raises BaselineError, in one line, for whatever
    cannot be read."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    histories = {name: history(root, name) for name in slugs(root)}
    tuned = tuple(one for name in folders for one in find(root, name))
    newest = [_of_baseline(derived(found)) for found in histories.values() if found]
    runs: list[Source] = []
    comparisons: list[Compared] = []
    tests: list[Tested] = []
    for path in files:
        read_one = tested.read(path) if path.suffix == ".xml" else read(path)
        if isinstance(read_one, Tested):
            tests.append(read_one)
        elif isinstance(read_one, Compared):
            comparisons.append(read_one)
        elif read_one.judged:
            runs.append(read_one)
        else:
            newest.append(read_one)
    try:
        known = Known.of(root)
    except StoreError as error:
        raise BaselineError(str(error)) from None
    most: dict[str, int] = {}
    for source in newest:
        most[source.gpu] = max(most.get(source.gpu, 0), len(source.cases))
    return Content(
        runs=tuple(_named_apart(runs)),
        comparisons=tuple(comparisons),
        baselines=tuple(sorted(_once(newest), key=lambda source: -most[source.gpu])),
        histories=histories,
        tuned=tuned,
        tested=tuple(tests),
        known=known,
    )


def read(path: Path) -> Source | Compared:
    """One file, whatever it is. Raises BaselineError."""
    document = read_json(path, _REMEDY)
    if "gemm_comparison" in document:
        if document["gemm_comparison"] != SCHEMA:
            raise BaselineError(f"{path}: comparison of another version ({SCHEMA} is read); compare again")
        return Compared(path.name, document)
    if "gemm_baseline" in document:
        return _of_baseline(read_file(path), f" {path.name}")
    try:
        checked(document, File)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; {_REMEDY}") from None
    machine, commit = machine_of(document), _commit_text(commit_of(document))
    cases = [
        Measured(b["extra_info"], machine, commit, b["stats"], tuple(b["stats"]["data"]))
        for b in document["benchmarks"]
    ]
    cases += [
        Measured(info, machine, commit, seconds=tuple(info.get("seconds", ())))
        for info in document.get(UNUSABLE, ())
    ]
    if not cases or any("verdict" not in one.info or "case" not in one.info for one in cases):
        raise BaselineError(f"{path}: contains no judged case; {_REMEDY}")
    label = f"{path.stem}: {machine['name']}, {document['datetime'][:16].replace('T', ' ')}"
    return Source(label, machine, document["datetime"], tuple(cases), True, document.get(MACHINES, {}))


def _of_baseline(baseline: Baseline, file: str = "") -> Source:
    cases = (
        Measured(entry.info, entry.machine, _commit_text(entry.commit_info), entry.stats)
        for entry in baseline.entries.values()
    )
    return Source(f"{baseline.name}: baseline{file}", baseline.machine_info, baseline.datetime, tuple(cases))


def _commit_text(commit: Mapping[str, Any]) -> str:
    return f"{str(commit.get('id') or 'unknown')[:12]}{' with changes' if commit.get('dirty') else ''}"


def _once(sources: Iterable[Source]) -> list[Source]:
    return list({source.label: source for source in sources}.values())


def _named_apart(sources: Sequence[Source]) -> list[Source]:
    """The same sources; labels that several have are numbered."""
    labels = [source.label for source in sources]
    return [
        replace(source, label=f"{source.label} ({number})") if labels.count(source.label) > 1 else source
        for number, source in enumerate(sources, start=1)
    ]
