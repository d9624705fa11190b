"""A launch as data: what a device needs of a case besides its binary, and what no launch may change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gemm_regression.devices import Violation
from gemm_regression.model import Argument, Array, Case, DType, Launch, Problem, Storage


def odd(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: DType, most: int = 1 << 12) -> Array:
    """Odd integers of 13 bits, fewer where the dtype holds fewer, below 2 · ``most`` in any case."""
    half = min(1 << (min(13, dtype.integer_bits) - 1), most)
    return (2 * rng.integers(-half, half, shape) + 1).astype(np.float32)


def sparse(rng: np.random.Generator, shape: int | tuple[int, ...], density: float) -> Array:
    """Of {0, ±1}, so sparse that sums of odd integers times these stay below 2²⁴."""
    shares = [density / 2, 1 - density, density / 2]
    return rng.choice([-1.0, 0.0, 1.0], shape, p=shares).astype(np.float32)


WORKSPACE = "workspace"
ANYTHING = 0xFFFFFFFF  # the initial contents: a NaN as a float, far too large as a counter


def sizes(case: Case) -> tuple[int, int]:
    """Size of the workspace in bytes, a multiple of 4, and how many of its first bytes are zero; 0, 0 without
    one."""
    workspace = case.kernel.workspace
    if workspace is None:
        return 0, 0
    given = case.config, case.problem
    size, zeroed = -(-workspace.bytes(*given) // 4) * 4, -(-workspace.zeroed(*given) // 4) * 4
    return max(size, zeroed), zeroed


def new_workspace(case: Case) -> Array:
    """The workspace before a launch, (1, words) of 32 bits."""
    size, zeroed = sizes(case)
    words = np.full((1, max(4, size) // 4), ANYTHING, np.uint32)
    words[0, : zeroed // 4] = 0
    return words


def workspace_violations(zeroed: int, after: Array) -> list[Violation]:
    """What a launch did not leave as the next one is to find it, of a workspace (1, words) of 32 bits, the
    first ``zeroed`` bytes of which must be zero.
    """
    left = np.flatnonzero(after[0, : zeroed // 4])
    if not left.size:
        return []
    text = f"the workspace is not zero again at byte {4 * int(left[0])}; {left.size} words in total"
    return [Violation("workspace", text)]


@dataclass(frozen=True)
class Work:
    """A launch for a problem: what the worker needs of a case besides its build.

    ``storages`` of the operands by name, ``roles`` of each as `Operand` has them; ``workspace`` bytes of it
    and how many of them are zero; ``library``, ``linear`` and ``depth`` as of the operation; ``product``
    whether it is plain A·B, so that C·x = A·(B·x); ``slope`` of its activation;
    ``finite_c`` as of what the kernel takes.
    """

    problem: Problem
    dtype: DType
    operation: str
    launch: Launch
    arguments: tuple[Argument, ...]
    storages: Mapping[str, Storage]
    roles: Mapping[str, str]
    workspace: tuple[int, int]
    library: str | None
    product: bool
    exact: bool
    depth: int
    slope: float
    finite_c: bool = False

    @classmethod
    def of(cls, case: Case) -> Work:
        operation, p = case.kernel.operation, case.problem
        activation = operation.activation
        return cls(
            problem=p,
            dtype=case.dtype,
            operation=operation.name,
            launch=case.launch,
            arguments=() if case.kernel.library else case.arguments,
            storages=case.storages,
            roles={operand.name: operand.role for operand in operation.operands},
            workspace=sizes(case),
            library=operation.library,
            product=operation.plain_product,
            # With an epilogue cublasLt rounds more than once into FP16 and BF16.
            exact=(activation is None or activation.exact)
            and not (operation.library and case.dtype.output.itemsize < 4),
            depth=int(getattr(p, operation.depth)),
            slope=activation.slope if activation else 1.0,
            finite_c=case.kernel.constraints.finite_c,
        )

    @property
    def result(self) -> str:
        """The output operand."""
        return next(name for name, role in self.roles.items() if role == "result")

    @property
    def offsets(self) -> dict[str, int]:
        """Bytes from a 256-byte boundary to the start of each operand."""
        return {name: storage.start * storage.dtype.itemsize for name, storage in self.storages.items()}

    def __hash__(self) -> int:
        return hash((self.problem, self.dtype.name, self.operation, self.launch, self.arguments))


GUARD = 16 * 1024  # bytes on either side of a buffer, more than the largest row of a block tile
ALIGN = 256  # what cuMemAlloc promises
EXACT = "GEMM_EXACT_BUFFERS"  # set in the environment under a sanitizer, which knows no guard bands


def violations(
    before: Array,
    after: Array,
    buffers: Mapping[str, Array],
    starts: Mapping[str, int],
    written: tuple[str, ...],
) -> tuple[Violation, ...]:
    """One for each buffer with changed bytes that is not one of those ``written``, and one for the guard
    bands together. ``before`` and ``after`` are images, bytes, in which the buffers start at ``starts``.
    """
    lines: list[str] = []
    ends = {name: starts[name] + buffer.nbytes for name, buffer in buffers.items()}
    allowed = sorted((starts[name], ends[name]) for name in buffers if name in written)
    kept = zip(
        (0, *(end for _, end in allowed)), (*(start for start, _ in allowed), before.size), strict=True
    )
    if all(np.array_equal(before[start:end], after[start:end]) for start, end in kept):
        return ()
    changed = np.flatnonzero(before != after)
    for name, buffer in buffers.items():
        inside = (changed >= starts[name]) & (changed < ends[name])
        if inside.any() and name not in written:
            first = int(changed[inside][0] - starts[name]) // buffer.itemsize
            row, column = divmod(first, max(1, buffer.shape[1]))
            lines.append(f"input {name} was changed at ({row}, {column}), {int(inside.sum())} bytes in all")
        changed = changed[~inside]
    if changed.size:
        first = int(changed[0])
        near = [(first - end, f"past the end of {name}") for name, end in ends.items() if first >= end]
        near += [
            (start - first, f"before the start of {name}") for name, start in starts.items() if first < start
        ]
        distance, where = min(near)
        lines.append(f"a guard band was written, first {distance} bytes {where}, {changed.size} bytes in all")
    return tuple(Violation("guard", line) for line in lines)
