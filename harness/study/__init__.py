"""Detection power: how small a slowdown is detected, and how often there is a false alarm, by measurement.

``python -m harness.study measure`` times planted slowdowns on a GPU and stores the samples; ``report`` judges
them with every method and writes docs/detection.md, on any machine.
"""
