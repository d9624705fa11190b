"""The results of tuning, a line per config: in the cache file of a search, and in a tuned space as stored,
``baselines/<gpu>/tuned/<kernel>-<dtype>-<problem>.json``.

The file names the GPU and the software as a baseline does, never a host or a user.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic import dataclasses as validated

from gemm_regression.baselines import gpu_slug
from gemm_regression.baselines.merge import commit_of, machine_of
from gemm_regression.baselines.records import (
    BaselineError,
    CommitInfo,
    Moment,
    NotNegative,
    Positive,
    checked,
    read_json,
)
from gemm_regression.files import fault, read_whole, write_whole
from gemm_regression.hints import typed
from gemm_regression.judge.machine import Machine
from gemm_regression.model import CaseId, Config, Space

SCHEMA = 1
FOLDER = "tuned"
_REMEDY = f"restore it from git, or remove it and tune again with `{typed('tune')}`"

Objective = Literal["gflops", "cycles", "gflops_per_watt"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


class TuneError(ValueError):
    """Tuning cannot begin or go on; one line with what to do."""


def _config(given: Any) -> Config:
    return given if isinstance(given, Config) else Config(**given)


_Config = Annotated[Config, PlainValidator(_config), PlainSerializer(dict)]
_RECORD = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
PRUNED = "PRUNED"  # the code of a config that is not worth timing


@validated.dataclass(frozen=True, config=_RECORD)
class Evaluation:
    """One config as timed; on the emulated device, which has no time, only ``instructions``.

    Attributes:
        config: as a kernel declares it: without the axes that have their default value.
        seconds: median device seconds of a launch.
        gflops: FLOP / seconds / 10⁹.
        cycles: SM cycles of a launch, seconds times the clock meanwhile; None if the clock is unknown.
        watts: the most that NVML reported meanwhile; None if unknown. For launches of less than some
            milliseconds it is a power of the whole timing rather than of the kernel.
        noise: interquartile range / median of the rounds, dimensionless.
        instructions: of the warps of a launch.
    """

    config: _Config
    seconds: NotNegative = 0.0
    gflops: NotNegative = 0.0
    cycles: NotNegative | None = None
    watts: NotNegative | None = None
    noise: NotNegative = 0.0
    instructions: int | None = None

    def score(self, objective: str) -> float | None:
        """The larger the better; None if it was not measured."""
        if objective in ("cycles", "instructions"):
            value = getattr(self, objective)
            return -value if value else None
        if objective == "gflops_per_watt":
            return self.gflops / self.watts if self.watts else None
        return self.gflops


@validated.dataclass(frozen=True, config=_RECORD)
class FailedConfig:
    """A config without a time: ``code`` as of a DeviceError or a verdict (COMPILE_ERROR, WRONG, HANG,
    ILLEGAL_ADDRESS …) or PRUNED, and the reason in one line."""

    config: _Config
    code: str
    reason: str

    def score(self, objective: str) -> float | None:
        """None: nothing was measured."""
        return None


Result = Evaluation | FailedConfig
AnyResult = TypeVar("AnyResult", Evaluation, FailedConfig, Result)


def ranked(results: Iterable[AnyResult], objective: str) -> list[AnyResult]:
    """The best first, what has no score last."""

    def score(result: AnyResult) -> float:
        found = result.score(objective)
        return float("-inf") if found is None else found

    return sorted(results, key=score, reverse=True)


@validated.dataclass(frozen=True, config=ConfigDict(strict=True, arbitrary_types_allowed=True))
class Tuned:
    """A space of a kernel on one problem and GPU model. Raises ValueError for what makes no sense.

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
    datetime: Moment
    kernel: str
    dtype: str
    problem: str
    flop: Annotated[int, Field(gt=0)]
    objective: Objective
    strategy: str
    seconds: NotNegative
    axes: Mapping[str, Sequence[int]]
    evaluations: tuple[Evaluation, ...]
    confirmed: tuple[Evaluation, ...] = ()
    failed: tuple[FailedConfig, ...] = ()
    pruned: Mapping[str, int] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)
    declared: Config | None = None
    library_gflops: Positive | None = None
    seed: int | None = None
    budget: str = ""
    workers: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _agrees(self) -> Tuned:
        checked(self.machine_info, Machine)
        checked(self.commit_info, CommitInfo)
        if self.gpu != gpu_slug(self.machine_info["name"]):
            raise ValueError(f"it names two different GPUs: {self.gpu!r} and {self.machine_info['name']!r}")
        known = [*(one.config for one in self.evaluations), *(one.config for one in self.failed)]
        if len(set(known)) != len(known):
            raise ValueError("it contains a config twice")
        return self

    @property
    def best(self) -> Evaluation | None:
        """The best by the objective, of those confirmed if there are any; None without an evaluation."""
        both = (*ranked(self.confirmed, self.objective), *ranked(self.evaluations, self.objective))
        return next((one for one in both if one.score(self.objective) is not None), None)

    @property
    def of_declared(self) -> Evaluation | None:
        """The declared config as measured with the best, or else as evaluated."""
        both = (*self.confirmed, *self.evaluations)
        return next((one for one in both if one.config == self.declared), None)

    @property
    def name(self) -> str:
        """Of the file, without suffix."""
        return str(CaseId(self.kernel, self.dtype, problem=self.problem))

    @property
    def space(self) -> Space:
        """What was searched, without its rules."""
        return Space(self.axes, (), self.defaults)


def find(root: Path, gpu: str) -> list[Tuned]:
    """All tuned spaces of a GPU model, by file name; none without a folder. Raises BaselineError for one that
    cannot be trusted."""
    found = [load(path) for path in sorted((root / gpu / FOLDER).glob("*.json"))]
    for one in found:
        if one.gpu != gpu:
            raise BaselineError(f"{root / gpu / FOLDER / one.name}.json: measured on {one.gpu}, not {gpu}")
    return found


