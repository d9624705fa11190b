"""The order of the launches: randomised, interleaved blocks ABBA or BAAB. Pure.

Within a block either order cancels a drift that is linear in time, and over both orders whatever going first
does. Which it is, is drawn by lot, so that nothing periodic in the machine can keep step with it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

VISITS = 4  # of a block: ABBA
_ORDERS = ("ABBA", "BAAB")


@dataclass(frozen=True)
class Stretch:
    """Some blocks of a schedule, to be timed in one go: their orders, each ``ABBA`` or ``BAAB``."""

    orders: tuple[str, ...]

    def launches(self, rounds: int) -> str:
        """The arm of every launch, ``rounds`` of them a visit: ``AABBBBAA`` for one block of two rounds."""
        return "".join(arm * rounds for order in self.orders for arm in order)


def stretch(seed: int, case_id: str, first: int, blocks: int) -> Stretch:
    """Blocks ``first`` to ``first + blocks`` of a case: the same for the same seed, whatever came before.

    Each two neighbours, from an even block on, are one of either order (restricted randomisation).
    """
    return Stretch(tuple(_order(seed, case_id, block) for block in range(first, first + blocks)))


def _order(seed: int, case_id: str, block: int) -> str:
    pair = random.Random(f"{seed}/{case_id}/{block // 2}").sample(_ORDERS, 2)
    return pair[block % 2]
