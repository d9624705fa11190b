"""``gemm-regression gpu``: is every kernel correct and still fast on this GPU? Fails if there is no GPU.

Exit status: pytest's; 0 everything is correct and as fast as stored; 1 something failed; 2 or more nothing
could be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from gemm_regression.cli.common import KERNELS, PERFORMANCE, SHOWN, files_of_tests, for_pytest


def main(arguments: Sequence[str]) -> int:
    try:
        project, options = for_pytest("gemm-regression gpu", __doc__.splitlines()[0], arguments)
        files = files_of_tests(project, KERNELS, PERFORMANCE, given=options)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(pytest.main([*files, *SHOWN, "gpu", "--device", "cuda", "-m", "gpu", *options]))
