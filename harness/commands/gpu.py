"""``gemm-regression gpu``: is every kernel right and still fast on this GPU? Fails where there is none.

Exit status: pytest's; 0 all is right and as fast as stored; 1 something is red; 2 or more nothing could be
judged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from harness.commands.common import KERNELS, PERFORMANCE, for_pytest, test_files


def main(arguments: Sequence[str]) -> int:
    try:
        project, options = for_pytest("gemm-regression gpu", __doc__.splitlines()[0], arguments)
        files = test_files(project, KERNELS, PERFORMANCE)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return int(pytest.main([*files, "--device", "cuda", "-m", "gpu", *options]))
