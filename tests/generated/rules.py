"""What each rule makes of an instruction of PTX: one that is gone, weaker, elsewhere, or off by one.

A rule is named for the mistake. It guards the instructions whose name, from its start, matches a pattern; of
one of them it makes several mutants, or none where it has nothing to change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ptxsan.frontend import size_of, split_commas

_HIDDEN = re.compile(
    r'//[^\n]*|/\*.*?\*/|^\s*\.(?:loc|file|pragma)[^\n]*|"[^"\n]*"', re.MULTILINE | re.DOTALL
)
_LEAD = re.compile(r"(?:\s|[{}]|[\w$]+:(?!:))*")
_STATEMENT = re.compile(r"(?:@(?P<guard>!?[\w%$]+)\s+)?(?P<op>[a-z][\w.:]*)\s*(?P<operands>.*)", re.DOTALL)
_ADDRESS = re.compile(r"\[\s*([\w%$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_NOT = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi"}


@dataclass(frozen=True)
class Statement:
    """An instruction of an entry's text, from ``start`` to ``end``, its semicolon included, in a ``line``.
    ``starts``: whether a label stands before it: code from elsewhere may arrive there."""

    guard: str
    op: str
    operands: tuple[str, ...]
    start: int
    end: int
    line: int
    starts: bool

    def text(self, op: str = "", operands: Sequence[str] | None = None) -> str:
        """As it stands, or with another name or other operands."""
        given = self.operands if operands is None else operands
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{op or self.op} {', '.join(given)};"

    def having(self, at: int, operand: str) -> str:
        """With another operand at a place."""
        given = list(self.operands)
        given[at] = operand
        return self.text(operands=given)

    def after(self, at: int, operation: str, by: int) -> str:
        """With an operand, a number or a 32-bit register, changed by an operation before."""
        before = f"{{ .reg .b32 mutated; {operation} mutated, {self.operands[at]}, {by}; "
        return f"{before}{self.having(at, 'mutated')} }}"


Edit = tuple[int, int, str]  # from, to, and what stands there instead


@dataclass(frozen=True)
class Mutation:
    """``edits`` of a text by ``rule``; ``of`` is the instruction, and ``about`` what became of it."""

    rule: str
    of: Statement
    about: str
    edits: tuple[Edit, ...]

    def made(self, text: str) -> str:
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


@dataclass(frozen=True)
class Rule:
    """``changes`` yields what may stand in an instruction's place. Or it moves: ``later`` and ``earlier`` are
    patterns of the instructions past the nearest of which it goes, as far as one path leads through both."""

    name: str
    guards: str
    changes: Callable[[Statement], Iterator[str]] | None = None
    later: str = ""
    earlier: str = ""


def statements(text: str, entry: str) -> list[Statement]:
    """The instructions between the braces of an entry."""
    text = _HIDDEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    head = re.search(rf"\.entry\s+{re.escape(entry)}(?![\w$])", text)
    assert head, entry
    at, found = text.index("{", head.end()), []
    depths = accumulate((brace[0] == "{") * 2 - 1 for brace in re.finditer(r"[{}]", text[at:]))
    ends = (brace.start() for brace in re.finditer(r"[{}]", text[at:]))
    stop = at + next(end for end, depth in zip(ends, depths, strict=True) if not depth)
    while (end := text.find(";", at, stop)) >= 0:
        lead = _LEAD.match(text, at)
        start = lead.end() if lead else at
        if match := _STATEMENT.fullmatch(text, start, end):
            operands = tuple(split_commas(match["operands"])) if match["operands"].strip() else ()
            line, starts = text.count("\n", 0, start) + 1, ":" in text[at:start]
            found.append(Statement(match["guard"] or "", match["op"], operands, start, end + 1, line, starts))
        at = end + 1
    return found


def _drop(s: Statement) -> Iterator[str]:
    yield ""


def _renamed(*pairs: tuple[str, str]) -> Callable[[Statement], Iterator[str]]:
    """The first pattern that its name has replaced."""

    def changes(s: Statement) -> Iterator[str]:
        made = (re.sub(old, new, s.op, count=1) for old, new in pairs)
        yield from [s.text(op) for op in made if op != s.op][:1]

    return changes


def _added(at: int, *by: int) -> Callable[[Statement], Iterator[str]]:
    """A number or register among its operands, more or less."""

    def changes(s: Statement) -> Iterator[str]:
        if -len(s.operands) <= at < len(s.operands):
            for one in by:
                number = re.fullmatch(r"-?\d+", s.operands[at])
                yield s.having(at, str(int(number[0]) + one)) if number else s.after(at, "add.s32", one)

    return changes


def _renumbered(s: Statement) -> Iterator[str]:
    """Where some warps meet: one of all threads may have any number."""
    if len(s.operands) > 1:
        yield from _added(0, 1)(s)


def _flipped(s: Statement) -> Iterator[str]:
    yield s.after(2, "xor.b32", 1)


def _always(s: Statement) -> Iterator[str]:
    """Its predicate is true without it."""
    target = s.operands[0].rpartition("|")[2]
    yield f"setp.eq.u32 {target}, 0, 0;"


def _shifted(s: Statement) -> Iterator[str]:
    """Each of its addresses up and down by one access, a row of eight elements of a matrix."""
    lanes = re.search(r"\.v(\d)", s.op)
    kind = s.op.rsplit(".", 1)[-1]
    width = (
        16
        if s.op.startswith(("cp", "ldmatrix", "stmatrix"))
        else size_of(kind.replace("tf32", "f32")) * int(lanes[1] if lanes else 1)
    )
    if s.op.startswith("cp.async") and len(s.operands) > 2 and s.operands[2].isdigit():
        width = int(s.operands[2])
    for at, operand in enumerate(s.operands):
        if found := _ADDRESS.fullmatch(operand):
            for by in (width, -width):
                yield s.having(at, f"[{found[1]}+{int(found[2] or 0) + by}]")


def _compared(s: Statement) -> Iterator[str]:
    words = s.op.split(".")
    if words[1] in _NOT and not words[-1].startswith(("f", "b")):
        yield s.text(".".join([words[0], _NOT[words[1]], *words[2:]]))


def _unguarded(s: Statement) -> Iterator[str]:
    if s.guard:
        yield s.text().partition(" ")[2]


def _negated(s: Statement) -> Iterator[str]:
    if s.guard:
        other = s.guard.removeprefix("!") if s.guard[0] == "!" else f"!{s.guard}"
        yield f"@{other} {s.text().partition(' ')[2]}"


def _without_lane(s: Statement) -> Iterator[str]:
    """The last lane is no longer named in its member mask."""
    if s.operands:
        yield s.after(-1, "and.b32", 0x7FFFFFFF)


def _swapped(first: int, second: int) -> Callable[[Statement], Iterator[str]]:
    def changes(s: Statement) -> Iterator[str]:
        given = list(s.operands)
        given[first], given[second] = given[second], given[first]
        yield s.text(operands=given)

    return changes


def _fragments(s: Statement) -> Iterator[str]:
    """Two registers of one of its multiplicands are exchanged."""
    for at in (1, 2):
        items = split_commas(s.operands[at].strip("{} "))
        if len(items) > 1:
            yield s.having(at, f"{{{', '.join([items[1], items[0], *items[2:]])}}}")


def _coordinates(s: Statement) -> Iterator[str]:
    """Those of a box exchanged, and each one off by one."""
    for at, operand in enumerate(s.operands):
        if found := re.fullmatch(r"\[(.*?),\s*\{(.*)\}\s*\]", operand):
            places = split_commas(found[2])
            if len(places) > 1:
                yield s.having(at, f"[{found[1]}, {{{', '.join(places[::-1])}}}]")
            for i, place in enumerate(places):
                changed = ", ".join([*places[:i], "mutated", *places[i + 1 :]])
                moved = s.having(at, f"[{found[1]}, {{{changed}}}]")
                yield f"{{ .reg .b32 mutated; add.s32 mutated, {place}, 1; {moved} }}"


def _plain(s: Statement) -> Iterator[str]:
    """A load and a store in place of an atomic addition."""
    words, kind = s.op.split("."), s.op.rsplit(".", 1)[-1]
    space = next((f".{w}" for w in words if w.startswith(("global", "shared"))), "")
    if "add" not in words or len(s.operands) != (3 if words[0] == "atom" else 2):
        return
    guard = f"@{s.guard} " if s.guard else ""
    old, address, by = s.operands if words[0] == "atom" else ("before", *s.operands)
    body = (
        f"ld{space}.{kind} {old}, {address}; ",
        f"add.{kind} mutated, {old}, {by}; ",
        f"st{space}.{kind} {address}, mutated;",
    )
    yield f"{{ .reg .{kind} mutated, before; {''.join(guard + one for one in body)} }}"


def _zero(s: Statement) -> Iterator[str]:
    if s.operands[1:] in (("0",), ("0f00000000",)):
        yield ""


def _whole(s: Statement) -> Iterator[str]:
    if len(s.operands) > 3:
        yield s.text(operands=s.operands[:3])


def _arrives_alone(s: Statement) -> Iterator[str]:
    yield s.text(s.op.replace(".expect_tx", ""), s.operands[:-1])


def _fewer_signed(s: Statement) -> Iterator[str]:
    """The transposition of a multiplicand is reversed, where its type has one."""
    if len(s.operands) >= 8:
        for at in (-2, -1):
            yield s.having(at, str(1 - int(s.operands[at])))


_SHARED = (
    r"(?:ld|st)\.(?:volatile\.)?shared|ldmatrix|stmatrix|cp\.async|wgmma\.mma|wmma\.(?:load|store)|mbarrier"
    r"|atom\.shared|red\.shared"
)
_BAR = r"(?:bar|barrier)\.(?:cta\.)?(?:sync|red|arrive)(?!\.cluster)"
_FENCE = r"membar|fence\.(?!proxy|mbarrier)"
_LANES = r"shfl\.sync|vote\.sync|match\.\w+\.sync|redux\.sync|elect\.sync|bar\.warp\.sync"
_COPY = r"cp\.async\.(?:ca|cg)\."
_BULK = r"cp\.(?:reduce\.)?async\.bulk\.(?!commit|wait|prefetch)"
_ACCESS = r"(?:ld|st)\.(?!param|const|local)|wmma\.(?:load|store)|ldmatrix|stmatrix|" + _COPY
_LAYOUTS = (r"\.row\.", ".col."), (r"\.col\.", ".row."), (r"\.trans", ""), (r"\.x(\d)\.", r".x\1.trans.")
_TO_BLOCK = r"\.(?:gl|gpu|sys|cluster)\b", ".cta"
_ATOM = r"(?:atom|red)\."
_GLOBAL = rf"{_ATOM}|(?:ld|st)\.(?:volatile\.|\w+\.(?:gpu|sys)\.)?global|barrier\.cluster"

RULES = (
    Rule("barrier dropped", _BAR, _drop),
    Rule("barrier moved", _BAR, later=_SHARED, earlier=_SHARED),
    Rule("barrier of another number", r"(?:bar|barrier)\.(?:cta\.)?(?:sync|arrive)", _renumbered),
    Rule("barrier of another count", r"(?:bar|barrier)\.(?:cta\.)?(?:sync|arrive)", _added(1, 32, -32)),
    Rule("warp barrier dropped", r"bar\.warp\.sync", _drop),
    Rule("warp barrier moved", r"bar\.warp\.sync", later=_SHARED, earlier=_SHARED),
    Rule("lane not in the mask", _LANES, _without_lane),
    Rule("shuffle off by a lane", r"shfl\.sync", _added(2, 1)),
    Rule("elect dropped", r"elect\.sync", _always),
    Rule("copy dropped", _COPY, _drop),
    Rule("copy not filled with zeros", _COPY, _whole),
    Rule("wait for copies dropped", r"cp\.async\.(?:bulk\.)?wait_(?:group|all)", _drop),
    Rule("wait for copies one fewer", r"cp\.async\.(?:bulk\.)?wait_group", _added(0, 1)),
    Rule("wait for copies moved", r"cp\.async\.wait_(?:group|all)", later=rf"{_BAR}|ld\.shared|ldmatrix"),
    Rule("commit dropped", r"cp\.async\.(?:bulk\.)?commit_group", _drop),
    Rule("commit moved", r"cp\.async\.commit_group", later=r"cp\.async\.wait_group", earlier=_COPY),
    Rule("wgmma fence, commit or wait dropped", r"wgmma\.(?:fence|commit_group|wait_group)", _drop),
    Rule("wgmma wait one fewer", r"wgmma\.wait_group", _added(0, 1)),
    Rule("wgmma fence moved", r"wgmma\.fence", later=r"wgmma\.mma_async"),
    Rule("wgmma commit moved", r"wgmma\.commit_group", later=r"wgmma\.wait", earlier=r"wgmma\.mma_async"),
    Rule("wgmma descriptors swapped", r"wgmma\.mma_async", _swapped(1, 2)),
    Rule("wgmma transposed", r"wgmma\.mma_async", _fewer_signed),
    Rule("mbarrier init dropped", r"mbarrier\.init", _drop),
    Rule("mbarrier init of another count", r"mbarrier\.init", _added(1, 1, -1)),
    Rule("mbarrier arrival dropped", r"mbarrier\.arrive", _drop),
    Rule("mbarrier arrival moved", r"mbarrier\.arrive(?!\.expect)", earlier=rf"{_SHARED}|{_BAR}|wgmma\.wait"),
    Rule(
        "mbarrier arrival weaker",
        r"mbarrier\.arrive",
        _renamed((r"\.release\.cluster", ".release.cta"), (r"\.release", ".relaxed")),
    ),
    Rule("expected bytes dropped", r"mbarrier\.arrive\.expect_tx", _arrives_alone),
    Rule("expected bytes off by one access", r"mbarrier\.(?:arrive\.)?expect_tx", _added(-1, 16, -16)),
    Rule("parity reversed", r"mbarrier\.(?:try|test)_wait\.parity", _flipped),
    Rule("mbarrier wait dropped", r"mbarrier\.(?:try|test)_wait", _always),
    Rule("proxy fence dropped", r"fence\.(?:proxy|mbarrier_init)", _drop),
    Rule(
        "proxy fence moved",
        r"fence\.proxy",
        later=rf"{_BAR}|{_BULK}|wgmma|mbarrier\.arrive",
        earlier=r"st\.shared|stmatrix",
    ),
    Rule("fence dropped", _FENCE, _drop),
    Rule("fence of a narrower scope", _FENCE, _renamed(_TO_BLOCK)),
    Rule("fence moved", _FENCE, later=_GLOBAL, earlier=_GLOBAL),
    Rule(
        "atomic of a narrower scope",
        _ATOM,
        _renamed(_TO_BLOCK, (r"^(atom|red)(?!.*\.cta)", r"\1.relaxed.cta")),
    ),
    Rule(
        "atomic of a weaker order",
        rf"{_ATOM}|(?:ld|st)\.",
        _renamed((r"\.(?:acq_rel|acquire|release)\b", ".relaxed")),
    ),
    Rule("atomic by a load and a store", _ATOM, _plain),
    Rule("atomic dropped", _ATOM, _drop),
    Rule(
        "strong access made weak",
        r"(?:ld|st)\.(?:volatile|relaxed|acquire|release)",
        _renamed((r"\.volatile|\.(?:relaxed|acquire|release)\.\w+", "")),
    ),
    Rule("cluster barrier dropped", r"barrier\.cluster", _drop),
    Rule(
        "cluster barrier relaxed",
        r"barrier\.cluster\.arrive(?!\.relaxed)",
        _renamed((r"\.release", ""), (r"arrive", "arrive.relaxed")),
    ),
    Rule("setmaxnreg dropped", r"setmaxnreg", _drop),
    Rule("bulk copy dropped", _BULK, _drop),
    Rule("bulk copy of another place", _BULK + r".*tensor", _coordinates),
    Rule("bulk copy of another size", r"cp\.async\.bulk\.shared", _added(2, 16, -16)),
    Rule("address off by one", _ACCESS, _shifted),
    Rule("store dropped", r"st\.(?!param|local)|stmatrix|wmma\.store", _drop),
    Rule("load dropped", r"ld\.(?!param|const|local)|ldmatrix|wmma\.load", _drop),
    Rule("comparison off by one", r"setp\.", _compared),
    Rule("comparison reversed", r"setp\.(?:eq|ne)\.", _renamed((r"\.eq\.", ".ne."), (r"\.ne\.", ".eq."))),
    Rule("guard dropped", r"", _unguarded),
    Rule("guard negated", r"", _negated),
    Rule("zeroing dropped", r"mov\.(?:f32|[busf]32|b64)", _zero),
    Rule("fragments swapped", r"mma\.sync", _fragments),
    Rule("layout swapped", r"wmma\.(?:load|store)|ldmatrix", _renamed(*_LAYOUTS)),
)


def _moved(rule: Rule, code: Sequence[Statement], at: int) -> Iterator[tuple[str, tuple[Edit, ...]]]:
    s = code[at]
    for past, step in ((rule.later, 1), (rule.earlier, -1)):
        other = at + step
        while past and 0 <= other < len(code) and not code[max(other, other - step)].starts:
            if re.match(past, code[other].op):
                place = code[other].end if step > 0 else code[other].start
                name = f"{'later' if step > 0 else 'earlier'}, past {code[other].op}"
                yield name, ((s.start, s.end, ""), (place, place, f" {s.text()} "))
                break
            if code[other].op.startswith(("bra", "ret", "exit")):
                break
            other += step


def mutations(text: str, entry: str) -> Iterator[Mutation]:
    """All mutants of an entry, rule by rule."""
    code = statements(text, entry)
    for rule in RULES:
        for at, s in enumerate(code):
            if not re.match(rule.guards, s.op):
                continue
            for about, edits in _moved(rule, code, at):
                yield Mutation(rule.name, s, about, edits)
            for new in rule.changes(s) if rule.changes else ():
                yield Mutation(rule.name, s, new or "dropped", ((s.start, s.end, new),))
