"""The pictures of the stages from warp tiles on, and the table of all.

As in ``pictures``, they follow the index arithmetic of the kernels: the places of chunks, the steps that a
block takes, the columns that a lane loads. A test compares what follows from it. The titles, in lessons.toml,
name the numbers that are computed here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from lab.course import pictures
from lab.course.pictures import BY_STAGE, EDGE, IDLE, INK, MOVED, THREAD, WARP, Cell, Drawing, thread_tile

_TILES = (WARP, MOVED, "#9fc9a4", "#e8cf8f", "#c9b3d9")  # by a tile's number, in turn
_ADD = "#555b66"


def rasterized(index: int, shape: Cell, band_rows: int) -> Cell:
    """Row and column of the block of this index in a grid, taken down the columns of bands."""
    rows, columns = shape
    band, in_band = divmod(index, band_rows * columns)
    height = min(rows - band * band_rows, band_rows)  # the last band may be shorter
    return band * band_rows + in_band % height, in_band // height


def bands(stage: str) -> Drawing:
    """The blocks of 4096³ that run at once on 132 SMs, by rows and by bands of eight."""
    tile, size, running = BY_STAGE[stage].tile, 9, 132
    shape = 4096 // tile[0], 4096 // tile[1]
    found = {name: [rasterized(n, shape, height) for n in range(running)] for name, height in _ORDERS.items()}
    strips = [
        len({row for row, _ in cells}) + len({column for _, column in cells}) for cells in found.values()
    ]
    made = Drawing(680, 240, BY_STAGE[stage].also.format(by_rows=strips[0], by_bands=strips[1]))
    for panel, (name, cells) in enumerate(found.items()):
        fills = {WARP: cells, THREAD: cells[:1]}
        said = f"{name}: {strips[panel]} rows and columns of tiles"
        made.grid(20 + 330 * panel, 40, shape, size, fills, said)
    made.legend(20, 200, {THREAD: "block 0", WARP: "the other blocks that run at the same time"})
    return made


_ORDERS = {"row by row": 1, "down bands of 8 rows": 8}


def fragments(stage: str) -> Drawing:
    """The tile of C of a block, of its first warp, and of one product of a tensor core."""
    of, side, size = BY_STAGE[stage], 16, 2.0
    rows, columns = of.tile
    down, across = of.warp[0] // side, of.warp[1] // side
    said = of.shows.format(tile=of.tile, warp=of.warp, count=down * across, down=down, across=across)
    made = Drawing(640, 365, said)
    own, one = list(_cells((0, 0), of.warp)), list(_cells((0, 0), (side, side)))
    made.grid(20, 92, (rows, side), size, {WARP: [c for c in own if c[1] < side], THREAD: one}, "As")
    above = [c for c in own if c[0] < side]
    made.grid(70, 34, (side, columns), size, {WARP: above, THREAD: one}, "Bs")
    made.grid(70, 92, of.tile, size, {WARP: own, THREAD: one}, "C")
    for step in range(side, max(of.warp), side):
        if step < of.warp[0]:
            made.line([(70, 92 + step * size), (70 + of.warp[1] * size, 92 + step * size)], EDGE)
        if step < of.warp[1]:
            made.line([(70 + step * size, 92), (70 + step * size, 92 + of.warp[0] * size)], EDGE)
    made.legend(
        350,
        90,
        {THREAD: "one fragment each of A, B and C", WARP: "the others of warp 0", IDLE: "other warps"},
    )
    return made


def _cells(first: Cell, shape: Cell) -> Iterator[Cell]:
    return ((first[0] + m, first[1] + n) for m in range(shape[0]) for n in range(shape[1]))


def small(stage: str) -> Drawing:
    """The matrices of a block, and what a warp and a thread of it compute."""
    of = BY_STAGE[stage]
    rows, columns = of.tile
    threads = rows * columns // (of.thread[0] * of.thread[1])  # of a matrix
    made = Drawing(680, 190, of.shows.format(threads=threads, share=32 / threads))
    for matrix in range(8):
        found: dict[str, list[Cell]] = {WARP: [], THREAD: []}
        for thread in range(threads):
            x, y = thread % (columns // of.thread[1]), thread // (columns // of.thread[1])
            number = matrix * threads + thread
            if number < 32:  # rows of a thread are apart by the rows of threads
                step = rows // of.thread[0]
                cells = [(y + m * step, x * of.thread[1] + n) for m, n in _cells((0, 0), of.thread)]
                found[WARP if number else THREAD] += cells
        made.grid(20 + 80 * matrix, 40, of.tile, 8, found, f"C[{matrix}]")
    made.legend(20, 125, {THREAD: "thread 0", WARP: "the other threads of its warp", IDLE: "other warps"})
    return made


def _rounds(
    made: Drawing, top: float, name: str, bars: Sequence[tuple[int, int, int, int]], end: int, sms: int
) -> None:
    """SMs over time: bars of (SM, first step, last step, tile); tile -1 adds."""
    scale = 560 / end
    made.text(20, top - 8, name)
    for sm in range(sms):
        y = top + 20 * sm
        made.text(20, y + 13, f"SM {sm}")
        made.box(80, y, end * scale, 17, IDLE, EDGE)
        for _, first, last, tile in (bar for bar in bars if bar[0] == sm):
            made.box(
                80 + first * scale,
                y,
                (last - first) * scale,
                17,
                _TILES[tile % 5] if tile >= 0 else _ADD,
                EDGE,
            )
            if tile >= 0:
                made.text(84 + first * scale, y + 13, f"{tile}")


def split(stage: str) -> Drawing:
    """Two tiles on eight SMs, without and with their K split by four."""
    parts, steps = 4, 16
    alone = [(0, 0, steps, 0), (1, 0, steps, 1)]
    each = steps // parts
    shared = [(b, 0, each, b // parts) for b in range(2 * parts)]
    shared += [(b, each, each + 1, -1) for b in (parts - 1, 2 * parts - 1)]
    made = Drawing(680, 430, BY_STAGE[stage].shows.format(steps=steps, each=each, parts=parts))
    _rounds(made, 40, "one block for each tile", alone, steps, 2 * parts)
    _rounds(made, 240, f"{parts} blocks for each tile", shared, steps, 2 * parts)
    made.legend(80, 408, {_ADD: "the last block of a tile adds the slabs; numbers: the tile"})
    return made


def stream_parts(tiles: int, blocks: int, steps: int) -> list[tuple[int, int, int, int]]:
    """Stream-K's schedule: what each block computes, as (block, first step of its time, last step, tile)."""
    whole = tiles // blocks if tiles % blocks == 0 else max(0, tiles // blocks - 1)
    shared = (tiles - whole * blocks) * steps
    found = []
    for block in range(blocks):
        step, end, now = shared * block // blocks, shared * (block + 1) // blocks, 0
        while step < end:
            last = min(end, (step // steps + 1) * steps)
            found.append((block, now, now + last - step, step // steps))
            step, now = last, now + last - step
        for done in range(whole):
            found.append((block, now, now + steps, shared // steps + done * blocks + block))
            now += steps
    return found


def stream(stage: str) -> Drawing:
    """Nine tiles on four SMs, a block for each tile and by Stream-K."""
    tiles, blocks, steps = 9, 4, 8
    plain = [(t % blocks, t // blocks * steps, (t // blocks + 1) * steps, t) for t in range(tiles)]
    streamed = stream_parts(tiles, blocks, steps)
    ends = [max(last for _, _, last, _ in bars) for bars in (plain, streamed)]
    said = {"tiles": tiles, "blocks": blocks, "steps": steps, "plain": ends[0], "streamed": ends[1]}
    made = Drawing(680, 250, BY_STAGE[stage].shows.format(**said))
    _rounds(made, 40, "a block for each tile: the last round has one", plain, ends[0], blocks)
    _rounds(
        made,
        150,
        "Stream-K: equal parts of five tiles, then a tile each; numbers: the tile",
        streamed,
        ends[0],
        blocks,
    )
    return made


def order(rows: int, columns: int, to_and_fro: bool) -> list[Cell]:
    """The order of a thread's products."""
    return [
        (m, n if m % 2 == 0 or not to_and_fro else columns - 1 - n)
        for m in range(rows)
        for n in range(columns)
    ]


def path(stage: str) -> Drawing:
    """The order of the products of a thread's tile, by rows and to and fro."""
    of = BY_STAGE[stage].thread
    both = [
        sum(a[0] != b[0] and a[1] != b[1] for a, b in pairwise(order(*of, turned)))
        for turned in (False, True)
    ]
    made = Drawing(680, 400, BY_STAGE[stage].shows.format(plain=both[0], turned=both[1]))
    for panel, (name, turned) in enumerate({"row by row": False, "to and fro": True}.items()):
        x, y, size = 30 + 330 * panel, 40, 20
        made.grid(x, y, of, size, {}, f"{name}: {both[panel]} times both operands change")
        made.line([(x + (n + 0.5) * size, y + (m + 0.5) * size) for m, n in order(*of, turned)], THREAD)
    made.text(30, 385, "down: the rows of A; across: the columns of B")
    return made


def place(row: int, chunk: int, chunks: int, swizzled: bool) -> int:
    """Where a chunk of 16 bytes lies, in chunks, in a tile of so many a row."""
    rows = 8 // chunks if chunks < 8 else 1
    return row * chunks + (chunk ^ (row // rows & min(chunks - 1, 7)) if swizzled else chunk)


def swizzle(stage: str) -> Drawing:
    """Where the chunks that one ldmatrix reads lie, plain and swizzled."""
    chunks, asked = 4, 1
    found = [[place(row, asked, chunks, turned) for row in range(8)] for turned in (False, True)]
    rounds = [max(Counter(at % 8 for at in places).values()) for places in found]
    made = Drawing(680, 240, BY_STAGE[stage].shows.format(plain=rounds[0], swizzled=rounds[1]))
    for panel, (name, turned) in enumerate({"plain": False, "swizzled": True}.items()):
        left = 20 + 340 * panel
        made.text(left, 34, f"{name}: {rounds[panel]} round{'s' * (rounds[panel] > 1)}")
        for row, chunk in _cells((0, 0), (8, chunks)):
            at = place(row, chunk, chunks, turned)
            x, y = left + at % 8 * 38, 44 + at // 8 * 30
            made.box(x, y, 38, 30, THREAD if chunk == asked else IDLE, EDGE)
            made.text(x + 19, y + 20, f"{row}.{chunk}", "middle")
    made.text(20, 185, "across: the 32 banks, in eight groups of four; in the boxes: row.chunk")
    made.legend(20, 200, {THREAD: "read by one ldmatrix of 8 by 8"})
    return made


def bits(stage: str) -> Drawing:
    """The significand of a float as two of TF32, and which of the four products are made."""
    made = Drawing(680, 260, BY_STAGE[stage].shows)
    for line, (name, cells, fill) in enumerate(
        (("a float", range(24), MOVED), ("big", range(11), THREAD), ("small", range(11, 23), WARP))
    ):
        made.text(20, 47 + 30 * line, name)
        made.grid(80, 34 + 30 * line, (1, 24), 18, {fill: [(0, n) for n in cells]}, "")
    for number, (what, made_it) in enumerate(
        (("big · big", True), ("big · small", True), ("small · big", True), ("small · small", False))
    ):
        x, y = 80 + 130 * number, 150
        made.box(x, y, 120, 34, WARP if made_it else IDLE, EDGE)
        made.text(x + 60, y + 21, what, "middle")
    made.legend(80, 205, {WARP: "made by tensor cores", IDLE: "left out: below the rounding of FP32"})
    return made


def ring(stage: str) -> Drawing:
    """The stages of a pipeline over time: when each is filled and read."""
    persistent = stage != "mma_tma"
    stages, tiles, of_tile, scale = 4, 8, 4 if persistent else 8, 43.0
    gap = 1.6 if persistent else 0.0  # of the epilogue
    starts = [2 + j + gap * (j // of_tile) for j in range(tiles)]
    made = Drawing(680, 40 + 24 * (stages + persistent) + 90, BY_STAGE[stage].shows)
    for lane in range(stages + persistent):
        made.text(20, 41 + 24 * lane, f"stage {lane}" if lane < stages else "epilogue")
        made.box(90, 28 + 24 * lane, 13.4 * scale, 18, IDLE, EDGE)

    def bar(lane: int, start: float, end: float, fill: str, said: str = "") -> None:
        made.box(90 + start * scale, 28 + 24 * lane, (end - start) * scale, 18, fill, EDGE)
        made.text(94 + start * scale, 41 + 24 * lane, said)

    for j, start in enumerate(starts):
        # Read once more before: wgmma releases a stage a round late.
        freed = (
            starts[j - stages] + (2 if persistent and (j - stages) % of_tile < of_tile - 1 else 1)
            if j >= stages
            else 0.15 * j
        )
        bar(j % stages, freed, max(freed + 0.9, min(start, freed + 1.9)), WARP, f"{j}")
        bar(j % stages, max(start, freed + 0.9), max(start, freed + 0.9) + 1, THREAD, f"{j}")
        if persistent and j % of_tile == of_tile - 1:
            bar(stages, start + 1, start + 1 + gap, MOVED, f"C {j // of_tile}")
    said = {WARP: "filled by TMA: until full", THREAD: "multiplied: until empty; numbers: the step along K"}
    made.legend(
        90, 44 + 24 * (stages + persistent), {**said, **({MOVED: "sums stored"} if persistent else {})}
    )
    return made


def loads(lane: int) -> tuple[int, list[int]]:
    """Row of the tile of B, and the two words that a lane of wgmma_tf32's first warp loads."""
    row, g = lane % 4, lane // 4
    column = (g // 4 + g // 2 % 2 * 4) * 4 + g % 2 * 2
    first = (row * 128 + (column * 4 ^ row * 16)) // 4
    return row, [first, first + 1]


def columns_of_b(stage: str) -> Drawing:
    """What half of a warp loads of a swizzled panel of B at once."""
    words = [word for lane in range(16) for word in loads(lane)[1]]
    banks = {"banks": len({word % 32 for word in words}), "rounds": pictures.banks(words)}
    made = Drawing(680, 200, BY_STAGE[stage].shows.format(**banks))
    made.text(20, 34, "four rows of 32 words, as TMA has swizzled them; in the boxes: the lane")
    for row in range(4):
        made.box(20, 44 + 26 * row, 640, 26, IDLE, EDGE)
    for lane in range(16):
        row, pair = loads(lane)
        x = 20 + pair[0] % 32 * 20
        made.box(x, 44 + 26 * row, 40, 26, THREAD if lane == 0 else WARP, EDGE)
        made.text(x + 20, 62 + 26 * row, f"{lane}", "middle")
    made.text(20, 168, "across: the 32 banks; no two lanes share one")
    made.text(20, 188, "k 0 to 3 of a step; the second load of a lane is of k 4 to 7", size=11)
    return made


def starts(rows: int, columns: int) -> list[int]:
    """How many elements of FP16 behind a multiple of 16 bytes each row begins."""
    return [row * columns % 8 for row in range(rows)]


def packed(stage: str) -> Drawing:
    """Rows of an odd length as they lie in memory, and in a packed box."""
    rows, columns, size = 8, 15, 16
    begin = starts(rows, columns)
    said = {"rows": rows, "columns": columns, "aligned": begin.count(0)}
    made = Drawing(726, 260, BY_STAGE[stage].shows.format(**said))
    for panel, (name, shifts) in enumerate({"in memory": begin, "packed": [0] * rows}.items()):
        cells = {
            WARP: [(row, shift + n) for row, shift in enumerate(shifts) for n in range(columns)],
            THREAD: [(row, shift) for row, shift in enumerate(shifts)],
            MOVED: [(row, columns) for row in range(rows)] if panel else [],
        }
        x = 20 + 430 * panel
        made.grid(x, 44, (rows, 16 if panel else 24), size, cells, name)
        for line in range(0, 25 if not panel else 17, 8):
            at = x + line * size
            made.line([(at, 44), (at, 44 + rows * size)], INK)
    made.legend(
        20, 196, {THREAD: "the first element of a row", WARP: "its others", MOVED: "zero, past the edge"}
    )
    made.text(240, 206, "lines down: every 16 bytes")
    return made


def shared_sums(stage: str) -> Drawing:
    """The sums of the blocks of a cluster, and which of them each block adds."""
    of, split = BY_STAGE[stage], 2
    rows, columns = of.tile
    each = (rows - 1) // split + 1
    made = Drawing(680, 230, of.shows.format(split=split, rows=each, all=rows))
    fills = {
        colour: [(row, n) for row in range(each * rank, min(rows, each * (rank + 1))) for n in range(columns)]
        for rank, colour in enumerate((THREAD, WARP))
    }
    for panel, name in enumerate(("sums of block 0", "sums of block 1", "tile of C")):
        made.grid(20 + 220 * panel, 40, of.tile, 3, fills, name)
    for panel, sign in enumerate("+="):
        made.text(226 + 220 * panel, 92, sign, "middle")
    made.legend(20, 160, {THREAD: "added and stored by block 0", WARP: "by block 1"})
    return made


def multicast(stage: str) -> Drawing:
    """A stage in the shared memory of each block of a cluster, by the block that copied it."""
    of, step = BY_STAGE[stage], 16  # rows, or columns, of a cell
    rows, columns = (size // step for size in of.tile)
    made = Drawing(680, 230, of.shows.format(own=of.tile[1] // 2))
    half = columns // 2
    b = {THREAD: [(0, n) for n in range(half)], WARP: [(0, n) for n in range(half, columns)]}
    for rank, colour in enumerate(b):
        a = {colour: [(0, n) for n in range(rows)]}
        made.grid(20 + 330 * rank, 40, (1, rows), 14, a, f"block {rank}: A")
        made.grid(20 + 330 * rank, 100, (1, columns), 14, b, f"block {rank}: B")
    made.legend(20, 160, {THREAD: "copied by block 0", WARP: "by block 1"})
    made.text(20, 216, f"a cell: {step} rows of A, or columns of B, of 128 bytes", size=11)
    return made


PICTURES: Mapping[str, Callable[[str], Drawing]] = {
    **pictures.PICTURES,
    "warp_tiled": thread_tile,
    "wmma": fragments,
    **dict.fromkeys(("batched_small", "batched_vectors"), small),
    "split_k": split,
    "lean_loop": path,
    "stream_k": stream,
    "mma_sync": swizzle,
    "tf32x3": bits,
    **dict.fromkeys(("mma_tma", "wgmma"), ring),
    "wgmma_tf32": columns_of_b,
    "pack": packed,
    "wgmma_split_k": shared_sums,
    "wgmma_bytes": multicast,
}

# A second picture of a stage.
MORE: Mapping[str, Callable[[str], Drawing]] = {"warp_tiled": bands}
