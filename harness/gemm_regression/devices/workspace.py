"""The workspace of a launch: its contents before, and what they must be after. Pure."""

from __future__ import annotations

import numpy as np

from gemm_regression.devices import Violation
from gemm_regression.model import Array, Case

WORKSPACE = "workspace"
ANYTHING = 0xFFFFFFFF  # the initial contents: a NaN as a float, far too large as a counter


def sizes(case: Case) -> tuple[int, int]:
    """Size of the workspace in bytes, a multiple of 4, and how many of its first bytes are zero; 0, 0 without
    one."""
    workspace = case.kernel.workspace
    if workspace is None:
        return 0, 0
    given = case.config, case.problem
    size, zeroed = -(-workspace.bytes(*given) // 4) * 4, -(-workspace.zeroed(*given) // 4) * 4
    return max(size, zeroed), zeroed


def new_workspace(case: Case) -> Array:
    """The workspace before a launch, (1, words) of 32 bits."""
    size, zeroed = sizes(case)
    words = np.full((1, max(4, size) // 4), ANYTHING, np.uint32)
    words[0, : zeroed // 4] = 0
    return words


def workspace_violations(zeroed: int, after: Array) -> list[Violation]:
    """What a launch did not leave as the next one is to find it, of a workspace (1, words) of 32 bits, the
    first ``zeroed`` bytes of which must be zero.
    """
    left = np.flatnonzero(after[0, : zeroed // 4])
    if not left.size:
        return []
    text = f"the workspace is not zero again at byte {4 * int(left[0])}; {left.size} words in total"
    return [Violation("workspace", text)]
