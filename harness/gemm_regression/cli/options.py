"""The options of the commands and of the plugin, each declared once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemm_regression.compiler.static import ARCHES


def _flag(about: str) -> dict[str, Any]:
    return {"action": "store_true", "help": about}


def _value(metavar: str | tuple[str, ...] | None, about: str, **settings: Any) -> dict[str, Any]:
    return {"help": about, "metavar": metavar, **settings}


# Of the commands and of the plugin, each once.
OPTIONS: dict[str, dict[str, Any]] = {
    "--project": _value("PATH", "the project's folder (default: the nearest one upwards)", type=Path),
    "--suite": _value("NAME", "the set of cases: smoke or full (default %(default)s)", default="full"),
    "--kernel": _value("NAME", "only this kernel; may be repeated", action="append", default=[]),
    "--config": _value(
        "LABEL", "only this config, such as tile32-pad0; may be repeated", action="append", default=[]
    ),
    "--shape": _value(
        "MxNxK", "problem size instead of those of the suite; may be repeated", action="append", default=[]
    ),
    "-k": _value("EXPRESSION", 'only cases whose id matches, as in pytest: "f16 and not 4096"', default=""),
    "--device": _value(
        *(None, "cuda: a GPU; emulated: the PTX interpreter; auto: cuda if there is a GPU"),
        choices=("auto", "cuda", "emulated"),
        default="auto",
    ),
    "--gpus": _value(
        "all|N|LIST", "GPUs to use: all, a number of GPUs (2), or a list of their indices (0,2 or 1,)"
    ),
    "--shard": _value("I/N", "run shard I of N on this GPU; `gemm-regression shards` combines the results"),
    "--arch": _value(None, "architecture to emulate (default %(default)s)", choices=ARCHES, default="sm_90a"),
    "--strict-notes": _flag("treat notes of the emulated device as errors"),
    "--list-cases": _flag("list the cases to run, and why others are illegal here; run nothing"),
    "--margin": _value("PCT", "smallest slowdown that fails (default 0.5%%, or as declared; at most 2%%)"),
    "--allow-no-baseline": _flag("pass cases without a baseline; they are listed"),
    "--allow-orphans": _flag("pass baseline cases that no longer exist; they are listed"),
    "--allow-drift": _flag("pass although unchanged binaries run slower; it is reported"),
    "--sustained": _value(
        "S", "also measure each timed case under S seconds of back-to-back launches", type=float, default=0.0
    ),
    "--allow-busy": _flag("time although other processes use the GPU"),
    "--progress": _value("TITLE", "show a progress bar with this title, not a dot for each test", default=""),
    "--every-architecture": _flag("compile unchanged kernels, too, for all architectures with metrics"),
    "--sarif": _value("FILE", "write failures, at their line or the kernel's, as SARIF"),
    "--job-summary": _value("FILE", "write the verdicts as Markdown"),
    "--verify-timed": _flag("check the results of the selected timed cases; do not time them"),
    "--baseline-run": _flag("measure for a new baseline; compute no verdicts"),
    "--time-limit": _value(
        "S", "seconds after which a kernel counts as hung (default %(default)s)", type=float, default=60.0
    ),
    "--from-cache": _flag(
        "skip the tests of unchanged kernels that passed without a GPU; default for `check`, unless the "
        "environment variable CI is set"
    ),
    "--no-cache": _flag("also run the tests of unchanged kernels"),
    "--root": _value("PATH", "folder with baselines (default: the project's)", type=Path),
    "--seed": _value("N", "seed for the random order of the launches (default: a new one)", type=int),
    "--quiet": _flag("hide progress"),
    "--json": _value("FILE", "write all results as JSON", type=Path),
    "--markdown": _value("FILE", "write the result as Markdown", type=Path),
    "--check": _flag("change nothing; exit status 1 if the page is out of date"),
    "--accept-slower": _value(
        ("CASE", "REASON"),
        "store a case although it is slower than its best binary; the reason is stored and shown",
        nargs=2,
        action="append",
        default=[],
    ),
}
SELECTION = ("--project", "--suite", "--kernel", "--config", "--shape", "-k")
# What a run of tests takes besides: any, one without a GPU, one that times.
OF_TESTS = ("--list-cases", "--time-limit", "--sarif", "--job-summary")
OF_CHECKS = ("--arch", "--strict-notes", "--every-architecture", "--from-cache", "--no-cache")
OF_TIMING = (
    *("--gpus", "--shard", "--margin", "--sustained", "--verify-timed", "--baseline-run"),
    *("--allow-no-baseline", "--allow-orphans", "--allow-drift", "--allow-busy"),
)
# What the plugin adds to pytest's own, of which -k is one.
PYTESTS = (*SELECTION[:-1], "--device", "--progress", *OF_TESTS, *OF_CHECKS, *OF_TIMING)


def add_options(add: Callable[..., Any], *names: str) -> None:
    """Adds these options; ``add``: argparse's add_argument or pytest's addoption."""
    for name in names:
        add(*(("-q",) if name == "--quiet" else ()), name, **OPTIONS[name])
