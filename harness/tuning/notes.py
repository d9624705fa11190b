"""Which variant the course notes recommend for a problem; used where nothing was measured.

The notes recommend a block tile by size (M·N·K of a cube of that size): 16 with 256 threads below 256, 32
with 256 up to 1024, 64×64×8 with 128 up to 4096, 128×128×8 with 256 above.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

from harness.model import Problem
from harness.tuning.rules import Variant

_BY_SIZE = ((256, 16, 256), (1024, 32, 256), (4096, 64, 128))  # below (or up to), tile, threads
_ABOVE = (128, 256)


def choose(variants: Sequence[Variant], problem: Problem) -> tuple[Variant, str]:
    """The variant with the block tile nearest to the recommended one, then with the nearest number of
    threads, then the last declared; and the recommendation. ``variants``: at least one."""
    size = problem.m * problem.n * problem.k  # as a cube of that side has
    tile, threads, said = *_ABOVE, "above 4096"
    for most, of_tile, of_threads in _BY_SIZE:
        if size < 256**3 or (most > 256 and size <= most**3):
            tile, threads = of_tile, of_threads
            said = "below 256" if most == 256 else f"up to {most}"
            break

    def away(at: int) -> tuple[float, float, int]:
        shape = variants[at].kernel.shape_of(variants[at].config, variants[at].dtype)
        off = sum(abs(log2(side / tile)) for side in shape.tile)
        return off, abs(log2(prod(shape.threads) / threads)), -at

    best = min(range(len(variants)), key=away)
    return variants[best], f"a tile of {tile}×{tile} and {threads} threads for sizes {said}"
