"""The list of instructions is the table's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ptxsan.isa.__main__ import page
from ptxsan.machine.table import REFUSED, TABLES, known

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
