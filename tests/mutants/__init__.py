"""Broken kernels that the suite must catch: small edits of the real ones, so that they cannot rot unseen.

A TOML file for each kind of mistake: ``[[mutant]]`` has the attributes of ``Mutant``, with ``problems`` by
their name in the file. One with ``kernels`` is a mutant of each of them; the table of this name has what all
those of a kernel share, and the ``prefix`` of their names.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from gemm_regression.model import Problem
from tests.mutants.mutant import Edits, Mutant, Rotten, build, cases, real

KINDS = (
    "order",
    "edges",
    "indices",
    "numbers",
    "operations",
    "lean",
    "tensor",
    "turns",
    "boxes",
    "groups",
    "packing",
    "clusters",
    "bytes",
    "scaled",
    "grouped",
    "swapped",
    "speed",
)


def _read(kind: str) -> Iterator[Mutant]:
    text = Path(__file__).with_name(f"{kind}.toml").read_text(encoding="utf-8")
    file = tomllib.loads(text)
    problems = {name: tuple(Problem(**p) for p in some) for name, some in file.get("problems", {}).items()}
    for entry in file["mutant"]:
        entry["edits"] = tuple((old, new) for old, new in entry["edits"])
        for kernel in entry.pop("kernels", None) or [entry["kernel"]]:
            one = {**file.get("kernels", {}).get(kernel, {}), **entry, "kernel": kernel}
            one["name"] = one.pop("prefix", "") + one["name"]
            if "problems" in one:
                one["problems"] = problems[one["problems"]]
            yield Mutant(**one)


MUTANTS = tuple(mutant for kind in KINDS for mutant in _read(kind))
WRONG = tuple(mutant for mutant in MUTANTS if mutant.wrong)
SLOW = tuple(mutant for mutant in MUTANTS if not mutant.wrong)

__all__ = ["MUTANTS", "SLOW", "WRONG", "Edits", "Mutant", "Rotten", "build", "cases", "real"]
