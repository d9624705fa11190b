"""Compiler metrics of every kernel variant, compared with stored ones; needs no GPU."""

from gemm_regression.compiler.static.check import Check, Entry, compare, entries, unchanged
from gemm_regression.compiler.static.metrics import ARCHES, StaticFigures, all_figures, figures
from gemm_regression.compiler.static.store import StoreError

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