# The file: a config is the values of all axes; an evaluation has seconds, cycles, watts and noise.

_HEAD = (
    *("gpu", "kernel", "dtype", "problem", "flop", "objective", "strategy", "seed", "budget", "seconds"),
    *("workers", "library_gflops", "declared"),
)
_BESIDE = ("machine_info", "commit_info", "datetime", "axes", "defaults", "pruned")


def load(path: Path) -> Tuned:
    """The tuned space in a file. Raises BaselineError for whatever cannot be trusted."""
    document = read_json(path, _REMEDY)
    try:
        return _tuned(document["gemm_tuned"], document)
    except ValueError as error:
        said = fault(error) if isinstance(error, ValidationError) else str(error)
    except (AttributeError, KeyError, TypeError) as error:
        said = f"not a tuned space of this suite ({type(error).__name__}: {error})"
    raise BaselineError(f"{path}: {said}; {_REMEDY}") from None


def _tuned(head: Mapping[str, Any], document: Mapping[str, Any]) -> Tuned:
    if head["schema"] != SCHEMA:
        raise ValueError(f"schema {head['schema']!r}, but this version reads {SCHEMA}")
    space = Space({name: tuple(of) for name, of in document["axes"].items()}, (), document["defaults"])

    def config(values: Sequence[int]) -> Config:
        found = space.config(dict(zip(space.axes, values, strict=False)))
        if space.values(found) != tuple(values):
            raise ValueError(f"the config {values} is not in its axes {', '.join(space.axes)}")
        return found

    def evaluation(values: Sequence[int], measured: Sequence[Any]) -> Evaluation:
        if len(measured) != 4 or not measured[0]:
            raise ValueError("an evaluation should have seconds, cycles, watts and noise, and not 0 seconds")
        seconds, cycles, watts, noise = measured
        return Evaluation(config(values), seconds, head["flop"] / seconds / 1e9, cycles, watts, noise or 0.0)

    known = {name: head[name] for name in _HEAD} | {name: document[name] for name in _BESIDE}
    return Tuned(
        **known
        | {
            "declared": None if head["declared"] is None else config(head["declared"]),
            "machine_info": machine_of(document),
            "commit_info": commit_of(document),
            "axes": space.axes,
            "evaluations": tuple(evaluation(*row) for row in document["evaluations"]),
            "confirmed": tuple(evaluation(*row) for row in document["confirmed"]),
            "failed": tuple(FailedConfig(config(values), *rest) for values, *rest in document["failed"]),
        }
    )


def write(root: Path, tuned: Tuned) -> Path:
    """Writes its file below the folder of the baselines, whole or not at all. Raises ValueError for a config
    outside its axes, and OSError."""
    path, text = root / tuned.gpu / FOLDER / f"{tuned.name}.json", _text(tuned)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
    return path


def _text(t: Tuned) -> str:
    def values(config: Config) -> list[int]:
        found = t.space.values(config)
        if found is None:
            raise ValueError(f"the config {config.label} is not in its axes {', '.join(t.axes)}")
        return list(found)

    def row(one: Evaluation) -> list[Any]:
        watts = None if one.watts is None else round(one.watts, 1)
        cycles = None if one.cycles is None else round(one.cycles)
        return [values(one.config), [float(f"{one.seconds:.6g}"), cycles, watts, round(one.noise, 5)]]

    head = {"schema": SCHEMA, **{name: getattr(t, name) for name in _HEAD}}
    head |= {"seconds": round(t.seconds, 1), "declared": None if t.declared is None else values(t.declared)}
    single = {"gemm_tuned": head} | {name: getattr(t, name) for name in _BESIDE}
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


# The cache file of a search

_FIRST: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, str])
_LINE: TypeAdapter[Result] = TypeAdapter(Result)


class Cache:
    """The results of a search, a line of JSON each: every one is on disk before the next begins, and a search
    that was stopped goes on from them. The first line is the ``head``, what they belong to.

    Raises TuneError for a file of another kernel, GPU, problem, compiler or source, and for a damaged one,
    OSError where it cannot be read or written; the file stays as it is. A last line that is ``torn`` is
    dropped.
    """

    def __init__(self, path: Path, head: Mapping[str, str]) -> None:
        self.path, self.torn = path, False
        self.results: dict[Config, Result] = {}
        remedy = "remove it, or begin anew with --fresh"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(head) + "\n")
        text = read_whole(path).decode(errors="replace")
        first, *lines = text.splitlines(keepends=True) or [""]
        theirs: dict[str, str] = {}
        with suppress(ValidationError):
            theirs = _FIRST.validate_json(first)
        if theirs.keys() != head.keys():
            raise TuneError(f"{path}: no cache file of this suite, or its first line is damaged; {remedy}")
        for what, ours in head.items():
            if theirs[what] != ours:
                raise TuneError(
                    f"{path}: the cache of another {what}: {theirs[what]}, not {ours}; "
                    "name another with --cache, or begin anew with --fresh"
                )
        for number, line in enumerate(lines, 2):
            try:
                result = _LINE.validate_json(line if line.endswith("\n") else "")
            except (TypeError, ValidationError):
                if number <= len(lines):
                    why = f"line {number} is damaged; remove that line, or {remedy}"
                    raise TuneError(f"{path}: {why}") from None
                self.torn = True
                write_whole(path, "".join([first, *lines[:-1]]))
            else:
                self.results[result.config] = result

    def add(self, result: Result) -> None:
        """One more line, written at once."""
        self.results[result.config] = result
        with self.path.open("ab") as file:
            file.write(_LINE.dump_json(result) + b"\n")
