"""Straight-line code in C: the same results as the NumPy functions, to the bit."""
