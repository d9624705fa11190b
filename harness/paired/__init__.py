"""Two commits' builds of a case against each other, side by side in one process.

The pure statistics are in ``schedule``, ``samples``, ``interval`` and ``looks``.
"""
