"""Verdicts on the evidence of a case: by its binary, or by its pair. Runs judged again from their JSON alone:
recorded ones, tampered ones, and cases that have no samples."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gemm_regression.cli.stored import evidence as main
from gemm_regression.devices import DeviceError
from gemm_regression.judge.evidence import MACHINES, UNUSABLE, Evidence, conclude, is_baselines
from gemm_regression.judge.vocabulary import (
    BINARY_NOT_KEPT,
    CompareFail,
    Observation,
    Paired,
    Policy,
    Reference,
    VerdictKind,
    failed_beside,
    red,
)
from gemm_regression.model import Case
from gemm_regression.run.replay import replay
from gemm_regression.timing.looks import Estimate, PairFinding
from gemm_regression.timing.plan import Measurement
from tests.gemm_regression.judge.replay import ReplayDevice
from tests.gemm_regression.rig import CASES, OURS, Printed, Rig, named

FOLDER = Path(__file__).with_name("recorded")
CRASHED, WRONG, FEW, NONE = CASES[:4]
Document = dict[str, Any]
REFERENCE = Reference(0.01, 1000.0, "a" * 64, "grid 1", "f" * 16, stats={"median": 0.01, "min": 0.0099})
SEEN = Observation(1e10, (0.01,) * 9, "grid 1", cubin_sha256="a" * 64, launch_id="f" * 16)
NEW = dataclasses.replace(SEEN, cubin_sha256="b" * 64)
BASE_HANGS = failed_beside("BASE_HANG")


# One case


def paired(change: float, spread: float = 0.0005, margin: float = 0.005) -> Paired:
    blocks = [math.log1p(change) + spread * sign for sign in (1, -1) * 6]
    finding = PairFinding.of(Estimate.of(blocks), margin, 1e-4)
    return Paired.of(finding, blocks, 0.0, margin)


@pytest.mark.parametrize("times", [0.5, 1.0, 1.3, 100.0])
@pytest.mark.parametrize("clock", [300.0, 1980.0])
def test_the_same_binary_cannot_have_changed_its_speed(times: float, clock: float) -> None:
    o = dataclasses.replace(SEEN, seconds=(0.01 * times,) * 9, sm_clock_mhz=clock)
    verdict = conclude(Evidence(o, REFERENCE), Policy())
    assert verdict.outcome == ("PASS", "SAME_BINARY")
    assert verdict.change == pytest.approx(1 / times - 1)


OLDER = dataclasses.replace(REFERENCE, launch_id="")  # knows its launch as text


@pytest.mark.parametrize(
    ("other", "reference"),
    [
        ({"cubin_sha256": "b" * 64}, REFERENCE),
        ({"launch_id": "e" * 16}, REFERENCE),
        ({"launch": "grid 2"}, OLDER),
        ({"cubin_sha256": None}, dataclasses.replace(OLDER, cubin_sha256=None)),
    ],
)
def test_another_binary_or_launch_is_another_code(other: dict[str, Any], reference: Reference) -> None:
    assert not is_baselines(dataclasses.replace(SEEN, **other), reference)
    assert is_baselines(SEEN, REFERENCE)
    assert is_baselines(SEEN, OLDER)


@pytest.mark.parametrize(
    ("change", "spread", "outcome", "failed"),
    [
        (0.02, 0.0005, ("REGRESSED", "SLOWER"), True),
        (0.005, 0.0005, ("AMBIGUOUS", "MAYBE_SLOWER"), True),
        (0.0, 0.0005, ("PASS", "NOT_SLOWER"), False),
        (-0.005, 0.0005, ("PASS", "NOT_SLOWER"), False),
        (-0.02, 0.0005, ("IMPROVED", "FASTER"), False),
        (0.0, 0.05, ("AMBIGUOUS", "MAYBE_SLOWER"), True),
        (-0.005, 0.004, ("PASS", "NOT_SLOWER"), False),  # perhaps faster than the margin, perhaps not
    ],
)
def test_a_pair_alone_judges_another_binary(
    change: float, spread: float, outcome: tuple[str, str], failed: bool
) -> None:
    verdict = conclude(Evidence(NEW, REFERENCE, paired=paired(change, spread)), Policy())
    assert verdict.outcome == outcome
    assert verdict.failed(Policy(allow_no_baseline=True, fail_on_drift=False)) is failed
    assert verdict.change == pytest.approx(1 / (1 + change) - 1, abs=1e-4)
    assert verdict.margin == 0.005


@pytest.mark.parametrize(
    ("evidence", "outcome"),
    [
        (Evidence(SEEN, None), ("NO_BASELINE", "NOT_IN_BASELINE")),
        (Evidence(SEEN, None, stored=False), ("NO_BASELINE", "NO_BASELINE_FILE")),
        (Evidence(None, REFERENCE, paired=Paired(*BINARY_NOT_KEPT)), ("NO_BASELINE", "BINARY_NOT_KEPT")),
        (Evidence(None, REFERENCE, paired=Paired(*failed_beside("HANG"))), ("CRASHED", "HANG")),
        (Evidence(None, REFERENCE, paired=Paired(*failed_beside("WRONG"))), ("WRONG", "OUTPUT")),
        (Evidence(None, REFERENCE, paired=Paired(*BASE_HANGS)), ("AMBIGUOUS", "BASE_UNUSABLE")),
        (Evidence(None, REFERENCE, error=("ILLEGAL_ADDRESS", "at 0")), ("CRASHED", "ILLEGAL_ADDRESS")),
        (Evidence(NEW, REFERENCE), ("AMBIGUOUS", "NOT_PAIRED")),
        (Evidence(dataclasses.replace(SEEN, launch_id="e" * 16), REFERENCE), ("AMBIGUOUS", "NOT_PAIRED")),
        (Evidence(dataclasses.replace(SEEN, seconds=()), None), ("AMBIGUOUS", "TOO_FEW_SAMPLES")),
        (Evidence(dataclasses.replace(SEEN, seconds=(0.0,) * 9), None), ("AMBIGUOUS", "IMPOSSIBLE_SAMPLE")),
    ],
)
def test_what_cannot_be_judged_fails(evidence: Evidence, outcome: tuple[str, str]) -> None:
    verdict = conclude(evidence, Policy())
    assert verdict.outcome == outcome
    assert verdict.failed(Policy())
    assert red(verdict.outcome)
    may_be_allowed = verdict.kind is VerdictKind.NO_BASELINE
    assert verdict.failed(Policy(allow_no_baseline=True)) is not may_be_allowed


@pytest.mark.parametrize(
    ("run", "own", "expected"), [(None, None, 0.005), (None, 0.01, 0.01), (0.002, 0.01, 0.002)]
)
def test_the_margin_that_judges(run: float | None, own: float | None, expected: float) -> None:
    assert Policy(margin=run).margin_of(own) == expected


def test_the_users_own_check_holds_besides() -> None:
    check = CompareFail("median", percent=5)
    slow = dataclasses.replace(SEEN, seconds=(0.0106,) * 9)
    verdict, fine = (conclude(Evidence(of, REFERENCE), Policy(compare_fail=(check,))) for of in (slow, SEEN))
    assert (verdict.outcome, fine.outcome) == (("REGRESSED", "COMPARE_FAIL"), ("PASS", "SAME_BINARY"))
    assert verdict.exceeded
    assert verdict.exceeded.check == check


def unpacked(file: Path) -> Document:
    document: Document = json.loads(gzip.decompress(file.read_bytes()))
    return document


def written(folder: Path, document: Any) -> Path:
    file = folder / "run.json"
    file.write_text(json.dumps(document))
    return file


# Recorded runs


@pytest.mark.parametrize(
    ("file", "reasons"),
    [
        ("gpu_full_5fc7664", {"SAME_BINARY": 260, "LIBRARY": 48}),
        ("planted_pairs_038e8a7", {"SAME_BINARY": 35, "SLOWER": 33, "MAYBE_SLOWER": 1, "NOT_SLOWER": 1}),
        ("smoke_planted_a25dabc", {"SAME_BINARY": 37, "LIBRARY": 12, "SLOWER": 3}),
    ],
)
def test_recorded_run_is_judged_as_it_was(file: str, reasons: dict[str, int], tmp_path: Path) -> None:
    document = unpacked(FOLDER / f"{file}.json.gz")
    assert Counter(r["extra_info"]["verdict_reason"] for r in document["benchmarks"]) == reasons
    path = written(tmp_path, document)
    assert main([str(path)]) == 0
    told = [r["extra_info"] for r in document["benchmarks"]] + document[UNUSABLE]
    found = replay(path)
    assert [(c.case, c.now.split(",")[0]) for c in found] == [
        (info["case"], f"{info['verdict']} {info['verdict_reason']}") for info in told
    ]
    assert sum(c.red for c in found) == sum(info["verdict"] not in ("PASS", "IMPROVED") for info in told)


def changed(document: Document, where: str, value: Any) -> None:
    *path, last = where.split(".")
    for name in path:
        document = document[name]
    document[last] = value


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("extra_info.verdict", "PASS"),
        ("extra_info.verdict_reason", "FASTER"),
        ("extra_info.red", False),
        ("stats.data", [1e-3] * 3),
        ("extra_info.evidence.paired.log_ratios", [0.001, -0.001] * 6),
        ("extra_info.evidence.paired.margin", 0.1),
        ("extra_info.evidence.paired.second", [0.0] * 12),
        ("extra_info.evidence.paired", None),
    ],
)
def test_altered_record_is_seen(where: str, value: Any, tmp_path: Path, printed: Printed) -> None:
    document = unpacked(FOLDER / "planted_pairs_038e8a7.json.gz")
    record = next(r for r in document["benchmarks"] if r["extra_info"]["verdict"] == "REGRESSED")
    changed(record, where, value)
    assert main([str(written(tmp_path, document))]) == 1
    said = (
        f"{record['extra_info']['case']}: .*but the run recorded .*\n.*, 1 differ from the recorded verdict\n"
    )
    assert re.fullmatch(said, printed.out)


@pytest.mark.parametrize("part", ["cubin_sha256", "launch"])
def test_another_binary_does_not_pass_as_the_baselines(part: str, tmp_path: Path) -> None:
    document = unpacked(FOLDER / "planted_pairs_038e8a7.json.gz")
    record = next(r for r in document["benchmarks"] if r["extra_info"]["verdict_reason"] == "SAME_BINARY")
    record["extra_info"]["evidence"]["seen"][part] = "0" * 64
    (found,) = [c for c in replay(written(tmp_path, document)) if c.now != c.said]
    assert found.now == "AMBIGUOUS NOT_PAIRED, red"


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("health.settings.power_limit_w", 300.0),
        ("health.others", ["pid 7 (train, 9 MiB)"]),
        ("kind", "DRIFTED"),
        ("shifts", None),
    ],
)
def test_altered_record_of_the_machine_is_seen(rig: Rig, where: str, value: Any, printed: Printed) -> None:
    document = rig.run(*OURS).json
    machine = document[MACHINES]["0"]
    changed(machine, where, value or [{**shift, "log_ratio": 0.05} for shift in machine["shifts"]])
    assert main([str(written(rig.root, document))]) == 1
    assert printed.out.startswith("machine of GPU 0: ")


def test_kernel_that_is_no_more_is_judged_all_the_same(tmp_path: Path) -> None:
    document = unpacked(FOLDER / "gpu_full_5fc7664.json.gz")
    for record in document["benchmarks"]:
        info = record["extra_info"]
        info |= {name: "gone-" + info[name] for name in ("case", "variant")}
    path = written(tmp_path, document)
    assert main([str(path)]) == 0
    assert {case.case[:5] for case in replay(path)} == {"gone-"}


# What has no samples to speak of


class _Failing(ReplayDevice):
    """One case crashes, one is wrong; of one there are three samples, of one none."""

    def time(self, case: Case, plan: Any) -> Measurement:
        if case.id == CRASHED:
            raise DeviceError("HANG", f"{case.id}: no answer in 60 s")
        if case.id == WRONG:
            raise DeviceError("WRONG", f"{case.id}: C[0, 0] is 1, not 2")
        m = super().time(case, plan)
        return dataclasses.replace(m, seconds=m.seconds[: {FEW: 3, NONE: 0}.get(case.id, len(m.seconds))])


@pytest.mark.parametrize("mode", [(), ("--baseline-run",), ("--allow-no-baseline", "--allow-drift")], ids=str)
def test_case_without_samples_is_told_and_judged_again(
    rig: Rig, mode: tuple[str, ...], printed: Printed
) -> None:
    outcome = rig.run(*OURS, *mode, device=_Failing(3))
    assert outcome.failures.keys() == named(CRASHED, WRONG, FEW, NONE)
    unusable = {info["case"]: info for info in outcome.json[UNUSABLE]}
    assert {case: (i["verdict"], i["verdict_reason"], len(i["seconds"])) for case, i in unusable.items()} == {
        CRASHED: ("CRASHED", "HANG", 0),
        WRONG: ("WRONG", "OUTPUT", 0),
        FEW: ("AMBIGUOUS", "TOO_FEW_SAMPLES", 3),
        NONE: ("AMBIGUOUS", "TOO_FEW_SAMPLES", 0),
    }
    assert f"CRASHED: {unusable[CRASHED]['message']}" in outcome.failures[f"test_performance[{CRASHED}]"]
    assert outcome.timed.keys() == set(CASES) - unusable.keys()

    assert main([str(rig.root / "out.json")]) == 0
    said = f"{len(CASES) + 1} cases judged again (4 failed), 0 differ from the recorded verdict\n"
    assert printed.out == said
    for verdict in ("PASS", "AMBIGUOUS"):
        document = outcome.json
        next(i for i in document[UNUSABLE] if i["case"] == CRASHED)["verdict"] = verdict
        assert main([str(written(rig.root, document))]) == 1


# What is no such run


def _run(**parts: Any) -> str:
    return json.dumps({"benchmarks": [], "gemm_unusable": [], "gemm_machines": {}, **parts})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no json", "not valid JSON: truncated or damaged"),
        ("{}", "benchmarks is missing"),
        ('{"benchmarks": [], "gemm_unusable": []}', "gemm_machines is missing"),
        (_run(), "contains no judged case"),
        (_run(benchmarks=[{"stats": {"data": []}}]), "extra_info is missing"),
        (_run(benchmarks=[{"extra_info": {"case": "a-1x1x1"}, "stats": {"data": [1]}}]), "a-1x1x1: evidence"),
        (_run(gemm_unusable=[{"case": "a", "evidence": {}, "seconds": []}]), "a: evidence.policy is missing"),
        (_run(gemm_machines={"0": {"kind": "PASS"}}), "gemm_machines.0.reason is missing"),
        (_run(gemm_machines={"0": {"kind": "PASS", "reason": "FINE"}}), "machine of GPU 0"),
    ],
)
def test_file_that_cannot_be_judged_again_is_no_pass(
    tmp_path: Path, text: str, says: str, printed: Printed
) -> None:
    file = tmp_path / "run.json"
    file.write_text(text)
    assert main([str(file)]) == 2
    assert re.match(re.escape(f"error: {file}: ") + ".*" + re.escape(says), printed.error)


@pytest.mark.parametrize("part", ["policy", "stored", "reference", "seen", "paired"])
def test_evidence_that_lacks_a_part_or_is_not_what_it_was(
    part: str, tmp_path: Path, printed: Printed
) -> None:
    document = unpacked(FOLDER / "gpu_full_5fc7664.json.gz")
    evidence = document["benchmarks"][0]["extra_info"]["evidence"]
    kept = evidence.pop(part)
    assert main([str(written(tmp_path, document))]) == 2
    assert f": evidence.{part} is missing; " in printed.error
    evidence[part] = [kept]
    assert main([str(written(tmp_path, document))]) == 2
    assert f": evidence.{part}" in printed.error
