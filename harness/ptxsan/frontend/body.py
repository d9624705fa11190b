"""The condition code of the extended-precision integers as a register like any other (PTX ISA §9.7.2)."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ptxsan.frontend import (
    Address,
    Entry,
    Event,
    Function,
    Instruction,
    Name,
    Number,
    Operand,
    Places,
    PtxError,
    Register,
    SourceLocation,
    Variable,
    Vector,
    parameter_bytes,
    parameters,
    signature,
    size_of,
    split_commas,
    variables,
)
from ptxsan.frontend.wide import halves, of_halves

_PROTOTYPE = re.compile(
    r"\.callprototype\s*(?:\(([^()]*)\)\s*)?[\w$]+\s*(?:\(([^()]*)\))?(?:\s*\.\w+)*\s*$", re.DOTALL
)
CARRY = Register("%cc")  # its CC.CF; a name that PTX has no register of


def with_carry(op: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    """The operands of an instruction, with the carry that it writes as a second result ({d, %cc}) and the one
    that it reads as its last source."""
    if not op.startswith(("add", "sub", "mad")):  # as most are not
        return operands
    base, *words = op.split(".")
    if base in ("addc", "subc", "madc"):
        operands = (*operands, CARRY)
    elif base not in ("add", "sub", "mad"):
        return operands
    if "cc" in words and operands:
        operands = (Vector((operands[0], CARRY)), *operands[1:])
    return operands


# What stands between the braces of an entry, with the functions that it calls in the places of the calls.
#
# A function's parameters and results are variables in local memory, as all .param variables of a body are;
# its registers and labels get names of their own for each call. One that calls itself is followed some
# calls deep.


DEPTHS = (16, 6, 3, 1)  # calls of a function within itself, the fewer the more each of them makes
_LONGEST = 100_000  # instructions, of which functions that call each other may make many


class TooLongError(PtxError):
    """Functions that call each other make too many instructions."""


class Body:
    """Fills an entry. Registers and labels of an inner scope get names of their own."""

    def __init__(
        self,
        entry: Entry,
        functions: dict[str, Function],
        places: Places,
        depth: int = DEPTHS[0],
        addresses: Mapping[str, int] | None = None,
        taken: Collection[str] = (),
    ) -> None:
        """``addresses`` of the functions; those ``taken`` are in tables or registers, so that a call through
        a pointer may mean them."""
        self._entry, self._functions, self._places = entry, functions, places
        self._depth, self._addresses, self._taken = depth, addresses or {}, taken
        self._prototypes: dict[str, tuple[list[int], list[int]]] = {}
        self._targets: dict[str, list[str]] = {}  # of calls
        self._scopes: list[dict[str, Operand]] = [{}]
        self._known = {variable.name for variable in entry.variables}
        self._own = ""  # added to labels, and to the names of a function's registers
        self._inner = 0
        self._source = SourceLocation()
        self._within: list[str] = []  # the functions whose body this is
        self._tables: dict[str, list[str]] = {}  # targets of brx.idx
        self._label = ""
        self._before: list[tuple[str, tuple[Operand, ...]]] = []  # what an operand of an instruction needs
        self._labels: list[dict[str, str]] = []  # of each inner scope
        self._branches: list[list[int]] = []  # there, by their places in the code

    def read(self, events: Sequence[Event], first: int) -> None:
        """The body that begins at this line."""
        self._statements(events)
        if not self._entry.code:
            raise PtxError(f"PTX line {first}: entry {self._entry.name} has no instructions")
        self._check_labels()

    def _statements(self, events: Sequence[Event]) -> None:
        for kind, body, line in events:
            if kind == "open":
                self._inner += 1
                self._scopes.append({})
                self._labels.append({})
                self._branches.append([])
            elif kind == "close":
                self._scopes.pop()
                self._close_labels()
            elif kind == "label":
                self._label = body
                own = body + self._own
                if self._labels:
                    self._labels[-1][own] = f"{own}@{self._inner}"
                    own = self._labels[-1][own]
                self._entry.labels[own] = len(self._entry.code)
            elif kind == "line":
                self._source = self._places.read(body, self._source)
            elif body.startswith("."):
                self._directive(body, line)
            else:
                self._append(self._instruction(body, line))

    def _append(self, instruction: Instruction) -> None:
        base = instruction.op.split(".")[0]
        if base == "call":
            self._call(instruction)
        elif base == "brx":
            self._branch_by_index(instruction)
        elif base == "ret" and self._within:
            self._jump(instruction, f"return{self._own}")
        elif instruction.op == "mov.b128":
            self._entry.code += halves(instruction)
        else:
            self._entry.code.append(instruction)
            if base == "bra" and self._branches:
                self._branches[-1].append(len(self._entry.code) - 1)
        if len(self._entry.code) > _LONGEST:
            what = "calls of calls without an end"
            raise TooLongError(f"PTX line {instruction.line}: {instruction.text}: {what}")

    def _close_labels(self) -> None:
        """Branches within a scope go to its own labels first."""
        labels = self._labels.pop()
        for at in self._branches.pop():
            branch = self._entry.code[at]
            target = branch.operands[-1] if branch.operands else None
            if isinstance(target, Name) and target.text in labels:
                own = (*branch.operands[:-1], Name(labels[target.text]))
                self._entry.code[at] = replace(branch, operands=own)
            elif self._branches:
                self._branches[-1].append(at)

    # Calls

    def _call(self, instruction: Instruction) -> None:
        """The function's body in place of the call, where the module has one."""
        position = next((n for n, o in enumerate(instruction.operands) if not isinstance(o, Vector)), 0)
        callee = instruction.operands[position]
        if isinstance(callee, Register):
            self._call_through(instruction, position, callee)
            return
        function = self._functions.get(callee.text) if isinstance(callee, Name) else None
        if function is None or self._within.count(function.name) >= self._depth:
            self._entry.code.append(instruction)
            return
        results = _items(instruction.operands[:position])
        given = _items(instruction.operands[position + 1 :])
        if len(results) != len(function.results) or len(given) != len(function.parameters):
            raise PtxError(
                f"PTX line {instruction.line}: {instruction.text}: other operands than {function.name}'s"
            )
        outer = self._scopes, self._own, self._source
        self._inner += 1
        own = f"@{self._inner}"
        bound: dict[str, Operand] = {}
        later: list[Instruction] = []
        if instruction.guard:
            register, negated = instruction.guard
            self._jump(instruction, f"return{own}", (register, not negated))
        for operand, (name, kind) in zip(given, function.parameters, strict=True):
            bound[name] = variable = self._passed(instruction, operand, name + own, kind)
            if variable is not operand:
                self._entry.code.append(_move(instruction, "st", kind, (Address(variable, 0), operand)))
        for operand, (name, kind) in zip(results, function.results, strict=True):
            bound[name] = variable = self._passed(instruction, operand, name + own, kind)
            if variable is not operand:
                later.append(_move(instruction, "ld", kind, (operand, Address(variable, 0))))
        self._scopes, self._own = [bound], own
        self._within.append(function.name)
        self._statements(function.events)
        self._within.pop()
        self._scopes, self._own, self._source = outer
        self._entry.labels[f"return{own}"] = len(self._entry.code)
        self._entry.code += later

    def _call_through(self, instruction: Instruction, position: int, pointer: Register) -> None:
        """A call of each function that the pointer may mean, where it means that one (PTX ISA §9.7.12.5):
        those of .calltargets, or those of the .callprototype whose addresses the module takes."""
        last = instruction.operands[-1]
        name = last.text + self._own if isinstance(last, Name) else ""
        wanted, named = self._prototypes.get(name), self._targets.get(name)
        if wanted is None and named is None:
            what = "a call through a pointer without .callprototype or .calltargets"
            raise PtxError(f"PTX line {instruction.line}: {instruction.text}: {what}")
        meant = [f for f in self._functions.values() if f.name in self._taken and f.signature == wanted]
        if named is not None:
            meant = [self._functions[each] for each in named if each in self._functions]
        place = instruction.line, instruction.source, instruction.text
        self._inner += 1
        end = f"called@{self._inner}"
        if instruction.guard:
            register, negated = instruction.guard
            self._jump(instruction, end, (register, not negated))
        for function in meant:
            found = Register(f"%call@{len(self._entry.code)}")
            self._entry.registers[found.name] = "pred"
            operands = (found, pointer, Number(self._addresses[function.name]))
            other = f"other{found.name}"
            self._entry.code.append(Instruction("setp.eq.u64", operands, None, *place))
            self._jump(instruction, other, (found.name, True))
            given = (
                *instruction.operands[:position],
                Name(function.name),
                *instruction.operands[position + 1 : -1],
            )
            self._call(replace(instruction, operands=given, guard=None))
            self._entry.code.append(Instruction("bra", (Name(end),), None, *place))
            self._entry.labels[other] = len(self._entry.code)
        self._entry.code.append(replace(instruction, guard=None))
        self._entry.labels[end] = len(self._entry.code)

    def _passed(self, instruction: Instruction, operand: Operand, name: str, kind: str) -> Name:
        """The variable by which an operand is passed: its own, or one for a register or a number."""
        if isinstance(operand, Name):
            return operand
        size = parameter_bytes(kind) or size_of(kind, instruction.line)
        self._entry.variables.append(Variable(name, "local", size, min(size, 16)))
        return Name(name)

    def _jump(self, instruction: Instruction, label: str, guard: tuple[str, bool] | None = None) -> None:
        guard = guard or instruction.guard
        place = instruction.line, instruction.source, instruction.text
        self._entry.code.append(Instruction("bra", (Name(label),), guard, *place))

    def _branch_by_index(self, instruction: Instruction) -> None:
        """brx.idx: a branch to each of its targets, where the index is that one's."""
        index, table = instruction.operands[:2]
        targets = self._tables.get(table.text + self._own) if isinstance(table, Name) else None
        if targets is None or instruction.guard:
            raise PtxError(f"PTX line {instruction.line}: {instruction.text}: a branch that is not supported")
        found = Register(f"%brx@{len(self._entry.code)}")
        self._entry.registers[found.name] = "pred"
        place = instruction.line, instruction.source, instruction.text
        for number, target in enumerate(targets):
            operands = (found, index, Number(number))
            self._entry.code.append(Instruction("setp.eq.u32", operands, None, *place))
            self._jump(instruction, target + self._own, (found.name, False))

    def _check_labels(self) -> None:
        for instruction in self._entry.code:
            if instruction.op.startswith("bra"):
                target = instruction.operands[-1] if instruction.operands else None
                if not isinstance(target, Name) or target.text not in self._entry.labels:
                    raise PtxError(f"PTX line {instruction.line}: {instruction.text}: there is no such label")

    def _directive(self, body: str, line: int) -> None:
        if match := re.match(r"\.reg\s*\.(\w+)\s+(.+)$", body, re.DOTALL):
            size_of(match[1], line)
            for item in match[2].split(","):
                self._declare(item.strip(), match[1], line)
        elif match := re.match(r"\.branchtargets\s+(.*)$", body, re.DOTALL):
            self._tables[self._label + self._own] = split_commas(match[1])
        elif match := re.match(r"\.calltargets\s+(.*)$", body, re.DOTALL):
            self._targets[self._label + self._own] = split_commas(match[1])
        elif match := _PROTOTYPE.match(body):
            given = signature(parameters(match[1] or "", line), parameters(match[2] or "", line))
            self._prototypes[self._label + self._own] = given
        elif found := variables(body, line):
            for variable in found:
                self._variable(variable)
        elif not body.startswith(".pragma"):
            raise PtxError(f"PTX line {line}: unknown directive {body[:60]!r}")

    def _variable(self, variable: Variable) -> None:
        """One of this scope; of a function or a call each call's own."""
        if variable.space == "param" or (self._within and variable.space == "local"):
            own = f"{variable.name}@{self._inner}.{len(self._entry.variables)}"
            self._scopes[-1][variable.name] = Name(own)
            variable = replace(variable, name=own, space="local")
        if variable.name not in self._known:
            self._known.add(variable.name)
            self._entry.variables.append(variable)

    def _declare(self, item: str, kind: str, line: int) -> None:
        ranged = re.fullmatch(r"(%?[\w$]+)<(\d+)>", item)
        if ranged and int(ranged[2]) > 1_000_000:
            raise PtxError(f"PTX line {line}: {item}: more registers than a kernel can have")
        names = [f"{ranged[1]}{i}" for i in range(int(ranged[2]))] if ranged else [item]
        for name in names:
            own = f"{name}@{self._inner}" if len(self._scopes) > 1 or self._within else name
            if kind == "b128":  # two of 64 bits, by which undefined values are followed
                halves = (Register(f"{own}.lo"), Register(f"{own}.hi"))
                self._scopes[-1][name] = Vector(halves)
                self._entry.registers |= {half.name: "b64" for half in halves}
                continue
            self._scopes[-1][name] = Register(own)
            self._entry.registers[own] = kind

    def _instruction(self, body: str, line: int) -> Instruction:
        text = " ".join(body.split())
        match = re.fullmatch(r"(?:@(!?)(%?[\w$]+)\s+)?([a-z](?:[\w.:]| \.)*)(?:(?:\s+|(?=[{\[]))(.*))?", text)
        if not match:
            raise PtxError(f"PTX line {line}: not an instruction: {text[:80]!r}")
        try:
            guard = (self._register(match[2]).name, bool(match[1])) if match[2] else None
            operands = tuple(self._operand(item) for item in split_commas(match[4] or ""))
        except (ValueError, OverflowError, struct.error):
            raise PtxError(f"PTX line {line}: cannot read the operands of {text[:80]!r}") from None
        op = match[3].replace(" ", "")  # ptxas takes spaces before modifiers
        if op.startswith("mov.") and len(operands) == 2:
            operands = (operands[0], self._address_of(operands[1]))
        if op.endswith(".b128") and op.startswith(("ld.", "st.")):
            op, operands = of_halves(op, operands)
        if (carried := with_carry(op, operands)) is not operands:
            self._entry.registers[CARRY.name] = "pred"
        if op.startswith(("ld.param", "st.param")) and self._is_local(operands):
            op = re.sub(r"\.param(::\w+)?", ".local", op, count=1)
        if op.startswith("bra") and operands and isinstance(operands[-1], Name):
            carried = (*operands[:-1], Name(operands[-1].text + self._own))
        for first, needed in self._before:
            self._entry.code.append(Instruction(first, needed, None, line, self._source, text))
        self._before.clear()
        return Instruction(op, carried, guard, line, self._source, text)

    def _address_of(self, operand: Operand) -> Operand:
        """A function's address in place of its name."""
        if isinstance(operand, Name) and operand.text in self._addresses:
            return Number(self._addresses[operand.text])
        return operand

    def _is_local(self, operands: tuple[Operand, ...]) -> bool:
        """Whether a parameter is one of a call, in local memory."""
        bases = [o.base.text for o in operands if isinstance(o, Address) and isinstance(o.base, Name)]
        return any("@" in name for name in bases)

    def _register(self, name: str) -> Register:
        operand = self._operand(name)
        if not isinstance(operand, Register):
            raise ValueError(name)
        return operand

    def _negated(self, register: Register) -> Register:
        """A predicate that holds where another does not: !%p as an operand."""
        negated = Register(f"!{register.name}")
        self._entry.registers[negated.name] = "pred"
        self._before.append(("not.pred", (negated, register)))
        return negated

    def _operand(self, text: str) -> Operand:
        if (known := self._scopes[-1].get(text)) is not None:
            return known
        if text.startswith(("{", "(")):
            if text[-1] != {"{": "}", "(": ")"}[text[0]]:
                raise ValueError(text)
            return Vector(tuple(self._operand(item) for item in split_commas(text[1:-1])))
        if text.startswith("["):
            # A tensor map and coordinates: [map, {x, y}].
            if len(items := split_commas(text[1:-1])) > 1 and text[-1] == "]":
                return Vector((self._operand(f"[{items[0]}]"), *(self._operand(item) for item in items[1:])))
            match = re.fullmatch(r"\[\s*([%\w$.]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
            if not match:
                raise ValueError(text)
            base = self._operand(match[1])
            offset = int(match[2], 0) if match[2] else 0
            if isinstance(base, Number):
                return Address(None, int(base.value) + offset)
            if not isinstance(base, Register | Name):
                raise ValueError(text)
            return Address(base, offset)
        for scope in reversed(self._scopes):
            if text in scope:
                return scope[text]
        if text.startswith("!"):
            return self._negated(self._register(text[1:]))
        if match := re.fullmatch(r"0([fFdD])([0-9a-fA-F]+)", text):
            bits = int(match[2], 16)
            form, width = ("<f", 4) if match[1] in "fF" else ("<d", 8)
            return Number(float(struct.unpack(form, bits.to_bytes(width, "little"))[0]), bits)
        if re.fullmatch(r"-?\d+\.\d*(?:[eE][+-]?\d+)?", text):
            return Number(float(text))
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", text):
            return Number(int(text.rstrip("U"), 16 if "x" in text.lower() else 10))
        if re.fullmatch(r"%?[\w$.]+(\|%?\w+)?", text):
            if "|" in text:
                return Vector(tuple(self._operand(item) for item in text.split("|")))
            return Name(text)
        raise ValueError(text)


def _items(operands: Sequence[Operand]) -> tuple[Operand, ...]:
    """Of (results) before a function's name, or (parameters) after it."""
    return next((o.items for o in operands if isinstance(o, Vector)), ())


def _move(call: Instruction, base: str, kind: str, operands: tuple[Operand, ...]) -> Instruction:
    """A register to or from the variable that a call passes it by."""
    return Instruction(f"{base}.local.{kind}", operands, call.guard, call.line, call.source, call.text)
