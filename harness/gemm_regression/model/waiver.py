"""Findings of the emulated device that a declaration accepts, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

# After any other hazard the launch cannot go on, and nothing would be known of its values.
WAIVABLE = ("barrier", "race", "uninit")


@dataclass(frozen=True)
class Waiver:
    """A finding that is no error for this kernel: its ``check``, the ``line`` of the ``.cu`` file that it
    names, given by its text (spaces do not matter), and the ``reason``. Values are checked all the same.

    Raises ValueError for a check that cannot be waived, and without a line or a reason.
    """

    check: str
    line: str
    reason: str

    def __post_init__(self) -> None:
        if self.check not in WAIVABLE:
            raise ValueError(f"a waiver of {self.check!r}: only {', '.join(WAIVABLE)} can be waived")
        if not self.line.strip() or not self.reason.strip():
            raise ValueError(f"a waiver of {self.check} needs the text of a line, and a reason")

    def matches(self, check: str, line: str) -> bool:
        """Whether it is for a finding of this check at a line with this text."""
        return check == self.check and line.split() == self.line.split()

    def __str__(self) -> str:
        return f"{self.check} at `{' '.join(self.line.split())}`: {self.reason}"
