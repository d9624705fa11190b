"""Executes the PTX that nvcc generates for a kernel, without a GPU, and reports errors that a GPU hides.

It works for any kernel. The inputs are PTX and NumPy arrays. The results are values, hazards and memory
counters. ``run`` does everything in one call:

    result = ptxsan.run("saxpy.cu", grid=4, block=256, arguments=[np.int32(1000), np.float32(2), x, y])
    result.arrays[3]  # y after the launch; the caller's array is unchanged
    result.hazards  # races, undefined values, out of bounds ..., with the line in saxpy.cu
    result.counts.loads.sectors  # memory counters

The parts that ``run`` uses: ``parse`` reads PTX and returns an ``Entry``. ``PreparedKernel`` translates an
entry and launches it on ``Buffer``s in a ``GlobalMemory``. ``Counters`` collect the counts. ``Report``
contains the ``Hazard``s.

The same on the command line: ``ptxsan --help``, or ``python -m ptxsan --help``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ptxsan.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The names are imported when the first is used: pytest imports the package for its plugin alone."""
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(import_module("ptxsan.public"), name)
