"""Vector loads that nvcc left in two are one, as in the binary."""

from __future__ import annotations

import pytest

from ptxsan import Entry, PreparedKernel, parse
from ptxsan.frontend import Register, Vector
from tests.ptxsan.rig import kernel

END = """add.f32 %f1, %f1, %f2;
add.f32 %f5, %f5, %f6;
st.global.v2.f32 [%rd1], {%f1, %f5};
"""
WHOLE = "ld.shared.v4.f32 {%f1, %f2, %f3, %f4}, [%r1];\n"
HALF = "ld.shared.v2.f32 {%f5, %f6}, [%r1+8];\n"


def entry(body: str) -> Entry:
    return parse(kernel("mov.u32 %r1, As;\n" + body + END, inside=".shared .align 16 .b8 As[64];"), "k")


def loads(body: str) -> list[tuple[str, ...]]:
    """The registers that each load from shared memory fills."""
    machine = PreparedKernel(entry(body), "k.cu")
    targets = [i.operands[0] for i in machine.entry.code if i.op.startswith("ld.") and ".shared" in i.op]
    vectors = [target.items if isinstance(target, Vector) else (target,) for target in targets]
    return [tuple(item.name for item in items if isinstance(item, Register)) for items in vectors]


@pytest.mark.parametrize(
    "body",
    [
        WHOLE + HALF,
        '.pragma "used_bytes_mask 255";\n' + WHOLE + HALF,
        f"@%p1 {WHOLE}@%p1 {HALF}",
        # The same address by another register.
        WHOLE + "add.s32 %r2, %r1, 4;\nld.shared.v2.f32 {%f5, %f6}, [%r2+4];\n",
        "add.s32 %r2, %r1, 16;\nadd.s32 %r3, %r2, -8;\n" + WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r3];\n",
    ],
)
def test_the_second_half_comes_with_the_first(body: str) -> None:
    assert loads(body) == [("%f1", "%f2", "%f5", "%f6")]


def test_a_part_may_be_one_element_or_be_joined_to_another() -> None:
    body = WHOLE + "ld.shared.f32 %f5, [%r1+8];\nld.shared.f32 %f6, [%r1+12];\n"
    assert loads(body) == [("%f1", "%f2", "%f5", "%f6")]


@pytest.mark.parametrize(
    "body",
    [
        WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r1+4];\n",  # %f2 is read
        WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r1+12];\n",  # beyond the first one's end
        WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r1+-8];\n",
        WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r1+10];\n",  # across two elements
        WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r2+8];\n",
        WHOLE + "ld.shared.v2.b32 {%f5, %f6}, [%r1+8];\n",
        WHOLE + "add.s32 %r1, %r1, 16;\n" + HALF,  # another address by now
        WHOLE + "mov.u32 %r1, %r2;\n" + HALF,
        WHOLE + "bar.sync 0;\n" + HALF,
        WHOLE + "st.shared.f32 [%r1+8], %f1;\n" + HALF,
        WHOLE + "again:\n" + HALF,
        "add.s32 %r2, %r1, 8;\nagain:\n" + WHOLE + "ld.shared.v2.f32 {%f5, %f6}, [%r2];\n",
        f"@%p1 {WHOLE}{HALF}",
        f"@%p1 {WHOLE}@!%p1 {HALF}",
        f"@%p1 {WHOLE}setp.eq.u32 %p1, %r1, 0;\n@%p1 {HALF}",
        WHOLE.replace("ld.", "ld.volatile.") + HALF.replace("ld.", "ld.volatile."),
        WHOLE + "add.f32 %f7, %f3, %f3;\n" + HALF,  # both are read
    ],
)
def test_other_loads_stay(body: str) -> None:
    assert loads(body) == [
        tuple(item.strip() for item in line.split("{")[1].split("}")[0].split(","))
        for line in body.split("\n")
        if "ld." in line
    ]


def test_a_sum_in_between_that_needs_what_stood_there_before() -> None:
    body = "ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r1];\n"
    body += "add.s32 %r8, %r9, 4;\nld.shared.v2.u32 {%r9, %r10}, [%r1+8];\n"
    assert len(loads(body)) == 2


def test_labels_move_along() -> None:
    made = entry(WHOLE + HALF + "again:\nbra again;\ndone:\n")
    at = made.labels["again"], made.labels["done"]
    assert [made.code[n].text for n in at] == ["bra again", "add.f32 %f1, %f1, %f2"]


def test_an_addition_that_lacks_an_operand_is_none_of_a_constant() -> None:
    assert len(loads(WHOLE + "add.s32 %r2, 4;\n" + HALF)) == 2
