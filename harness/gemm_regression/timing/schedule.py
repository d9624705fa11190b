"""The order of the launches: randomised, interleaved blocks ABBA or BAAB. Pure.

Within a block each order cancels a drift that is linear in time, and both orders together cancel the effect
of going first. The order is random, so that nothing periodic in the machine can be in phase with it. Sides
change at every launch or two: launches near each other are alike (on an H200 those of 8 µs correlate by 0.2
over some 16 launches), and what they have in common cancels."""

from __future__ import annotations

import random
from dataclasses import dataclass

VISITS = 4  # per block: the letters of ABBA
_ORDERS = ("ABBA", "BAAB")


@dataclass(frozen=True)
class Stretch:
    """Consecutive blocks of a schedule, timed together: their ``orders``, each ``ABBA`` or ``BAAB``."""

    orders: tuple[str, ...]

    def launches(self, rounds: int) -> str:
        """The side of every launch, each block's order so many ``rounds`` over: ``ABBAABBA`` for one block
        ABBA with two rounds."""
        return "".join(order * rounds for order in self.orders)


def stretch(seed: int, case_id: str, first: int, blocks: int) -> Stretch:
    """Blocks ``first`` to ``first + blocks`` of a case; they depend only on the seed, the case and their
    number.

    Each pair of blocks, starting at an even number, contains both orders (restricted randomisation).
    """
    return Stretch(tuple(_order(seed, case_id, block) for block in range(first, first + blocks)))


def _order(seed: int, case_id: str, block: int) -> str:
    pair = random.Random(f"{seed}/{case_id}/{block // 2}").sample(_ORDERS, 2)
    return pair[block % 2]
