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
