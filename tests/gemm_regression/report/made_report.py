"""Made-up files for reports: a run of the stored H200 baseline with three planted faults, a series of
baselines in which one case becomes slower, a comparison.

python -m tests.gemm_regression.report.made_report FOLDER   writes them, for `nox -s report`
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from gemm_regression.baselines import Baseline, BaselineEntry, append, current, gpu_slug
from gemm_regression.devices.work import StoredBinary
from gemm_regression.judge.evidence import MACHINES, UNUSABLE, Evidence, conclude
from gemm_regression.judge.vocabulary import DEFAULT_MARGIN, SAME_BINARY, Paired, Policy
from gemm_regression.model import F32, Case, Config, Problem, Resources
from gemm_regression.project.commit import Commit, Tree
from gemm_regression.run.compare import Side, compare
from gemm_regression.run.pairing import ComparedCase, Pair
from gemm_regression.run.replay import document
from gemm_regression.run.timed import Result, extra_info, observation
from gemm_regression.timing.looks import Estimate, PairFinding, Rule
from gemm_regression.timing.plan import Measurement, PairPlan
from gemm_regression.tune.stored import Evaluation, Failed, Tuned
from gemm_regression.tune.stored import write as write_tuned
from tests.gemm_regression import synthetic
from tests.gemm_regression.simulated import SimulatedDevice
from tests.ladder import LADDER, PROJECT

CUBE = synthetic.CUBE
COMPILED = [kernel for kernel in LADDER if kernel.compiled]
WRONG, SLOWER, CRASHED = (Case(COMPILED[i], F32, COMPILED[i].configs[0], CUBE) for i in (2, 5, 10))
ROUNDS = 60
ROOFS = {
    "f32": {"gflops": 65_000.0, "mhz": 1980.0, "arithmetic": 66_908.2},
    "bf16": {"gflops": 800_000.0, "mhz": 1755.0, "arithmetic": 948_953.0},
    "shared": {"gbps": 33_000.0, "mhz": 1980.0, "arithmetic": 33_454.1},
    "l2": {"gbps": 7_000.0, "mhz": 1980.0},
    "dram": {"gbps": 4_300.0, "mhz": 1980.0, "arithmetic": 4916.7},
    "cycles": {"fma": 4.0, "shared": 29.0, "l1": 38.5, "l2": 262.0, "dram": 743.8},
}
OTHER_GPU = "NVIDIA H100 80GB HBM3"
SINCE = 8  # the file of the series with which SLOWER becomes slower


def stored() -> Baseline:
    """The stored baseline of the H200."""
    found = current(PROJECT.baselines, "nvidia-h200")
    assert found is not None
    return found


def judged(case: Case, entry: BaselineEntry, random: np.random.Generator) -> Result:
    """A case as the baseline has it, but for three: wrong, crashed, 5 % slower."""
    policy, stored = Policy(), entry.reference
    if case in (WRONG, CRASHED):
        text = "C(3, 5) is 12.5, expected 13" if case == WRONG else "an illegal memory access was encountered"
        error = "WRONG" if case == WRONG else "ILLEGAL_ADDRESS", f"{case.id}: {text}"
        e = Evidence(None, stored, error=error)
        return Result(case, conclude(e, policy), e, policy)
    m = measurement(entry, 1.05 if case == SLOWER else 1.0, random)
    seen = replace(observation(case, m), launch=entry.launch or "", cubin_sha256=entry.cubin_sha256)
    paired = None
    if case == SLOWER:
        seen = replace(seen, cubin_sha256="f" * 64)
        blocks = [math.log(1.05) + ratio for ratio in random.normal(0, 0.001, 12)]
        estimate = Estimate.of(blocks)
        paired = replace(Paired.of(PairFinding.of(estimate, 0.005, 1e-5), blocks, 0.0, 0.005), base="d" * 40)
    e = Evidence(seen, stored, paired=paired)
    return Result(case, conclude(e, policy), e, policy, m)


def measurement(entry: BaselineEntry, factor: float, random: np.random.Generator) -> Measurement:
    """What a case's entry says, with noise, ``factor`` times as long."""
    seconds = tuple(float(s) for s in factor * entry.median_s * np.exp(random.normal(0, 0.001, ROUNDS)))
    cubin = "f" * 64 if factor > 1 else entry.cubin_sha256
    return synthetic.measurement(
        seconds=seconds,
        reference_seconds=tuple(s * (entry.cublas_ratio or 1.0) for s in seconds),
        resources=Resources(32, 8192, 0, cubin) if cubin else None,
        sm_clock_mhz=entry.seen[0] or 1980.0,
        mhz=tuple(1980.0 - 3 * math.sin(n / 5) for n in range(ROUNDS)),
        power_w=690.0,
        temperature_c=61.0,
        l2=entry.l2,
        duty=entry.duty,
        extra={"temperatures_c": [55.0 + n // 10 for n in range(ROUNDS)]},
    )


def run(baseline: Baseline) -> dict[str, Any]:
    """What ``--benchmark-json`` writes of a run of every stored case, three of them with a fault."""
    made, random = synthetic.run(0, {}), np.random.default_rng(1)
    made |= {"machine_info": {**baseline.machine_info, "roofs": ROOFS}, UNUSABLE: [], MACHINES: {}}
    made["commit_info"] = dict(baseline.commit_info)
    for case in cases(baseline):
        result = judged(case, baseline.entries[case.id], random)
        info = extra_info(result)
        if result.measurement is None:
            made[UNUSABLE].append(info)
        else:
            made["benchmarks"].append(synthetic.record(case, result.measurement) | {"extra_info": info})
    return made


def cases(baseline: Baseline) -> list[Case]:
    """The declared cases of a baseline at the sizes of the ladder."""
    every = product((1024, 4095, 4096, 4097), LADDER)
    declared = [(sized(n), k, dtype, config) for n, k in every for dtype in k.dtypes for config in k.configs]
    found = (Case(kernel, dtype, config, problem) for problem, kernel, dtype, config in declared)
    return [case for case in found if case.id in baseline.entries]


def sized(n: int) -> Problem:
    return replace(CUBE, m=n, n=n, k=n, lda=0, ldb=0, ldc=0)


def other_gpu(baseline: Baseline, root: Path) -> Path:
    """A baseline of another GPU, on which every case takes 1.25 times as long."""
    machine = dict(baseline.machine_info) | {"name": OTHER_GPU, "board": "0badcafe", "roofs": ROOFS}
    slower = {case: replace(slowed(entry, 1.25), machine=machine) for case, entry in baseline.entries.items()}
    other = replace(baseline, slug=gpu_slug(OTHER_GPU), entries=slower, machine_info=machine)
    return append(root, other, {})


def slowed(entry: BaselineEntry, factor: float) -> BaselineEntry:
    """An entry whose times are this many times as long, without its binary."""
    return replace(synthetic.scaled(entry, factor), launch_id=None)


def series(baseline: Baseline, root: Path, files: int = 12) -> None:
    """Measurements of one board, alike within their noise; one case loses 4 % with measurement SINCE."""
    random, machine = np.random.default_rng(2), dict(baseline.machine_info)
    kept = [case.id for case in cases(baseline)]
    for number in range(1, files + 1):
        when = f"2026-{number:02}-01T10:00:00+00:00"
        commit = {"id": f"{number:x}" * 40, "dirty": False}
        about: dict[str, Any] = {"machine": machine, "commit_info": commit}
        entries = {}
        for case in kept:
            entry = baseline.entries[case]
            factor = math.exp(random.normal(0, min(0.001, entry.noise_floor / 3)))
            factor *= 1.04 if case == SLOWER.id and number >= SINCE else 1.0
            entries[case] = replace(slowed(entry, factor), datetime=when, **about)
        append(root, replace(baseline, entries=entries, datetime=when, commit_info=commit), {})


def comparison() -> dict[str, Any]:
    """What ``compare --json`` writes of a comparison in which one kernel is 2 % slower."""

    def seconds(of: Case | StoredBinary) -> float:
        if isinstance(of, StoredBinary):
            return 1e-12 * of.work.problem.flops
        return 1e-12 * of.problem.flops * (1.02 if "tiled" in of.id else 1.0)

    same = Paired(*SAME_BINARY, detail="same cubin, same launch")
    pairs: list[Pair | ComparedCase] = [
        ComparedCase(synthetic.case("naive", problem=sized(size)), same) for size in (512, 1024, 2048, 4096)
    ]
    device = SimulatedDevice(seconds)
    for case in (synthetic.case(name, problem=sized(1024)) for name in ("tiled", "register")):
        base = device.binary(case)
        assert base is not None
        pairs.append(Pair(case, base, DEFAULT_MARGIN, "cuda", seconds(case), "main (1a2b3c4d5e6f)"))
    result = compare(device, pairs, Rule(), 7, PairPlan(()), device.busy)
    side, tree = Side(Commit("main", "1a2b3c4d5e6f" + "0" * 28, ())), Tree("f" * 40, True)
    return document(result, side, tree, {"name": synthetic.GPU}, "2026-11-21T00:00:00+00:00")


def tuned() -> Tuned:
    """A tuned space of 240 configs, in which TILE_M matters most."""
    axes = {"TILE_M": (32, 64, 128, 256, 512), "TILE_N": (32, 64, 128), "TILE_K": (8, 16)}
    axes |= {"STAGES": (1, 2, 3, 4, 5), "PADDING": (0, 1)}
    random, baseline = np.random.default_rng(3), stored()
    evaluations = []
    for values in product(*axes.values()):
        if values[0] == 512:
            continue
        gflops = 2e4 * (1 + values[0] / 100) * (1 + values[1] / 1000) * math.exp(random.normal(0, 0.02))
        config = Config(**dict(zip(axes, values, strict=True)))
        evaluations.append(Evaluation(config, CUBE.flops / gflops / 1e9, gflops, noise=0.001))
    hung = Config(TILE_M=512, TILE_N=32, TILE_K=8, STAGES=1, PADDING=0)
    about = {name: getattr(baseline, name) for name in ("machine_info", "commit_info", "datetime")}
    asked: dict[str, Any] = {"kernel": "register", "dtype": "f32", "problem": CUBE.id, "flop": CUBE.flops}
    how: dict[str, Any] = {"objective": "gflops", "strategy": "random_sample", "seconds": 300.0, "axes": axes}
    return Tuned(
        gpu=baseline.slug,
        **about,
        **asked,
        **how,
        evaluations=tuple(evaluations[1:] + evaluations[:1]),
        failed=(Failed(hung, "HANG", "time limit"),),
        pruned={"too much shared memory": 7},
        declared=evaluations[0].config,
        library_gflops=51_000.0,
    )


def save(folder: Path) -> tuple[Path, Path, Path]:
    """Writes all three; the run, the comparison, and the folder of baselines."""
    folder.mkdir(parents=True, exist_ok=True)
    baseline = stored()
    files = folder / "run.json", folder / "compare.json", folder / "baselines"
    files[0].write_text(json.dumps(run(baseline), allow_nan=False))
    files[1].write_text(json.dumps(comparison(), allow_nan=False))
    series(baseline, files[2])
    write_tuned(files[2], tuned())
    return files


if __name__ == "__main__":
    for path in save(Path(sys.argv[1])):
        print(path)
