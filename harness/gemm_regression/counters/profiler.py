"""ncu (Nsight Compute's command line): one launch of each case under it, and its table read.

Metrics have ncu's own names; `ncu --query-metrics` lists those of a GPU without the last part (``.sum``).
"""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_regression.model import Case

SECTOR = 32  # bytes


class Figure(NamedTuple):
    """``title`` and ``unit`` of a figure, the ``metrics`` that it needs, and ``value``, which makes it of
    them; None where it has no meaning."""

    title: str
    unit: str
    metrics: tuple[str, ...]
    value: Callable[..., float | None]


def _same(value: float) -> float:
    return value


def _megabytes(value: float) -> float:
    return value / 1e6


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _one(title: str, unit: str, metric: str, value: Callable[..., float | None] = _same) -> Figure:
    return Figure(title, unit, (metric,), value)


def _global(what: str, op: str) -> str:
    return f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"


def _shared(what: str, op: str) -> str:
    return f"l1tex__data_{what}_mem_shared_op_{op}.sum"


_WAVES, _CONFLICTS = "pipe_lsu_wavefronts", "bank_conflicts_pipe_lsu"


def _sectors(title: str, op: str) -> Figure:
    """Per request of a warp: 4 for 128 contiguous bytes, 16 for a float4 per lane."""
    return Figure(f"sectors per {title}", "", (_global("sectors", op), _global("requests", op)), _ratio)


def _bytes_used(title: str, op: str) -> Figure:
    """Bytes that lanes asked for in each sector of 32, an address that several ask for once. ncu gives 0
    without an access that it counts, as for cp.async, and more than there are for some of 16 bytes."""
    metric = f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{op}.ratio"
    return _one(f"bytes used per sector, {title}", "B", metric, lambda v: v if 0 < v <= SECTOR else None)


TIME = "gpu__time_duration.sum"
DRAM = ("dram__bytes_read.sum", "dram__bytes_write.sum")
L2 = "lts__t_sectors_srcunit_tex.sum"
DATA = "l1tex__data_pipe_lsu_wavefronts.sum"
ISSUED = "smsp__inst_issued.sum"
L1_HITS, L2_HITS = "l1tex__t_sector_hit_rate.pct", "lts__t_sector_hit_rate.pct"
OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"
TRAFFIC = (TIME, *DRAM, L2, DATA, ISSUED)  # what a bound is computed from (counters/traffic.py)
STORED = (*TRAFFIC, L1_HITS, L2_HITS, OCCUPANCY)

STALLS = (
    *("long_scoreboard", "short_scoreboard", "barrier", "wait", "not_selected", "math_pipe_throttle"),
    *("mio_throttle", "lg_throttle", "tex_throttle", "dispatch_stall", "no_instruction", "imc_miss"),
    *("branch_resolving", "membar", "drain", "sleeping", "misc", "gmma"),
)
_STALLED = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"

GROUPS: Mapping[str, Sequence[Figure]] = {
    "speed": (
        _one("time", "µs", TIME, lambda ns: ns / 1000),
        _one("compute throughput", "%", "sm__throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("memory throughput", "%", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("DRAM throughput", "%", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"),
        _one("issue slots busy", "%", "smsp__issue_active.avg.pct_of_peak_sustained_active"),
    ),
    "occupancy": (
        _one("achieved", "%", OCCUPANCY),
        _one("possible", "%", "sm__maximum_warps_per_active_cycle_pct"),
    ),
    "caches and DRAM": (
        _one("L1 hit rate", "%", L1_HITS),
        _one("L2 hit rate", "%", L2_HITS),
        _one("L1 from and to L2", "MB", L2, lambda sectors: SECTOR * sectors / 1e6),
        _one("DRAM read", "MB", DRAM[0], _megabytes),
        _one("DRAM written", "MB", DRAM[1], _megabytes),
    ),
    "global memory": (
        _sectors("load", "ld"),
        _sectors("store", "st"),
        _bytes_used("load", "ld"),
        _bytes_used("store", "st"),
    ),
    "shared memory": (
        _one("wavefronts, all of L1's data", "", DATA),
        _one("load wavefronts", "", _shared(_WAVES, "ld")),
        _one("load conflicts", "", _shared(_CONFLICTS, "ld")),
        _one("store wavefronts", "", _shared(_WAVES, "st")),
        _one("store conflicts", "", _shared(_CONFLICTS, "st")),
    ),
    "instructions": (
        _one("warp instructions", "", "smsp__inst_executed.sum"),
        _one("issued", "", ISSUED),
        _one("FFMA of threads", "", "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"),
    ),
    "warps stalled per instruction": tuple(
        _one(name.replace("_", " "), "", _STALLED.format(name)) for name in STALLS
    ),
}
FIGURES = tuple(figure for group in GROUPS.values() for figure in group)
METRICS = tuple(dict.fromkeys((*(m for figure in FIGURES for m in figure.metrics), *TRAFFIC)))


def value(figure: Figure, values: Mapping[str, float]) -> float | None:
    """The figure of a launch; None where one of its metrics was not measured, or it has no meaning."""
    if any(metric not in values for metric in figure.metrics):
        return None
    return figure.value(*(values[metric] for metric in figure.metrics))


Row = dict[str, float]
_LAUNCHED = "launched "  # what devices/cuda/once.py says of each case, before its id and its binary


class ProfileError(Exception):
    """ncu did not measure what was requested. One line."""


