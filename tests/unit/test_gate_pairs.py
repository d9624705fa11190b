"""Cases of another binary than the baseline's are paired with the baseline's commit, many in one worker."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from harness.baselines import Baseline
from harness.devices import DeviceError
from harness.gate import against as gate_against
from harness.gate import timed as gate
from harness.gate.against import Against
from harness.gate.pairs import pairs_of
from harness.model import Case, Problem
from harness.reports.wording import message, path
from harness.timing.measurement import Measurement
from harness.timing.plan import PairPlan, Plan
from harness.timing.samples import PairedSamples
from harness.verdicts.evidence import again, recorded
from harness.verdicts.vocabulary import Policy, VerdictKind
from tests.unit import synthetic
from tests.unit.repo import Repo
from tests.unit.simulated import SimulatedDevice
from tests.unit.way import GPU, MACHINE, Way, came_to, entry_of

NOISY: dict[str, Any] = {"noise_floor": 0.01}  # of a baseline whose threshold is 3 %


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (1.008e-3, ("REGRESSED", "SLOWER_PAIRED")),
        (1.027e-3, ("REGRESSED", "SLOWER_PAIRED")),
        (1.002e-3, ("PASS", "WITHIN_MARGIN")),
        (0.98e-3, ("IMPROVED", "FASTER_PAIRED")),
    ],
)
def test_the_pair_tells_what_the_threshold_cannot(repo: Repo, now: float, expected: tuple[str, str]) -> None:
    """Within three noise floors of its baseline; the stored figures alone say PASS."""
    assert came_to(Way(repo, now=now, entry=NOISY)) == expected
    assert came_to(Way(repo, now=now, entry=NOISY, pairing=False)) == ("PASS", "WITHIN_THRESHOLD")


def test_the_baselines_own_binary_is_not_paired(repo: Repo) -> None:
    way = Way(repo, now=1.008e-3, cubin=synthetic.OLD, entry=NOISY)
    assert came_to(way) == ("PASS", "WITHIN_THRESHOLD")
    assert way.device.asked == []


def test_no_commit_to_pair_with_is_said(repo: Repo) -> None:
    result = Way(repo, now=1.008e-3, entry=NOISY | {"commit": "0" * 40}).run()
    assert result.verdict.outcome == ("PASS", "WITHIN_THRESHOLD")
    assert f"not paired: no commit {'0' * 40} in this repository" in message(result.verdict, result.evidence)


@pytest.mark.parametrize(
    ("now", "spread", "expected"),
    [
        (1.005e-3, 0.001, ("AMBIGUOUS", "PAIR_AMBIGUOUS")),  # surely slower, perhaps by more than the margin
        (1.0e-3, 0.03, ("PASS", "WITHIN_THRESHOLD")),  # perhaps not slower at all: the baseline decides
        (1.04e-3, 0.50, ("AMBIGUOUS", "PAIR_AMBIGUOUS")),  # and to the baseline it is slower, twice
    ],
)
def test_a_pair_that_cannot_tell(repo: Repo, now: float, spread: float, expected: tuple[str, str]) -> None:
    result = Way(repo, now=now, spread=spread, entry=NOISY).run()
    assert result.evidence.paired is not None
    assert result.evidence.paired.reason == "PAIR_AMBIGUOUS"
    assert result.verdict.outcome == expected


def test_an_unfit_machine_passes_nothing_that_has_changed(repo: Repo) -> None:
    assert came_to(Way(repo, now=1e-3, bias=0.02)) == ("AMBIGUOUS", "MACHINE_UNFIT")


def test_the_margin_is_an_option_and_what_counts_as_slower_at_all(repo: Repo) -> None:
    slower = Way(repo, now=1.008e-3, entry=NOISY, policy=Policy(margin=0.02))
    assert came_to(slower) == ("PASS", "WITHIN_MARGIN")
    assert came_to(dataclasses.replace(slower, policy=Policy(min_change=0.02))) == ("PASS", "WITHIN_MARGIN")
    stricter = Policy(min_change=0.02, margin=0.003)
    assert came_to(dataclasses.replace(slower, policy=stricter)) == ("REGRESSED", "SLOWER_PAIRED")


def test_a_higher_clock_that_hides_more_cycles_is_settled_by_the_pair(repo: Repo) -> None:
    seen, stored = {"sm_clock_mhz": 1030.0}, {"sm_clock_mhz": 1000.0}
    way = Way(repo, now=1e-3, seen=seen, entry=stored)
    assert came_to(way) == ("PASS", "WITHIN_MARGIN")
    assert came_to(dataclasses.replace(way, then=0.97e-3)) == ("REGRESSED", "SLOWER_PAIRED")
    assert came_to(dataclasses.replace(way, pairing=False)) == ("AMBIGUOUS", "HIGHER_CLOCK")


def test_power_that_lowers_the_clock_is_not_the_machine_s(repo: Repo) -> None:
    """As many cycles as stored at a lower clock, with another binary: the pair is in seconds, and without a
    pair it is no drift, which an option would let pass."""
    seen, stored = {"sm_clock_mhz": 970.0}, {"sm_clock_mhz": 1000.0, "run_clocks_mhz": [1000.0] * 5}
    stored |= {"run_medians": [1e-3] * 5}
    way = Way(repo, now=1.03e-3, seen=seen, entry=stored)
    assert came_to(way) == ("REGRESSED", "SLOWER_PAIRED")
    alone = dataclasses.replace(way, pairing=False).run()
    assert alone.verdict.outcome == ("AMBIGUOUS", "LOWER_CLOCK")
    assert alone.verdict.failed(Policy(fail_on_drift=False))


# Many cases

START, REQUEST = 4.0, 0.15  # seconds: of a worker, with its context and its clock; of a request


class Host(SimulatedDevice):
    """Counts workers, and the seconds that all would take. Slow to start, as a GPU's worker is."""

    elapsed = 0.0
    alive = False

    def ahead(self) -> None:
        pass

    def restart(self) -> None:
        super().restart()
        self.alive = False

    def now(self) -> float:
        return self.elapsed

    def _request(self, seconds: float) -> None:
        self.elapsed += REQUEST + seconds + (0.0 if self.alive else START)
        self.alive = True

    def time(self, case: Case, plan: Plan) -> Measurement:
        m = super().time(case, plan)
        self._request(sum(m.seconds))
        resources = m.resources and dataclasses.replace(m.resources, cubin_sha256=self.cubin(case))
        return dataclasses.replace(m, resources=resources)

    def cubin(self, case: Case) -> str:
        return synthetic.NEW if case.problem.m >= 1000 else synthetic.OLD

    def pair(self, base: Any, case: Any, plan: PairPlan) -> PairedSamples:
        samples = super().pair(base, case, plan)
        self._request(REQUEST + samples.gpu_seconds)  # two builds are loaded
        return samples


