"""A verdict in one line: the numbers, the reason, and the command to run next."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from gemm_regression.baselines import Baseline
from gemm_regression.judge.evidence import MIN_SAMPLES, Evidence
from gemm_regression.judge.paired import (
    BASE_UNUSABLE,
    BINARY_NOT_KEPT,
    CONTROL_FAILED,
    FASTER,
    LIBRARY,
    MAYBE_SLOWER,
    NOT_PAIRED,
    NOT_SLOWER,
    SLOWER,
    Paired,
)
from gemm_regression.judge.vocabulary import (
    DEFAULT_MARGIN,
    NO_BASELINE_FILE,
    NOT_IN_BASELINE,
    NOT_RED,
    Exceeded,
    Observation,
    Policy,
    Reference,
    Verdict,
    VerdictKind,
)
from gemm_regression.model import CaseId
from gemm_regression.report.figures import gflops_text, percent_text
from gemm_regression.run.checked import UNSUPPORTED, Checked

# NVML's clock-event reasons (nvmlClocksEventReasons in its API reference): why the clock is not higher.
_CLOCK_EVENT_REASONS = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "software power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
    0x100: "display clocks",
}
_COMMIT = re.compile("[0-9a-f]{7,64}")
_LISTED, _KERNELS = 5, 3  # cases, or kernels, that a command names one by one
_BEYOND = {
    SLOWER: "more than",
    MAYBE_SLOWER: "which may be more than",
    NOT_SLOWER: "not more than",
    FASTER: "faster by more than",
}
_WITHOUT_PAIR = {
    LIBRARY: "a library call",
    NOT_PAIRED: "another binary than the baseline's, which was not timed beside it",
}
_UNUSABLE: Mapping[str, Callable[[Observation], str]] = {
    "IMPOSSIBLE_SAMPLE": lambda o: (
        f"{min(o.seconds):g} s is not a valid duration; the timer is broken, check the driver"
    ),
    "TOO_FEW_SAMPLES": lambda o: f"{len(o.seconds)} valid rounds, {MIN_SAMPLES} are needed",
}


def message(case_id: str, v: Verdict, e: Evidence, policy: Policy) -> str:
    """The message of a verdict: what was found, and the command to run next where there is something to do.
    One line, but for what a compiler or a device said."""
    text = told(case_id, v, e, policy)
    if e.error or v.kind in NOT_RED:
        return text
    what = "; measure it" if _stores(v) else ". Reproduce"
    return f"{text}{what}: {following(case_id, v)}"


def told(case_id: str, v: Verdict, e: Evidence, policy: Policy) -> str:
    """What was found."""
    if e.error:
        return e.error[1]
    said = [_exceeded(v.exceeded)] if v.exceeded else []
    if e.seen and v.reason in _UNUSABLE:
        said.append(_UNUSABLE[v.reason](e.seen))
    elif e.paired:
        said.append(paired_text(e.paired, _set_by(e.reference, policy)))
        if e.seen and e.paired.change is not None:
            said.append(f"{gflops_text(v.gflops)} GFLOPS")
    elif e.seen:
        said.append(f"{gflops_text(v.gflops)} GFLOPS{_alone(v)}")
    return f"{case_id}: {'; '.join(said).replace(f'{case_id}: ', '')}"


def following(case_id: str, v: Verdict) -> str:
    """The command to run after a verdict."""
    if v.reason == NO_BASELINE_FILE:
        return "nox -s baseline"
    return refresh(case_id) if _stores(v) else judge_again(case_id)


def _stores(v: Verdict) -> bool:
    """Whether it is the baseline that lacks something."""
    return v.kind is VerdictKind.NO_BASELINE or v.outcome == BASE_UNUSABLE


def paired_text(p: Paired, set_by: str = "") -> str:
    """The result of a pair; ``set_by``: who has set the margin, told where it is not the default."""
    base = p.base
    if base in ("", "unknown") or _COMMIT.fullmatch(base):
        base = "the baseline's binary" + (f" (commit {base[:12]})" if _COMMIT.fullmatch(base) else "")
    if p.change is None or p.interval is None or p.margin is None:
        what = {
            BASE_UNUSABLE: f"{base} does not run here: ",
            BINARY_NOT_KEPT: "",
            CONTROL_FAILED: "not judged, ",
        }
        return f"{what.get(p.outcome, f'beside {base}: ')}{p.detail}"
    low, high = (percent_text(end, 2) for end in p.interval)
    change = f"{percent_text(p.change, 2)} ({low.removesuffix(' %')} … {high})"
    second = " in a second process" if p.second else ""
    margin = f"the margin of {100 * (p.needed or p.margin):.3g} %"
    if p.needed:
        margin += f" (its own noise is too much for {100 * p.margin:.3g} %)"
    elif set_by and p.margin != DEFAULT_MARGIN:
        margin += f" ({set_by})"
    return f"its time changes by {change} beside {base}{second}, {_BEYOND[p.outcome]} {margin}"


def _set_by(reference: Reference | None, policy: Policy) -> str:
    """Who has set the margin that judged, in the order of `Policy.margin_of`."""
    if policy.margin is not None:
        return "--margin"
    stored = reference is not None and reference.margin is not None
    return "stored with the baseline" if stored else "declared by the kernel"


def _alone(v: Verdict) -> str:
    """What follows the GFLOPS of a case without a pair."""
    if v.reason == NO_BASELINE_FILE:
        return "; this GPU has no baseline"
    if v.reason == NOT_IN_BASELINE:
        return "; not in the baseline"
    what = _WITHOUT_PAIR.get(v.outcome, "the baseline's own binary")
    return f", baseline {gflops_text(v.baseline_gflops)} ({percent_text(v.change, 2)}); {what}"


def _exceeded(x: Exceeded) -> str:
    limit = f"{x.check.percent:g} %" if x.check.seconds is None else f"{x.check.seconds:g} s"
    return (
        f"{x.check.field} {x.now:.4g} s, baseline {x.then:.4g} s, more than {limit} slower "
        "(--benchmark-compare-fail)"
    )


def checked_text(c: Checked) -> str:
    """The result of checking a case, in one line; for wrong results one more line per finding."""
    kind, reason = c.outcome
    said = [*map(str, c.findings), *c.reasons]
    if kind is VerdictKind.WRONG:
        return "\n".join([f"{kind}: {c.name}", *said])
    if kind is VerdictKind.NOT_EMULATED:
        return f"{kind}: {c.kernel.name} needs {', '.join(c.kernel.features)}: {said[0]}"
    text = f"{kind}: {c.name}: {reason}: {'; '.join(said)}"
    if reason == UNSUPPORTED:
        text += (
            "; if this is intended, declare it: "
            f'Kernel(name="{c.kernel.name}", …, features=("wgmma",)), and it is checked on a GPU only'
        )
    return text


def baseline_text(baseline: Baseline | None, board: str | None) -> str:
    """What a GPU is compared with, and how much of it this board has measured."""
    if baseline is None:
        return "none"
    boards = [entry.board for entry in baseline.entries.values()]
    own = len([one for one in boards if one and one == board])
    return f"{baseline.slug}, {len(boards)} cases, {own} of them measured on this board"


def some(ids: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    return f"{', '.join(ids[:_LISTED])}{more}"


def orphans_text(case_ids: Iterable[str]) -> str:
    """The message of ORPHAN for these cases."""
    ids = list(case_ids)
    return (
        f"{VerdictKind.ORPHAN}: {len(ids)} baseline cases are no longer in the suite: {some(ids)}. "
        "Remove them with `python -m gemm_regression baseline prune`, or pass --allow-orphans"
    )


def reasons_text(bits: int) -> str:
    """NVML's clock-event reasons as text, or ``none``."""
    words = [word for bit, word in _CLOCK_EVENT_REASONS.items() if bits & bit]
    if unknown := bits & ~sum(_CLOCK_EVENT_REASONS):
        words.append(f"{unknown:#x}")
    return ", ".join(words) or "none"


