"""What goes wrong with a compiler."""

from __future__ import annotations


class ToolchainError(Exception):
    """There is no compiler that runs. One line: what was looked for and what to do."""


class CompileError(Exception):
    """A kernel that does not compile. The message is one line; ``log`` has the compiler's own lines."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message, self.log = message, log

    def __str__(self) -> str:
        return f"{self.message}\n{self.log}".rstrip()
