"""PTX that was cut off or changed is read, or refused in one line: never another exception."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from gemm_regression.compiler.nvcc import compile_ptx
from gemm_regression.compiler.static import variants_of
from ptxsan import PreparedKernel, PtxError, parse
from tests.ladder import LADDER
from tests.ptxsan.rig import kernel

COLLAGE = (Path(__file__).parent / "kernels" / "collage.ptx").read_text(encoding="utf-8")
INSIDE = ".shared .align 16 .b8 cells[1024];\n.local .align 4 .b8 mine[8];"
TEXT = kernel(COLLAGE, ".const .align 4 .u32 table[2] = {1, 2};", INSIDE)


def readable(text: str, entry: str) -> bool:
    """Whether a machine can be made of the text; where it cannot, one line says why and where."""
    try:
        PreparedKernel(parse(text, entry), "k.cu")
    except PtxError as error:
        said = str(error)
    else:
        return True
    assert re.fullmatch(r".*PTX line \d+.*|the PTX has no entry \w+", said), said
    return False


def changed(text: str, rng: random.Random) -> str:
    """A character more, less or other, two lines exchanged, or a word instead of another."""
    at, character = rng.randrange(len(text)), rng.choice('{}[](),;:.@!%|+-<>="0189abfxs \n')
    words = [match.span() for match in re.finditer(r"[%\w$]+|\.\w+", text)]
    (start, end), (first, last) = rng.choice(words), rng.choice(words)
    other = rng.choice([text[first:last], "0", "-1", "9" * 23, "%tid.x", "{}", "_", "0f", "1e9", "0x", ""])
    lines = text.split("\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return rng.choice(
        [
            text[:at] + character + text[at:],
            text[:at] + character + text[at + 1 :],
            text[:at] + text[at + rng.randrange(1, 6) :],
            text[:start] + other + text[end:],
            "\n".join(lines),
        ]
    )


def test_the_text_that_is_changed_is_right() -> None:
    assert readable(TEXT, "k")


@pytest.mark.parametrize("seed", range(4))
def test_changed_text(seed: int) -> None:
    rng = random.Random(seed)
    read = [readable(changed(TEXT, rng), "k") for _ in range(500)]
    assert 50 < sum(read) < 450


def test_text_changed_in_many_places() -> None:
    rng = random.Random(5)
    for _ in range(100):
        text = TEXT
        for _ in range(12):
            text = changed(text, rng)
        readable(text, "k")


def test_text_that_ends_anywhere() -> None:
    # What ends the entry is a brace, and a line end behind it.
    assert not any(readable(TEXT[:end], "k") for end in range(0, len(TEXT) - 2, 7))


@pytest.mark.compile
@pytest.mark.parametrize("name", ["tiled-f32-tile32-pad0", "wmma-tf32-tile64x64x32-warp32x32"])
def test_what_nvcc_makes_cut_off_and_changed(name: str) -> None:
    stage, config, dtype = variants_of("sm_90a", LADDER)[name]
    text = compile_ptx(stage, config, dtype, "sm_90a", lines=name.startswith("tiled"))
    body = text.index(".entry")
    step = 97 if name.startswith("tiled") else 97 * 29  # a prime, for every place in a line
    end = text.rindex("}\n", 0, text.find(".section") if ".section" in text else None)
    assert not any(readable(text[:cut], stage.entry) for cut in range(0, end, step))
    assert readable(text, stage.entry)
    rng = random.Random(name)
    for _ in range(150 if name.startswith("tiled") else 15):
        readable(text[:body] + changed(text[body:], rng), stage.entry)


def test_an_entry_without_instructions() -> None:
    with pytest.raises(PtxError, match=r"PTX line 2: entry k has no instructions"):
        parse(".visible .entry k()\n{\n$L:\n}\n", "k")


def test_something_behind_the_last_entry() -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+: the text ends within 'add.s32 %r1'"):
        parse(TEXT + "add.s32 %r1", "k")


def test_an_entry_that_is_not_there() -> None:
    with pytest.raises(PtxError, match="the PTX has no entry other"):
        parse(TEXT, "other")


def test_what_looks_like_a_comment_in_the_path_of_a_file_is_none() -> None:
    """nvcc names headers of the toolkit so with -lineinfo: bin/..//include."""
    path = '.file 1 "/opt/bin/..//include/a.h" // the name of a header; not a statement\n'
    assert parse(path + TEXT, "k") == parse("\n" + TEXT, "k")


def test_shared_memory_of_another_kernel_of_the_file_is_not_a_kernel_s_own() -> None:
    """nvcc writes both outside; together they would be more than a block may have."""
    outside = ".shared .align 4 .b8 mine[30720];\n.shared .align 4 .b8 others[30720];"
    text = kernel("st.shared.u32 [mine], %r1;", outside)
    assert PreparedKernel(parse(text, "k"), "").static_shared == 30720


@pytest.mark.parametrize("end", ["}", "}\n\0", '}\n.file 1 "/x/a.py"', "}\n// Numba"])
def test_a_text_that_does_not_end_with_a_line_end(end: str) -> None:
    assert parse(TEXT.rstrip().removesuffix("}") + end, "k") == parse(TEXT, "k")


def test_no_blank_before_a_brace_or_a_bracket() -> None:
    tight = re.sub(r"(b16|f32|u32) ([{\[])", r"\1\2", TEXT)
    assert tight.count("b16{") == tight.count("f32.f32{") == 1
    assert [i.operands for i in parse(tight, "k").code] == [i.operands for i in parse(TEXT, "k").code]


def test_modifiers_after_spaces_as_ptxas_takes_them() -> None:
    body = "mov .u32 %r5, 3; st.global\n  .cs .u32 [%rd6], %r5; @%p1  ld .global.u32 %r5, [%rd6];"
    ops = [[i.op for i in parse(kernel(text), "k").code] for text in (body, re.sub(r"\s+\.", ".", body))]
    assert ops[0] == ops[1]
    assert "st.global.cs.u32" in ops[0]