def judge_again(case_id: str) -> str:
    """The command that judges a case again."""
    return f'nox -s gpu -- -k "[{case_id}]"'


def refresh(case_id: str) -> str:
    """The command that re-measures a case. In brackets, the id matches no longer id that contains it."""
    return f'nox -s baseline -- -k "[{case_id}]"'


def refresh_several(chosen: Sequence[str], timed: Collection[str]) -> str:
    """The command that re-measures these of the cases that a run ``timed``: by their ids up to five, by their
    kernels up to three that have few others, otherwise all."""
    if len(chosen) <= _LISTED:
        return f'nox -s baseline -- -k "{" or ".join(f"[{case}]" for case in chosen)}"'
    kernels = dict.fromkeys(CaseId.parse(case).kernel for case in chosen)
    of_them = [case for case in timed if CaseId.parse(case).kernel in kernels]
    if len(kernels) > _KERNELS or len(of_them) == len(timed) or 2 * len(chosen) < len(of_them):
        return "nox -s baseline"
    return f"nox -s baseline -- {' '.join(f'--kernel {name}' for name in kernels)}"


def no_baseline(gpu: str) -> str:
    """The one failure of a run on a GPU that has no baseline."""
    return (
        f"{VerdictKind.NO_BASELINE}: {gpu} has no baseline yet, so no timed case can be judged; measure one: "
        "nox -s baseline"
    )
