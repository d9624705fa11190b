"""How an access takes part in the order of memory (PTX ISA §8.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxsan.checks import Site


@dataclass(frozen=True)
class Strength:
    """How an access takes part in the order of memory: strong ones (atomic, relaxed, volatile, acquire,
    release) may be seen by other threads at any time; ``wide``: by other blocks too."""

    strong: bool = False
    volatile: bool = False
    releases: bool = False
    wide: bool = True

    @classmethod
    def of(cls, words: Sequence[str], atomic: bool = False) -> Strength:
        """By the words of an instruction."""
        volatile = "volatile" in words or "mmio" in words
        releases = "release" in words or "acq_rel" in words
        strong = atomic or volatile or releases or "relaxed" in words or "acquire" in words
        return cls(strong, volatile, releases, "cta" not in words)

    def sees(self, site: Site) -> bool:
        """Whether a load may see strong writes of others: a volatile one in a loop that waits for them."""
        return self.strong and (site.polls or not self.volatile)


PLAIN, RELAXED = Strength(), Strength(strong=True)
