"""Which config of a kernel is the fastest: search spaces, strategies (Kernel Tuner's), stored results."""
