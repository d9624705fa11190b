"""Mutants of PTX: what the rules make of a text, and some of those on record examined again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import ptxsan
from gemm_regression.compiler.tools import ToolchainError, pinned_tools
from tests.generated import __main__ as command
from tests.generated import page, run
from tests.generated.rules import RULES, Mutation, mutations, statements
from tests.generated.run import Record, Survivor
from tests.generated.targets import Target, digest, targets

SAMPLE = 5

TEXT = """.version 8.8
.target sm_90a
.address_size 64
.visible .entry other() { bar.sync 3; ret; }
.visible .entry k(.param .u64 k_x)
{
	.reg .pred %p<2>;
	.shared .align 4 .b8 cells[128];
	// bar.sync 9;
	.loc	1 2 3
	{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %r1, 1, 0, p; }
	setp.lt.s32 %p1, %r1, 4;
	@!%p1 st.shared.v2.f32 [%r2+8], {%f1, %f2};
$L__1:	cp.async.wait_group 1;
	bar.sync 0;
	ld.shared.f32 %f1, [%r2];
	mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], %r6;
	mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1, %f2}, {%r1, %r2}, {%r3, %r4}, {%f1, %f2};
	atom.global.add.u32 %r7, [%rd1], 1;
	shfl.sync.bfly.b32 %r8, %r9, 16, 31, -1;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3, 8}], [%r4];
	wgmma.wait_group.sync.aligned 0;
	mov.f32 %f9, 0f00000000;
	ret;
}
"""


def made(rule: str) -> list[str]:
    """The lines that differ, of each mutant of a rule."""
    old = TEXT.splitlines()
    texts = [m.made(TEXT).splitlines() for m in mutations(TEXT, "k") if m.rule == rule]
    return [
        "; ".join(new.strip() for new, was in zip(text, old, strict=True) if new != was) for text in texts
    ]


def test_instructions_are_those_of_the_entry() -> None:
    code = statements(TEXT, "k")
    assert [s.op for s in code][:5] == [
        "elect.sync",
        "selp.u32",
        "setp.lt.s32",
        "st.shared.v2.f32",
        "cp.async.wait_group",
    ]
    assert [(s.op, s.line) for s in code if s.starts] == [("cp.async.wait_group", 14)]
    assert [s.text() for s in code if s.guard] == ["@!%p1 st.shared.v2.f32 [%r2+8], {%f1, %f2};"]
    assert [s.operands for s in statements(TEXT, "other") if s.op == "bar.sync"] == [("3",)]


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("barrier dropped", [""]),
        ("wait for copies one fewer", ["$L__1:	cp.async.wait_group 2;"]),
        ("wait for copies moved", ["$L__1:; bar.sync 0; cp.async.wait_group 1;"]),
        (
            "barrier moved",
            ["; ld.shared.f32 %f1, [%r2]; bar.sync 0;", "$L__1:	 bar.sync 0; cp.async.wait_group 1;; "],
        ),
        ("comparison off by one", ["setp.le.s32 %p1, %r1, 4;"]),
        ("guard dropped", ["st.shared.v2.f32 [%r2+8], {%f1, %f2};"]),
        ("guard negated", ["@%p1 st.shared.v2.f32 [%r2+8], {%f1, %f2};"]),
        ("wgmma wait one fewer", ["wgmma.wait_group.sync.aligned 1;"]),
        ("zeroing dropped", [""]),
        ("atomic of a narrower scope", ["atom.relaxed.cta.global.add.u32 %r7, [%rd1], 1;"]),
        (
            "parity reversed",
            [
                "{ .reg .b32 mutated; xor.b32 mutated, %r6, 1; "
                "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], mutated; }"
            ],
        ),
        ("mbarrier wait dropped", ["setp.eq.u32 %p1, 0, 0;"]),
        ("elect dropped", ["{ .reg .pred p; setp.eq.u32 p, 0, 0; selp.u32 %r1, 1, 0, p; }"]),
    ],
)
def test_what_a_rule_makes(rule: str, wanted: list[str]) -> None:
    assert made(rule) == wanted


def test_an_address_is_off_by_one_access() -> None:
    found = made("address off by one")
    assert "@!%p1 st.shared.v2.f32 [%r2+16], {%f1, %f2};" in found
    assert "ld.shared.f32 %f1, [%r2+-4];" in found


def test_operands_are_swapped() -> None:
    assert [text.partition("f32 ")[2] for text in made("fragments swapped")] == [
        "{%f1, %f2}, {%r2, %r1}, {%r3, %r4}, {%f1, %f2};",
        "{%f1, %f2}, {%r1, %r2}, {%r4, %r3}, {%f1, %f2};",
    ]
    swapped, across, along = made("bulk copy of another place")
    assert "[%rd2, {8, %r3}]" in swapped
    assert "add.s32 mutated, %r3, 1;" in across
    assert "[%rd2, {%r3, mutated}]" in along


def test_a_lane_is_left_out_of_a_mask() -> None:
    assert any("and.b32 mutated, -1, 2147483647; shfl.sync" in text for text in made("lane not in the mask"))


def test_each_rule_is_of_some_kernel() -> None:
    met = {rule for record in run.load()[1].values() for rule in record.outcomes}
    assert {rule.name for rule in RULES} == met


# The record


def _survivor(old: str) -> Survivor:
    return Survivor("fence dropped", 0, 7, old, "dropped", "", ())


@pytest.mark.parametrize(("ptx", "mutants"), [("as before", {"store dropped": ["exact"]}), ("another", {})])
def test_a_target_is_examined_again_where_its_ptx_has_changed(
    ptx: str, mutants: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sources have, in both."""
    target = targets()[0]
    stored: dict[str, Record] = {}
    old = Record(target.name, "of before", "as before", 1, 1, {"store dropped": ["exact"]})
    monkeypatch.setattr(command, "targets", lambda: [target])
    monkeypatch.setattr(run, "load", lambda: (run.provenance(), {target.name: old}))
    monkeypatch.setattr(run, "ptx_digest", lambda _: ptx)
    monkeypatch.setattr(run, "record", lambda _: Record(target.name, digest(target), ptx, 1, 1))
    monkeypatch.setattr(run, "store", stored.update)
    command.examine()
    assert stored == {target.name: Record(target.name, digest(target), ptx, 1, 1, mutants)}


