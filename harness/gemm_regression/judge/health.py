"""Whether a GPU is as healthy as others of its model: clock, arithmetic, bandwidths, settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# How far below the least known a board may be: of its own measurements, of which one board's differ by 1 %;
# and of its model's, where it has none. Eleven H200s differ by 0.1 % in FP32, 1.1 % on tensor cores and in
# their clock, 2.9 % in DRAM's and 11 % in L2's bandwidth: a few boards do not say how far the next may be,
# and a fault (a clock that is held low, a part of the memory that is lost) takes more than that.
WIDER, WIDER_ELSEWHERE = 0.03, 0.15
# What a board must reach of which nothing is stored: shares of the datasheet's arithmetic at its clock (those
# H200s: 0.985 to 0.995, DRAM 0.85 to 0.87), and of NVML's highest clock (0.91 on tensor cores).
PLAUSIBLE = {"f32": 0.9, "f16": 0.85, "bf16": 0.85, "tf32": 0.85, "dram": 0.7}
PLAUSIBLE_CLOCK = 0.75
_PROBES = ("f32", "f16", "bf16", "tf32", "l2", "dram")
_SETTINGS = ("power_limit_w", "default_power_limit_w", "max_sm_clock_mhz", "ecc", "mig")
_WATT = 1.0  # by which a power limit may be below another: NVML's are rounded

CLOCK, ARITHMETIC, BANDWIDTH, NOT_MEASURED = "CLOCK", "ARITHMETIC", "BANDWIDTH", "NOT_MEASURED"
POWER_LIMIT, ECC, MIG, OTHER_PROCESSES = "POWER_LIMIT", "ECC", "MIG", "OTHER_PROCESSES"


@dataclass(frozen=True)
class MachineFinding:
    """What is not as it should be.

    Attributes:
        code: a stable reason code.
        subject: a probe's value, a setting, processes, or a group of cases.
        now, limit: its value, and what it may be at most or at least; of a group: how much longer its cases
            take, relative, and how much they may.
        error: of a group: the standard error of ``now``.
        cases: of a group: how many.
        changed: settings that differ for most of a group's cases: the likely cause.
    """

    code: str
    subject: str
    now: float | None
    limit: float | None
    error: float | None = None
    cases: int = 0
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Health:
    """A board's state at the start of a run.

    Attributes:
        board: the digest that stands for it; None if unknown.
        probes: what was measured under load, as in ``machine_info["roofs"]``: by name ``gflops`` or ``gbps``,
            ``mhz`` and ``arithmetic``.
        settings: NVML's ``power_limit_w``, ``default_power_limit_w``, ``max_sm_clock_mhz``, ``ecc``, ``mig``;
            missing where unknown.
        others: other processes on the GPU, in words.
    """

    board: str | None = None
    probes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    @classmethod
    def of(cls, machine: Mapping[str, Any], others: Iterable[str] = ()) -> Health:
        """That of a ``machine_info``."""
        roofs = machine.get("roofs") or {}
        return cls(
            machine.get("board"),
            {name: dict(roofs[name]) for name in _PROBES if name in roofs},
            {name: machine[name] for name in _SETTINGS if machine.get(name) is not None},
            tuple(others),
        )


def ailments(now: Health, known: Sequence[Health]) -> tuple[MachineFinding, ...]:
    """What is wrong with a board, by what was ``known`` of its model before, oldest first."""
    return (*_others(now), *_settings(now, known), *_probes(now, known))


def _others(now: Health) -> Iterable[MachineFinding]:
    if now.others:
        yield MachineFinding(OTHER_PROCESSES, "; ".join(now.others), len(now.others), 0)


def _settings(now: Health, known: Sequence[Health]) -> Iterable[MachineFinding]:
    own = [one for one in known if one.board is not None and one.board == now.board]
    then = (own or list(known))[-1].settings if known else {}
    limit, default = now.settings.get("power_limit_w"), now.settings.get("default_power_limit_w")
    # Another board's limit counts only where this one's default is not known.
    stored = then.get("power_limit_w") if own or default is None else None
    least = max((float(watt) for watt in (default, stored) if watt is not None), default=None)
    if limit is not None and least is not None and limit < least - _WATT:
        yield MachineFinding(POWER_LIMIT, "power_limit_w", float(limit), least)
    for code, name in ((ECC, "ecc"), (MIG, "mig")):
        if None not in (now.settings.get(name), then.get(name)) and now.settings[name] != then[name]:
            yield MachineFinding(code, name, bool(now.settings[name]), bool(then[name]))


def _probes(now: Health, known: Sequence[Health]) -> Iterable[MachineFinding]:
    for probe in _PROBES:
        values = now.probes.get(probe, {})
        for field_, code in (("mhz", CLOCK), ("gflops", ARITHMETIC), ("gbps", BANDWIDTH)):
            there = [one for one in known if field_ in one.probes.get(probe, {})]
            own = [one for one in there if one.board is not None and one.board == now.board]
            before = [one.probes[probe][field_] for one in own or there]
            value, least = values.get(field_), _least(now, probe, field_, before, bool(own))
            # Not below: neither is NaN.
            if value is not None and least is not None and not value >= least:
                yield MachineFinding(code, f"{probe} {field_}", value, round(least, 1))
            elif value is None and before:
                yield MachineFinding(NOT_MEASURED, f"{probe} {field_}", None, round(least or 0.0, 1))


def _least(now: Health, probe: str, field_: str, before: Sequence[float], own: bool) -> float | None:
    """The least that a probe must reach, by what was known of it ``before``, of this board (``own``) or its
    model; None if nothing is."""
    if before:
        return (1 - (WIDER if own else WIDER_ELSEWHERE)) * min(before)
    if field_ == "mhz":
        highest = now.settings.get("max_sm_clock_mhz")
        return PLAUSIBLE_CLOCK * float(highest) if highest else None
    could = now.probes.get(probe, {}).get("arithmetic")
    return PLAUSIBLE[probe] * could if could and probe in PLAUSIBLE else None
