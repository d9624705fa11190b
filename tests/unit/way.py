"""One case through the gate: a simulated GPU, a repository whose one commit is the baseline's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

from harness.baselines import Baseline, BaselineEntry
from harness.gate import timed as gate
from harness.gate.against import Against
from harness.gate.record import extra_info
from harness.model import Case
from harness.reports.wording import message
from harness.timing.measurement import Measurement
from harness.timing.plan import Plan
from harness.verdicts.evidence import conclude, recall
from harness.verdicts.vocabulary import Policy, Verdict
from tests.unit import synthetic
from tests.unit.repo import Repo
from tests.unit.simulated import SimulatedDevice

GPU = (9, 0)
MACHINE = {"driver": "999.1", "nvcc": "13.0.88", "power_limit_w": 700.0, "ecc": True}


def judged_alone(device: Any, case: Case, *rest: Any) -> gate.Result:
    """What comes of one case; ``rest`` as for ``gate.run_all``, from the baseline on."""
    found: list[gate.Result] = []
    gate.run_all(device, [case], found.append, *rest)
    return found[0]


def entry_of(case: Case, repo: Repo, **more: Any) -> BaselineEntry:
    entry = synthetic.entry(case, 1e-3)
    commit = {"id": repo.git("rev-parse", "HEAD"), "dirty": False} | {
        name: more.pop(of) for name, of in (("id", "commit"), ("dirty", "dirty")) if of in more
    }
    known = {"launch": str(case.launch), "cublas_ratio": 0.5}
    machine = {**MACHINE, **{name: more[name] for name in MACHINE if name in more}}
    info = {**entry.info, **known, **more}
    return dataclasses.replace(entry, info=info, commit_info=commit, machine=machine)


@dataclasses.dataclass
class Way:
    """One case through the gate on a simulated GPU, where the working tree's kernel takes ``now`` seconds and
    the base's ``then``; the first process may be unlucky by ``first``."""

    repo: Repo
    now: float = 1.03e-3
    then: float = 1e-3
    first: float = 0.0
    bias: float = 0.0
    cubin: str = synthetic.NEW
    launch: str | None = None
    policy: Policy = dataclasses.field(default_factory=Policy)
    machine: dict[str, Any] = dataclasses.field(default_factory=lambda: dict(MACHINE))
    entry: dict[str, Any] = dataclasses.field(default_factory=dict)
    pairing: bool = True
    seen: dict[str, Any] = dataclasses.field(default_factory=dict)  # of every measurement
    busy: Callable[[], Sequence[str]] = tuple
    fail: Callable[[Case, Case], None] = lambda base, case: None
    spread: float = 0.001
    budget: float | None = None

    def run(self) -> gate.Result:
        case = self.repo.case()
        device = SimulatedDevice(self._seconds, bias=self.bias, fail=self.fail, spread=self.spread)
        self.device = device
        entry = entry_of(case, self.repo, **self.entry)
        baseline = Baseline("gpu", MACHINE, {}, "", {case.id: entry})
        against = Against(device, GPU, "cold", self.repo.project, budget=self.budget)
        try:
            pairing = against if self.pairing else None
            timed = _Timed(self)
            result = judged_alone(
                timed, case, baseline, self.policy, Plan(), lambda: self.machine, pairing, self.busy
            )
        finally:
            against.close()
        assert self.repo.git("worktree", "list").count("\n") == 0
        seconds = result.measurement.seconds if result.measurement else ()
        # What the run's JSON holds gives the same verdict, to the word.
        info = json.loads(json.dumps(extra_info(result)))
        evidence, policy = recall(info, seconds)
        assert (conclude(evidence, policy), policy) == (result.verdict, self.policy)
        assert message(result.verdict, evidence) == message(result.verdict, result.evidence)
        return result

    def _seconds(self, case: Case) -> float:
        ours = case.kernel.source is not None and case.kernel.source.is_relative_to(self.repo.root)
        return self.now if ours else self.then


class _Timed:
    """Times by the numbers of the path."""

    def __init__(self, path: Way) -> None:
        self.path, self.times, self.restarts = path, 0, 0

    def time(self, case: Case, plan: Any) -> Measurement:
        self.times += 1
        unlucky = self.path.first if self.times == 1 else 0.0
        m = synthetic.measurement(self.path.now * (1 + unlucky), cubin=self.path.cubin)
        return dataclasses.replace(m, reference_seconds=(5.1e-4,), **self.path.seen)

    def ahead(self) -> None:
        pass

    def restart(self) -> None:
        self.restarts += 1


def told_of(way: Way) -> tuple[Verdict, str]:
    """The verdict, and what is told of it, which is one line."""
    result = way.run()
    text = message(result.verdict, result.evidence)
    assert "\n" not in text
    return result.verdict, text


def came_to(way: Way) -> tuple[str, str]:
    verdict, _ = told_of(way)
    return str(verdict.kind), verdict.reason
