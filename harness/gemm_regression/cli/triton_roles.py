"""What the pointers of a kernel in Triton are, by its source: which are loaded, multiplied and stored to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

# What returns its first argument in another form, or what lies there.
_FROM_FIRST = ("load", "trans", "make_block_ptr", "make_tensor_descriptor", "advance", "multiple_of")
_STORES = ("store", "atomic_add")
_DEEP = 20  # steps from a value to the parameter that it begins with


@dataclass
class Roles:
    """Which parameters are ``A``, ``B`` and ``C``, as far as the text shows, by name in ``of``; those that
    are ``loaded`` besides; and whether a maximum with 0 is taken, as by ReLU (``clamps``)."""

    of: dict[str, str] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    clamps: bool = False


def roles(text: str, parameters: frozenset[str]) -> Roles:
    """Of a function with this source and these parameters."""
    tree, found = ast.parse(text.lstrip()), Roles()
    known = dict(_assigned(tree))
    calls = [(_name(node), node) for node in ast.walk(tree) if isinstance(node, ast.Call)]

    def subject(call: ast.Call) -> ast.expr | None:
        """What it is called on: the value before the dot, or after that of a module the first argument."""
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if owner and not (isinstance(owner, ast.Name) and owner.id not in (*known, *parameters)):
            return owner
        return call.args[0] if call.args and _name(call) in (*_FROM_FIRST, *_STORES) else None

    def base(of: ast.expr | None, left: int = _DEEP) -> str:
        """The parameter that an address, or a value loaded from it, begins with; empty if none is found."""
        if isinstance(of, ast.Name) and of.id in parameters:
            return of.id
        if of is None or not left:
            return ""
        if isinstance(of, ast.Name):
            return base(known.get(of.id), left - 1)
        if isinstance(of, ast.BinOp):
            return base(of.left, left - 1) or base(of.right, left - 1)
        return base(subject(of), left - 1) if isinstance(of, ast.Call) else ""

    for name, call in calls:
        if name == "dot":
            named = [*zip("AB", map(base, call.args), strict=False)]
            found.of |= {pointer: role for role, pointer in named if pointer not in ("", *found.of)}
        found.clamps |= name == "maximum" and any(
            isinstance(given, ast.Constant) and given.value == 0 for given in call.args
        )
    found.of |= {base(subject(call)): "C" for name, call in calls if name in _STORES}
    found.of.pop("", None)
    loaded = dict.fromkeys(base(subject(call)) for name, call in calls if name == "load")
    found.loaded = [pointer for pointer in loaded if pointer not in ("", *found.of)]
    return found


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """What is first assigned to each name."""
    seen = set[str]()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        pairs: list[tuple[ast.expr, ast.expr]] = [(node.targets[0], node.value)]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = [*zip(node.targets[0].elts, node.value.elts, strict=False)]
        for to, value in pairs:
            if isinstance(to, ast.Name) and to.id not in seen:
                seen.add(to.id)
                yield to.id, value
