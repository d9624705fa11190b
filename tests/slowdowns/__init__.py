"""Planted slowdowns: real edits of kernels that cost a case a per cent or two, which the gate must find.

``python -m tests.slowdowns measure`` times each next to the kernel as it is, and asks the gate's rule;
``gate`` plants them in a clone and runs `gpu` there; ``page`` tells both. ``check`` needs no GPU.
"""

from tests.slowdowns.loops import IN_LOOPS
from tests.slowdowns.planted import PLANTED as OTHERS
from tests.slowdowns.slowdown import Rotten, Slowdown, firsts, small, together

PLANTED = (*OTHERS, *IN_LOOPS)
__all__ = ["PLANTED", "Rotten", "Slowdown", "firsts", "small", "together"]
