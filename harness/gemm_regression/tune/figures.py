"""What is known of a GPU model: its compute capability, and the speeds stored under ``baselines/<gpu>/``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemm_regression.baselines import BaselineError, current, gpu_slug, load_run
from gemm_regression.baselines.records import read_json
from gemm_regression.baselines.store import FIGURES, figures_path
from gemm_regression.files import write_whole
from gemm_regression.model import Case, Kernel, Problem, find_problem, variant_name
from gemm_regression.model.gpus import GpuLimits
from gemm_regression.project.loader import Project
from gemm_regression.timing.bounds import sms_of
from gemm_regression.tune import stored
from gemm_regression.tune.table import Figure, Variant

SURVEY = "advice.json"
_KEPT = (
    *("case", "variant", "flops", "l2", "duty", "registers", "shared_bytes", "local_bytes", "cubin_sha256"),
    *("gflops", "median_s", "spread", "cublas_ratio", "sm_clock_mhz", "power_w", "throttled"),
)


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
    """Writes the survey of a run of the suite ``advice`` in the baselines' folder. Raises BaselineError."""
    found = load_run(run)
    target = root / gpu_slug(found.machine_info["name"]) / SURVEY
    document = {
        "machine_info": dict(found.machine_info),
        "commit_info": dict(found.commit_info),
        "datetime": found.datetime,
        "benchmarks": [
            {
                "fullname": record["fullname"],
                "group": record["group"],
                "extra_info": {k: _short(record["extra_info"].get(k)) for k in _KEPT},
                "stats": {k: _short(v) for k, v in record["stats"].items() if k != "data"},
            }
            for record in read_json(run, "run it again")["benchmarks"]
        ],
    }
    records = ",\n".join(json.dumps(record, allow_nan=False) for record in document.pop("benchmarks"))
    head = json.dumps(document, indent=1)[:-2]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, f'{head},\n "benchmarks": [\n{records}\n ]\n}}\n')
        load_run(target)  # what would be refused is not kept
    except OSError as error:
        raise BaselineError(f"{target}: cannot be written ({error.strerror})") from None
    return target


def _short(value: object) -> object:
    return float(f"{value:.6g}") if isinstance(value, float) else value


Machine = Mapping[str, Any]


def _stored_cases(root: Path, slug: str) -> tuple[list[Machine], list[tuple[str, str, Mapping[str, Any]]]]:
    """Of the baseline of a GPU model, and then of its survey: the machine_info of each; and the file, the
    problem id and the extra_info of each case. Raises BaselineError for a file that cannot be trusted."""
    machines, records = list[Machine](), list[tuple[str, str, Mapping[str, Any]]]()
    if baseline := current(root, slug):
        machines.append(baseline.machine_info)
        records += [(FIGURES, entry.group, entry.info) for entry in baseline.entries.values()]
    if (root / slug / SURVEY).is_file():
        run = load_run(root / slug / SURVEY)
        machines.append(run.machine_info)
        records += [(SURVEY, entry.group, entry.info) for entry in run.entries.values()]
    return machines, records


def surveyed(root: Path, slug: str) -> Surveyed | None:
    """All speeds stored of a GPU model, None without any. Raises BaselineError."""
    machines, records = _stored_cases(root, slug)
    if not machines:
        return None
    gflops: dict[str, dict[str, float]] = {}
    for _, problem, info in records:
        gflops.setdefault(problem, {})[str(info["variant"])] = float(info["gflops"])
    files = tuple(dict.fromkeys(file for file, _, _ in records))
    roofs: Mapping[str, Any] = next((own for one in machines if (own := one.get("roofs"))), {})
    based = frozenset(problem for file, problem, _ in records if file != SURVEY)
    name, capability = str(machines[0]["name"]), _capability(machines[0])
    return Surveyed(slug, name, capability, files, gflops, roofs, based)


def _capability(machine: Machine) -> tuple[int, int]:
    major, minor = map(int, str(machine["capability"]).split("."))
    return major, minor


