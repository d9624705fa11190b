"""What a change of figures reads like."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gemm_regression.compiler.static import StaticFigures, compare

BEFORE = StaticFigures(
    registers=96,
    shared_bytes=8192,
    local_bytes=0,
    spill_store_bytes=0,
    spill_load_bytes=0,
    constant_bytes=588,
    barriers=1,
    blocks=2,
    occupancy=0.25,
    limited_by="registers",
    instruction_mix={
        "BAR": 2,
        "FFMA": 512,
        "LDG.128": 2,
        "LDS.128": 16,
        "STG.128": 16,
        "STS.32": 4,
        "total": 900,
    },
)


def with_mix(**changes: int) -> StaticFigures:
    made = dict(BEFORE.instruction_mix) | {name.replace("_", "."): count for name, count in changes.items()}
    return replace(BEFORE, instruction_mix={name: count for name, count in made.items() if count})


def test_equal_figures_are_no_change() -> None:
    assert (
        compare(BEFORE, replace(BEFORE, instruction_mix=dict(reversed(list(BEFORE.instruction_mix.items())))))
        == []
    )


def test_a_lost_vector_load_reads_as_one() -> None:
    after = replace(with_mix(LDS_128=0, LDS_32=64), registers=128, blocks=1, occupancy=0.125)
    assert "; ".join(compare(BEFORE, after)) == (
        "LDS.128 16 -> 0, LDS.32 0 -> 64: vectorised shared loads lost; registers 96 -> 128; "
        "occupancy 25 % -> 12.5 % (registers)"
    )


@pytest.mark.parametrize(
    ("after", "phrases"),
    [
        (with_mix(LDS_128=8, LDS_32=32), ["LDS.128 16 -> 8, LDS.32 0 -> 32: shared loads narrower"]),
        (with_mix(STS_32=0, STS_128=1), ["STS.128 0 -> 1, STS.32 4 -> 0: shared stores vectorised"]),
        (with_mix(LDG_128=3), ["LDG.128 2 -> 3"]),
        (with_mix(LDG_128=0), ["LDG.128 2 -> 0: global loads gone"]),
        (
            with_mix(STG_128=0, STG_64=32),
            ["STG.128 16 -> 0, STG.64 0 -> 32: global stores narrower"],
        ),
        (
            with_mix(FFMA=0, FADD=512, FMUL=512),
            ["FADD 0 -> 512", "FFMA 512 -> 0: fused multiply-adds lost", "FMUL 0 -> 512"],
        ),
        (with_mix(BAR=1), ["BAR 2 -> 1"]),
        (with_mix(total=901), ["instructions 900 -> 901"]),
        (
            with_mix(**{"HMMA.16816.F32": 8}),
            ["HMMA.16816.F32 0 -> 8: now used on tensor cores"],
        ),
        (
            replace(with_mix(LDL_32=3), local_bytes=8, spill_store_bytes=8, spill_load_bytes=12),
            [
                "LDL.32 0 -> 3: local memory used",
                "local memory 0 -> 8 bytes",
                "spill stores 0 -> 8 bytes",
                "spill loads 0 -> 12 bytes",
                "registers spill",
            ],
        ),
        (replace(BEFORE, shared_bytes=8448), ["shared memory 8192 -> 8448 bytes"]),
        (replace(BEFORE, constant_bytes=592), ["constant banks 588 -> 592 bytes"]),
        (replace(BEFORE, barriers=2), ["barriers 1 -> 2"]),
        (
            replace(BEFORE, limited_by="shared memory"),
            ["occupancy 25 % limited by registers -> shared memory"],
        ),
        (replace(BEFORE, blocks=4), ["blocks per SM 2 -> 4 (registers)"]),
    ],
)  # fmt: skip
def test_a_change_reads(after: StaticFigures, phrases: list[str]) -> None:
    assert compare(BEFORE, after) == phrases


@pytest.mark.parametrize(
    "name",
    # The digest of what the metrics follow from is no metric.
    [name for name in StaticFigures.__dataclass_fields__ if name not in ("instruction_mix", "made_of")],
)
def test_no_figure_changes_unseen(name: str) -> None:
    value = getattr(BEFORE, name)
    other = value + 1 if not isinstance(value, str) else "blocks"
    assert compare(BEFORE, replace(BEFORE, **{name: other}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*BEFORE.instruction_mix, "LDSM", "SHFL"])
def test_no_count_changes_unseen(name: str) -> None:
    mix = dict(BEFORE.instruction_mix) | {name: BEFORE.instruction_mix.get(name, 0) + 1}
    (phrase,) = compare(BEFORE, replace(BEFORE, instruction_mix=mix))
    assert f"{BEFORE.instruction_mix.get(name, 0)} -> {mix[name]}" in phrase
