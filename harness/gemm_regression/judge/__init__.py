"""Observations, the rules for judging them, and verdicts: codes and numbers, no text for people. Pure."""
