"""The ladder, step by step: docs/learn.md."""
