"""All that decides a verdict, in one place: concluded from while it grows, stored, concluded from again.

Pure. `gate.run` gathers the evidence; `python -m harness.evidence RUN.json` judges a run's JSON again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.baselines import BaselineEntry
from harness.judge import (
    CONFIRMED,
    CompareFail,
    Paired,
    Policy,
    Verdict,
    confirm,
    judge,
    settle,
    shared,
    unpaired,
)
from harness.model import Case, Measurement, Resources

_MEASURED = (
    *("seconds", "sm_clock_mhz", "power_w", "temperature_c", "clock_event_reasons", "throttled"),
    *("l2", "duty"),
)
_STORED = ("median_s", "gflops", "noise_floor", "cubin_sha256", "l2", "duty", "sm_clock_mhz")


@dataclass(frozen=True)
class Evidence:
    """``first`` what was measured, ``second`` what a fresh worker measured, ``paired`` what came of a pair;
    ``stored`` False where this GPU has no baseline; ``differences`` and ``decisive`` are those of `drift`,
    ``others`` the processes that came to the GPU."""

    first: Measurement
    entry: BaselineEntry | None = None
    stored: bool = True
    second: Measurement | None = None
    paired: Paired | None = None
    differences: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

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
        "launch": str(case.launch),
        "stored": e.stored,
        "baseline": entry,
        "measured": _measured(last),
        "first": _measured(e.first) | {"seconds": list(e.first.seconds)} if e.second else None,
        "paired": e.paired and asdict(e.paired),
        "differences": list(e.differences),
        "decisive": list(e.decisive),
        "others": list(e.others),
    }


def _measured(m: Measurement) -> dict[str, Any]:
    cubin = m.resources.cubin_sha256 if m.resources else None
    return {name: getattr(m, name) for name in _MEASURED[1:]} | {"cubin_sha256": cubin}


def again(case: Case, info: Mapping[str, Any], seconds: Sequence[float]) -> Verdict:
    """The verdict from what `told` stored as ``evidence`` of a case, and the samples of its last measurement.

    Raises KeyError where something is missing.
    """
    e = info["evidence"]
    checks = tuple(CompareFail(**check) for check in e["policy"]["compare_fail"])
    policy = Policy(**{**e["policy"], "compare_fail": checks})
    last = _measurement({**e["measured"], "seconds": seconds})
    first = _measurement(e["first"]) if e["first"] else None
    entry = None
    if e["baseline"]:
        entry = BaselineEntry("", "", e["baseline"]["stats"], {"case": case.id, **e["baseline"]["info"]})
    paired = Paired(**e["paired"]) if e["paired"] else None
    said = {name: tuple(e.get(name, ())) for name in ("differences", "decisive", "others")}
    evidence = Evidence(first or last, entry, e["stored"], last if first else None, paired, **said)
    return conclude(case, evidence, policy)


def _measurement(told: Mapping[str, Any]) -> Measurement:
    cubin = told["cubin_sha256"]
    return Measurement(
        **{name: told[name] for name in _MEASURED if name != "seconds" and name in told},
        seconds=tuple(told["seconds"]),
        reference_seconds=(),
        resources=Resources(0, 0, 0, cubin) if cubin else None,
        discarded=0,
    )


def main(files: Sequence[str]) -> int:
    """Judges the cases of runs again: 0 where every verdict is as told, 1 where not, 2 for a bad file."""
    from harness.cases import find_case

    differing = total = 0
    for file in files:
        try:
            run = json.loads(Path(file).read_text(encoding="utf-8"))
            capability = tuple(map(int, run["machine_info"]["capability"].split(".")))
            for record in run["benchmarks"]:
                info = record["extra_info"]
                case = find_case(info["case"], capability)  # type: ignore[arg-type]
                verdict = again(case, info, record["stats"]["data"])
                total += 1
                if (str(verdict.kind), verdict.reason) != (info["verdict"], info["verdict_reason"]):
                    differing += 1
                    said = f"{info['verdict']} {info['verdict_reason']}"
                    print(f"{case.id}: {verdict.kind} {verdict.reason}, but the run said {said}")
        except OSError as error:
            print(f"error: {file}: cannot be read ({error.strerror})", file=sys.stderr)
            return 2
        except (KeyError, TypeError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            print(f"error: {file}: not a run of this suite with its evidence ({text})", file=sys.stderr)
            return 2
    print(f"{total} cases judged again, {differing} otherwise than the run said")
    return int(differing > 0 or not total)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
