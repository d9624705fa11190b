"""What is known of a GPU model: its compute capability, and the speeds stored under ``baselines/<gpu>/``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gemm_regression.baselines import BaselineError, gpu_slug
from gemm_regression.baselines.store import figures_path
from gemm_regression.model import Case, Kernel, Problem, find_problem, variant_name
from gemm_regression.model.legality import GpuLimits
from gemm_regression.project.loader import Project
from gemm_regression.timing.bounds import sms_of
from gemm_regression.tune import stored
from gemm_regression.tune.rules import Variant
from gemm_regression.tune.survey import FILE as SURVEY
from gemm_regression.tune.survey import Cases, stored_cases
from gemm_regression.tune.table import Figure

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
    named = {
        variant_name(kernel, config, dtype): Variant(kernel, config, dtype)
        for kernel in project.kernels
        for dtype in kernel.dtypes
        for config in kernel.declared
    }
    cases = stored_cases(project.baselines, gpu)
    machines = list(cases.machines)
    every = list(_of_cases(cases, named))
    folder = project.baselines / gpu
    for one in stored.find(project.baselines, gpu):
        machines.append(one.machine_info)
        every += _of_tuned(one, project.kernels)
    for machine in machines:
        if gpu_slug(str(machine["name"])) != gpu:
            raise BaselineError(f"{folder}: it holds a file of {machine['name']}; remove it")
    try:
        major, minor = map(int, str(machines[0]["capability"]).split("."))
        limits = GpuLimits.of((major, minor))
    except ValueError as error:
        raise BaselineError(f"{folder}: {error}") from None
    return Known(
        gpu,
        limits,
        tuple(figure for figure in every if figure.variant.kernel.compiled),
        {(f.variant.dtype.name, f.problem): f.gflops for f in every if f.variant.kernel.library},
        {(f.variant.dtype.name, f.problem): f for f in every if f.variant.kernel.chooses},
        next(filter(None, map(sms_of, machines)), None),
    )


def _of_cases(cases: Cases, named: Mapping[str, Variant]) -> Iterator[Figure]:
    """The figures of variants that are still declared."""
    for file, group, info in cases.records:
        variant = named.get(str(info.get("variant")))
        if variant is None or not _plain(problem := find_problem(group)):
            continue
        if info["case"] == Case(variant.kernel, variant.dtype, variant.config, problem).id:
            ran = str(info.get("board", "")), str(info.get("chosen", ""))
            yield Figure(variant, problem, float(info["gflops"]), file, *ran)


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
