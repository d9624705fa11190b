"""A regression and CI suite for CUDA GEMM kernels."""