def cases_of(repo: Repo, changed: int, others: int) -> list[Case]:
    """Cases of another binary than the baseline's, then of the same."""
    case = repo.case()
    sizes = [*range(1000, 1000 + changed), *range(64, 64 + others)]
    return [dataclasses.replace(case, problem=Problem(n, 64, 64)) for n in sizes]


def judge_all(
    repo: Repo, host: Host, cases: list[Case], **options: Any
) -> tuple[dict[str, gate.Result], Baseline]:
    baseline = Baseline("gpu", 5, MACHINE, {}, "", {case.id: entry_of(case, repo) for case in cases})
    against = Against(host, GPU, "cold", repo.project, clock=host.now, **options)
    found: list[gate.Result] = []
    try:
        gate.run_all(host, cases, found.append, baseline, Policy(), Plan(), against=against, clock=host.now)
    finally:
        against.close()
    assert sorted(r.case.id for r in found) == sorted(case.id for case in cases)
    return {result.case.id: result for result in found}, baseline


def is_ours(case: Case, repo: Repo) -> bool:
    return case.kernel.source is not None and case.kernel.source.is_relative_to(repo.root)


def test_sixty_suspected_cases_take_two_workers_and_less_than_twice_the_time(repo: Repo) -> None:
    """Half have regressed, and half are as slow at the baseline's commit, which a new process confirms."""
    cases = cases_of(repo, 60, 140)
    green = Host(lambda case: 1e-3)
    judge_all(repo, green, [*cases[60:], *cases_of(repo, 0, 200)[140:]])
    assert green.restarts == 1

    def seconds(case: Case) -> float:
        if case.problem.m < 1000:
            return 1e-3
        return 1.03e-3 if is_ours(case, repo) or case.problem.m % 2 else 1e-3

    host = Host(seconds)
    found, _ = judge_all(repo, host, cases)
    outcomes = [found[case.id].verdict.reason for case in cases[:60]]
    assert outcomes.count("SLOWER_PAIRED") == 30
    assert outcomes.count("BASE_AS_SLOW") == 30
    assert {found[case.id].verdict.reason for case in cases[60:]} == {"WITHIN_THRESHOLD"}
    assert host.restarts == 2
    assert host.elapsed < 2 * green.elapsed


