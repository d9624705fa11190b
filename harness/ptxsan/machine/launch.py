"""What a GPU refuses to launch, by the limits of its compute capability and of the kernel itself.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; PTX ISA §11.4,
"Performance-Tuning Directives". Registers are ptxas's to assign, and so are not known here. .minnctapersm
refuses nothing: ptxas keeps it, or says that it cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ptxsan.frontend.syntax import Entry, PtxError

THREADS = 1024  # a block
CLUSTER = 8  # blocks; a host may ask for more, which not every GPU has
BLOCK, GRID = (1024, 1024, 64), (2**31 - 1, 65535, 65535)
STATIC_SHARED = 48 * 1024  # bytes a block; more only as dynamic shared memory, for which a host has to ask
# KiB of shared memory that a block may have if the host asks for it.
_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 88: 99, 89: 99, 90: 227, 100: 227, 103: 227, 110: 227}
_SHARED |= {120: 99, 121: 99}
Extents = tuple[int, int, int]


class LaunchError(PtxError):
    """A launch that a GPU refuses: the limit and the value, in one line."""


def refuse(entry: Entry, grid: Extents, block: Extents, static: int, dynamic: int) -> None:
    """Raises LaunchError for a launch that fails on a GPU of the entry's target. ``static`` and ``dynamic``
    bytes of shared memory a block."""
    if reason := next(_reasons(entry, grid, block, static, dynamic), ""):
        raise LaunchError(f"a GPU refuses to launch {entry.name}: {reason}")


def _reasons(entry: Entry, grid: Extents, block: Extents, static: int, dynamic: int) -> Iterator[str]:
    for name, extents, most in (("grid", grid, GRID), ("block", block, BLOCK)):
        for axis, extent, limit in zip("xyz", extents, most, strict=True):
            if not 1 <= extent <= limit:
                yield f"{name}.{axis} is {extent}, from 1 to {limit} allowed"
    cluster = "x".join(map(str, entry.cluster))
    if prod(entry.cluster) > CLUSTER:
        yield f"a cluster of {cluster} is {prod(entry.cluster)} blocks, {CLUSTER} at most on every GPU"
    if any(n % c for n, c in zip(grid, entry.cluster, strict=True)):
        yield f"a grid of {'x'.join(map(str, grid))} blocks, which is not of whole clusters of {cluster}"
    threads, shape = prod(block), "x".join(map(str, block))
    if threads > THREADS:
        yield f"a block of {shape} is {threads} threads, {THREADS} at most"
    limits = entry.limits
    if "maxntid" in limits and threads > prod(limits["maxntid"]):
        yield (
            f"a block of {shape} is {threads} threads, {prod(limits['maxntid'])} at most by .maxntid "
            "(__launch_bounds__)"
        )
    if "reqntid" in limits and block != (asked := (*limits["reqntid"], 1, 1)[:3]):
        yield f"a block of {shape}, where .reqntid (__block_size__) asks for {'x'.join(map(str, asked))}"
    if static > STATIC_SHARED:
        yield f"{static} bytes of static shared memory a block, {STATIC_SHARED} at most"
    most_shared = 1024 * _SHARED.get(entry.capability, max(_SHARED.values()))
    if dynamic < 0 or static + dynamic > most_shared:
        yield (
            f"{static} bytes of static and {dynamic} of dynamic shared memory a block, {most_shared} "
            f"together at most on {entry.target or 'any GPU'}"
        )
