"""Little kernels of PTX, each with what is said of it and what it leaves: the tables in snippets/.

A ``[[snippet]]`` has a ``body``, what stands ``inside`` and ``outside`` the kernel before it, and how it is
launched (LAUNCH has the defaults). ``<NAME>`` is one of the ``pieces``, or a value of the ``case`` at hand;
``each`` has values of which every combination is a case, too. Of each error, note or refusal the beginning is
given, in which … stands for anything; there are no errors where none are named. What the lanes leave, a word
each, ``gives`` as one number or as runs of [how many, number], ``repeats`` as numbers that follow each other
again and again, and ``formula`` by its name in FORMULAS.
"""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptxsan import PtxError
from tests.ptxsan import rig

FOLDER = Path(__file__).with_name("snippets")
Case = dict[str, Any]
LAUNCH: Case = {"threads": 32, "blocks": 1, "launches": 1, "n": 0, "dynamic_shared": 0, "budget": 10_000}
# Blocks that run together have so many lanes; NumPy in place of C; operands (lane, column) that nobody wrote.
LAUNCH |= {"lanes": 8192, "numpy": False, "unknown": [], "target": "sm_90a", "inside": "", "outside": ""}
TOLD: Case = dict.fromkeys(("notes", "stopped", "refused", "gives", "repeats", "formula")) | {"errors": []}
# In shared memory each thread has a word, at %r12; it writes it.
OWN = "mov.u32 %r10, cells;\nshl.b32 %r11, %r1, 2;\nadd.u32 %r12, %r10, %r11;\n"
PIECES = {"CELLS": rig.CELLS, "OWN": OWN, "WRITE": OWN + "st.shared.u32 [%r12], %r1;\n"}


def steps(x: int) -> int:
    """How many 3x + 1 takes to come to 1."""
    return 0 if x == 1 else 1 + steps(x // 2 if x % 2 == 0 else 3 * x + 1)


def picked(t: int) -> int:
    """Lanes of odd numbers have their own and one; in the last one the function exits."""
    first = t + 1 if t % 2 else 77
    return 0 if t % 2 and t + 1 > 30 else first + (77 if t < 16 else 5)


FORMULAS: Mapping[str, Callable[[int], int]] = {
    "the thread": lambda t: t,
    "0x40004000 and the thread": lambda t: 0x40004000 + t,
    "32 further": lambda t: t ^ 32,
    "opposite in a block of 64": lambda t: 63 - t % 64,
    "opposite in a block of 128": lambda t: 127 - t % 128,
    "what 40 threads copied, 32 further": lambda t: 4 * (t ^ 32) if t ^ 32 < 40 else 0,
    "sum of the trips": lambda t: t * (t + 1) // 2,
    "lanes of more trips": lambda t: -(1 << t) % (1 << 32) if t else 0,
    "steps of 3x + 1": lambda t: steps(t + 1),
    "what two calls leave": picked,
    "two operands": lambda t: 8 * t + 1,
}


def read(path: Path) -> Iterator[Any]:
    """The cases of a file, each with its name."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {*LAUNCH, *TOLD, "name", "body"}
    for snippet in file["snippet"]:
        pieces = {**PIECES, **file.get("pieces", {}), **snippet.pop("pieces", {})}
        each, cases = snippet.pop("each", {}), snippet.pop("case", [{}])
        choices = [dict(zip(each, chosen, strict=True)) for chosen in itertools.product(*each.values())]
        used = set(re.findall(r"<(\w+)>", str([snippet, cases, pieces])))
        for number, (chosen, case) in enumerate(itertools.product(choices, cases)):
            given = {**LAUNCH, **TOLD, **file.get("defaults", {}), **snippet, **chosen, **case}
            assert not (unused := given.keys() - known - used), f"{path.name}: {given['name']}: {unused}"
            holes = pieces | {name: value for name, value in given.items() if name not in known}
            made = {name: filled(given[name], holes) for name in known}
            yield pytest.param(made, id=f"{path.stem}-{given['name']}-{number}")


def filled(value: Any, holes: Mapping[str, Any]) -> Any:
    """A text, or each of several, with what stands for its <NAME>s."""
    if isinstance(value, list):
        return [filled(one, holes) for one in value]
    while isinstance(value, str) and (found := re.search(r"<([a-zA-Z_]\w*)>", value)):
        value = value.replace(found[0], str(holes[found[1]]))
    return value


@pytest.mark.parametrize("case", [case for path in sorted(FOLDER.glob("*.toml")) for case in read(path)])
def test_what_is_said_and_left(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ptxsan.kernel.LANES", case["lanes"])
    if case["numpy"]:
        monkeypatch.setattr("ptxsan.machine.memory.shared_memory.library", lambda: None)
    text = rig.kernel(case["body"], case["outside"], case["inside"], case["target"])
    lanes = case["threads"] * case["blocks"]
    known = np.ones((lanes, 4), bool)
    for lane, column in case["unknown"]:
        known[lane, column] = False
    how = {name: case[name] for name in ("threads", "n", "launches", "budget", "dynamic_shared")}
    if case["refused"]:
        with pytest.raises(PtxError) as caught:
            rig.execute(text, rig.numbers(lanes), **how)
        agree([case["refused"]], [str(caught.value)])
        return
    out, report = rig.execute(text, rig.numbers(lanes), **how, known=known if case["unknown"] else None)
    agree(case["errors"], [f"{hazard.check}: {hazard.message}" for hazard in report.hazards])
    if case["notes"] is not None:
        agree(case["notes"], [f"{note.check}: {note.message}" for note in report.notes])
    assert case["stopped"] in (None, report.stopped)
    wanted = left(case, lanes)
    assert wanted is None or out.reshape(-1, lanes, 2)[:, :, 0].tolist() == [wanted] * case["launches"]


def left(case: Case, lanes: int) -> list[int] | None:
    """What the lanes of a launch leave; None where a case does not say it."""
    if case["formula"]:
        return [FORMULAS[case["formula"]](t) for t in range(lanes)]
    if case["repeats"]:
        return [int(v) for v in np.resize(case["repeats"], lanes)]
    if isinstance(case["gives"], list):
        return [v for run in case["gives"] for v in ([run[1]] * run[0] if isinstance(run, list) else [run])]
    return None if case["gives"] is None else [case["gives"]] * lanes


def agree(wanted: list[str], said: list[str]) -> None:
    """What is said begins as is wanted, one by one."""
    assert len(said) == len(wanted), said
    for one, found in zip(wanted, said, strict=True):
        assert re.match(".*".join(map(re.escape, one.split("…"))), found, re.DOTALL), (one, found)
