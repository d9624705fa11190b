"""Every verdict of a run or a comparison: what was said, on which evidence, and how to see it again."""

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
from gemm_regression.report import wording
from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.report.machine import machine_lines
from gemm_regression.report.page.said import Said
from gemm_regression.report.page.sources import Compared, Measured, Source
from gemm_regression.run.replay import verdicts as compared_again

# The order of a report: what needs somebody to act comes first.
ORDER = (
    *("FAILED", VerdictKind.WRONG, VerdictKind.CRASHED, VerdictKind.REGRESSED, VerdictKind.DRIFTED),
    *(VerdictKind.AMBIGUOUS, VerdictKind.NO_BASELINE, VerdictKind.ORPHAN, VerdictKind.IMPROVED),
)


def of_run(source: Source) -> list[Said]:
    """The verdicts of a run on its cases and its machines, judged again from its evidence. Raises
    BaselineError for what cannot be read."""
    cases = [_of_case(source.label, one) for one in source.cases]
    machines = [_of_machine(source, number, one) for number, one in source.machines.items()]
    return in_order([*machines, *cases])


def _of_machine(source: Source, number: str, recorded: Mapping[str, Any]) -> Said:
    name = f"machine of GPU {number}"
    try:
        verdict = machine_again(recorded)
        allowed = any(not recall(one.info, one.seconds)[1].fail_on_drift for one in source.cases[:1])
    except (KeyError, TypeError, ValueError) as error:
        raise BaselineError(f"{source.label}: {name}: not a verdict of this suite ({error})") from None
    first, *more = machine_lines(verdict)
    found = tuple(("found", line.strip()) for line in more)
    fails = verdict.failed and not allowed
    return Said(source.label, name, str(verdict.kind), verdict.reason, fails, first, found, "nox -s gpu")


def _of_case(label: str, one: Measured) -> Said:
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
    return Said(
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


def of_comparison(compared: Compared) -> list[Said]:
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


def _of_pair(label: str, base: str, record: Mapping[str, Any], outcome: Outcome) -> Said:
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
    return Said(label, case, str(outcome.kind), outcome.reason, red(outcome), message, tuple(found), command)


def in_order(said: Iterable[Said]) -> list[Said]:
    """Red ones first, then by the kind of verdict."""
    ranks = {str(kind): rank for rank, kind in enumerate(ORDER)}
    return sorted(said, key=lambda one: (not one.red, ranks.get(one.verdict, len(ranks))))


def counts(said: Sequence[Said]) -> list[tuple[str, int, bool]]:
    """Each kind of verdict with its number, and whether any of them is red; in the order of a report."""
    number = Counter(one.verdict for one in in_order(said))
    red = {one.verdict for one in said if one.red}
    return [(kind, many, kind in red) for kind, many in number.items()]
