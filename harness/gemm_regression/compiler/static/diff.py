"""What a change of compiler metrics means, as text."""

from __future__ import annotations

from collections.abc import Mapping

from gemm_regression.compiler.static.compiled import StaticFigures
from gemm_regression.compiler.static.sass import BY_WIDTH

# How a change of a number of StaticFigures is printed: before, after.
_NUMBERS = {
    "registers": "registers {} -> {}",
    "shared_bytes": "shared memory {} -> {} bytes",
    "local_bytes": "local memory {} -> {} bytes",
    "spill_store_bytes": "spill stores {} -> {} bytes",
    "spill_load_bytes": "spill loads {} -> {} bytes",
    "constant_bytes": "constant banks {} -> {} bytes",
    "barriers": "barriers {} -> {}",
}
_ACCESSES = {
    "LDG": "global loads",
    "STG": "global stores",
    "LDS": "shared loads",
    "STS": "shared stores",
    "LDGSTS": "asynchronous copies",
}


def compare(stored: StaticFigures, made: StaticFigures) -> list[str]:
    """The changes from the stored metrics to the current ones, one phrase each; empty if there are none."""
    changes = _mix_changes(stored.instruction_mix, made.instruction_mix)
    for name, text in _NUMBERS.items():
        before, after = getattr(stored, name), getattr(made, name)
        if before != after:
            changes.append(text.format(before, after))
    if made.spill_bytes > 0 == stored.spill_bytes:
        changes.append("registers spill")
    before, after = ((round(f.occupancy, 4), f.blocks, f.limited_by) for f in (stored, made))
    if before != after:
        changes.append(_occupancy_change(stored, made))
    return changes


def _occupancy_change(stored: StaticFigures, made: StaticFigures) -> str:
    before, after = (percent(f.occupancy) for f in (stored, made))
    if before != after:
        return f"occupancy {before} -> {after} ({made.limited_by})"
    if stored.blocks != made.blocks:
        return f"blocks per SM {stored.blocks} -> {made.blocks} ({made.limited_by})"
    return f"occupancy {after} limited by {stored.limited_by} -> {made.limited_by}"


def percent(share: float) -> str:
    """0.125 as ``12.5 %``."""
    return f"{100 * share:.4g} %"


def _mix_changes(stored: Mapping[str, int], made: Mapping[str, int]) -> list[str]:
    """Changed counts; all widths of an access in one phrase, with what the change means."""
    changed = [op for op in {**stored, **made} if stored.get(op, 0) != made.get(op, 0)]
    groups: dict[str, list[str]] = {}
    for op in sorted(changed, key=_place):
        word = op.split(".")[0]
        groups.setdefault(word if word in BY_WIDTH else op, []).append(op)
    return [_mix_change(word, ops, stored, made) for word, ops in groups.items()]


def _place(op: str) -> tuple[bool, str, int]:
    """Sort key: by name and decreasing width, the total last."""
    word, _, rest = op.partition(".")
    return op == "total", word, -int(rest) if word in BY_WIDTH else 0


def _mix_change(word: str, ops: list[str], stored: Mapping[str, int], made: Mapping[str, int]) -> str:
    counts = [(op, stored.get(op, 0), made.get(op, 0)) for op in ops]
    names = {"total": "instructions"}
    text = ", ".join(f"{names.get(op, op)} {before} -> {after}" for op, before, after in counts)
    meaning = _meaning(word, stored, made)
    return f"{text}: {meaning}" if meaning else text


def _meaning(word: str, stored: Mapping[str, int], made: Mapping[str, int]) -> str:
    before, after = stored.get(word, 0), made.get(word, 0)
    if word.split(".")[0].endswith("MMA"):
        return (
            ""
            if before and after
            else "no longer used on tensor cores"
            if before
            else "now used on tensor cores"
        )
    if word == "FFMA" and not after:
        return "fused multiply-adds lost"
    if word in ("LDL", "STL") and not _bits(word, stored):
        return "local memory used"
    if word not in _ACCESSES:
        return ""
    what, (was, now) = _ACCESSES[word], (_bits(word, counts) for counts in (stored, made))
    if was and not now:
        return f"{what} gone"
    if max(was, default=0) > 32 >= max(now, default=0):
        return f"vectorised {what} lost"
    if max(now, default=0) > 32 >= max(was, default=0):
        return f"{what} vectorised"
    narrower = _mean(now) - _mean(was)
    return f"{what} narrower" if narrower < 0 else f"{what} wider" if narrower > 0 else ""


def _bits(word: str, counts: Mapping[str, int]) -> dict[int, int]:
    """Number of accesses by width in bits."""
    split = ((op.split("."), count) for op, count in counts.items())
    return {int(op[1]): count for op, count in split if op[0] == word and count}


def _mean(bits: Mapping[int, int]) -> float:
    return sum(width * count for width, count in bits.items()) / sum(bits.values()) if bits else 0.0
