"""Memory counters as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table

from gemm_regression.counters.counts import Counts, expected_bytes
from ptxsan import GlobalAccess, SharedAccess, Tally

LEGEND = """\
loads, stores: requests to global memory, one per warp with an active lane; loads include cp.async
s/r: 32-byte sectors per request; 4 if a warp accesses 128 contiguous bytes, 16 for a float4 per lane
wavefronts: shared memory modelled as 32 banks of 4 bytes that serve 32, 16 or 8 lanes at a time for \
accesses of up to 4, 8 and 16 bytes; conflicts: more than one per such group. PTX is counted; ptxas merges \
some accesses
barriers: per warp; divergent: branches that split a warp
bytes: counted per lane; ×: if other than M·K·⌈N/TILE_N⌉ of A, K·N·⌈M/TILE_M⌉ of B, M·N of C
FLOP: executed, including those on zeros past an edge; per byte accessed, and per byte of the sectors"""


def table(found: Iterable[Counts]) -> Table:
    """One row per case."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("stage", "dtype", "config", "problem"):
        made.add_column(head, no_wrap=True)
    for head in (
        *("loads", "sectors", "s/r", "stores", "sectors", "s/r", "wavefronts", "conflicts"),
        *("barriers", "divergent", "FLOP", "bytes of A", "bytes of B", "bytes of C"),
        *("FLOP/byte", "FLOP/sector byte"),
    ):
        made.add_column(head, justify="right")
    for counts in found:
        case, total = counts.case, counts.total
        made.add_row(
            *(case.kernel.name, case.dtype.name, case.config.label, case.problem.id),
            *_access(total.reads),
            *_access(total.stores),
            f"{total.shared.wavefronts:,}",
            f"{total.shared.conflicts:,}",
            f"{counts.barriers:g}",
            f"{total.divergent:,}",
            f"{total.flop:,}",
            *(_bytes(counts, name) for name in "ABC"),
            f"{counts.intensity:.2f}",
            f"{counts.sector_intensity:.2f}",
        )
    return made


def _access(access: GlobalAccess) -> tuple[str, str, str]:
    return f"{access.requests:,}", f"{access.sectors:,}", f"{access.sectors_per_request:.2f}"


def _bytes(counts: Counts, name: str) -> str:
    """Bytes of a matrix, and their ratio to the expected bytes if they differ."""
    asked, expected = sum(counts.buffers[name]), sum(expected_bytes(counts.case)[name])
    return f"{asked:,}" + ("" if asked == expected else f" ×{asked / expected:.2f}" if expected else " ×∞")


def lines_table(counts: Counts) -> Table:
    """One row per source line that does more than integer arithmetic."""
    title = f"{counts.case.id} ({counts.arch})"
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), header_style="bold")
    made.add_column("line", no_wrap=True)
    for head in (
        *("instructions", "loads", "s/r", "stores", "s/r", "shared loads", "conflicts", "shared stores"),
        *("conflicts", "FLOP", "barriers", "divergent"),
    ):
        made.add_column(head, justify="right")
    for line, tally in counts.lines.items():
        if tally != Tally(instructions=tally.instructions):
            cells = (tally.instructions, *_line(tally), tally.flop, tally.barriers, tally.divergent)
            made.add_row(line, *(f"{c:,}" if isinstance(c, int) and c else f"{c or ''}" for c in cells))
    return made


def _line(tally: Tally) -> tuple[int | str, ...]:
    reads, stores = tally.reads, tally.stores
    shared = tally.shared_stores + tally.shared_copies
    return (
        *(reads.requests, f"{reads.sectors_per_request:.2f}" if reads.requests else ""),
        *(stores.requests, f"{stores.sectors_per_request:.2f}" if stores.requests else ""),
        *(tally.shared_loads.wavefronts, tally.shared_loads.conflicts, shared.wavefronts, shared.conflicts),
    )


def document(found: Sequence[Counts]) -> list[dict[str, Any]]:
    """JSON-compatible, one record per case."""
    return [
        {
            "case": c.case.id,
            "arch": c.arch,
            "blocks": c.blocks,
            "warps": c.warps,
            "shared_bytes": c.shared_bytes,
            "barriers_per_warp": c.barriers,
            "intensity": round(c.intensity, 4),
            "sector_intensity": round(c.sector_intensity, 4),
            "bytes": {name: b._asdict() for name, b in c.buffers.items()},
            "expected_bytes": {name: b._asdict() for name, b in expected_bytes(c.case).items()},
            "total": _named(c.total),
            "mix": dict(c.mix),
            "lines": {line: _named(tally) for line, tally in c.lines.items()},
        }
        for c in found
    ]


def _named(tally: Tally) -> dict[str, object]:
    return {
        name: v._asdict() if isinstance(v, GlobalAccess | SharedAccess) else v
        for name, v in tally._asdict().items()
    }
