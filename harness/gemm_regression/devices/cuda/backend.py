"""What launches and compiles: PyCUDA where it is installed, else the same calls by `bindings`."""

from __future__ import annotations

try:
    import pycuda.compiler as compiler
    import pycuda.driver as cuda
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("pycuda"):
        raise
    from gemm_regression.devices.cuda import bindings as cuda
    from gemm_regression.devices.cuda import bindings_compiler as compiler

__all__ = ["compiler", "cuda"]
