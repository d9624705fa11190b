"""Broken kernels that the suite must catch: small edits of the real ones, so that they cannot rot unseen."""

from tests.mutants import boxes, edges, groups, indices, lean, numbers, operations, order, speed, tensor
from tests.mutants.mutant import Edits, Mutant, Rotten, build, cases, real

# By what goes wrong; those that are right and slower come last.
WRONG = (
    *order.MUTANTS,
    *edges.MUTANTS,
    *indices.MUTANTS,
    *numbers.MUTANTS,
    *operations.MUTANTS,
    *lean.MUTANTS,
    *tensor.MUTANTS,
    *boxes.MUTANTS,
    *groups.MUTANTS,
)
SLOW = (*speed.MUTANTS, *tensor.SPEED)
MUTANTS = (*WRONG, *SLOW)

__all__ = ["MUTANTS", "SLOW", "WRONG", "Edits", "Mutant", "Rotten", "build", "cases", "real"]
