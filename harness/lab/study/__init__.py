"""Detection power: how small a slowdown the gate finds, and how often it is red by mistake, by measurement.

``nox -s lab -- study measure`` times pairs on GPUs and stores the samples; ``report`` judges all that are
stored by today's rule and writes docs/results/detection.md, on any machine.
"""
