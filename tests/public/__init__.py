"""Kernels that others have published, judged without a GPU by declarations alone: is anything reported of
them that is not so? Their code is not in this repository; ``python -m tests.public FOLDER`` takes it from a
folder."""
