"""Compiler metrics of every kernel variant, compared with stored ones; needs no GPU."""

from harness.compiler.static.check import Check, Entry, entries, unchanged
from harness.compiler.static.compiled import ARCHES, StaticFigures, all_figures, figures
from harness.compiler.static.diff import compare
from harness.compiler.static.store import StoreError

__all__ = [
    "ARCHES",
    "Check",
    "Entry",
    "StaticFigures",
    "StoreError",
    "all_figures",
    "compare",
    "entries",
    "figures",
    "unchanged",
]
