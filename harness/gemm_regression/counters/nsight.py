"""ncu (Nsight Compute's command line): one launch of each case under it, and its table read."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gemm_regression.compiler.tools import said
from gemm_regression.model import Case

Row = dict[str, float]
_LAUNCHED = "launched "  # what devices/cuda/once.py says of each case, before its id and its binary


class ProfileError(Exception):
    """ncu did not measure what was requested. One line."""


class NcuLaunch(NamedTuple):
    """A launch that ncu profiled: the ``name`` of its function, metric -> value in base units, and the
    SHA-256 of the ``cubin``, empty if unknown."""

    name: str
    values: Row
    cubin: str = ""


def parse(text: str, metrics: Iterable[str], optional: Collection[str] = ()) -> list[NcuLaunch]:
    """Each launch, from the output of ncu --csv --page raw.

    Lines before the header (==PROF==, warnings) are messages of ncu; the row below the header contains units.
    Raises ProfileError if there is no table or a metric is missing, unless it is ``optional``.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        why = _errors(text)
        raise ProfileError(f"ncu profiled no kernel{': ' + why if why else ''}")
    _units, *rows = csv.DictReader(line for line in lines[start:] if not line.startswith("=="))
    launches = [NcuLaunch(row["Kernel Name"], {}) for row in rows]
    for (name, values, _), row in zip(launches, rows, strict=True):
        for metric in dict.fromkeys(metrics):
            try:
                values[metric] = float(row[metric].replace(",", ""))
            except KeyError:
                if metric not in optional:
                    raise ProfileError(f"ncu does not provide {metric} on this GPU") from None
            except ValueError as error:
                if metric not in optional:
                    raise ProfileError(f"ncu provides no number for {name}: {error}") from None
    return launches


def _errors(log: str) -> str:
    """What ncu wrote as errors, in a line."""
    marked = (line.partition("==ERROR==") for line in log.splitlines())
    return " ".join(rest.strip() for before, mark, rest in marked if mark and not before)


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
) -> list[NcuLaunch]:
    """One launch of each case of the project in ``root``, all in one run of ncu; ``export``: a .ncu-rep file
    to keep; ``step`` is called with each case that has been launched. Raises ProfileError unless each case
    made one launch."""
    cubins: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        log, again = Path(folder, "ncu.csv"), Path(folder, "again.csv")
        for line in _run(command(ncu, log, root, cases, metrics, export), log):
            if line.startswith(_LAUNCHED):
                case, *cubin = line.removeprefix(_LAUNCHED).split()
                cubins[case] = "".join(cubin)
                step(case)
        if export:
            read = [ncu, "--import", str(export), "--csv", "--page", "raw", "--print-units", "base"]
            list(_run([*read, "--log-file", str(again)], again))
        text = _read(again if export else log)
    launches = parse(text, metrics, optional)
    if len(cases) != len(launches):
        seen = ", ".join(launch.name for launch in launches)
        raise ProfileError(f"{len(cases)} cases made {len(launches)} launches ({seen})")
    return [
        launch._replace(cubin=cubins.get(case.id, "")) for case, launch in zip(cases, launches, strict=True)
    ]


def _run(words: Sequence[str], log: Path) -> Iterator[str]:
    """The lines that the profiled program prints. Raises ProfileError with what ncu wrote into its log."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as done:
        assert done.stdout
        yield from done.stdout
    if done.returncode:
        why = _errors(_read(log)) or "see above"
        raise ProfileError(f"ncu ended with exit code {done.returncode}: {why}")


def _read(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


def offered(ncu: str) -> set[str]:
    """The names of the metrics that ncu can measure on this GPU; empty if unknown."""
    done = said([ncu, "--query-metrics"])
    lines = [] if done.returncode else done.stdout.splitlines()
    return {line.split()[0] for line in lines if "__" in line}


def among(metrics: Iterable[str], known: Collection[str]) -> list[str]:
    """Those of the metrics that a GPU offers, each once; all if it is not known what it offers. One without a
    last part is derived of others, and not listed."""
    return [
        metric
        for metric in dict.fromkeys(metrics)
        if not known or "." not in metric or metric.partition(".")[0] in known
    ]