def every_survey(root: Path) -> list[Surveyed]:
    """What is stored of each GPU model. Raises BaselineError."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [found for name in folders if (found := surveyed(root, name))]


_ARCH = re.compile(r"sm_(\d+)(\d)a?")


class SelectError(ValueError):
    """Nothing can be chosen; one line: what, and what to do."""


@dataclass(frozen=True)
class Known:
    """What is known of a GPU model.

    Attributes:
        gpu: its folder, ``nvidia-h200``, or an architecture, ``sm_90``.
        limits: of its compute capability.
        figures: speeds of declared kernels on plain problems (tight, alpha 1, beta 0), legal or not: first
            those of its baseline, then of the survey of advised configs, then of tuned spaces.
        library: GFLOPS of the library, by dtype and problem.
        rows: choices measured as a row of the baseline, by dtype and problem.
        sms: how many SMs it has; None if no file says what they can do.
    """

    gpu: str
    limits: GpuLimits
    figures: tuple[Figure, ...] = ()
    library: Mapping[tuple[str, Problem], float] = field(default_factory=dict)
    rows: Mapping[tuple[str, Problem], Figure] = field(default_factory=dict)
    sms: int | None = None


def gpus(project: Project) -> list[str]:
    """The GPU models with stored measurements, by folder."""
    folders = sorted(project.baselines.iterdir()) if project.baselines.is_dir() else []
    return [path.name for path in folders if _sources(project, path.name)]


def _sources(project: Project, gpu: str) -> list[Path]:
    """The files with figures of a GPU model, in the order in which they count."""
    folder = project.baselines / gpu
    figures = figures_path(project.baselines, gpu)
    survey = folder / SURVEY
    tuned = sorted((folder / stored.FOLDER).glob("*.json"))
    return [*(path for path in (figures, survey) if path.is_file()), *tuned]


def known(project: Project, gpu: str, capability: tuple[int, int] | None = None) -> Known:
    """What is known of a GPU model, by its folder, or of an architecture such as ``sm_90``. With its
    ``capability``, a model without measurements is known by that.

    Raises SelectError for an unknown GPU or architecture, BaselineError for a file that cannot be trusted."""
    if _sources(project, gpu):
        return _measured(project, gpu)
    if match := _ARCH.fullmatch(gpu):
        capability = int(match[1]), int(match[2])
    if capability is None:
        there = ", ".join(gpus(project)) or "none"
        raise SelectError(
            f"unknown GPU {gpu!r}: measured are {there}; `nox -s baseline` measures this machine's, and "
            "--gpu sm_90 asks for an architecture without measurements"
        )
    try:
        return Known(gpu, GpuLimits.of(capability))
    except ValueError as error:
        raise SelectError(f"--gpu {gpu}: {error}") from None


def _measured(project: Project, gpu: str) -> Known:
    folder, every = project.baselines / gpu, list[Figure]()
    machines, records = _stored_cases(project.baselines, gpu)
    named = {
        variant_name(kernel, config, dtype): Variant(kernel, config, dtype)
        for kernel in project.kernels
        for dtype in kernel.dtypes
        for config in kernel.declared
    }
    for file, group, info in records:
        variant, problem = named.get(str(info.get("variant"))), find_problem(group)
        if variant is None or not _plain(problem):
            continue  # no longer declared
        if info["case"] == Case(variant.kernel, variant.dtype, variant.config, problem).id:
            ran = str(info.get("board", "")), str(info.get("chosen", ""))
            every.append(Figure(variant, problem, float(info["gflops"]), file, *ran))
    for one in stored.find(project.baselines, gpu):
        machines.append(one.machine_info)
        every += _of_tuned(one, project.kernels)
    for machine in machines:
        if gpu_slug(str(machine["name"])) != gpu:
            raise BaselineError(f"{folder}: it holds a file of {machine['name']}; remove it")
    try:
        limits = GpuLimits.of(_capability(machines[0]))
    except ValueError as error:
        raise BaselineError(f"{folder}: {error}") from None
    return Known(
        gpu,
        limits,
        tuple(figure for figure in every if figure.variant.kernel.compiled),
        {(f.variant.dtype.name, f.problem): f.gflops for f in every if f.variant.kernel.library},
        {(f.variant.dtype.name, f.problem): f for f in every if f.variant.kernel.is_dispatcher},
        next(filter(None, map(sms_of, machines)), None),
    )


def _of_tuned(one: stored.Tuned, kernels: tuple[Kernel, ...]) -> Iterator[Figure]:
    """The figures of a tuned space, those measured again first."""
    kernel = next((k for k in kernels if k.name == one.kernel), None)
    dtype = next((d for d in kernel.dtypes if d.name == one.dtype), None) if kernel else None
    problem = find_problem(one.problem)
    if kernel is None or dtype is None or not _plain(problem):
        return
    for evaluation in (*one.confirmed, *one.evaluations):
        variant = Variant(kernel, evaluation.config, dtype)
        board = str(one.machine_info.get("board", ""))
        yield Figure(variant, problem, evaluation.gflops, f"{stored.FOLDER}/{one.name}.json", board)


def _plain(problem: Problem) -> bool:
    return problem.tight and (problem.alpha, problem.beta) == (1, 0) and not any(problem.starts)
