"""Element types: how A and B are stored, how products are added and rounded, what C is stored as."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from gemm_regression.model.problem import Array

_F32, _F16, _BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class DType:
    """The element types of a product, and its precision.

    ``storage``, ``output``, ``scalar``: the NumPy dtypes of A and B in memory, of C, and of alpha and beta.
    ``unit_roundoff``, ``accumulate_roundoff``, ``output_roundoff``: the unit roundoff of A and B, of one
    addition (2^-23 for tensor cores, whose adder truncates, 2^-13 where they multiply FP8), and of rounding a
    sum to the output; all three are 0 for integers, whose sums are exact. ``integer_bits``: the widest
    integer that an element of A or B represents exactly. ``min_capability``: the lowest compute capability
    with hardware for this product.
    """

    name: str
    storage: np.dtype[Any]
    output: np.dtype[Any]
    unit_roundoff: float
    accumulate_roundoff: float
    integer_bits: int
    output_roundoff: float = 2.0**-24
    scalar: np.dtype[Any] = _F32
    min_capability: tuple[int, int] = (7, 5)

    @property
    def integer(self) -> bool:
        """Whether products are accumulated as integers, exactly."""
        return self.storage.kind == "i"

    @property
    def adds_in_f16(self) -> bool:
        """Whether each addition of a product rounds to FP16."""
        return self.accumulate_roundoff >= 2.0**-11

    @property
    def exact_sums(self) -> int:
        """Integers whose terms, in absolute value, add to less than this are added exactly, in any order."""
        return int(1 / self.accumulate_roundoff) if self.accumulate_roundoff > 2.0**-23 else 2**24

    @property
    def converts(self) -> bool:
        """Whether a kernel has to round what it multiplies: TF32 lies in memory as FP32."""
        return self.storage == _F32 and self.unit_roundoff > 2.0**-24

    @property
    def macros(self) -> tuple[str, ...]:
        """The macros for the ``.cu`` file: ``DTYPE_F16``, and ``OUTPUT_F16`` if the output is not the
        default, FP32 (INT32 for integers)."""
        multiplied, _, written = self.name.upper().partition("_")
        return (f"DTYPE_{multiplied}", *((f"OUTPUT_{written}",) if written else ()))

    def rounded(self, values: Array) -> Array:
        """Float32 values on the grid of the multiplicands, in the storage dtype.

        TF32 keeps 10 explicit significand bits; ties go away from zero as in the PTX instruction
        cvt.rna.tf32.
        """
        values = np.asarray(values, np.float32)
        if not self.converts:
            return values.astype(self.storage)
        rounded = ((values.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
        return np.where(np.isfinite(values), rounded, values)

    def __str__(self) -> str:
        return self.name


def with_output(dtype: DType, output: DType) -> DType:
    """The same product, its FP32 sums rounded to the storage dtype of another: ``f16_f16``, ``f32_bf16``."""
    return replace(
        dtype,
        name=f"{dtype.name}_{output.name}",
        output=output.storage,
        output_roundoff=output.unit_roundoff,
        min_capability=max(dtype.min_capability, output.min_capability),
    )


F32 = DType("f32", _F32, _F32, 2.0**-24, 2.0**-24, 24)
F16 = DType("f16", _F16, _F32, 2.0**-11, 2.0**-23, 11)
BF16 = DType("bf16", _BF16, _F32, 2.0**-8, 2.0**-23, 8, min_capability=(8, 0))
TF32 = DType("tf32", _F32, _F32, 2.0**-11, 2.0**-23, 11, min_capability=(8, 0))
_S8, _S32 = np.dtype(np.int8), np.dtype(np.int32)
S8 = DType("s8", _S8, _S32, 0.0, 0.0, 7, output_roundoff=0.0, scalar=_S32)
_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
E4M3 = DType("e4m3", _E4M3, _F32, 2.0**-4, 2.0**-13, 4, min_capability=(8, 9))
# FP16 accumulation: each addition rounds to FP16.
F16_ACC16 = replace(with_output(F16, F16), name="f16acc16_f16", accumulate_roundoff=2.0**-11)

_FLOATS = (F32, F16, BF16, TF32)
_WRITTEN = (with_output(dtype, output) for dtype in _FLOATS for output in (F16, BF16))
E4M3_BF16 = with_output(E4M3, BF16)
DTYPES = {dtype.name: dtype for dtype in (*_FLOATS, S8, E4M3, E4M3_BF16, F16_ACC16, *_WRITTEN)}


def find_dtype(name: str) -> DType:
    """The dtype with this name. Raises ValueError, which lists the known ones."""
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}")
    return DTYPES[name]
