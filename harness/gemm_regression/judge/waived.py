"""Waivers that match nothing any more: the code they are for has changed, or the fault is gone. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gemm_regression.model import Waiver


def unused(
    declared: Mapping[str, Sequence[Waiver]],
    used: Mapping[str, Collection[str]],
    planned: Mapping[str, Collection[str]],
    done: Collection[str],
) -> list[tuple[str, Waiver]]:
    """Kernel and waiver of those that matched no finding.

    By kernel: ``declared`` waivers; those ``used``, as text; the ids of all cases ``planned`` for it, which
    the whole suite has. A kernel of which not all cases are ``done`` is not judged: one of the others may be
    the case in point.
    """
    return [
        (kernel, waiver)
        for kernel, waivers in declared.items()
        if planned.get(kernel) and set(planned[kernel]) <= set(done)
        for waiver in waivers
        if str(waiver) not in used.get(kernel, ())
    ]
