"""The pictures of the course, drawn as SVG from the same index arithmetic as the kernels.

``elements`` is that arithmetic: which elements of C a thread computes, and so what it reads. A test compares
what follows from it with what the emulated device counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from lab.course import LESSONS, TIMELINES

Cell = tuple[int, int]  # row, column

# What a colour means, on every picture.
MOVED, WARP, THREAD, IDLE, EDGE, INK = "#cfd8e3", "#7fb0dd", "#d9573f", "#f4f5f7", "#b8bec8", "#30343b"


@dataclass
class Drawing:
    """A picture of ``width`` by ``height`` pixels on white; ``title`` says in words what it shows."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str, edge: str = "none") -> None:
        at = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}"'
        self.parts.append(f'<rect {at} fill="{fill}" stroke="{edge}"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", size: int = 12) -> None:
        at = f'x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
        self.parts.append(f'<text {at} fill="{INK}">{escape(words)}</text>')

    def line(self, points: Iterable[tuple[float, float]], edge: str) -> None:
        at = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<polyline points="{at}" fill="none" stroke="{edge}" stroke-width="2"/>')

    def grid(
        self, x: float, y: float, shape: Cell, size: float, fills: Mapping[str, Iterable[Cell]], name: str
    ) -> None:
        """A matrix of ``shape`` cells of ``size`` pixels, its ``name`` above, and cells filled by colour, the
        later colours over the earlier."""
        rows, columns = shape
        self.text(x, y - 6, name)
        self.box(x, y, columns * size, rows * size, IDLE, EDGE)
        for fill, cells in fills.items():
            for row, first, last in runs(cells):
                self.box(x + first * size, y + row * size, (last - first + 1) * size, size, fill)

    def legend(self, x: float, y: float, said: Mapping[str, str]) -> None:
        """What the colours mean, a line each."""
        for number, (fill, words) in enumerate(said.items()):
            self.box(x, y + 20 * number, 12, 12, fill, EDGE)
            self.text(x + 18, y + 20 * number + 10, words)

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif">'
        back = f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>'
        return "\n".join([head, f"<title>{escape(self.title)}</title>", back, *self.parts, "</svg>"]) + "\n"


def runs(cells: Iterable[Cell]) -> Iterable[tuple[int, int, int]]:
    """Row, first and last column of neighbouring cells."""
    found: list[list[int]] = []
    for row, column in sorted(set(cells)):
        if found and found[-1][0] == row and found[-1][2] == column - 1:
            found[-1][2] = column
        else:
            found.append([row, column, column])
    return [(row, first, last) for row, first, last in found]


SECTOR, BANKS, LANES = 8, 32, 32  # words of a sector; banks; threads of a warp
BY_STAGE = {one.stage: one for one in LESSONS}


def elements(stage: str, lane: int) -> Iterator[Cell]:
    """Row and column in the tile of C of each element that a thread computes."""
    of = BY_STAGE[stage]
    x, y = lane % of.threads[0], lane // of.threads[0]
    first, steps = (0, 0), (of.threads[1], of.threads[0])
    if any(of.warp):  # lanes 2i and 2i + 1 share a column
        number, in_warp = divmod(lane, LANES)
        across = of.tile[1] // of.warp[1]
        first = number // across * of.warp[0], number % across * of.warp[1]
        steps = of.warp[0] // of.thread[0], of.warp[1] // of.thread[1]
        x, y = in_warp // 2 % steps[1], in_warp // (2 * steps[1]) * 2 + in_warp % 2
    for m in range(of.thread[0]):
        for n in range(of.thread[1]):
            if stage == "strided":
                yield x, y
            elif stage == "rectangular":
                yield y * of.thread[0] + m, x
            elif stage in (
                "vectorized",
                "warp_tiled",
            ):  # squares of 4 by 4, a block (a warp) of threads apart
                row, column = m // 4 * 4 * steps[0] + y * 4, n // 4 * 4 * steps[1] + x * 4
                yield first[0] + row + m % 4, first[1] + column + n % 4
            else:  # a block of threads apart
                yield y + m * of.threads[1], x + n * of.threads[0]


def warp(stage: str, first: int = 0) -> list[Cell]:
    """The elements of C of all threads of a warp."""
    return [cell for lane in range(first, first + LANES) for cell in elements(stage, lane)]


def sectors(cells: Iterable[Cell]) -> set[Cell]:
    """The sectors of a matrix whose rows are whole sectors that these elements lie in."""
    return {(row, column // SECTOR) for row, column in cells}


def moved(cells: Iterable[Cell]) -> list[Cell]:
    """All elements of the sectors of these elements."""
    return [(row, first * SECTOR + n) for row, first in sectors(cells) for n in range(SECTOR)]


def reads(stage: str) -> tuple[list[Cell], list[Cell]]:
    """The elements of A and of B that a warp of the first two stages reads for k = 4."""
    lanes = warp(stage)
    return [(row, 4) for row, _ in lanes], [(4, column) for _, column in lanes]


def access(stage: str) -> Drawing:
    """What a warp reads of A and B and computes of C; a stage without shared memory."""
    a, b = reads(stage)
    title = (
        f"{stage}: a warp computes {len(set(warp(stage)))} elements of C; for one k it reads {len(set(a))} "
        f"words of A in {len(sectors(a))} sectors and {len(set(b))} of B in {len(sectors(b))}"
    )
    made = Drawing(680, 330, title)
    for place, (name, cells) in enumerate({"A, at one k": a, "B, at one k": b, "C": warp(stage)}.items()):
        own = [cells[0]]
        fills = {MOVED: moved(cells) if place < 2 else (), WARP: cells, THREAD: own}
        made.grid(20 + 220 * place, 40, (32, 32), 6, fills, f"{name}: {_sectors(cells)}")
    made.legend(
        20, 255, {THREAD: "thread 0", WARP: "the other threads of its warp", MOVED: "moved, and not used"}
    )
    return made


def _sectors(cells: Sequence[Cell]) -> str:
    count = len(sectors(cells))
    words = len(set(cells))
    return f"{words} word{'s' * (words > 1)} in {count} sector{'s' * (count > 1)}"


def banks(words: Iterable[int]) -> int:
    """Wavefronts of one access to shared memory: the most different words in one bank."""
    by: dict[int, set[int]] = {}
    for word in words:
        by.setdefault(word % BANKS, set()).add(word)
    return max(map(len, by.values()))


def tiles(stage: str) -> Drawing:
    """The tiles of A and B in shared memory, and what one warp reads of them for one k."""
    size, k, y = 32, 9, 5  # the warp of row 5
    a, b = [(y, k)] * LANES, [(k, x) for x in range(LANES)]
    ways = [banks(row * size + column for row, column in cells) for cells in (a, b)]
    title = (
        f"{stage}: a block copies a tile of A and of B; for one k a warp reads one word of As, in {ways[0]} "
        f"wavefront, and 32 neighbouring words of Bs, in {ways[1]}"
    )
    made = Drawing(680, 340, title)
    own, shape = {THREAD: [(k, 3)]}, (size, size)
    line, column = [(y, n) for n in range(size)], [(n, 3) for n in range(size)]
    made.grid(20, 40, shape, 6, {MOVED: line, WARP: a}, "As: row 5 is read by warp 5")
    made.grid(240, 40, shape, 6, {MOVED: column, WARP: b, **own}, "Bs: thread 3 reads column 3")
    made.grid(460, 40, shape, 6, {WARP: line, THREAD: [(y, 3)]}, "C: warp 5")
    read = "read at k = 9: one word of As for all, and a word of each bank of Bs"
    walked = "what the warp reads of As, and thread 3 of Bs, over all k"
    made.legend(20, 255, {THREAD: "thread 3 of warp 5", WARP: read, MOVED: walked})
    return made


def thread_tile(stage: str) -> Drawing:
    """The elements of C of a thread and of its warp, and what they read of As and Bs for one k."""
    of, own, every = BY_STAGE[stage], list(elements(stage, 0)), warp(stage)
    rows, columns = of.tile
    size = 3 if rows <= 128 else 2
    words = len({row for row, _ in own}) + len({column for _, column in own})
    title = (
        f"{stage}: a thread computes {len(own)} elements of a tile of {rows} by {columns} and reads {words} "
        f"words for one k; its warp computes {len(set(every))}"
    )
    made = Drawing(80 + columns * size + 270, rows * size + 90, title)
    both = {WARP: every, THREAD: own}
    depth = range(4)  # as wide a strip of As and of Bs is drawn
    left = {fill: [(row, n) for row, _ in cells for n in depth] for fill, cells in both.items()}
    above = {fill: [(n, column) for _, column in cells for n in depth] for fill, cells in both.items()}
    made.grid(20, 70, (rows, 4), size, left, "As")
    made.grid(60, 34, (4, columns), size, above, "Bs")
    made.grid(60, 70, of.tile, size, both, "C")
    said = {THREAD: f"thread 0: {len(own)} elements", WARP: "the other threads of its warp"}
    made.legend(80 + columns * size, 90, {**said, IDLE: "other warps"})
    made.text(80 + columns * size, 170, f"{words} words for {len(own)} products")
    return made


_COLOURS = {"load": WARP, "store": MOVED, "multiply": THREAD, "barrier": "#555b66"}


def timeline(stage: str) -> Drawing:
    """Two rounds of the loop of this stage, below those of the stage before."""
    names = [one.stage for one in LESSONS]
    rows = {name: TIMELINES[name] for name in (names[names.index(stage) - 1], stage)}
    counts = {name: sum(what == "barrier" for what, _, _ in steps) for name, steps in rows.items()}
    told = ", ".join(f"{name} with {count} barrier{'s' * (count > 1)}" for name, count in counts.items())
    made = Drawing(680, 290, f"Two rounds of the loop over time (not to scale): {told} a tile")
    for number, (name, steps) in enumerate(rows.items()):
        top, length, scale = 40 + 100 * number, max(end for _, _, end in steps), 38.0
        made.text(20, top - 8, f"{name}: two tiles")
        for lane, kind in enumerate(("load", "store", "multiply")):
            made.text(20, top + 18 * lane + 12, kind)
            made.box(110, top + 18 * lane, 2 * 7 * scale, 15, IDLE, EDGE)
        for turn in range(2):
            for what, start, end in steps:
                x = 110 + (turn * length + start) * scale
                if what == "barrier":
                    made.box(x, top, (end - start) * scale, 51, _COLOURS[what])
                else:
                    lane = ("load", "store", "multiply").index(what)
                    made.box(x, top + 18 * lane, (end - start) * scale, 15, _COLOURS[what])
    made.legend(20, 235, {_COLOURS["barrier"]: "barrier: all threads of the block wait", THREAD: "multiply"})
    made.legend(340, 235, {WARP: "load from global memory", MOVED: "store to shared memory"})
    return made


PICTURES: Mapping[str, Callable[[str], Drawing]] = {
    **dict.fromkeys(("strided", "naive"), access),
    **dict.fromkeys(("tiled", "tiled_unrolled"), tiles),
    **dict.fromkeys(("rectangular", "register", "vectorized"), thread_tile),
    **dict.fromkeys(("prefetch", "double_buffered", "async_copy"), timeline),
}
