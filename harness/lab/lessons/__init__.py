"""The ladder, step by step: docs/results/learn.md."""
