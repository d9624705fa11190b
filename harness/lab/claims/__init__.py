"""What the course notes say, judged by what is stored: speeds, compiler metrics, counters, legality."""

from lab.claims import blocks, feeding, registers, tiling
from lab.claims.claim import Claim, Facts, Judged, Verdict

__all__ = ["CLAIMS", "Claim", "Facts", "Judged", "Verdict"]

CLAIMS: tuple[Claim, ...] = (*tiling.CLAIMS, *blocks.CLAIMS, *registers.CLAIMS, *feeding.CLAIMS)
