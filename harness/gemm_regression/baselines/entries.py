"""What a baseline is: the figures of the cases of a GPU model, each with its own provenance."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemm_regression.baselines.fields import BaselineError
from gemm_regression.judge.vocabulary import Reference
from gemm_regression.model import CaseId


@dataclass(frozen=True)
class BaselineEntry:
    """One case as stored.

    Attributes:
        fullname: the name of its test.
        group: its problem.
        stats: pytest-benchmark's statistics, in seconds.
        info: our ``extra_info``; see the properties.
        machine: the GPU, its settings and the software of the measurement that it is from.
        commit_info: the commit whose kernel was measured.
        datetime: when, ISO 8601.
        launch_id: of the kept launch; None for a library, and where its binary was not kept.
        margin: the smallest change that counted when it was stored, relative; None: the policy's.
        best: cubin and launch id of the best binary ever accepted, if not its own.
        accepted: why it was stored although slower than that one; else empty.
    """

    fullname: str
    group: str
    stats: Mapping[str, Any]
    info: Mapping[str, Any]
    machine: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    launch_id: str | None = None
    margin: float | None = None
    best: tuple[str, str] | None = None
    accepted: str = ""

    @property
    def case_id(self) -> str:
        return str(self.info["case"])

    @property
    def binary(self) -> tuple[str | None, str | None]:
        """What was measured: the cubin, and how it is launched."""
        return self.cubin_sha256, self.launch_id or self.launch

    @property
    def variant(self) -> str:
        return CaseId.parse(self.case_id).variant

    @property
    def median_s(self) -> float:
        """Median device seconds of the middle run."""
        return float(self.info["median_s"])

    @property
    def gflops(self) -> float:
        return float(self.info["gflops"])

    @property
    def medians(self) -> tuple[float, ...]:
        """Median device seconds of each run, which is a process."""
        return tuple(self.info["run_medians"])

    @property
    def clocks_mhz(self) -> tuple[float, ...]:
        """The SM clock of each run; empty if unknown."""
        return tuple(self.info.get("run_clocks_mhz") or ())

    @property
    def noise_floor(self) -> float:
        """(max - min) / median of the medians of the runs, dimensionless."""
        return float(self.info["noise_floor"])

    @property
    def reference(self) -> Reference:
        """What an observation of the case is compared with."""
        return Reference(
            median_s=self.median_s,
            gflops=self.gflops,
            cubin_sha256=self.cubin_sha256,
            launch=self.launch,
            launch_id=self.launch_id or "",
            board=self.board,
            commit=self.commit,
            margin=self.margin,
            l2=self.l2,
            duty=self.duty,
            stats=self.stats,
        )

    @property
    def cublas_ratio(self) -> float | None:
        """Speed relative to cuBLAS's in the same run."""
        ratio = self.info.get("cublas_ratio")
        return None if ratio is None else float(ratio)

    @property
    def cubin_sha256(self) -> str | None:
        """None for a library."""
        return self.info.get("cubin_sha256")

    @property
    def launch(self) -> str | None:
        """Grid, block and dynamic shared memory as text; None if unknown."""
        return self.info.get("launch")

    @property
    def choice(self) -> str:
        """What a kernel that chooses had chosen, as `Case.choice`; empty for others."""
        return str(self.info.get("chosen", ""))

    @property
    def commit(self) -> str:
        """The commit whose kernel was measured, or ``unknown``."""
        return str(self.commit_info.get("id") or "unknown")

    @property
    def dirty(self) -> bool:
        """Whether the tree had changes on top of that commit."""
        return bool(self.commit_info.get("dirty", True))

    @property
    def board(self) -> str | None:
        """The board it was measured on; None if unknown."""
        return self.machine.get("board")

    @property
    def l2(self) -> str:
        return str(self.info["l2"])

    @property
    def duty(self) -> float:
        """The duty cycle: the maximum fraction of time the GPU is kept busy."""
        return float(self.info.get("duty", 1.0))

    @property
    def sm_clock_mhz(self) -> float | None:
        """The expected SM clock: that of the middle run."""
        return self.info.get("sm_clock_mhz") or None

    @property
    def temperature_c(self) -> float | None:
        return self.info.get("temperature_c")


@dataclass(frozen=True)
class Baseline:
    """Cases of one GPU model: one measurement, or what is current of several.

    Attributes:
        slug: the folder of the GPU model.
        machine_info: the GPU, its settings and the software of the newest of its measurements.
        commit_info: the commit that it measured.
        datetime: when, ISO 8601.
        entries: the cases, by id, each with the machine and the commit of its own.
        path: the file.
        derived_for: the board whose own figures go before those of others; None: of no particular one.
        number: of a measurement, its place among those of the GPU model, from 1.
    """

    slug: str
    machine_info: Mapping[str, Any]
    commit_info: Mapping[str, Any]
    datetime: str
    entries: Mapping[str, BaselineEntry]
    path: Path | None = None
    derived_for: str | None = None
    number: int = 0

    @property
    def label(self) -> str:
        """Number and date of a measurement, as pytest-benchmark names files: ``0003_2026-11-02``."""
        return f"{self.number:04}_{self.datetime[:10]}"

    @property
    def name(self) -> str:
        """The GPU model."""
        return str(self.machine_info["name"])

    @property
    def board(self) -> str | None:
        """The board of the newest measurement; None if unknown."""
        return self.machine_info.get("board")

    @property
    def case_ids(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def entry(self, case_id: str) -> BaselineEntry | None:
        return self.entries.get(case_id)

    def require_mig(self, mig: bool | None) -> None:
        """Raises BaselineError where MIG was off and is on, or the other way."""
        then = self.machine_info.get("mig")
        if None not in (then, mig) and then != mig:
            states = [("off", "on")[bool(state)] for state in (then, mig)]
            raise BaselineError(
                f"{self.path}: measured with MIG {states[0]}, but MIG is {states[1]}, and a part of a GPU is "
                "another GPU; switch it back, or move this baseline away"
            )


def gpu_slug(name: str) -> str:
    """The folder of a GPU model: ``NVIDIA H200`` reads ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed-gpu"


def noise_floor(medians: Sequence[float]) -> float:
    """(max - min) / median of the medians of the runs."""
    return (max(medians) - min(medians)) / statistics.median(medians)
