"""A NumPy device of the tests' own, right unless a fault is planted in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemm_regression.devices import Inputs, Outputs
from gemm_regression.model import Array, Case, Finding, Problem

# A fault computes the product's place (m, n), or changes the finished C, given what a kernel is given.
Multiply = Callable[[Array, Array, Problem], Array]
Finish = Callable[[Array, Inputs, Problem], None]


def product(a: Array, b: Array, p: Problem) -> Array:
    """A·B with every product and sum in float64, rounded once to FP32."""
    return a.astype(np.float64) @ b.astype(np.float64)


class NumpyDevice:
    """``multiply`` replaces A·B, ``combine`` alpha·P + beta·C, ``finish`` tampers with C at the end."""

    name = "numpy"

    def __init__(
        self,
        multiply: Multiply = product,
        combine: Callable[[Array, Array, Problem], Array] | None = None,
        finish: Finish | None = None,
        violations: tuple[str, ...] = (),
    ) -> None:
        self.multiply, self.combine, self.finish, self.violations = multiply, combine, finish, violations
        self.launches = 0

    def run(self, case: Case, inputs: Inputs) -> Outputs:
        self.launches += 1
        p, operation, storages = case.problem, case.kernel.operation, case.storages
        c = inputs["C"].copy()
        values = {name: storages[name].matrices(inputs[name]) for name in inputs}
        written = storages["C"].matrices(c)
        with np.errstate(invalid="ignore", over="ignore"):
            partial = np.stack(
                [self.multiply(a, b, p) for a, b in zip(values["A"], values["B"], strict=True)]
            )
            if self.combine:
                written[:] = self.combine(partial, written.astype(np.float64), p)
            else:
                sums = operation.sums(p, partial, {n: v.astype(np.float64) for n, v in values.items()})
                written[:] = operation.activation.apply(sums) if operation.activation else sums
        if self.finish:
            self.finish(c, inputs, p)
        return Outputs(c, tuple(Finding("guard", line) for line in self.violations))

    def close(self) -> None:
        pass
