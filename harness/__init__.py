"""A regression and CI suite for CUDA GEMM kernels."""

__version__ = "0.1.0"
