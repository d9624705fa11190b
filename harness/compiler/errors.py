"""Errors of the compiler."""

from __future__ import annotations


class ToolchainError(Exception):
    """There is no usable compiler. One line: where it was searched, and what to do."""


class CompileError(Exception):
    """A kernel does not compile. The message is one line; ``log`` contains the compiler's messages."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message, self.log = message, log

    def __str__(self) -> str:
        return f"{self.message}\n{self.log}".rstrip()
