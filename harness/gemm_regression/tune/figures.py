"""What is known of a GPU model: its compute capability, and the speeds stored under ``baselines/<gpu>/``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_regression.baselines import Baseline, BaselineError, derived, gpu_slug, history, load_run
from gemm_regression.baselines.records import read_json, significant
from gemm_regression.baselines.store import FIGURES
from gemm_regression.files import write_whole
from gemm_regression.model import Case, Kernel, find_problem, stage_name
from gemm_regression.project.loader import Project
from gemm_regression.tune import stored
from gemm_regression.tune.table import Speed, Variant, plain

SURVEY = "advice.json"
Machine = Mapping[str, Any]  # a machine_info
_KEPT = (
    *("case", "variant", "flops", "l2", "duty", "registers", "shared_bytes", "local_bytes", "cubin_sha256"),
    *("gflops", "median_s", "spread", "cublas_ratio", "sm_clock_mhz", "power_w", "throttled"),
)


class SelectError(ValueError):
    """Nothing can be chosen; one line: what, and what to do."""


@dataclass(frozen=True)
class Surveyed:
    """What is stored of a GPU model.

    Attributes:
        slug: its folder.
        name, capability: of the GPU.
        files: names of the files.
        based: the problems, by id, whose fastest kernel is known: those of the baseline. Of others the survey
            only has what it recommends.
        gflops: by problem id and variant name, libraries among them; of a case in both files that of the
            survey, whose cases were timed together.
        roofs: what the GPU can do at most, as a run measures it (devices/cuda/roofs.py); empty if none did.
    """

    slug: str
    name: str
    capability: tuple[int, int]
    files: tuple[str, ...]
    gflops: Mapping[str, Mapping[str, float]]
    roofs: Mapping[str, Any] = field(default_factory=dict)
    based: frozenset[str] = frozenset()


def store_survey(run: Path, root: Path) -> Path:
    """Writes the survey of a run of the suite ``advice`` in the baselines' folder. Raises BaselineError, and
    OSError."""
    found = load_run(run)
    target = root / gpu_slug(found.machine_info["name"]) / SURVEY
    head = {
        "machine_info": dict(found.machine_info),
        "commit_info": dict(found.commit_info),
        "datetime": found.datetime,
    }
    records = [
        {
            "fullname": record["fullname"],
            "group": record["group"],
            "extra_info": {k: _short(record["extra_info"].get(k)) for k in _KEPT},
            "stats": {k: _short(v) for k, v in record["stats"].items() if k != "data"},
        }
        for record in read_json(run, "run it again")["benchmarks"]
    ]
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, f'{json.dumps(head, indent=1)[:-2]},\n "benchmarks": [\n{lines}\n ]\n}}\n')
    load_run(target)  # what would be refused is told at once
    return target


def _short(value: object) -> object:
    return significant(value, 6) if isinstance(value, float) else value


def gpus(project: Project) -> list[str]:
    """The GPU models with stored measurements, by folder."""
    return _slugs(project.baselines)


def _slugs(root: Path) -> list[str]:
    files = (FIGURES, SURVEY, f"{stored.FOLDER}/*.json")
    return sorted({path.relative_to(root).parts[0] for name in files for path in root.glob(f"*/{name}")})


def _cases(
    root: Path, slug: str, newest: Baseline | None = None
) -> tuple[list[Machine], list[tuple[str, str, Mapping[str, Any]]]]:
    """Of the baseline of a GPU model, with the ``newest`` measurement, and then of its survey: the
    machine_info of each; and the file, the problem id and the extra_info of each case. Raises BaselineError
    for a file that cannot be trusted."""
    survey = root / slug / SURVEY
    found = [*history(root, slug), *([newest] if newest else [])]
    files = {
        FIGURES: derived(found) if found else None,
        SURVEY: load_run(survey) if survey.is_file() else None,
    }
    there = {file: of for file, of in files.items() if of}
    records = list[tuple[str, str, Mapping[str, Any]]]()
    for file, of in there.items():
        records += [(file, entry.group, entry.info) for entry in of.entries.values()]
    return [of.machine_info for of in there.values()], records


def surveyed(root: Path, slug: str) -> Surveyed | None:
    """All speeds stored of a GPU model, None without any. Raises BaselineError."""
    machines, records = _cases(root, slug)
    if not machines:
        return None
    gflops: dict[str, dict[str, float]] = {}
    for _, problem, info in records:
        gflops.setdefault(problem, {})[str(info["variant"])] = float(info["gflops"])
    files = tuple(dict.fromkeys(file for file, _, _ in records))
    roofs: Mapping[str, Any] = next((own for one in machines if (own := one.get("roofs"))), {})
    based = frozenset(problem for file, problem, _ in records if file != SURVEY)
    return Surveyed(slug, str(machines[0]["name"]), capability_of(machines[0]), files, gflops, roofs, based)


def capability_of(machine: Machine) -> tuple[int, int]:
    major, minor = map(int, str(machine["capability"]).split("."))
    return major, minor


def every_survey(root: Path) -> list[Surveyed]:
    """What is stored of each GPU model. Raises BaselineError."""
    return [found for slug in _slugs(root) if (found := surveyed(root, slug))]


def measured(project: Project, gpu: str, newest: Baseline | None = None) -> tuple[list[Speed], list[Machine]]:
    """The speeds stored of declared kernels on plain problems (tight, alpha 1, beta 0), legal or not: first
    those of the baseline, with the ``newest`` measurement, which is not stored yet; then of the survey of
    advised configs, then of tuned spaces; and the machine_info of each file. Raises BaselineError for a file
    that cannot be trusted."""
    machines, records = _cases(project.baselines, gpu, newest)
    every = (
        Variant(k, config, dtype) for k in project.kernels for dtype in k.dtypes for config in k.declared
    )
    named = {variant.name: variant for variant in every}
    chosen = {(stage_name(v.kernel, v.config), v.dtype): v for v in named.values()}
    found, by_rows = list[Speed](), list[Speed]()
    for file, group, info in records:
        variant, problem = named.get(str(info.get("variant"))), find_problem(group)
        if variant is None:
            continue  # no longer declared
        if info["case"] == Case(variant.kernel, variant.dtype, variant.config, problem).id:
            board, choice = str(info.get("board", "")), str(info.get("chosen", ""))
            found.append(Speed(variant, problem, float(info["gflops"]), file, board, choice))
            if ran := chosen.get((choice, variant.dtype)):
                by_rows.append(Speed(ran, problem, float(info["gflops"]), file, board))
    found += by_rows  # of what is not timed under its own name, too
    for one in stored.find(project.baselines, gpu):
        machines.append(one.machine_info)
        found += _of_tuned(one, project.kernels)
    if wrong := next((machine for machine in machines if gpu_slug(str(machine["name"])) != gpu), None):
        folder = project.baselines / gpu
        raise BaselineError(f"{folder}: it holds a file of {wrong['name']}; remove it")
    return [figure for figure in found if figure.problem == plain(figure.problem)], machines


def _of_tuned(one: stored.Tuned, kernels: tuple[Kernel, ...]) -> Iterator[Speed]:
    """The figures of a tuned space, those measured again first."""
    variants = ((kernel, dtype) for kernel in kernels for dtype in kernel.dtypes)
    source, board = f"{stored.FOLDER}/{one.name}.json", str(one.machine_info.get("board", ""))
    for kernel, dtype in variants:
        if (kernel.name, dtype.name) == (one.kernel, one.dtype):
            for evaluation in (*one.confirmed, *one.evaluations):
                variant = Variant(kernel, evaluation.config, dtype)
                yield Speed(variant, find_problem(one.problem), evaluation.gflops, source, board)
