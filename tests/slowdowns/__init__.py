"""Planted slowdowns: real edits of kernels that cost a case a per cent or two, which the gate must find.

``python -m tests.slowdowns measure`` times each next to the kernel as it is, ``python -m tests.slowdowns
gate`` plants all of them in a clone and runs `gpu` there.
"""

from tests.slowdowns.planted import PLANTED
from tests.slowdowns.slowdown import Rotten, Slowdown, together

__all__ = ["PLANTED", "Rotten", "Slowdown", "together"]
