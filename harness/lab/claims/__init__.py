"""Claims of the course notes, checked against stored speeds, compiler metrics, counters and legality."""

from lab.claims import blocks, feeding, registers, tiling
from lab.claims.claim import Claim, Facts, Judged, Status

__all__ = ["CLAIMS", "Claim", "Facts", "Judged", "Status"]

CLAIMS: tuple[Claim, ...] = (*tiling.CLAIMS, *blocks.CLAIMS, *registers.CLAIMS, *feeding.CLAIMS)
