"""``gemm-regression check``: is every kernel right, without a GPU? Its PTX is executed, and the compiler's
figures are held against the stored ones.

Exit status: pytest's; 0 all is right; 1 something is red; 2 or more nothing could be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from harness.commands.common import KERNELS, STATIC, for_pytest, test_files


def main(arguments: Sequence[str]) -> int:
    try:
        project, options = for_pytest("gemm-regression check", __doc__.splitlines()[0], arguments)
        files = test_files(project, KERNELS, STATIC)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # Cases of a variant together: each process reads the PTX of its own.
    spread = () if "-n" in options or "--list-cases" in options else ("-n", "auto", "--dist", "loadgroup")
    return int(pytest.main([*files, "--device", "emulated", *spread, *options]))
