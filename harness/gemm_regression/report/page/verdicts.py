"""Every verdict of a run or a comparison: what was said, on which evidence, and how to see it again; and the
essentials of a report as Markdown, for a job summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from gemm_regression.baselines import BaselineError
from gemm_regression.files import fault
from gemm_regression.judge.evidence import Evidence, conclude, recall
from gemm_regression.judge.machine import again as machine_again
from gemm_regression.judge.paired import red
from gemm_regression.judge.vocabulary import Outcome, Verdict, VerdictKind
from gemm_regression.model import Kernel
from gemm_regression.report import wording
from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.report.markdown import safe, table_text
from gemm_regression.report.notes import machine_lines
from gemm_regression.report.page import charts, records
from gemm_regression.report.page.sources import Compared, Content, Measured, Source, VerdictSummary, without
from gemm_regression.run.replay import verdicts as compared_again

# The order of a report: what needs somebody to act comes first.
ORDER = (
    *("FAILED", VerdictKind.WRONG, VerdictKind.CRASHED, VerdictKind.REGRESSED, VerdictKind.DRIFTED),
    *(VerdictKind.AMBIGUOUS, VerdictKind.NO_BASELINE, VerdictKind.ORPHAN, VerdictKind.IMPROVED),
)


def of_run(source: Source) -> list[VerdictSummary]:
    """The verdicts of a run on its cases and its machines, judged again from its evidence. Raises
    BaselineError for what cannot be read."""
    cases = [_of_case(source.label, one) for one in source.cases]
    machines = [_of_machine(source, number, one) for number, one in source.machines.items()]
    return in_order([*machines, *cases])


def _of_machine(source: Source, number: str, recorded: Mapping[str, Any]) -> VerdictSummary:
    name = f"machine of GPU {number}"
    try:
        verdict = machine_again(recorded)
        allowed = any(not recall(one.info, one.seconds)[1].fail_on_drift for one in source.cases[:1])
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"{source.label}: {name}: not a verdict of this suite ({error})") from None
    first, *more = machine_lines(verdict)
    found = tuple(("found", line.strip()) for line in more)
    fails = verdict.failed and not allowed
    return VerdictSummary(
        source.label, name, str(verdict.kind), verdict.reason, fails, first, found, "nox -s gpu"
    )


def _of_case(label: str, one: Measured) -> VerdictSummary:
    try:
        evidence, policy = recall(one.info, one.seconds)
        verdict = conclude(evidence, policy)
    except ValidationError as error:
        raise BaselineError(f"{label}: {one.case}: {fault(error)}") from None
    except (ValueError, KeyError) as error:
        raise BaselineError(f"{label}: {one.case}: {error}") from None
    recorded = f"{one.info['verdict']} {one.info.get('verdict_reason', '')}".strip()
    found = list(_evidence(verdict, evidence, one.info))
    if recorded != str(verdict.outcome):
        found.append(("recorded as", recorded))
    return VerdictSummary(
        label,
        one.case,
        verdict.kind.value,
        verdict.reason,
        verdict.failed(policy),
        wording.told(one.case, verdict, evidence, policy),
        tuple(found),
        wording.following(one.case, verdict),
    )


def _evidence(v: Verdict, e: Evidence, info: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if v.gflops is not None:
        yield "GFLOPS", f"{gflops_text(v.gflops)}, baseline {gflops_text(v.baseline_gflops)}"
        how = "side by side" if e.paired else "from the stored figure"
        yield "change of GFLOPS", f"{percent_text(v.change, 2)}, {how}"
    if (p := e.paired) and p.log_ratios and p.miss is not None:
        second = f", {len(p.second)} in a second process, which decide" if p.second else ""
        yield (
            "pair",
            f"{len(p.log_ratios)} blocks{second}; probability of a false verdict {100 * p.miss:.2g} %",
        )
    if r := e.reference:
        yield "baseline", f"commit {r.commit[:12] or 'unknown'}, board {r.board or 'unknown'}"
    if o := e.seen:
        values = ((o.sm_clock_mhz, "MHz"), (o.power_w, "W"), (o.temperature_c, "°C"))
        known = [f"{value:.0f} {unit}" for value, unit in values if value]
        reasons = f"clock-event reasons: {wording.reasons_text(o.clock_event_reasons)}"
        yield "GPU", ", ".join((*known, reasons))
        if o.launch:
            yield "launch", o.launch
        yield "rounds", f"{len(o.seconds)}, L2 {o.l2}; discarded {info.get('discarded', 0)}"
        if e.reference and o.cubin_sha256:
            same = o.cubin_sha256 == e.reference.cubin_sha256
            yield "binary", "the baseline's" if same else "differs from the baseline's"


def of_comparison(compared: Compared) -> list[VerdictSummary]:
    """The verdicts of a comparison, from its samples; a control that failed is told by the cases that it
    leaves unjudged. Raises BaselineError for a document that cannot be judged."""
    document, label = compared.document, compared.label
    try:
        controls, judged = compared_again(document)
        base = document["base"]["name"]
        if nvcc := document["base"]["nvcc"]:
            base = f"--nvcc NVCC {base}".rstrip() + f"  # NVCC is nvcc {nvcc}"
        made = [_of_pair(label, base, record, judged[record["case"]]) for record in document["cases"]]
        of_controls = zip(document["controls"], controls, strict=True)
        made += [
            replace(_of_pair(f"{label}, control", base, {**r, "detail": r["why"]}, outcome), red=False)
            for r, outcome in of_controls
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"{label}: not a comparison of this suite ({error})") from None
    return in_order(made)


def _of_pair(label: str, base: str, record: Mapping[str, Any], outcome: Outcome) -> VerdictSummary:
    case = record["case"]
    found = []
    message = f"{case}: {record['detail'] or outcome.reason}"
    if record.get("change") is not None:
        low, high = record["interval"]
        blocks = len(record.get("second") or record["log_ratios"])
        message = (
            f"{case}: its time changes by {percent_text(record['change'], 2)} "
            f"({percent_text(low, 2)} … {percent_text(high, 2)}) in {blocks} blocks"
        )
        found.append(("margin", percent_text(record["margin"], 2)))
        found.append(("probability of a false verdict", f"{100 * record['miss']:.2g} %"))
    if "base_s" in record:
        found.append(("time", f"{1e6 * record['base_s']:.2f} µs → {1e6 * record['new_s']:.2f} µs"))
        found.append(("change in SM cycles", percent_text(record["cycles_change"], 2)))
        reasons = wording.reasons_text(record["clock_event_reasons"])
        found.append(("GPU", f"clock-event reasons: {reasons}; launches discarded: {record['discarded']}"))
    if record.get("base"):
        found.append(("beside", record["base"]))
    if record["detail"]:
        found.append(("detail", record["detail"]))
    command = f'nox -s compare -- -k "[{case}]" {base}'
    return VerdictSummary(
        label, case, str(outcome.kind), outcome.reason, red(outcome), message, tuple(found), command
    )


def in_order(said: Iterable[VerdictSummary]) -> list[VerdictSummary]:
    """Red ones first, then by the kind of verdict."""
    ranks = {str(kind): rank for rank, kind in enumerate(ORDER)}
    return sorted(said, key=lambda one: (not one.red, ranks.get(one.verdict, len(ranks))))


def counts(said: Sequence[VerdictSummary]) -> list[tuple[str, int, bool]]:
    """Each kind of verdict with its number, and whether any of them is red; in the order of a report."""
    number = Counter(one.verdict for one in in_order(said))
    red = {one.verdict for one in said if one.red}
    return [(kind, many, kind in red) for kind, many in number.items()]


def judged(content: Content) -> list[VerdictSummary]:
    """Every verdict of the runs and comparisons, and why tests failed. Raises BaselineError."""
    of_runs = [one for source in content.runs for one in of_run(source)]
    known = {one.case for one in of_runs}
    of_tests = [one for each in content.tested for one in without(each, known)]
    of_pairs = [one for each in content.comparisons for one in of_comparison(each)]
    return [*of_runs, *of_tests, *of_pairs]


_MOST = 20  # rows of a table that may have any number


def markdown(content: Content, kernels: Sequence[Kernel]) -> str:
    """Verdicts, the failures in full, the ladder of the newest source and what changed over the history.
    Raises BaselineError as `judged`."""
    said = judged(content)
    parts = []
    for label in dict.fromkeys(one.source for one in said):
        parts += _verdicts(label, [one for one in said if one.source == label])
    for each in content.tested:
        parts.append(f"{safe(each.label)}: {each.tests} tests, {each.red} failed.")
    declared = records.variants(kernels)
    for source in content.sources[:1]:
        parts += _ladder(source, declared)
    parts += _history(content)
    return "\n\n".join(parts or ["Nothing is measured yet: `nox -s baseline` on a GPU."]) + "\n"


def _first_line(one: VerdictSummary) -> str:
    line = one.message.partition("\n")[0]
    return line if line.startswith(one.case) else f"{one.case}: {line}"


def _verdicts(label: str, said: Sequence[VerdictSummary]) -> list[str]:
    red = [one for one in said if one.red]
    numbers = ", ".join(f"{number} {kind}" for kind, number, _ in counts(said))
    parts = [f"## {'Red' if red else 'Green'}: {safe(label)}: {numbers}"]
    parts += [
        f"- **{f'{one.verdict} {one.reason}'.strip()}** {safe(_first_line(one))}\n\n  `{one.command}`"
        for one in red[:_MOST]
    ]
    if len(red) > _MOST:
        parts.append(f"… and {len(red) - _MOST} more")
    return parts


def _ladder(source: Source, declared: records.Variants) -> list[str]:
    measured = records.cases([source], declared)
    problem = records.usual_problem(measured)
    shown = sorted((r for r in measured if r["best"] and r["problem"] == problem), key=lambda r: r["order"])
    if not shown:
        return []
    rows = (
        (
            *(r["stage"], r["dtype"], r["config"], gflops_text(r["gflops"])),
            "–" if r["share"] is None else f"{r['share']:.1f}",
            "–" if r["speedup"] is None else f"{r['speedup']:.2f}",
            f"{r['ms']:.4g}",
            f"{r.get('board', 'unknown')}, {r['commit'][:8]}",
        )
        for r in shown
    )
    heads = ("stage", "dtype", "best config", "GFLOPS", "% of cuBLAS", "× naive", "ms", "board, commit")
    return [
        f"### {safe(source.label)}, {problem}",
        table_text(heads, "lllrrrrl", rows),
    ]


def _history(content: Content) -> list[str]:
    found = charts.change_points(content.histories)
    if not found:
        return []
    slower = sum(one[2] for one in found)
    rows = (
        (
            *(("**slower** " if is_slower else "") + move.case, move.at, move.commit),
            *(gflops_text(move.gflops[0]), gflops_text(move.gflops[1]), percent_text(move.change, 2)),
        )
        for _, move, is_slower in found[:_MOST]
    )
    heads = ("case", "measurement", "commit", "GFLOPS before", "after", "change")
    said = f"### History: {len(found)} change points, {slower} of cases that are slower now"
    return [said, table_text(heads, "lllrrr", rows)]
