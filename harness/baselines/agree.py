"""How far two runs of one binary may lie apart on one board."""

from __future__ import annotations

LEAST = 100e-6  # seconds, that a case lasts which this is said of


def near_cap(duty: float) -> bool:
    """Whether a kernel with this duty cycle would reach the power cap if kept busy; those on tensor cores."""
    return duty < 1.0


def limit(duty: float) -> float:
    """Relative."""
    return 0.01 if near_cap(duty) else 0.003
