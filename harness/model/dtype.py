"""What a kernel multiplies, and how exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """What a kernel multiplies and how exactly.

    ``unit_roundoff`` is that of the multiplicands, ``accumulate_roundoff`` that of one addition
    (2^-23 for tensor cores, whose adder truncates), ``integer_bits`` the widest integer a
    multiplicand holds exactly.
    """

    name: str
    storage: np.dtype[Any]
    output: np.dtype[Any]
    unit_roundoff: float
    accumulate_roundoff: float
    integer_bits: int

    @property
    def macro(self) -> str:
        """The macro that tells the ``.cu`` file which dtype it is compiled for."""
        return f"DTYPE_{self.name.upper()}"

    def __str__(self) -> str:
        return self.name


_F32 = np.dtype(np.float32)
F32 = DType("f32", _F32, _F32, 2.0**-24, 2.0**-24, 24)
F16 = DType("f16", np.dtype(np.float16), _F32, 2.0**-11, 2.0**-23, 11)
BF16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), _F32, 2.0**-8, 2.0**-23, 8)
TF32 = DType("tf32", _F32, _F32, 2.0**-11, 2.0**-23, 11)
DTYPES = {d.name: d for d in (F32, F16, BF16, TF32)}
