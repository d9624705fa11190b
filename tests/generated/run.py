"""Examines the mutants of PTX, keeps what shows each, and proves of some that they are the same kernel."""

from __future__ import annotations

import hashlib
import json
import random
import re
import tempfile
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gemm_regression.compiler.tools import pinned_nvcc, pins, said
from tests.generated.rules import Mutation, mutations
from tests.generated.targets import SAME, Outcome, Target, digest, targets
from tests.mutants.examine import ARCH

FILE = Path(__file__).with_name("record.jsonl")
SURVIVORS = Path(__file__).with_name("survivors.toml")
SEED, EACH = 1, 12
SAME_CODE = "same code"
NOT_CODE = "ptxas refuses"


@dataclass(frozen=True)
class Mutant:
    """A mutation of a target, the ``number``-th of its rule there."""

    target: Target
    mutation: Mutation
    number: int


def mutants(target: Target) -> list[Mutant]:
    """Of each rule all, or as many as EACH drawn by lot."""
    found: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in mutations(target.ptx, target.entry):
        found[mutation.rule].append(mutation)
    chosen = []
    for rule, of in found.items():
        rng = random.Random(zlib.crc32(f"{SEED}/{target.name}/{rule}".encode()))
        places = sorted(rng.sample(range(len(of)), min(EACH, len(of))))
        chosen += [Mutant(target, of[place], place) for place in places]
    return chosen


def assembled(text: str) -> bytes:
    """What ptxas makes of a module, b"" where it refuses. Lines of the source are left out."""
    text = re.sub(r"^\s*\.(?:loc|file)[^\n]*", "", text, flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(text, encoding="utf-8")
        ptxas = pinned_nvcc().path.with_name("ptxas")
        done = said([str(ptxas), f"-arch={ARCH}", str(source), "-o", str(cubin)])
        return b"" if done.returncode else cubin.read_bytes()


@cache
def _own(target: Target) -> bytes:
    return assembled(target.ptx)


def examine(mutant: Mutant) -> Outcome:
    """What shows a mutant; one that nothing shows may be the same code, or none."""
    text = mutant.mutation.of(mutant.target.ptx)
    outcome = mutant.target.examine(text)
    if outcome.by not in (SAME, "refused"):
        return outcome
    made = assembled(text)
    if not made:
        return Outcome(NOT_CODE)
    return Outcome(SAME_CODE) if made == _own(mutant.target) else outcome
