"""``gemm-regression check``: check every kernel without a GPU.

Executes its PTX, and compares compiler metrics and memory counters with the stored ones.

Exit status: pytest's; 0 everything passed; 1 something failed; 2 or more nothing could be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from gemm_regression.cli.common import KERNELS, SHOWN, STATIC, files_of_tests, for_pytest


def main(arguments: Sequence[str]) -> int:
    try:
        project, options = for_pytest("gemm-regression check", __doc__.splitlines()[0], arguments)
        files = files_of_tests(project, KERNELS, STATIC, given=options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Cases of a variant run in one process, so that its PTX is parsed once.
    alone = not files or {"-n", "--list-cases"}.intersection(options)
    spread = () if alone else ("-n", "auto", "--dist", "loadgroup")
    unchanged = ("--from-cache",) if files else ()  # a test picked by its id is run
    plain = (*SHOWN, "check", "--device", "emulated")
    return int(pytest.main([*files, *plain, *unchanged, *spread, *options]))
