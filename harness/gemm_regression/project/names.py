"""Looks up names given by the user; for an unknown name, suggests similar ones in one line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence

from gemm_regression.model import Config, Kernel
from gemm_regression.project.suites import Suite

_SHOWN = 4


def find_suite(suites: Mapping[str, Suite], name: str) -> Suite:
    """The suite with this name. Raises ValueError, which lists known names."""
    return suites[_known("suite", name, suites)]


def find_kernel(kernels: Iterable[Kernel], name: str) -> Kernel:
    """The kernel with this name. Raises ValueError, which lists known names."""
    named = {kernel.name: kernel for kernel in kernels}
    return named[_known("kernel", name, named)]


def find_config(kernel: Kernel, label: str) -> Config:
    """The declared config of a kernel with this label. Raises ValueError, which lists known labels."""
    configs = {config.label: config for config in kernel.declared}
    return configs[_known(f"config of {kernel.name}", label, configs)]


def unknown(what: str, name: str, known: Iterable[str]) -> ValueError:
    """One line: the name, the most similar known names or the first few, and how many more there are."""
    names = [each for each in dict.fromkeys(known) if each]
    near = difflib.get_close_matches(name, names, _SHOWN)
    hint = near_text(name, names)
    shown: Sequence[str] = names if len(names) <= _SHOWN else near or names[:_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return ValueError(f"unknown {what} {name!r}{hint}; known: {', '.join(shown) or 'none'}{more}")


def near_text(name: str, known: Iterable[str], end: str = "") -> str:
    """The most similar known name, with ``end`` after it, in brackets; empty where none is similar."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {near[0] + end!r}?)" if near else ""


def nothing_fits(expression: str, kernels: Iterable[Kernel]) -> str:
    """One line: that -k matches no case, and what is near those of its words that no kernel, config or dtype
    has."""
    names = [
        name for k in kernels for name in (k.name, *(c.label for c in k.configs), *(d.name for d in k.dtypes))
    ]
    words = [word for word in re.findall(r"[\w.-]+", expression) if word not in ("and", "or", "not")]
    strange = [word for word in words if not any(word.lower() in name.lower() for name in names)]
    near = dict.fromkeys(m for word in strange for m in difflib.get_close_matches(word, names, 1))
    hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""
    return f"-k {expression!r} matches no case{hint}; `nox -s check -- --list-cases` lists them"


def _known(what: str, name: str, known: Iterable[str]) -> str:
    names = list(known)
    if name not in names:
        raise unknown(what, name, names)
    return name
