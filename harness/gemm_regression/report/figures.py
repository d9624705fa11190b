"""Number formats, the same everywhere."""

from __future__ import annotations


def gflops_text(gflops: float | None) -> str:
    """``8,838`` from 1000 up, at least three significant digits below."""
    if gflops is None:
        return "–"
    return f"{gflops:,.0f}" if gflops >= 1000 else f"{gflops:.1f}" if gflops >= 100 else f"{gflops:.2f}"


def percent_text(share: float | None, digits: int = 1) -> str:
    """A signed change: -0.031 is ``-3.1 %``, and what rounds to zero is ``+0.0 %``."""
    return "–" if share is None else f"{100 * share:+z.{digits}f} %"


def share_text(ratio: float | None) -> str:
    """A share, as of cuBLAS's speed, in percent: 0.903 is ``90.3``."""
    return "–" if ratio is None else f"{100 * ratio:.1f}"


def count_text(number: int, what: str) -> str:
    """``1 case``, ``2 cases``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def noise_text(floor: float | None) -> str:
    """A noise floor: 0.0003 is ``0.03 %``."""
    return "–" if floor is None else f"{100 * floor:.2f} %"
