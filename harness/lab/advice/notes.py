"""The course notes' variant for a problem, used where nothing was measured; or the one nearest to it, where a
project has no such variant or it does not take the problem."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import log2, prod

from gemm_regression.model import F32, DType, Problem
from gemm_regression.model.legality import GpuLimits
from gemm_regression.tune.rules import Variant
from lab.advice.policies import POLICIES, Policy, Target

_TILE = re.compile(r"-tile(?P<m>\d+)(?:x(?P<n>\d+))?")
_PART = re.compile(r"-(?P<of>thread|warp)(?P<m>\d+)x(?P<n>\d+)")


def policy(problem: Problem, dtype: DType) -> Policy:
    """The one that is for such a problem: for batches, for tensor cores, else by shape."""
    name = "small batches" if problem.batch > 1 else "by shape" if dtype == F32 else "tensor cores"
    return next(one for one in POLICIES if one.name == name)


def choose(variants: Sequence[Variant], problem: Problem, limits: GpuLimits) -> tuple[Variant, str]:
    """What the notes recommend, in the problem's dtype, if it is among ``variants``; else the one with the
    block tile nearest to it, then with the nearest number of threads, then the last declared. And the
    recommendation as text. ``variants``: at least one, of one dtype."""
    of = policy(problem, variants[0].dtype)
    advised = of.choose(problem, Target(limits)) or ""
    stage, _, label = advised.split("-", 2)
    name = f"{stage}-{variants[0].dtype}-{label}"
    said = f"{name} ({of.source}: {of.gist})"
    if same := next((variant for variant in variants if variant.name == name), None):
        return same, said
    tile, threads = _block(name)

    def away(at: int) -> tuple[float, float, int]:
        shape = variants[at].kernel.shape_of(variants[at].config, variants[at].dtype)
        off = sum(abs(log2(have / want)) for have, want in zip(shape.tile, tile, strict=True))
        return off, abs(log2(prod(shape.threads) / threads)), -at

    return variants[min(range(len(variants)), key=away)], said


def _block(name: str) -> tuple[tuple[int, int], float]:
    """Rows and columns of the block tile of a variant of this name, and its threads."""
    found = _TILE.search(name)
    assert found is not None, name
    m = int(found["m"])
    n = int(found["n"] or m)
    part = _PART.search(name)
    each = int(part["m"]) * int(part["n"]) if part else 1
    return (m, n), m * n / each * (32 if part and part["of"] == "warp" else 1)
