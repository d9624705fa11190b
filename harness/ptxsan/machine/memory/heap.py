"""The heap of the device: what malloc gives and free takes in a kernel.

Blocks of it lie apart, and what was freed is given again only when nothing else is left: so accesses past the
end of a block, and after its end, hit no other block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxsan.checks import Site
from ptxsan.frontend import Instruction, SourceLocation
from ptxsan.lanes import Array
from ptxsan.machine.memory.buffer import Buffer

HEAP = 1023  # its number as a buffer, the last before those of variables
_SIZE = 8 << 20  # bytes at once, cudaLimitMallocHeapSize by default
_STORAGE = 2 * _SIZE
_UNIT = 16  # bytes, of an alignment; and the least that lies between two blocks is one of them


_NOWHERE = Site(Instruction("", (), None, 0, SourceLocation(), ""))


@dataclass
class Block:
    """What one malloc gave: bytes from ``start`` on, by offset in the storage of all launches."""

    start: int
    size: int
    launch: int
    who: str
    site: Site
    freed: str = ""


class Heap(Buffer):
    """Of a batch of launches, each of which has its own; ``before``: that of a module's last launch."""

    def __init__(self, launches: int, before: Heap | None = None) -> None:
        words = np.zeros((1, _STORAGE // 4), np.uint32)
        held = [words] * launches if before is None else [before.values(0)]
        known = [words.astype(bool)] * launches if before is None else [before.initialised(0)]
        super().__init__("the heap", HEAP, held, known=known, writable=True, flat=True, output=False)
        if self._known is None:
            self._all_known()
        self._owner = np.zeros(len(self.bytes) // _UNIT, np.int32)  # of each unit its block, 0 for none
        self._ends = np.zeros(256, np.int64)  # of each block that is not freed, 0 for others
        self._blocks: list[Block] = [Block(0, 0, 0, "", _NOWHERE)]
        self._next, self._used = [launch * self._stride for launch in range(launches)], [0] * launches
        self._free: list[list[Block]] = [[] for _ in range(launches)]
        if before is not None:
            self._owner, self._ends, self._blocks = before._owner, before._ends, before._blocks
            self._next, self._used, self._free = before._next, before._used, before._free
        self._given = len(self._blocks)

    # Accesses

    def locate(self, address: Array, lanes: Array, width: int, spread: bool) -> tuple[Array, int]:
        element, bad = super().locate(address, lanes, width, spread)
        if bad >= 0:
            return element, bad
        first = element * width
        wrong = first + width > self._ends[self._owner[first // _UNIT]]
        return element, int(np.argmax(wrong)) if wrong.any() else bad

    def _block(self, byte: int) -> Block | None:
        """The block at a byte of the storage, or the last one before it that is near."""
        for unit in range(byte // _UNIT, max(-1, byte // _UNIT - 4096), -1):
            if 0 <= unit < len(self._owner) and self._owner[unit]:
                return self._blocks[int(self._owner[unit])]
        return None

    def explain(self, address: int, launch: int, width: int) -> str:
        byte = address - self.address(launch) + launch * self._stride + self._offset
        block = self._block(byte)
        if block is None or block.launch != launch:
            return "in the heap, where malloc gave nothing"
        what, past = f"the {block.size} bytes that malloc gave {block.who}", byte - block.start - block.size
        if past < 0 and block.freed:
            return f"in {what}, which {block.freed} has freed"
        return f"{max(0, past)} bytes past the end of {what}"

    def element(self, element: int, width: int) -> str:
        block = self._block(element * width)
        if block is None:
            return super().element(element, width)
        return f"byte {element * width - block.start} of the {block.size} bytes that malloc gave {block.who}"

    # malloc and free

    def allocate(self, launch: int, size: int, who: str, site: Site) -> int:
        """The address of so many bytes; 0 where there are no more."""
        room = -(-size // _UNIT) * _UNIT
        if not size or self._used[launch] + room > _SIZE:
            return 0
        start = self._next[launch]
        apart = _UNIT + min(room, 1024) // _UNIT * _UNIT
        if start + room + apart <= (launch + 1) * self._stride:
            self._next[launch] = start + room + apart
        else:
            old = next((b for b in self._free[launch] if b.size >= size), None)
            if old is None:
                return 0
            self._free[launch].remove(old)
            start = old.start
        self._used[launch] += room
        number = len(self._blocks)
        self._blocks.append(Block(start, size, launch, who, site))
        if number == len(self._ends):
            self._ends = np.concatenate([self._ends, np.zeros_like(self._ends)])
        self._ends[number] = start + size
        self._owner[start // _UNIT : (start + room) // _UNIT] = number
        self._all_known()[start // self._unit : (start + room) // self._unit] = False
        if self._writer is not None:
            self._writer[start // self._cell : (start + room) // self._cell] = 0
        return int(self.address(launch) + start - launch * self._stride)

    def release(self, address: int, launch: int, who: str) -> tuple[Block | None, str]:
        """What is freed at an address, and what is wrong with that."""
        byte = address - self.address(launch) + launch * self._stride
        inside = launch * self._stride <= byte < (launch + 1) * self._stride
        block = self._blocks[int(self._owner[byte // _UNIT])] if inside else self._blocks[0]
        if block.start != byte or not block.size:
            return None, f"frees 0x{address:x}, which malloc has not given"
        if block.freed:
            what = f"the {block.size} bytes that malloc gave {block.who}"
            return None, f"frees {what} a second time, after {block.freed}"
        block.freed = who
        self._ends[int(self._owner[byte // _UNIT])] = 0
        self._used[launch] -= -(-block.size // _UNIT) * _UNIT
        self._free[launch].append(block)
        return block, ""

    def left(self) -> list[Block]:
        """What was given since, and nobody has freed, in the order in which it was given."""
        return [block for block in self._blocks[self._given :] if not block.freed]
