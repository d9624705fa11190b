"""Random numbers that the operands of a timed problem are filled from: drawn once on the host, kept on the
device."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pycuda.driver as cuda

from gemm_regression.devices.probes import odd, sparse
from gemm_regression.devices.work import Work
from gemm_regression.model import Array, DType

PERIOD = 4_194_319  # prime: a pool never lines up with a tile or a row
_KEPT = 24  # pools on the device, at most 32 MiB each


def integers_of(work: Work) -> dict[str, str]:
    """The kind of integers that each operand but the result holds in the exact check, by name."""
    multiplied = iter(("odd", "sparse", "sparse", "sparse"))
    roles = {name: role for name, role in work.roles.items() if role != "result"}
    return {name: "added" if role == "added" else next(multiplied) for name, role in roles.items()}


def _share(depth: int) -> float:
    """Of numbers that are not 0 in a sparse matrix, so that sums of ``depth`` products stay exact: 512 to
    1024 of them. A power of two, since the pool of each share takes a tenth of a second."""
    return min(0.5, float(2.0 ** np.ceil(np.log2(512 / max(1, depth)))))


def _drawn(kind: str, dtype: DType, share: float, rng: np.random.Generator) -> Array:
    """Random numbers on the grid of the dtype: ``normal``; ``odd`` and ``sparse``, whose products are probes;
    ``added``, small integers of the output's type. Integer dtypes multiply any integer."""
    if kind == "added":
        return rng.integers(-15, 16, PERIOD).astype(dtype.output)
    if dtype.integer:
        return rng.integers(-127, 128, PERIOD).astype(dtype.storage)
    if kind == "normal":
        values = rng.standard_normal(PERIOD, np.float32)
    elif kind == "odd":
        values = odd(rng, PERIOD, dtype, 1 if dtype.adds_in_f16 else 1 << 12)
    else:
        values = sparse(rng, PERIOD, share)
    return values.astype(dtype.storage)


class Pools:
    """By kind, dtype and, of sparse ones, the share of what is not 0."""

    def __init__(self) -> None:
        self._drawn: dict[tuple[str, DType, float], Array] = {}
        self._on_device: OrderedDict[tuple[str, DType, float, str], Any] = OrderedDict()

    def prepare_inputs(self, work: Work) -> None:
        """Those that a problem needs, ahead; on the host alone."""
        for kind in ("normal", *integers_of(work).values()):
            self._of(kind, work.dtype, work.depth)

    def _of(self, kind: str, dtype: DType, depth: int) -> tuple[tuple[str, DType, float], Array]:
        key = kind, dtype, _share(depth) if kind == "sparse" else 0.0
        if key not in self._drawn:
            self._drawn[key] = _drawn(*key, np.random.default_rng(sum(map(ord, kind))))
        return key, self._drawn[key]

    def on_device(self, kind: str, work: Work, name: str) -> Any:
        """PERIOD numbers for an operand, in device memory, which lives as long as it is held."""
        held = work.storages[name].dtype
        key, drawn = self._of(kind, work.dtype, work.depth)
        place = *key, held.name
        if place not in self._on_device:
            self._on_device[place] = cuda.to_device(drawn.astype(held, copy=False).view(np.uint8))
            if len(self._on_device) > _KEPT:
                self._on_device.popitem(last=False)
        self._on_device.move_to_end(place)
        return self._on_device[place]
