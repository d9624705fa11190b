"""The workspace of a launch: what it holds before, and what it must hold after. Pure."""

from __future__ import annotations

import numpy as np

from harness.devices import Violation
from harness.model import Array, Case

WORKSPACE = "workspace"
ANYTHING = 0xFFFFFFFF  # what a kernel finds that does not write first: a NaN, a count far too high


def sizes(case: Case) -> tuple[int, int]:
    """Bytes of the workspace, a multiple of 4, and how many of its first ones are zero; 0, 0 without one."""
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
    text = f"the workspace is not zero again at byte {4 * int(left[0])}; {left.size} words in all"
    return [Violation("workspace", text)]
