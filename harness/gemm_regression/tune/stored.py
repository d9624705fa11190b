"""A tuned space as stored: ``baselines/<gpu>/tuned/<kernel>-<dtype>-<problem>.json``, one line per config.

The file names the GPU and the software as a baseline does, never a host or a user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, field_validator, model_validator

from gemm_regression.baselines.entries import gpu_slug
from gemm_regression.baselines.fields import (
    BaselineError,
    Machine,
    NotNegative,
    Positive,
    checked,
    commit_of,
    machine_of,
    read_json,
)
from gemm_regression.files import write_whole
from gemm_regression.model import CaseId, Config, Space

SCHEMA = 1
FOLDER = "tuned"
_REMEDY = "restore it from git, or remove it and tune again with `nox -s tune`"

Objective = Literal["gflops", "cycles", "gflops_per_watt"]
OBJECTIVES: tuple[Objective, ...] = ("gflops", "cycles", "gflops_per_watt")


@dataclass(frozen=True)
class Evaluation:
    """One config as timed.

    Attributes:
        config: as a kernel declares it: without the axes that have their default value.
        seconds: median device seconds of a launch.
        gflops: FLOP / seconds / 10⁹.
        cycles: SM cycles of a launch, seconds times the clock meanwhile; None if the clock is unknown.
        watts: the most that NVML reported meanwhile; None if unknown. For launches of less than some
            milliseconds it is a power of the whole timing rather than of the kernel.
        noise: interquartile range / median of the rounds, dimensionless.
    """

    config: Config
    seconds: float
    gflops: float
    cycles: float | None = None
    watts: float | None = None
    noise: float = 0.0

    def score(self, objective: Objective) -> float | None:
        """The larger the better; None if it was not measured."""
        if objective == "cycles":
            return -self.cycles if self.cycles else None
        if objective == "gflops_per_watt":
            return self.gflops / self.watts if self.watts else None
        return self.gflops


@dataclass(frozen=True)
class Failed:
    """A config without a time: ``code`` as of a DeviceError or a verdict (COMPILE_ERROR, WRONG, HANG,
    ILLEGAL_ADDRESS …), and the reason in one line."""

    config: Config
    code: str
    reason: str


@dataclass(frozen=True)
class Tuned:
    """A space of a kernel on one problem and GPU model.

    Attributes:
        gpu: its name as of a folder, ``nvidia-h200``.
        machine_info, commit_info, datetime: as of a baseline.
        kernel, dtype: their names.
        problem: its id.
        flop: floating-point operations of a launch.
        objective: what the strategy optimised; every evaluation has all that was measured.
        strategy: Kernel Tuner's name of it.
        seed: of the strategy; None if it has none.
        budget: such as ``300 s`` or ``200 evaluations``; empty if unlimited.
        seconds: that the search took, pruning excluded.
        workers: GPUs that it used.
        axes: every parameter and its values, in the order of the kernel's config.
        defaults: axes that a config omits at this value.
        evaluations: in the order in which they were measured.
        confirmed: the best of them and the declared config, measured again, longer and after all others.
        failed: configs that could not be timed.
        pruned: the number of configs excluded without a GPU, by reason.
        declared: the config that the kernel declared first; None if the space does not contain it.
        library_gflops: of the library for the same problem, in the same run; None without one.
    """

    gpu: str
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    kernel: str
    dtype: str
    problem: str
    flop: int
    objective: Objective
    strategy: str
    seconds: float
    axes: Mapping[str, Sequence[int]]
    evaluations: tuple[Evaluation, ...]
    confirmed: tuple[Evaluation, ...] = ()
    failed: tuple[Failed, ...] = ()
    pruned: Mapping[str, int] | None = None
    defaults: Mapping[str, int] | None = None
    declared: Config | None = None
    library_gflops: float | None = None
    seed: int | None = None
    budget: str = ""
    workers: int = 1

    @property
    def best(self) -> Evaluation | None:
        """The best by the objective, of those confirmed if there are any; None without an evaluation."""
        return best_of(self.confirmed, self.objective) or best_of(self.evaluations, self.objective)

    @property
    def of_declared(self) -> Evaluation | None:
        """The declared config as measured with the best, or else as evaluated."""
        both = (*self.confirmed, *self.evaluations)
        return next((one for one in both if one.config == self.declared), None)

    @property
    def name(self) -> str:
        """Of the file, without suffix."""
        return str(CaseId(self.kernel, self.dtype, problem=self.problem))


def best_of(evaluations: Iterable[Evaluation], objective: Objective) -> Evaluation | None:
    """The evaluation with the highest score."""
    scored = [(score, one) for one in evaluations if (score := one.score(objective)) is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def path_of(root: Path, tuned: Tuned) -> Path:
    """Its file below the folder of the baselines."""
    return root / tuned.gpu / FOLDER / f"{tuned.name}.json"


def find(root: Path, gpu: str) -> list[Tuned]:
    """All tuned spaces of a GPU model, by file name; none without a folder. Raises BaselineError for one that
    cannot be trusted."""
    found = [load(path) for path in sorted((root / gpu / FOLDER).glob("*.json"))]
    for one in found:
        if one.gpu != gpu:
            raise BaselineError(f"{root / gpu / FOLDER / one.name}.json: measured on {one.gpu}, not {gpu}")
    return found


# Reading

_Values = list[StrictInt]
_Measured = list[Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None]


class _Head(BaseModel):
    gpu: StrictStr
    kernel: StrictStr
    dtype: StrictStr
    problem: StrictStr
    flop: StrictInt = Field(gt=0)
    objective: Objective
    strategy: StrictStr
    seed: StrictInt | None
    budget: StrictStr
    seconds: NotNegative
    workers: StrictInt = Field(ge=1)
    library_gflops: Positive | None
    declared: _Values | None


class _Commit(BaseModel):
    id: StrictStr
    dirty: StrictBool


class _Document(BaseModel):
    gemm_tuned: _Head
    machine_info: Machine
    commit_info: _Commit
    datetime: StrictStr
    axes: dict[StrictStr, list[StrictInt]]
    defaults: dict[StrictStr, StrictInt]
    pruned: dict[StrictStr, StrictInt]
    evaluations: list[tuple[_Values, _Measured]]
    confirmed: list[tuple[_Values, _Measured]]
    failed: list[tuple[_Values, StrictStr, StrictStr]]

    @field_validator("datetime")
    @classmethod
    def _moment(cls, text: str) -> str:
        datetime.fromisoformat(text)
        return text

    @model_validator(mode="after")
    def _in_space(self) -> _Document:
        rows = [row[0] for row in (*self.evaluations, *self.confirmed, *self.failed)]
        if self.gemm_tuned.declared is not None:
            rows.append(self.gemm_tuned.declared)
        for values in rows:
            fits = len(values) == len(self.axes)
            if not fits or any(v not in of for v, of in zip(values, self.axes.values(), strict=True)):
                raise ValueError(f"the config {values} is not in its axes {', '.join(self.axes)}")
        known = [tuple(row[0]) for row in (*self.evaluations, *self.failed)]
        if len(set(known)) != len(known):
            raise ValueError("it contains a config twice")
        if any(len(row[1]) != 4 or not row[1][0] for row in (*self.evaluations, *self.confirmed)):
            raise ValueError("an evaluation should have seconds, cycles, watts and noise, and not 0 seconds")
        return self


def load(path: Path) -> Tuned:
    """The tuned space in a file. Raises BaselineError for whatever cannot be trusted."""
    document = read_json(path, _REMEDY)
    head = document.get("gemm_tuned")
    if not isinstance(head, dict):
        raise BaselineError(f"{path}: not a tuned space of this suite (it has no gemm_tuned); {_REMEDY}")
    if head.get("schema") != SCHEMA:
        raise BaselineError(
            f"{path}: schema {head.get('schema')!r}, but this version reads {SCHEMA}; {_REMEDY}"
        )
    try:
        checked(document, _Document)
        if head["gpu"] != gpu_slug(document["machine_info"]["name"]):
            raise ValueError(
                f"it names two different GPUs: {head['gpu']!r} and {document['machine_info']['name']!r}"
            )
        return _tuned(head, document)
    except ValueError as error:
        raise BaselineError(f"{path}: {error}; {_REMEDY}") from None


def _tuned(head: Mapping[str, Any], document: Mapping[str, Any]) -> Tuned:
    space = Space({name: tuple(of) for name, of in document["axes"].items()}, (), document["defaults"])

    def config(values: Sequence[int]) -> Config:
        return space.config(dict(zip(space.axes, values, strict=True)))

    def evaluation(values: Sequence[int], measured: Sequence[float]) -> Evaluation:
        seconds, cycles, watts, noise = measured
        gflops = head["flop"] / seconds / 1e9
        return Evaluation(config(values), seconds, gflops, cycles, watts, noise or 0.0)

    fields = ("gpu", "kernel", "dtype", "problem", "flop", "objective", "strategy", "seed", "budget")
    return Tuned(
        **{name: head[name] for name in (*fields, "seconds", "workers", "library_gflops")},
        declared=None if head["declared"] is None else config(head["declared"]),
        machine_info=machine_of(document),
        commit_info=commit_of(document),
        datetime=document["datetime"],
        axes=space.axes,
        defaults=space.defaults,
        pruned=document["pruned"],
        evaluations=tuple(evaluation(*row) for row in document["evaluations"]),
        confirmed=tuple(evaluation(*row) for row in document["confirmed"]),
        failed=tuple(Failed(config(values), *rest) for values, *rest in document["failed"]),
    )


# Writing


def write(root: Path, tuned: Tuned) -> Path:
    """Writes its file below the folder of the baselines, whole or not at all. Raises BaselineError."""
    path = path_of(root, tuned)
    save(path, tuned)
    return path


def save(path: Path, tuned: Tuned) -> None:
    """Writes it to a file, whole or not at all. Raises BaselineError."""
    try:
        text = _text(tuned)
        checked(json.loads(text), _Document)  # What would be refused when read is never written.
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except ValueError as error:
        raise BaselineError(f"{path}: not written: {error}") from None
    except OSError as error:
        raise BaselineError(f"{path}: cannot be written ({error.strerror})") from None


def _text(t: Tuned) -> str:
    defaults = dict(t.defaults or {})
    space = Space(t.axes, (), defaults)

    def values(config: Config) -> list[int]:
        found = space.values(config)
        if found is None:
            raise ValueError(f"the config {config.label} is not in its axes {', '.join(t.axes)}")
        return list(found)

    def row(one: Evaluation) -> list[Any]:
        watts = None if one.watts is None else round(one.watts, 1)
        cycles = None if one.cycles is None else round(one.cycles)
        return [values(one.config), [float(f"{one.seconds:.6g}"), cycles, watts, round(one.noise, 5)]]

    fields = ("gpu", "kernel", "dtype", "problem", "flop", "objective", "strategy", "seed", "budget")
    head = {"schema": SCHEMA, **{name: getattr(t, name) for name in fields}}
    head |= {"seconds": round(t.seconds, 1), "workers": t.workers, "library_gflops": t.library_gflops}
    head["declared"] = None if t.declared is None else values(t.declared)
    single = {
        "gemm_tuned": head,
        "machine_info": dict(t.machine_info),
        "commit_info": dict(t.commit_info),
        "datetime": t.datetime,
        "axes": {name: list(of) for name, of in t.axes.items()},
        "defaults": defaults,
        "pruned": dict(t.pruned or {}),
    }
    rows = {
        "evaluations": [row(one) for one in t.evaluations],
        "confirmed": [row(one) for one in t.confirmed],
        "failed": [[values(one.config), one.code, one.reason] for one in t.failed],
    }
    parts = [f'"{name}": {json.dumps(value, allow_nan=False)}' for name, value in single.items()]
    for name, lines in rows.items():
        listed = ",\n".join(json.dumps(line, allow_nan=False, separators=(",", ":")) for line in lines)
        parts.append(f'"{name}": [\n{listed}\n]' if lines else f'"{name}": []')
    return "{\n" + ",\n".join(parts) + "\n}\n"