def in_each_process(repo: Repo, *changes: float) -> tuple[gate.Result, Host]:
    """One changed case, that much slower than its base in the first process, in the second …"""
    case, host = cases_of(repo, 1, 0)[0], Host()

    def seconds(of: Case) -> float:
        return 1e-3 * (1 + changes[host.restarts - 1]) if is_ours(of, repo) else 1e-3

    host.seconds = seconds
    found, _ = judge_all(repo, host, [case])
    return found[case.id], host


@pytest.mark.parametrize(
    ("changes", "expected", "processes"),
    [
        pytest.param((0.01, 0.009), ("REGRESSED", "SLOWER_PAIRED"), 2, id="slower in both"),
        pytest.param((0.01, 0.003), ("REGRESSED", "SLOWER_PAIRED"), 2, id="within the margin in one"),
        pytest.param((0.01, -0.004), ("PASS", "WITHIN_THRESHOLD"), 2, id="as where copies differ"),
        pytest.param((0.005, 0.005), ("AMBIGUOUS", "PAIR_AMBIGUOUS"), 2, id="at the margin"),
        pytest.param((0.005, -0.001), ("PASS", "WITHIN_THRESHOLD"), 2, id="at the margin in one"),
        pytest.param((0.03,), ("REGRESSED", "SLOWER_PAIRED"), 1, id="more than copies differ by"),
        pytest.param((0.002,), ("PASS", "WITHIN_MARGIN"), 1, id="within the margin"),
        pytest.param((-0.01,), ("IMPROVED", "FASTER_PAIRED"), 1, id="faster"),
    ],
)
def test_what_is_slower_by_little_is_so_in_a_second_process(
    repo: Repo, changes: tuple[float, ...], expected: tuple[str, str], processes: int
) -> None:
    """One process has one place for each copy of the code, by which copies of one binary may differ."""
    result, host = in_each_process(repo, *changes)
    assert (result.verdict.outcome, host.restarts) == (expected, processes)
    assert result.evidence.paired is not None
    assert bool(result.evidence.paired.second) is (processes == 2)
    assert ("paired in a new process" in path(result.evidence)) is (processes == 2)
    text = message(result.verdict, result.evidence)
    assert ("in a second process, too" in text) is (processes == 2 and expected[0] != "PASS")
    assert (": not slower in a second process" in text) is (processes == 2 and expected[0] == "PASS")
    info = {"case": result.case.id, "variant": result.case.variant}
    stored = {"evidence": json.loads(json.dumps(recorded(result.evidence, result.policy)))}
    assert result.evidence.last is not None
    verdict, _ = again({**info, **stored}, result.evidence.last.seconds)
    assert verdict == result.verdict


def test_what_cannot_be_timed_in_a_second_process_stays_slower(repo: Repo) -> None:
    def fail(base: Case, case: Case) -> None:
        if device.restarts == 2:
            raise DeviceError("WORKER_DIED", "the worker process died")

    case = cases_of(repo, 1, 0)[0]
    device = Host(lambda of: 1.01e-3 if is_ours(of, repo) else 1e-3)
    device.fail = fail
    found, _ = judge_all(repo, device, [case])
    assert found[case.id].verdict.outcome == ("REGRESSED", "SLOWER_PAIRED")
    assert device.restarts == 2


