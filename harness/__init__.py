"""How the kernels are tested: see docs/architecture.md for the way of a case through these modules."""
