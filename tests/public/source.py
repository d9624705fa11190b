"""Where a project's kernels come from, and what is known to be wrong with them: its ``source.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE = "source.toml"
Line = Annotated[str, Field(min_length=1, pattern=r"^[^\n|]+$")]


class Explained(BaseModel):
    """Why a kernel fails these ``checks`` (``exact``, ``bounds``, …), in one line."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    checks: tuple[Line, ...] = Field(min_length=1)
    why: Line


class Source(BaseModel):
    """A repository at one revision.

    ``repository`` is ``owner/name``; ``licence`` an SPDX identifier, or "none stated"; ``declared``: what the
    declarations say that the repository does not, in one line; ``on_gpu``: what the same checks gave on a
    GPU; ``explained``: faults of kernels, by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    repository: Line
    revision: Line
    date: Line
    licence: Line
    declared: str = ""
    on_gpu: str = ""
    explained: dict[str, Explained] = {}


def read_source(project: Path) -> Source:
    """The record of a project. Raises ValueError, in one line, if there is none or it is not understood."""
    path = project / FILE
    try:
        return Source.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
