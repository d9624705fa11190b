"""How small a slowdown is found, and how often one is raised that is not there: measured, not claimed.

``python -m harness.study measure`` times planted slowdowns on a GPU and stores the samples; ``report`` judges
them by every method and writes docs/detection.md, on any machine.
"""
