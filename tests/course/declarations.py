"""The listings of the course notes as a project: each as printed, and after each of its mends.

Raises ValueError for a mend whose old text is not in the source exactly once.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from gemm_regression.model import BlockShape, Constraints, Kernel

FOLDER = Path(__file__).parent
LISTINGS: list[dict[str, Any]] = tomllib.loads((FOLDER / "listings.toml").read_text("utf-8"))["listing"]


def mended(text: str, mends: list[dict[str, Any]]) -> str:
    """A source after these mends, one after the other."""
    for mend in mends:
        for old, new in mend.get("edits", ()):
            if text.count(old) != 1:
                raise ValueError(f"{text.count(old)} times in the listing, not once: {old!r}")
            text = text.replace(old, new)
    return text


def versions(listing: dict[str, Any]) -> dict[str, str]:
    """The source of a listing as printed and after each mend, by the version's name."""
    name, mends = listing["name"], listing.get("mend", [])
    text = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return {
        name if not count else f"{name}_mend{count}": mended(text, mends[:count])
        for count in range(len(mends) + 1)
    }


def kernels(listing: dict[str, Any]) -> list[Kernel]:
    """A kernel for each version, launched as the listing says unless a mend changes that."""
    made = []
    of: dict[str, Any] = listing
    for name, mend in zip(versions(listing), [{}, *listing.get("mend", [])], strict=True):
        of = {**of, "multiples": {}, **mend}  # the sizes accepted are of one version alone
        threads = (of["threads"][0], of["threads"][1])
        made.append(
            Kernel(
                name,
                Path(f"{name}.cu"),
                listing["entry"],
                shape=BlockShape(threads, (of["tile"], of["tile"])),
                parameters=of.get("parameters", "A, B, C, M, N, K"),
                constraints=Constraints(square=of.get("square", False), multiples=of["multiples"]),
            )
        )
    return made


KERNELS = tuple(kernel for listing in LISTINGS for kernel in kernels(listing))
