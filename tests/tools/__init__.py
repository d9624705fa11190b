"""Forty planted bugs, and which tool finds which."""
