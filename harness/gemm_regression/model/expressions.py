"""Numbers of the sizes of a problem, written as in C: ``K/32``, ``(n+127)/128``, ``4*lda``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod)


@dataclass(frozen=True)
class Expression:
    """An expression of ``+ - * / %``, parentheses, numbers and ``names``."""

    text: str
    root: ast.expr
    names: tuple[str, ...]

    def value(self, values: Mapping[str, float]) -> float:
        """With values for all names. As in C, the quotient and the remainder of two integers are rounded
        towards zero. Raises ValueError for a division by zero."""
        try:
            return _value(self.root, values)
        except ZeroDivisionError:
            raise ValueError(f"{self.text}: division by zero") from None


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Raises ValueError, in one line, for what is no such expression."""
    try:
        root = ast.parse(text.strip(), mode="eval").body
        return Expression(text, root, tuple(dict.fromkeys(_names(root))))
    except (SyntaxError, ValueError):
        allowed = "numbers and names with + - * / % and parentheses, as in (K+31)/32"
        raise ValueError(f"{text!r} is no expression of {allowed}") from None


def _names(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=value) if type(value) in (int, float):
            return
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            yield from _names(operand)
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            yield from _names(left)
            yield from _names(right)
        case _:
            raise ValueError


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Name(id=name):
            return values[name]
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.UnaryOp(op=op, operand=operand):
            inner = _value(operand, values)
            return -inner if isinstance(op, ast.USub) else inner
        case ast.BinOp(left=left, op=op, right=right):
            return _apply(op, _value(left, values), _value(right, values))
    raise AssertionError(node)


def _apply(op: ast.operator, a: float, b: float) -> float:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
    if not (isinstance(a, int) and isinstance(b, int)):
        return a / b if isinstance(op, ast.Div) else a % b
    quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return quotient if isinstance(op, ast.Div) else a - quotient * b
