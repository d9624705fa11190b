"""Errors of the compiler."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

# Where a message of nvcc, ptxas or the host's compiler begins.
_BEGINS = re.compile(r"^(?=\S+\(\d+\): |\S+:\d+(?::\d+)?: |(?:ptxas|nvlink|nvcc) \S+\s*: )", re.MULTILINE)
_ERROR = re.compile(r"\b(?:error|fatal)\b")
SHOWN, LINES = 2, 6  # errors shown, and lines of each


class ToolchainError(Exception):
    """There is no usable compiler. One line: where it was searched, and what to do."""


class CompileError(Exception):
    """A kernel does not compile. The message is one line; ``log`` contains the compiler's messages, of which
    the text of the exception has the first errors."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message, self.log = message, log

    def __str__(self) -> str:
        return f"{self.message}\n{excerpt(self.log)}".rstrip()


def excerpt(log: str) -> str:
    """The first errors of a compiler's log, without warnings and without the instantiations that led to them;
    where that leaves something out, the whole log is kept in a file, which the last line names."""
    errors = [message for message in _BEGINS.split(log) if _ERROR.search(message.partition("\n")[0])]
    if not errors:
        errors = ["\n".join(log.strip().splitlines()[-2 * LINES :])]
    shown = [_beginning(message) for message in errors[:SHOWN]]
    text = "\n".join(shown)
    if len(errors) == len(shown) and text.count("\n") + 2 * LINES >= log.strip().count("\n"):
        return text
    more = f"{len(errors) - SHOWN} more errors; " if len(errors) > SHOWN else ""
    return f"{text}\n({more}all {log.count(chr(10)) + 1} lines of the compiler{_kept(log)})"


def _beginning(message: str) -> str:
    lines = [line for line in message.splitlines() if line.strip()]
    if any(line.lstrip().startswith("detected during") for line in lines):
        lines = lines[: next(i for i, line in enumerate(lines) if "detected during" in line) + 2]
    lines = [line for line in lines if not re.match(r"\d+ errors? detected in ", line)]
    return "\n".join(line[:300] for line in lines[:LINES])


def _kept(log: str) -> str:
    """Where the log was written: a file of the same name for the same log; empty where nothing can be."""
    path = Path(tempfile.gettempdir()) / f"gemm-compiler-{hashlib.sha256(log.encode()).hexdigest()[:12]}.log"
    try:
        path.write_text(log, encoding="utf-8")
    except OSError:
        return ""
    return f": {path}"
