"""Which mistakes in a GEMM kernel no problem of a suite shows: each quantity in each of its roles, with every
other quantity in its place.

The model is of a tiled kernel that guards its loads and stores, takes vectors of 16 bytes where rows
are aligned, and leaves the guards out where a tile lies inside. A mistake shows where an element is missing
or wrong, an access leaves its matrix, or a vector is misaligned; not where only unneeded work is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gemm_regression.model import Case, Problem
from gemm_regression.project.selection import Choice, select
from tests.ladder import PROJECT


class Tile(NamedTuple):
    """What a block computes, (m, n) of so many matrices (``batch``, 0 for a kernel of single ones), in steps
    of k; elements of the operands in 16 bytes."""

    m: int
    n: int
    k: int
    vector: int
    batch: int = 0


class Matrix(NamedTuple):
    """A matrix on a problem: its extent, that of its tiles, leading dimension and start, elements of a vector
    and from one to the next of a batch of so many. ``spare``: what is read past the end of its rows goes only
    into sums that are not stored."""

    rows: int
    columns: int
    tile_rows: int
    tile_columns: int
    ld: int
    start: int
    vector: int
    stride: int
    batch: int
    spare: bool = False

    @property
    def tiled_rows(self) -> int:
        return up(self.rows, self.tile_rows)

    @property
    def tiled_columns(self) -> int:
        return up(self.columns, self.tile_columns)

    @property
    def harmless_columns(self) -> int:
        """So many columns may be accessed and nothing shows it."""
        return self.ld if self.spare else self.columns


def up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def matrices(p: Problem, t: Tile) -> dict[str, Matrix]:
    return {
        "A": Matrix(p.m, p.k, t.m, t.k, p.lda, p.starts[0], t.vector, (p.m + p.gap) * p.lda, p.batch),
        "B": Matrix(p.k, p.n, t.k, t.n, p.ldb, p.starts[1], t.vector, (p.k + p.gap) * p.ldb, p.batch, True),
        "C": Matrix(p.m, p.n, t.m, t.n, p.ldc, p.starts[2], 4, (p.m + p.gap) * p.ldc, p.batch),
    }


Quantities = Mapping[str, Callable[[Problem, Tile], int]]
Shows = Callable[[Problem, Tile, int], bool]

# What may stand in a kernel by mistake, as a number.
SIZES: Quantities = {
    **{name: lambda p, t, name=name: getattr(p, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")},  # type: ignore[misc]
    "m in whole tiles": lambda p, t: up(p.m, t.m),
    "n in whole tiles": lambda p, t: up(p.n, t.n),
    "k in whole tiles": lambda p, t: up(p.k, t.k),
}
TILES: Quantities = {"TILE_M": lambda p, t: t.m, "TILE_N": lambda p, t: t.n, "TILE_K": lambda p, t: t.k}
STARTS: Quantities = {f"start of {x}": lambda p, t, x=x: p.start(x) for x in "ABC"}  # type: ignore[misc]
STRIDES: Quantities = {
    **{f"stride of {x}": lambda p, t, x=x: matrices(p, t)[x].stride for x in "ABC"},  # type: ignore[misc]
    "m ldA": lambda p, t: p.m * p.lda,
    "k ldB": lambda p, t: p.k * p.ldb,
    "m ldC": lambda p, t: p.m * p.ldc,
    "m k": lambda p, t: p.m * p.k,
    "k n": lambda p, t: p.k * p.n,
    "m n": lambda p, t: p.m * p.n,
}
DROPPED: Quantities = {"no guard": lambda p, t: 2**31 - 1}
UNTESTED: Quantities = {"no test": lambda p, t: 0}


@dataclass(frozen=True)
class Role:
    """A place in a kernel where ``right`` stands. ``shows(p, t, s)``: whether a launch shows the value ``s``
    there. ``others``: what may stand there by mistake. ``exists``: whether kernels of such tiles have it."""

    name: str
    right: str
    shows: Shows
    others: Quantities
    exists: Callable[[Tile], bool] = lambda tile: True


class Duty(NamedTuple):
    """``other`` instead of what stands in a role."""

    role: str
    other: str


def _computes(p: Problem) -> bool:
    """Whether A and B reach C."""
    return bool(p.m and p.n and p.k and p.alpha)


def _takes_part(name: str, p: Problem) -> bool:
    return bool(p.m and p.n) if name == "C" else _computes(p)


def _where(name: str, rule: Callable[[Matrix, int], bool]) -> Shows:
    """Whether a matrix that takes part shows it."""
    return lambda p, t, s: _takes_part(name, p) and rule(matrices(p, t)[name], s)


def _row_guard(x: Matrix, s: int) -> bool:
    return min(s, x.tiled_rows) != x.rows


def _column_guard(x: Matrix, s: int) -> bool:
    reached = min(s, x.tiled_columns)
    return reached < x.columns or reached > x.harmless_columns


def _leading(x: Matrix, s: int) -> bool:
    return x.rows > 1 and s != x.ld


def _last_vector(x: Matrix, s: int) -> bool:
    """``col + 4 <= s``: else element by element, which is right, too."""
    aligned = x.start % x.vector == 0 and (x.ld % x.vector == 0 or x.rows == 1)
    return aligned and min(s // x.vector * x.vector, x.tiled_columns) > x.harmless_columns


def _inside(rows: bool, whole: bool) -> Callable[[Matrix, int], bool]:
    """No guards for a tile that ends at or before ``s``, or (``whole``) where ``s`` is a multiple of it; else
    with guards, which is right, too."""

    def rule(x: Matrix, s: int) -> bool:
        tile, end = (x.tile_rows, x.tiled_rows) if rows else (x.tile_columns, x.tiled_columns)
        return end > (x.rows if rows else x.harmless_columns) and (s % tile == 0 if whole else end <= s)

    return rule


def _steps_along_k(p: Problem, t: Tile, s: int) -> bool:
    """Steps beyond K add zeros."""
    return _computes(p) and s < up(p.k, t.k) - t.k + 1


# The start, or the leading dimension, in the test for whole vectors; the other test is right.


def _start(x: Matrix, s: int) -> bool:
    misaligned = x.start % x.vector != 0 and x.ld % x.vector == 0
    return misaligned and s % x.vector == 0 and x.columns >= x.vector


def _rows_of_vectors(x: Matrix, s: int) -> bool:
    misaligned = x.start % x.vector == 0 and x.ld % x.vector != 0 and x.rows > 1
    return misaligned and s % x.vector == 0 and x.columns >= x.vector


# An offset in ``s`` bits: of a tile; within it, where a thread's steps are at most half a tile, or 128 rows.


def _far_tile(x: Matrix, s: int) -> bool:
    return (x.rows - 1) // x.tile_rows * x.tile_rows * x.ld >= 1 << s


def _far_row(x: Matrix, s: int) -> bool:
    row = min(x.rows, x.tile_rows) - 1
    return min(x.tile_rows // 2, 128) <= row and row * x.ld >= 1 << s


def _stride(x: Matrix, s: int) -> bool:
    return x.batch > 1 and s != x.stride


def _far_matrix(x: Matrix, s: int) -> bool:
    return (x.batch - 1) * x.stride >= 1 << s


def _alone(name: str) -> Shows:
    """A matrix, of several rows and a vector, that is the only one whose rows are aligned for vectors (``s``
    1), or the only one whose are not (0)."""

    def shows(p: Problem, t: Tile, s: int) -> bool:
        every = matrices(p, t)
        fit = {key: x.start % x.vector == x.ld % x.vector == 0 for key, x in every.items()}
        enough = every[name].rows > 1 and every[name].columns >= every[name].vector
        return _takes_part(name, p) and enough and all(fit[key] == ((key == name) == s) for key in every)

    return shows


def _batch_guard(p: Problem, t: Tile, s: int) -> bool:
    return bool(p.m and p.n) and min(s, up(p.batch, t.batch)) != p.batch


WAYS: Mapping[str, Callable[[Problem, Tile], bool]] = {
    "several tiles, and edges": lambda p, t: p.m > t.m and p.n > t.n and p.k > t.k and not _whole(p, t),
    "many steps, and an edge along K": lambda p, t: p.k > 3 * t.k and bool(p.k % t.k or t.k == 1),
    "many whole steps": lambda p, t: p.k > 3 * t.k and p.k % t.k == 0,
    "whole tiles": lambda p, t: p.m >= t.m and p.n >= t.n and p.m * p.n > t.m * t.n and p.k % t.k == 0,
    "one row": lambda p, t: p.m == 1 and p.n > 1 and p.k > 1,
    "one column": lambda p, t: p.n == 1 and p.m > 1 and p.k > 1,
    "one step": lambda p, t: p.k == 1 and p.m > 1 and p.n > 1,
}


def _whole(p: Problem, t: Tile) -> bool:
    return any(size % tile == 0 and tile > 1 for size, tile in ((p.m, t.m), (p.n, t.n), (p.k, t.k)))


def _parts(right: str) -> Quantities:
    """Tests for vectors of half the width, and a quarter: 0 where they are content."""

    def content(share: int) -> Callable[[Problem, Tile], int]:
        def value(p: Problem, t: Tile) -> int:
            x = matrices(p, t)[right[-1].upper()]
            return (x.start if right.startswith("start") else x.ld) % (x.vector // share)

        return value

    return {"half a vector": content(2), "a quarter of a vector": content(4)}


def _constant(**values: int) -> Quantities:
    return {name.replace("_", " "): lambda p, t, value=value: value for name, value in values.items()}  # type: ignore[misc]


def _roles_of(name: str, rows: str, columns: str) -> Iterator[Role]:
    """The roles of one matrix."""

    def several(along: str) -> Callable[[Tile], bool]:
        return lambda tile: getattr(tile, along) > 1

    ld, start = f"ld{name.lower()}", f"start of {name}"
    bounds = {**SIZES, **TILES, **DROPPED}
    yield Role(f"guard of {name}'s rows", rows, _where(name, _row_guard), bounds, several(rows))
    yield Role(f"guard of {name}'s columns", columns, _where(name, _column_guard), bounds, several(columns))
    vectors = {**SIZES, **DROPPED}
    wide = lambda tile: getattr(tile, columns) >= 8  # noqa: E731
    yield Role(f"guard of {name}'s last vector", columns, _where(name, _last_vector), vectors, wide)
    for along, size in (("rows", rows), ("columns", columns)):
        of = f"a tile of {name} is inside, along its {along}: by its end"
        yield Role(of, size, _where(name, _inside(along == "rows", False)), vectors, several(size))
        of = f"a tile of {name} is inside, along its {along}: by a multiple"
        whole = {**SIZES, **UNTESTED}
        yield Role(of, size, _where(name, _inside(along == "rows", True)), whole, several(size))
    yield Role(f"leading dimension of {name}", ld, _where(name, _leading), {**SIZES, **TILES})
    yield Role(
        f"{name}'s start is aligned", start, _where(name, _start), {**STARTS, **_parts(start), **UNTESTED}
    )
    yield Role(
        f"{name}'s rows are aligned", ld, _where(name, _rows_of_vectors), {**SIZES, **_parts(ld), **UNTESTED}
    )
    bits = _constant(**{"31 bits": 31, "32 bits": 32})
    yield Role(f"offset of a row within a tile of {name}", "", _where(name, _far_row), bits, several(rows))
    yield Role(f"offset of a tile of {name}", "", _where(name, _far_tile), bits)
    yield Role(f"{name} differs from the others", "", _alone(name), _constant(aligned=1, not_aligned=0))
    batched = lambda tile: tile.batch > 0  # noqa: E731
    yield Role(f"stride of {name}", f"stride of {name}", _where(name, _stride), STRIDES, batched)
    yield Role(f"offset of a matrix of {name}", "", _where(name, _far_matrix), bits, batched)


def _roles() -> Iterator[Role]:
    for name, (rows, columns) in {"A": ("m", "k"), "B": ("k", "n"), "C": ("m", "n")}.items():
        yield from _roles_of(name, rows, columns)
    for name, goes in WAYS.items():
        yield Role(name, "", lambda p, t, s, goes=goes: _computes(p) and goes(p, t), UNTESTED)  # type: ignore[misc]
    yield Role("steps along K", "k", _steps_along_k, {**SIZES, **TILES})
    batch = {"batch": lambda p, t: p.batch, **SIZES, **DROPPED}
    yield Role("guard of the batch", "batch", _batch_guard, batch, lambda tile: tile.batch > 1)


ROLES = tuple(_roles())
# Mistakes that are none, whatever the problem, by role and what stands there; with the reason.
EQUIVALENT: Mapping[tuple[str, str], str] = {
    ("steps along K", "lda"): "not less than k, and steps beyond it add zeros",
    ("steps along K", "k in whole tiles"): "as many steps",
    **{
        (role, "ldb"): "what is read of the padding of B goes only into sums that are not stored"
        for role in (
            "guard of B's columns",
            "guard of B's last vector",
            "a tile of B is inside, along its columns: by its end",
            "a tile of B is inside, along its columns: by a multiple",
        )
    },
}


def duties(tile: Tile) -> Iterator[tuple[Duty, Role]]:
    """Every mistake that is one, with its role."""
    for role in ROLES:
        for other in role.others if role.exists(tile) else ():
            if other != role.right and (role.name, other) not in EQUIVALENT:
                yield Duty(role.name, other), role


def shown(p: Problem, tile: Tile) -> frozenset[Duty]:
    """The mistakes that a problem shows in a kernel of these tiles."""
    return frozenset(d for d, role in duties(tile) if role.shows(p, tile, role.others[d.other](p, tile)))


def hidden(problems: Iterable[Problem], tile: Tile) -> list[Duty]:
    """The mistakes that no problem shows."""
    seen: set[Duty] = set().union(*(shown(p, tile) for p in problems))
    return [duty for duty, _ in duties(tile) if duty not in seen]


def verified() -> dict[Tile, set[Problem]]:
    """For each tile of the ladder the problems that every kernel of this tile is verified on without a GPU.
    Where boxes of tensor maps are copied, the hardware guards the loads, and only aligned rows are taken."""
    of: dict[tuple[Tile, str], set[Problem]] = {}
    for case in select(PROJECT, Choice(), (9, 0), emulated=True).verify:
        if not case.kernel.maps:
            of.setdefault((tile_of(case), case.kernel.name), set()).add(case.problem)
    found: dict[Tile, set[Problem]] = {}
    for (tile, _), problems in of.items():
        found[tile] = found.get(tile, problems) & problems
    return found


def tile_of(case: Case) -> Tile:
    """The tile of a variant of the ladder."""
    config, shape = case.config, case.kernel.shape_of(case.config, case.dtype)
    depth = config.get("TILE_K", config.get("TILE_SIZE", config.get("TILE", 1)))
    batch = shape.batch if case.kernel.operation.batched else 0
    return Tile(*shape.tile, depth, 16 // case.dtype.storage.itemsize, batch)
