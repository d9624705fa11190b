"""The list of instructions is the table's; what is refused is refused by name, section and lines."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ptxsan import PtxError
from ptxsan.isa.__main__ import page
from ptxsan.machine.table import REFUSED, TABLES, known
from tests.ptxsan.rig import execute, hazards, kernel, numbers

PAGE = Path(__file__).parents[2] / "docs" / "results" / "instructions.md"


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m ptxsan.isa writes it"


def test_check_finds_a_page_that_is_out_of_date(tmp_path: Path) -> None:
    other = tmp_path / "page.md"
    other.write_text(page().replace("| `bfi` |", "| `bfj` |"), encoding="utf-8")
    command = [sys.executable, "-m", "ptxsan.isa", "--check", "--page"]
    done = subprocess.run([*command, str(other)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "is out of date" in done.stderr
    assert subprocess.run([*command, str(PAGE)], check=False).returncode == 0


def test_every_row_has_a_section() -> None:
    rows = {name: row for table in TABLES.values() for name, row in table.items()}
    assert [n for n, row in rows.items() if not re.fullmatch(r"9\.7(\.\d+){1,4}", row.section)] == []
    assert [name for name in REFUSED if known(name)] == []


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        (
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r1, [%r2]",
            "9.7.9.12, asyn",
        ),
        ("red.async.relaxed.cluster.shared::cluster.add.u32 [%r1], %r1, [%r2]", "9.7.13.7, asynchronous"),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}, %r3, 0",
            "9.7.14.6",
        ),
        ("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [map, {%f1, %f2}]", "9.7.10, textures"),
    ],
)
def test_what_is_refused_is_told_with_its_section(instruction: str, why: str) -> None:
    with pytest.raises(PtxError, match=rf"unknown instruction .*PTX line \d+.*PTX ISA §{why}"):
        hazards(instruction + ";")


def test_what_is_refused_elsewhere_in_the_file_is_no_matter() -> None:
    outside = ".func helper ()\n{\ntcgen05.fence::before_thread_sync;\nret;\n}\n"
    outside += ".visible .entry other()\n{\nfrobnicate.f32 %f1, nonsense;\nret;\n}\n.global .texref map;"
    out, report = execute(kernel("st.global.u32 [%rd6], 7;", outside=outside), numbers(32))
    assert report.hazards == []
    assert set(out[:, 0].tolist()) == {7}
