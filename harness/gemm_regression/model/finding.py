"""What is wrong with a kernel: one object from whatever finds it to whatever shows it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """What the interpreter, the oracle, the compiler or a gate found wrong with a kernel, or notes of it.

    Attributes:
        check: stable name of the check, such as race or exact.
        message: all there is to say.
        file, line: where, relative to the folder of the kernel's source; "" and 0 where that is not known.
        thread, problem: who did what, without the place; "" where the message is all there is.
    """

    check: str
    message: str
    file: str = ""
    line: int = 0
    thread: str = ""
    problem: str = ""

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"

    @property
    def title(self) -> str:
        """``race at sgemm.cu:35``: what equal findings share."""
        return f"{self.check} at {self.file}:{self.line}" if self.line else self.check

    def to_json(self) -> str:
        """As a test records it."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Finding:
        return cls(**json.loads(text))
