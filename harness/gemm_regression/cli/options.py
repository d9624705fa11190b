"""The options that the plugin adds to pytest's, which the commands that run pytest show in their help."""

from __future__ import annotations

from gemm_regression.compiler.static import ARCHES
from gemm_regression.project import selection
from gemm_regression.project.selection import Adds


def add_options(add: Adds) -> None:
    add(
        "--device",
        choices=("auto", "cuda", "emulated"),
        default="auto",
        help="where cases run: a GPU, or a PTX interpreter; auto is cuda if there is a GPU",
    )
    add(
        "--gpus",
        default=None,
        metavar="all|N|LIST",
        help="the GPUs to spread the cases over: all, how many, or which (0,2; one alone: 1,); default: the "
        "first",
    )
    add(
        "--shard",
        default=None,
        metavar="I/N",
        help="only part I of N of the tests on a GPU, such as 1/4: `gemm-regression shards` adds them up",
    )
    add(
        "--arch",
        choices=ARCHES,
        default="sm_90a",
        help="the GPU architecture that the emulated device compiles for (default sm_90a)",
    )
    add(
        "--strict-notes",
        action="store_true",
        help="what the emulated device only notes is an error",
    )
    selection.add_options(add)
    add(
        "--list-cases",
        action="store_true",
        help="list what would run, and which cases are illegal here and why; run nothing",
    )
    add(
        "--margin",
        default=None,
        metavar="PCT",
        help="the slowdown that counts, such as 1%% (default 0.5%%, or the kernel's own; at most 2%%)",
    )
    add("--allow-no-baseline", action="store_true", help="cases without a baseline pass, and are listed")
    add(
        "--allow-orphans",
        action="store_true",
        help="baseline cases that no longer exist pass, and are listed",
    )
    add(
        "--allow-drift",
        action="store_true",
        help="a machine on which the same binaries run slower passes, and is reported",
    )
    add(
        "--sustained",
        type=float,
        default=0.0,
        metavar="S",
        help="also measure S seconds of back-to-back launches of each timed case: reported separately, never "
        "judged",
    )
    add("--allow-busy", action="store_true", help="time even while other processes use the GPU")
    add("--progress", default="", metavar="NAME", help="a bar, or lines in a log, in place of a dot a test")
    add(
        "--every-architecture",
        action="store_true",
        help="compile for every architecture with stored metrics, also what has not changed since they were "
        "stored; `static` does",
    )
    add(
        "--sarif",
        default=None,
        metavar="FILE",
        help="write what failed at a line as SARIF",
    )
    add("--job-summary", default=None, metavar="FILE", help="write the verdicts as Markdown")
    add(
        "--verify-timed",
        action="store_true",
        help="verify the variants of the selected timed cases; time none",
    )
    add("--baseline-run", action="store_true", help="measure for a new baseline; judge nothing")
    add(
        "--time-limit",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds after which a kernel counts as hung (default 60)",
    )
    add(
        "--from-cache",
        action="store_true",
        help="leave out the tests of kernels of which nothing changed since they passed without a GPU; "
        "`check` does so unless the environment variable CI is set",
    )
    add("--no-cache", action="store_true", help="run all the same")
