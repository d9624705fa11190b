"""Planted slowdowns: real edits of kernels that cost a case a per cent or two, which the gate must find.

``python -m tests.slowdowns measure`` times each next to the kernel as it is, and asks the gate's rule;
``gate`` plants them in a clone and runs `gpu` there; ``page`` tells both. ``check`` needs no GPU.
planted.toml and loops.toml have them: ``[[slowdown]]`` has the attributes of ``Slowdown``.
"""

import tomllib
from pathlib import Path

from gemm_regression.model import Problem
from tests.mutants.mutant import Rotten
from tests.slowdowns.slowdown import Slowdown, firsts, small, together


def _read(file: str) -> tuple[Slowdown, ...]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    entries = tomllib.loads(text)["slowdown"]
    for entry in entries:
        entry["edits"] = tuple((old, new) for old, new in entry["edits"])
        entry["problem"] = Problem(**entry["problem"])
    return tuple(Slowdown(**entry) for entry in entries)


IN_LOOPS = _read("loops.toml")
PLANTED = (*_read("planted.toml"), *IN_LOOPS)
__all__ = ["IN_LOOPS", "PLANTED", "Rotten", "Slowdown", "firsts", "small", "together"]
