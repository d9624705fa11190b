"""Charts: Vega-Lite specifications, the records that each draws, and pictures of them.

A specification in ``charts/`` names its data set and its parameters; in the browser a parameter is bound to
the control of the page with its name. vl-convert, which has Vega and Vega-Lite inside, draws the same
specification as SVG without a browser.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from gemm_regression.report.page.records import Record

NAMES = ("ladder", "sizes", "roofline", "padding", "configs", "against", "history", "compared", "rounds")
_MARK = "made of "


class NoDrawingError(Exception):
    """vl-convert is not installed."""


@cache
def _text(name: str) -> str:
    return (resources.files(__package__) / "charts" / name).read_text(encoding="utf-8")


def specification(name: str) -> dict[str, Any]:
    """The specification of a chart, with the look that all have."""
    made: dict[str, Any] = json.loads(_text(f"{name}.vl.json"))
    return {"config": json.loads(_text("look.json")), **made}


def on_paper() -> dict[str, Any]:
    """What a specification of a picture has besides its own: the look, and a white ground."""
    return {"config": json.loads(_text("look.json")), "background": "white"}


def with_values(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The specification with these values of its parameters, which it must have."""
    made = specification(name)
    known = {parameter["name"]: parameter for parameter in made.get("params", ())}
    for parameter, value in values.items():
        known[parameter]["value"] = value
    return made


def bundle() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed in one text. Raises NoDrawingError."""
    return str(_vl_convert().javascript_bundle()).replace("</script", "<\\/script")


def picture(
    name: str, values: Mapping[str, Any], data: Mapping[str, Sequence[Record]], width: int
) -> dict[str, Any]:
    """The specification of a picture for paper: its own data, a width in pixels, no controls."""
    made = with_values(name, values) | on_paper() | {"datasets": dict(data), "width": width}
    made["params"] = [
        {key: value for key, value in parameter.items() if key != "bind"}
        for parameter in made.get("params", ())
        if "select" not in parameter
    ]
    return made


def mark_of(spec: Mapping[str, Any]) -> str:
    """What a picture was made of: SHA-256 of its specification and data. The same wherever it is drawn."""
    return _MARK + hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()


def made_of(drawn: str, spec: Mapping[str, Any]) -> bool:
    """Whether a picture was made of this specification: an SVG file whose first description says so."""
    head, _, rest = drawn.partition("<desc>")
    whole = head.startswith("<svg") and drawn.endswith("</svg>\n")
    return whole and rest.startswith(f"{mark_of(spec)}<")


def svg(spec: Mapping[str, Any], mark: str = "") -> str:
    """The picture as SVG, with a mark in it, by default that of the specification. Raises NoDrawingError."""
    drawn = str(_vl_convert().vegalite_to_svg(dict(spec)))
    return drawn.replace(">", f"><desc>{mark or mark_of(spec)}</desc>", 1) + "\n"


def _vl_convert() -> Any:
    try:
        import vl_convert  # late: the harness is used without it
    except ImportError as error:
        raise NoDrawingError(
            f"no charts ({error}): `nox -s report` runs this where vl-convert-python is installed; of the "
            "package, it is in the extra `report`"
        ) from None
    return vl_convert
