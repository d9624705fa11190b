"""Vector loads that nvcc left in two are one, as in the binary."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ptxsan import Entry, PreparedKernel, parse
from ptxsan.frontend import Register, Vector
from tests.ptxsan.rig import kernel
from tests.ptxsan.test_snippets import filled

LOADS = tomllib.loads(Path(__file__).with_name("halves.toml").read_text(encoding="utf-8"))
END = "add.f32 %f1, %f1, %f2;\nadd.f32 %f5, %f5, %f6;\nst.global.v2.f32 [%rd1], {%f1, %f5};\n"


def entry(body: str) -> Entry:
    return parse(kernel("mov.u32 %r1, As;\n" + body + END, inside=".shared .align 16 .b8 As[64];"), "k")


def loads(body: str) -> list[tuple[str, ...]]:
    """The registers that each load from shared memory fills."""
    machine = PreparedKernel(entry(body), "k.cu")
    targets = [i.operands[0] for i in machine.entry.code if i.op.startswith("ld.") and ".shared" in i.op]
    vectors = [target.items if isinstance(target, Vector) else (target,) for target in targets]
    return [tuple(item.name for item in items if isinstance(item, Register)) for items in vectors]


@pytest.mark.parametrize("body", LOADS["joined"])
def test_the_second_half_comes_with_the_first(body: str) -> None:
    assert loads(filled(body, LOADS)) == [("%f1", "%f2", "%f5", "%f6")]


@pytest.mark.parametrize("body", LOADS["apart"])
def test_other_loads_stay(body: str) -> None:
    body = filled(body, LOADS)
    assert loads(body) == [tuple(re.findall(r"%\w+", of)) for of in re.findall(r"ld\.\S+ \{(.*?)\}", body)]


def test_labels_move_along() -> None:
    made = entry(filled("<WHOLE> <HALF>\nagain:\nbra again;\ndone:\n", LOADS))
    at = made.labels["again"], made.labels["done"]
    assert [made.code[n].text for n in at] == ["bra again", "add.f32 %f1, %f1, %f2"]
