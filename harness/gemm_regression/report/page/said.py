"""A verdict in words, wherever it is from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """A verdict in words.

    Attributes:
        source: the label of what said it.
        case: the case id; of failed tests, the kernel and the reason.
        verdict, reason: kind and reason code.
        red: whether it fails.
        message: the verdict in one line.
        evidence: what it is based on, as names and texts.
        command: judges the case again.
    """

    source: str
    case: str
    verdict: str
    reason: str
    red: bool
    message: str
    evidence: tuple[tuple[str, str], ...]
    command: str
