"""A regression and CI suite for CUDA GEMM kernels."""

import time

__version__ = "0.1.0"
BEGAN = time.time()  # this process: a file that is edited later may not be what it has read