class Launch(NamedTuple):
    """A launch that ncu profiled: the ``name`` of its function, metric -> value in base units, and the
    SHA-256 of the ``cubin``, empty if unknown."""

    name: str
    values: Row
    cubin: str = ""


def parse(text: str, metrics: Iterable[str], optional: Collection[str] = ()) -> list[Launch]:
    """Each launch, from the output of ncu --csv --page raw.

    Lines before the header (==PROF==, warnings) are messages of ncu; the row below the header contains units.
    Raises ProfileError if there is no table or a metric is missing, unless it is ``optional``.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = " ".join(
            line.removeprefix("==ERROR==").strip() for line in lines if line.startswith("==ERROR==")
        )
        raise ProfileError(f"ncu profiled no kernel{': ' + said if said else ''}")
    _units, *rows = csv.DictReader(line for line in lines[start:] if not line.startswith("=="))
    wanted = list(dict.fromkeys(metrics))
    return [Launch(row["Kernel Name"], dict(_values(row, wanted, optional))) for row in rows]


def _values(
    row: Mapping[str, str], metrics: Iterable[str], optional: Collection[str]
) -> Iterator[tuple[str, float]]:
    for metric in metrics:
        try:
            yield metric, float(row[metric].replace(",", ""))
        except KeyError:
            if metric not in optional:
                raise ProfileError(f"ncu does not provide {metric} on this GPU") from None
        except ValueError as error:
            if metric not in optional:
                raise ProfileError(f"ncu provides no number for {row['Kernel Name']}: {error}") from None


def command(
    ncu: str, log: Path, root: Path, cases: Sequence[Case], metrics: Iterable[str], export: Path | None = None
) -> list[str]:
    """The command that profiles one launch of each case of the project in ``root``. With ``export`` it keeps
    what Nsight Compute's window can show, all sections and the source, and prints no table."""
    shown = ["--csv", "--page", "raw", "--print-units", "base"]
    if export:
        shown = ["--set", "full", "--import-source", "yes", "--force-overwrite", "--export", str(export)]
    return [
        # Leave the clocks as in the suite's own runs; ncu would lock them to the base clock.
        *(ncu, "--clock-control", "none", "--target-processes", "all"),
        *("--kernel-name", f"regex:^({'|'.join(dict.fromkeys(map(function, cases)))})$"),
        *("--metrics", ",".join(dict.fromkeys(metrics)), *shown),
        *("--log-file", str(log), sys.executable, "-m", "gemm_regression.devices.cuda.once", str(root)),
        *(case.id for case in cases),
    ]


def function(case: Case) -> str:
    """The name of a case's function without namespaces and template arguments, as ncu shows it."""
    return case.kernel.entry_of(case.config, case.dtype).split("<")[0].rpartition("::")[2]


def measure(
    ncu: str,
    root: Path,
    cases: Sequence[Case],
    metrics: Sequence[str],
    optional: Collection[str] = (),
    export: Path | None = None,
    step: Callable[[str], None] = lambda case: None,
) -> list[Launch]:
    """One launch of each case of the project in ``root``, all in one run of ncu; ``export``: a .ncu-rep file
    to keep; ``step`` is called with each case that has been launched. Raises ProfileError unless each case
    made one launch."""
    with tempfile.TemporaryDirectory() as folder:
        log, again = Path(folder, "ncu.csv"), Path(folder, "again.csv")
        said = _run(command(ncu, log, root, cases, metrics, export), log, step)
        if export:
            read = [ncu, "--import", str(export), "--csv", "--page", "raw", "--print-units", "base"]
            _run([*read, "--log-file", str(again)], again)
        text = (again if export else log).read_text(errors="replace") if log.exists() else ""
    launches = parse(text, metrics, optional)
    if len(cases) != len(launches):
        seen = ", ".join(launch.name for launch in launches)
        raise ProfileError(f"{len(cases)} cases made {len(launches)} launches ({seen})")
    cubins = dict(re.findall(rf"^{_LAUNCHED}(\S+) ([0-9a-f]{{64}})$", said, re.MULTILINE))
    return [
        launch._replace(cubin=cubins.get(case.id, "")) for case, launch in zip(cases, launches, strict=True)
    ]


def _run(words: Sequence[str], log: Path, step: Callable[[str], None] = lambda case: None) -> str:
    """What the profiled program printed. Raises ProfileError with what ncu wrote into its log."""
    lines = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as done:
        assert done.stdout
        for line in done.stdout:
            lines.append(line)
            if line.startswith(_LAUNCHED):
                step(line.split()[1])
    if done.returncode:
        text = log.read_text(errors="replace") if log.exists() else ""
        said = [line for line in text.splitlines() if line.startswith("==ERROR==")]
        raise ProfileError(f"ncu ended with exit code {done.returncode}: {' '.join(said) or 'see above'}")
    return "".join(lines)


def offered(ncu: str) -> set[str]:
    """The names of the metrics that ncu can measure on this GPU; empty if unknown."""
    try:
        said = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.SubprocessError):
        return set()
    if said.returncode:
        return set()
    return {line.split()[0] for line in said.stdout.splitlines() if "__" in line}


def among(metrics: Iterable[str], known: Collection[str]) -> list[str]:
    """Those of the metrics that a GPU offers, each once; all if it is not known what it offers. One without a
    last part is derived of others, and not listed."""
    return [
        metric
        for metric in dict.fromkeys(metrics)
        if not known or "." not in metric or metric.partition(".")[0] in known
    ]
