"""The choice as a C++17 header: the tables of a GPU and the function that reads them, for programs without
Python. It gives the answers of `table.choose`, by the same integer arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

from gemm_regression.tune import table as numbers
from gemm_regression.tune.figures import Known, SelectError
from gemm_regression.tune.rules import FIELDS, Rule, Variant, rules
from gemm_regression.tune.select import Selector
from gemm_regression.tune.table import Table

_KINDS = ("multiple_of", "at_least", "at_most", "square")
_NUMBERS = ("BITS", "WEIGHT", "SHIFT", "USUAL", "NEAREST", "MOST", "STEPS", "BLOCK")
_PLACE = re.compile(r"@(\w+)@")


def exported(selector: Selector) -> Selector:
    """The selector of what a header can hold: row-major problems, and kernels whose requirements are rules.
    Raises SelectError for a GPU without such figures."""
    k = selector.known
    kept = tuple(f for f in selector.figures if f.problem.layout == "NN" and rules(f.variant) is not None)
    if not kept:
        raise SelectError(
            f"{k.gpu}: no figures for a header; measure them with `nox -s baseline`, or name a measured GPU"
        )
    return Selector(selector.kernels, Known(k.gpu, k.limits, kept, k.library, sms=k.sms))


def header(selector: Selector) -> str:
    """The text of the header for a GPU. Raises SelectError if there is nothing to put in it."""
    held = exported(selector)
    tables = list(held.tables.values())
    variants = list(dict.fromkeys(v for table in tables for v in table.variants))
    left_out = {f.variant.kernel.name for f in selector.figures} - {v.kernel.name for v in variants}
    of_variant = [rules(v) or () for v in variants]
    text = {
        "gpu": selector.known.gpu,
        "namespace": re.sub(r"\W", "_", selector.known.gpu),
        "sources": ", ".join(dict.fromkeys(f.source for f in held.figures)),
        "left_out": f"\n// Without {', '.join(sorted(left_out))}, which no rule below describes."
        * bool(left_out),
        "dtypes": ", ".join(dict.fromkeys(table.key[0] for table in tables)),
        "fields": ", ".join(FIELDS),
        **{name.lower(): str(getattr(numbers, name)) for name in _NUMBERS},
        "unmeasured": str(numbers.OFFSET + numbers.CAUTION),
        "sms": str(tables[0].sms),
        "most_rows": str(max(len(table.rows) for table in tables)),
        "rules": _lines(_rule(rule) for of in of_variant for rule in of) or "  {3, 0, 0},",
        "choices": _lines(_choices(variants, of_variant)),
        "columns": _lines(
            f"{{{variants.index(v)}, {usual}}},"
            for table in tables
            for v, usual in zip(table.variants, table.usual, strict=True)
        ),
        "rows": _lines(
            f"{{{', '.join(map(str, row.place))}}},  // {row.problem.id}"
            for table in tables
            for row in table.rows
        ),
        "speeds": _lines(
            " ".join(f"{{{speed}, {slower}}}," for speed, slower in zip(row.speeds, row.slower, strict=True))
            for table in tables
            for row in table.rows
        ),
        "tables": _lines(_tables(tables)),
    }
    template = (files("gemm_regression.tune") / "header.template").read_text(encoding="utf-8")
    return _PLACE.sub(lambda match: text[match[1]], template)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(f"  {line}" for line in lines)


def _rule(rule: Rule) -> str:
    return f"{{{_KINDS.index(rule.kind)}, {FIELDS.index(rule.field)}, {rule.number}}},"


def _choices(variants: Sequence[Variant], of_variant: Sequence[tuple[Rule, ...]]) -> Iterable[str]:
    first = 0
    for v, of in zip(variants, of_variant, strict=True):
        shape = v.kernel.shape_of(v.config, v.dtype)
        defines = (f"-D{name}={value}" for name, value in v.config.items())
        macros = " ".join((*(f"-D{macro}" for macro in v.dtype.macros), *defines))
        source = Path(v.kernel.source).name if v.kernel.source else ""
        words = (
            v.kernel.name,
            v.config.label,
            v.dtype.name,
            source,
            v.kernel.entry_of(v.config, v.dtype),
            macros,
        )
        quoted = ", ".join(f'"{word}"' for word in words)
        block, tile = (", ".join(map(str, sizes)) for sizes in (shape.block, shape.tile))
        rest = ", ".join(map(str, (shape.split, shape.batch, shape.dynamic_bytes, first, len(of))))
        yield f"{{{quoted}, {{{block}}}, {{{tile}}}, {rest}}},"
        first += len(of)


def _tables(tables: Sequence[Table]) -> Iterable[str]:
    row = column = speed = 0
    for table in tables:
        dtype, _, batched = table.key
        rows, columns = len(table.rows), len(table.variants)
        numbers = ", ".join(map(str, (row, rows, column, columns, speed)))
        yield f"{{DType::{dtype}, {str(batched).lower()}, {numbers}}},"
        row, column, speed = row + rows, column + columns, speed + rows * columns