def test_a_survivor_that_nobody_explained_is_told() -> None:
    record = Record("strided-f32", "", "", 1, 1, {"fence dropped": [""]}, [_survivor("membar.nowhere;")])
    told = list(page.unexplained({"no-such": record}))
    assert "no-such, PTX line 7: fence dropped: nothing shows `membar.nowhere;`, dropped" in told
    assert page.total(list(page.rows({"no-such": record}).values())).missed == 1


def test_every_survivor_is_explained_and_nearly_all_that_are_wrong_are_caught() -> None:
    records = run.load()[1]
    assert not list(page.unexplained(records))
    every = page.total(list(page.rows(records).values()))
    assert every.made >= 2000
    assert every.caught / (every.caught + every.missed) >= 0.99


def test_the_page_is_that_of_the_record() -> None:
    assert page.FILE.read_text(encoding="utf-8") == page.render(run.load()[1])


def _sample() -> list[tuple[str, int]]:
    """Targets, and which of their mutants: others whenever the record is."""
    records = run.load()[1]
    rng = random.Random(run.FILE.read_bytes())
    small = [name for name, record in records.items() if record.instructions < 700]
    picked = rng.sample(small, min(SAMPLE, len(small)))
    return [(name, rng.randrange(sum(map(len, records[name].outcomes.values())))) for name in picked]


@pytest.fixture(scope="module")
def of_name() -> dict[str, Target]:
    try:
        pinned_tools()
    except ToolchainError as error:
        pytest.skip(str(error))
    return {target.name: target for target in targets()}


@pytest.mark.compile
@pytest.mark.parametrize(("name", "number"), _sample())
def test_what_is_on_record_is_so(of_name: dict[str, Target], name: str, number: int) -> None:
    target, record = of_name[name], run.load()[1][name]
    if record.sources != digest(target):
        pytest.skip(f"{name} has changed; `{page.RENEW}` examines it again")
    outcome, _ = run.examine(run.mutants(target)[number])
    recorded = [by for of in record.outcomes.values() for by in of][number]
    assert bool(outcome.by) == bool(recorded)


@pytest.mark.compile
def test_a_counter_that_is_left_undefined(of_name: dict[str, Target]) -> None:
    """Split-K sets it back to zero by a register; without it the workspace is no workspace for the next."""
    target = of_name["split_k-f32"]
    found = [m for m in mutations(target.ptx, target.entry) if m.rule == "zeroing dropped"]
    last = max((m for m in found if m.of.op == "mov.u32"), key=lambda m: m.of.line)
    assert target.examine(last.made(target.ptx), last.of.line).by == "uninit"


def test_statements_are_the_instructions_that_run(tmp_path: Path) -> None:
    entry = ptxsan.parse(
        (Path(__file__).parent / "ptxsan" / "kernels" / "scale.ptx").read_text(), "scale", ""
    )
    text = (Path(__file__).parent / "ptxsan" / "kernels" / "scale.ptx").read_text()
    assert [s.op for s in statements(text, "scale")] == [i.op for i in entry.code]


def test_a_mutation_moves_an_instruction_whole() -> None:
    code = statements(TEXT, "k")
    s = next(s for s in code if s.op == "bar.sync")
    moved = Mutation("", s, "", ((s.start, s.end, ""), (s.end, s.end, f" {s.text()}")))
    assert [t.text() for t in statements(moved.made(TEXT), "k")] == [t.text() for t in code]
