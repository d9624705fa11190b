"""``python -m ptxsan.isa [--check]`` writes docs/results/instructions.md, the instructions that the emulated
device knows, from its own table."""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import ptxsan.isa  # noqa: F401 (fills the table)
from ptxsan.machine.table import REFUSED, TABLES

_HEAD = """# Instructions

What the emulated device knows of the PTX ISA 9.0, with the section of each: generated from the
interpreter's table by `python -m ptxsan.isa`, which a test compares with this page. All
modifiers and types of a section are meant, but for what is noted; those that matter to caches and scheduling
alone change nothing. `tests/test_instructions.py` compares the results with a GPU's.

An instruction that is not here is refused before anything runs, with its line in the PTX and in the `.cu`
file, if the kernel that is run has it; what other kernels and functions of the same file have is no matter.

"""
_LINE = "| --- | --- | --- |\n"
_TITLES = {
    "9.7.1": "Integers",
    "9.7.2": "Integers of extended precision",
    "9.7.3": "FP32 and FP64",
    "9.7.4": "FP16 and BF16, one or two a register",
    "9.7.6": "Comparison and selection",
    "9.7.8": "Logic and shifts",
    "9.7.9": "Data movement and conversion",
    "9.7.10": "Textures",
    "9.7.11": "Surfaces",
    "9.7.12": "Control flow",
    "9.7.13": "Synchronisation and communication",
    "9.7.14": "Matrices of a warp",
    "9.7.15": "Matrices of a warp group",
    "9.7.16": "Tensor memory, and matrices in it: by the text alone, never compared with a chip",
    "9.7.18": "Halves and bytes of a word",
    "9.7.19": "Miscellaneous",
}


def _order(section: str) -> list[int]:
    return [int(number) for number in section.split(".")]


def page() -> str:
    """The text of docs/results/instructions.md."""
    rows = {(row.section, name): row.note for table in TABLES.values() for name, row in table.items()}
    chapters: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for section, name in sorted(rows, key=lambda key: (_order(key[0]), key[1])):
        chapters[".".join(section.split(".")[:3])].append((section, name))
    lines = [_HEAD]
    for chapter, keys in chapters.items():
        lines.append(f"## {_TITLES[chapter]} (§{chapter})\n\n| instruction | section | |\n{_LINE}")
        lines += [f"| `{name}` | {section} | {rows[section, name]} |\n" for section, name in keys]
        lines.append("\n")
    lines.append(f"## Not known\n\n| instructions | section | |\n{_LINE}")
    missing: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, of in REFUSED.items():
        missing[of].append(name)
    for (section, what), names in sorted(missing.items(), key=lambda row: _order(row[0][0])):
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {section} | {what} |\n")
    return "".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ptxsan.isa", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 if it is out of date")
    parser.add_argument("--page", type=Path, default=Path("docs/results/instructions.md"), help="%(default)s")
    given = parser.parse_args()
    if not given.check:
        given.page.write_text(page(), encoding="utf-8")
    elif not given.page.exists() or given.page.read_text(encoding="utf-8") != page():
        print(f"error: {given.page} is out of date; `python -m ptxsan.isa` writes it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
