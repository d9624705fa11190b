"""Arguments of a kernel as words of a command line: int:1000, float:2.5, in.npy, normal:float32:64x64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ptxsan.api import Empty
from ptxsan.frontend.syntax import PtxError
from ptxsan.lanes import Array

_NUMBERS: dict[str, Any] = {
    **{"int": np.int32, "uint": np.uint32, "long": np.int64, "ulong": np.uint64},
    **{"short": np.int16, "ushort": np.uint16, "char": np.int8, "uchar": np.uint8, "bool": np.bool_},
    **{"float": np.float32, "double": np.float64},
}
_FILLS: dict[str, Callable[[tuple[int, ...], np.random.Generator], Array]] = {
    "zeros": lambda shape, random: np.zeros(shape),
    "ones": lambda shape, random: np.ones(shape),
    "nan": lambda shape, random: np.full(shape, np.nan),
    "arange": lambda shape, random: np.arange(np.prod(shape)).reshape(shape),
    "normal": lambda shape, random: random.standard_normal(shape),
    "integers": lambda shape, random: random.integers(-8, 8, shape),
}
HELP = f"""\
numbers   {", ".join(f"{name}:VALUE" for name in _NUMBERS)}
arrays    FILE.npy, or FILL:DTYPE:SHAPE such as normal:float32:64x64, where FILL is
          {", ".join(_FILLS)} or empty (nothing may be read before it is written)
          and DTYPE one of NumPy's or bfloat16
structs   bytes:HEX
"""


def read(word: str, position: int) -> Any:
    """The value that a word of the command line means; random ones differ by the argument's position, and are
    the same in each run. Raises PtxError, one line, for a word that means nothing."""
    head, _, rest = word.partition(":")
    try:
        if head in _NUMBERS and rest:
            return _number(head, rest)
        if head == "bytes":
            return bytes.fromhex(rest)
        if head in _FILLS or head == "empty":
            name, _, extents = rest.partition(":")
            shape = tuple(int(extent) for extent in extents.split("x"))
            dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
            if min(shape) < 1:
                raise ValueError("an extent must be at least 1")
            if head == "empty":
                return Empty(shape, dtype)
            if head == "nan" and dtype.kind in "iub":
                raise ValueError(f"{name} has no NaN")
            return _FILLS[head](shape, np.random.default_rng(position)).astype(dtype)
        if word.endswith(".npy"):
            return np.load(Path(word), allow_pickle=False)
    except (ValueError, TypeError, OSError, OverflowError) as error:
        raise PtxError(f"argument {position}, {word}: {error}") from None
    raise PtxError(
        f"argument {position}, {word}: neither a number, a .npy file nor FILL:DTYPE:SHAPE (see --help)"
    )


def _number(kind: str, text: str) -> Any:
    dtype = _NUMBERS[kind]
    if np.dtype(dtype).kind == "f":
        return dtype(float(text))
    value = int(text, 0)
    if dtype is not np.bool_ and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
        raise ValueError(f"does not fit into {kind}")
    return dtype(value)
