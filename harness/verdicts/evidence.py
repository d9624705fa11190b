"""All that decides a verdict, in one place: concluded from while it grows, stored, concluded from again.

Pure. `gate.run` gathers the evidence; `python -m harness evidence RUN.json` judges every case of a run's
JSON again, by what the run recorded alone: kernels may have been renamed or removed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.baselines import BaselineEntry
from harness.baselines.fields import BaselineError, need, read_json
from harness.model import F32, BlockShape, Case, Config, Kernel, Launch, Resources, find_problem
from harness.timing.measurement import Measurement
from harness.verdicts.judge import (
    CONFIRMED,
    CompareFail,
    Paired,
    Policy,
    Verdict,
    broken,
    confirm,
    judge,
    settle,
    shared,
    unpaired,
)

_MEASURED = (
    *("seconds", "sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons", "throttled"),
    *("l2", "duty"),
)
_STORED = ("median_s", "gflops", "noise_floor", "cubin_sha256", "l2", "duty", "sm_clock_mhz")


@dataclass(frozen=True)
class Evidence:
    """``first`` what was measured, ``second`` what a fresh worker measured, ``paired`` what came of a pair;
    ``stored`` False where this GPU has no baseline; ``differences`` and ``decisive`` are those of `drift`,
    ``others`` the processes that came to the GPU; ``error`` the code and text of what the device could not
    do, and then ``first`` may be None."""

    first: Measurement | None = None
    entry: BaselineEntry | None = None
    stored: bool = True
    second: Measurement | None = None
    paired: Paired | None = None
    differences: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    error: tuple[str, str] | None = None

    @property
    def path(self) -> str:
        """How the verdict was come to, in words."""
        steps = ["against the baseline" if self.entry else "no baseline"]
        if self.second:
            steps.append("again in a fresh worker")
        if self.paired:
            steps.append(
                f"beside commit {self.paired.commit[:12]}" if self.paired.kind != "IMPOSSIBLE" else "no pair"
            )
        return ", ".join(steps)


def conclude(case: Case, e: Evidence, policy: Policy) -> Verdict:
    """The verdict on all that is known so far."""
    if e.error:
        return broken(*e.error)
    verdict = confirmed(case, e, policy)
    if e.others:
        return shared(case, verdict, e.others)
    if verdict.reason != CONFIRMED or e.second is None or e.entry is None:
        return verdict
    if e.paired is not None:
        verdict = settle(case, verdict, e.paired, e.differences)
    return verdict if verdict.reason != CONFIRMED else unpaired(case, verdict, e.second, e.entry, e.decisive)


def confirmed(case: Case, e: Evidence, policy: Policy) -> Verdict:
    """The verdict without a pair: one is wanted where its reason is CONFIRMED."""
    if e.first is None:
        raise ValueError(f"{case.id} was not measured")
    verdict = judge(case, e.first, e.entry, policy, stored=e.stored)
    if e.second is None or e.entry is None:
        return verdict
    return confirm(case, verdict, e.second, e.entry, policy, e.differences)


# Stored with a run


def told(case: Case, e: Evidence, policy: Policy) -> dict[str, Any]:
    """The evidence as JSON can hold it. Samples that pytest-benchmark stores itself are left out."""
    last = e.second or e.first
    entry = e.entry and {
        "info": {k: e.entry.info[k] for k in _STORED if k in e.entry.info} | {"launch": e.entry.launch},
        "stats": dict(e.entry.stats) if policy.compare_fail else {},
    }
    return {
        "policy": asdict(policy),
        "kernel_threshold": case.kernel.threshold,
        "library": case.kernel.library,
        "launch": str(case.launch),
        "stored": e.stored,
        "baseline": entry,
        "measured": _measured(last) if last else None,
        "first": _measured(e.first) | {"seconds": list(e.first.seconds)} if e.first and e.second else None,
        "paired": e.paired and asdict(e.paired),
        "differences": list(e.differences),
        "decisive": list(e.decisive),
        "others": list(e.others),
        "error": e.error and list(e.error),
    }


def _measured(m: Measurement) -> dict[str, Any]:
    cubin = m.resources.cubin_sha256 if m.resources else None
    return {name: getattr(m, name) for name in _MEASURED[1:]} | {"cubin_sha256": cubin}


def again(info: Mapping[str, Any], seconds: Sequence[float]) -> tuple[Verdict, Policy]:
    """The verdict, and the policy it is under, from what a run stored of a case (`gate.extra_info`) and the
    samples of its last measurement.

    Raises KeyError, TypeError or ValueError where something is missing or is not what a run stores.
    """
    e = info["evidence"]
    checks = tuple(CompareFail(**check) for check in e["policy"]["compare_fail"])
    policy = Policy(**{**e["policy"], "compare_fail": checks})
    last = _measurement({**e["measured"], "seconds": seconds}) if e["measured"] else None
    first = _measurement(e["first"]) if e["first"] else None
    entry = None
    if e["baseline"]:
        entry = BaselineEntry("", "", e["baseline"]["stats"], {"case": info["case"], **e["baseline"]["info"]})
    paired = Paired(**e["paired"]) if e["paired"] else None
    said = {name: tuple(e.get(name, ())) for name in ("differences", "decisive", "others")}
    error = (e["error"][0], e["error"][1]) if e.get("error") else None
    second = last if first else None
    evidence = Evidence(first or last, entry, e["stored"], second, paired, **said, error=error)
    return conclude(_case(info), evidence, policy), policy


_IN_THE_NAME = replace(F32, name="")  # a recorded variant names its dtype and config itself


def _case(info: Mapping[str, Any]) -> Case:
    """The case as far as a verdict depends on it: its id, problem, launch and threshold, as recorded."""
    e, variant = info["evidence"], info["variant"]
    launch = Launch.parse(e["launch"])
    shape = BlockShape(launch.block[:2], (1, 1), None, launch.dynamic_shared, dynamic=True)
    # Older runs do not tell; a library's call has no cubin.
    library = e.get("library", not (e["measured"] and e["measured"]["cubin_sha256"]))
    kernel = Kernel(
        name=variant,
        idea="",
        source=None if library else Path(variant),
        entry="",
        dtypes=(),
        configs=(),
        shape=lambda config, dtype: shape,
        grid=lambda shape, problem: launch.grid,
        threshold=e["kernel_threshold"],
    )
    return Case(kernel, _IN_THE_NAME, Config(), find_problem(info["case"].removeprefix(f"{variant}-")))


def _measurement(told: Mapping[str, Any]) -> Measurement:
    cubin = told["cubin_sha256"]
    return Measurement(
        **{name: told[name] for name in _MEASURED if name != "seconds" and name in told},
        seconds=tuple(told["seconds"]),
        reference_seconds=(),
        resources=Resources(0, 0, 0, cubin) if cubin else None,
        discarded=0,
    )


# A whole run

UNUSABLE = "gemm_unusable"  # beside pytest-benchmark's "benchmarks", which can hold only what has samples


def recorded(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], Sequence[float]]]:
    """What a run's JSON tells of each case that it judged, and the samples. Raises ValueError."""
    for record in need(document, "benchmarks", list):
        yield need(record, "extra_info", dict), need(need(record, "stats", dict), "data", list)
    for info in document.get(UNUSABLE, ()):
        yield info, need(info, "seconds", list)


@dataclass(frozen=True)
class Replayed:
    """A case judged again; ``said`` and ``now`` are kind and reason, as the run had it and as it is."""

    case: str
    said: str
    now: str
    red: bool


def replay(path: Path) -> list[Replayed]:
    """Every case of a run judged again. Raises BaselineError for a file that does not tell enough."""
    remedy = "only what `pytest --benchmark-json` of this suite wrote can be judged again"
    document = read_json(path, remedy)
    found, case = [], "?"
    try:
        for info, seconds in recorded(document):
            case = need(info, "case", str)
            need(info, "evidence", dict)
            verdict, policy = again(info, seconds)
            red = verdict.failed(policy)
            # Older runs do not tell which were red.
            words = [("red" if was else "green") for was in (info.get("red", red), red)]
            said = f"{info['verdict']} {info['verdict_reason']}, {words[0]}"
            found.append(Replayed(case, said, f"{verdict.kind} {verdict.reason}, {words[1]}", red))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise BaselineError(f"{path}: {case}: {what}; {remedy}") from None
    if not found:
        raise BaselineError(f"{path}: no judged case in it; {remedy}")
    return found
