"""Measures the detection power of the gate (the rule for changed code) and its rate of false alarms.

``nox -s lab -- study measure`` times pairs on GPUs and stores the samples. ``report`` judges all stored
samples by the current rule and writes docs/results/detection.md, on any machine.
"""