def test_the_device_compiles_while_the_binaries_are_compared(
    repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take as long as nvcc does; what the device cannot compile is reported by the pair."""
    begun, given = threading.Event(), list[Any]()

    class Compiling(Host):
        def prepare_pairs(self, cases: Any, step: Any = None) -> None:
            given.append(list(cases))
            begun.set()
            raise DeviceError("COMPILE_ERROR", "said later")

    def compared(*args: Any) -> Any:
        assert begun.wait(10)
        return pairs_of(*args)

    monkeypatch.setattr(gate_against, "pairs_of", compared)
    cases = cases_of(repo, 3, 0)
    found, _ = judge_all(repo, Compiling(lambda case: 1e-3), cases)
    assert {r.verdict.reason for r in found.values()} == {"WITHIN_MARGIN"}
    bases, ours = given[0][: len(cases)], given[0][len(cases) :]
    assert {case.id for case in bases} == {case.id for case in ours} == {case.id for case in cases}
    assert not any(is_ours(base, repo) for base in bases)
    assert all(is_ours(case, repo) for case in ours)


def test_a_new_process_for_many_is_one_process_for_each(repo: Repo) -> None:
    """Confirmed in another worker than measured first, and never in one that measured the case before."""
    workers: dict[str, list[int]] = {}

    class Watched(Host):
        def time(self, case: Case, plan: Plan) -> Measurement:
            workers.setdefault(case.id, []).append(self.restarts)
            return super().time(case, plan)

        def cubin(self, case: Case) -> str:
            return synthetic.OLD

    cases = cases_of(repo, 0, 5)
    found, _ = judge_all(repo, Watched(lambda case: 1.03e-3), cases)
    assert {r.verdict.reason for r in found.values()} == {"SAME_BINARY_SLOWER"}
    assert list(workers.values()) == [[1, 2]] * 5


def test_pairs_end_with_their_time_the_most_suspicious_first(repo: Repo) -> None:
    cases = cases_of(repo, 20, 0)
    suspect = cases[13]

    def seconds(case: Case) -> float:
        return 1.009e-3 if case.problem == suspect.problem and is_ours(case, repo) else 1e-3

    host = Host(seconds)
    found, _ = judge_all(repo, host, cases, budget=3.0)
    assert found[suspect.id].verdict.outcome == ("REGRESSED", "SLOWER_PAIRED")
    left = [r for r in found.values() if r.evidence.paired and r.evidence.paired.reason == "NO_PAIR"]
    assert 5 < len(left) < 19
    assert {r.verdict.reason for r in left} == {"WITHIN_THRESHOLD"}
    result = left[0]
    assert "not paired: the 3 s for pairs were used up (--pair-budget)" in message(
        result.verdict, result.evidence
    )


def test_no_time_at_all_is_no_pair_and_nothing_is_compiled(repo: Repo) -> None:
    host = Host(lambda case: 1e-3)
    found, _ = judge_all(repo, host, cases_of(repo, 3, 0), budget=0.0)
    assert {r.evidence.paired.detail for r in found.values() if r.evidence.paired} == {"--pair-budget is 0"}
    assert host.asked == []


def test_without_an_option_pairs_take_as_long_as_the_measurements(repo: Repo) -> None:
    cases = cases_of(repo, 300, 0)
    host = Host(lambda case: 1e-3)
    found, _ = judge_all(repo, host, cases)
    measured = len(cases) * (REQUEST + 0.08) + START
    assert measured > 60
    left = sum(bool(r.evidence.paired and r.evidence.paired.reason == "NO_PAIR") for r in found.values())
    assert 0 < left < 300
    assert 1.5 * measured < host.elapsed < 2.1 * measured


def test_a_pair_that_crashes_costs_its_case_alone(repo: Repo) -> None:
    def fail(base: Case, case: Case) -> None:
        if case.problem.m == 1002 and base.kernel.source != case.kernel.source:
            raise DeviceError("WORKER_DIED", "one-f32-size1: the worker process died (exit code -9)")

    found, _ = judge_all(repo, Host(lambda case: 1e-3, fail=fail), cases_of(repo, 5, 0))
    assert sorted(r.verdict.reason for r in found.values()) == ["PAIR_CRASHED", *["WITHIN_MARGIN"] * 4]
    assert [r.verdict.kind for r in found.values() if r.verdict.failed(Policy())] == [VerdictKind.CRASHED]


def test_a_case_that_crashes_when_confirmed_costs_itself_alone(repo: Repo, tmp_path: Path) -> None:
    class Dying(Host):
        def time(self, case: Case, plan: Plan) -> Measurement:
            if self.restarts == 2 and case.problem.m == 65:
                raise DeviceError("HANG", "no answer")
            return super().time(case, plan)

        def cubin(self, case: Case) -> str:
            return synthetic.OLD

    found, _ = judge_all(repo, Dying(lambda case: 1.03e-3), cases_of(repo, 0, 3))
    assert sorted(r.verdict.reason for r in found.values()) == ["HANG", *["SAME_BINARY_SLOWER"] * 2]
