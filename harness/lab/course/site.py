"""The course as pages of HTML: its Markdown, in one template, for ``nox -s lab -- course --html FOLDER``.

A link within the course leads to its page; another one to the file under the URL of the sources, or, without
one, nowhere: only its words remain.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from string import Template

from markdown_it import MarkdownIt
from markdown_it.token import Token

from lab.course import FOLDER

_AT = "docs/course"  # where the Markdown is, from which its links start
_LINK = re.compile(r"([^#]*)(#.*)?")
_MADE = re.compile(r"Written by `[^`]*`; do not edit\.\s*")


def _page(name: str) -> str:
    return "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html"


def _target(link: str, names: Mapping[str, str], source: str) -> str:
    """Where a link of a page leads; empty if it leads nowhere."""
    if "://" in link:
        return link
    match = _LINK.fullmatch(link)
    path, place = (match[1], match[2] or "") if match else (link, "")
    if path in names:
        return (_page(path) if path.endswith(".md") else path) + place
    return f"{source.rstrip('/')}/{posixpath.normpath(posixpath.join(_AT, path))}{place}" if source else ""


def _follow(tokens: list[Token], names: Mapping[str, str], source: str) -> None:
    """Turns the links of a page to those of the site."""
    for token in tokens:
        _follow(token.children or [], names, source)
        if token.type == "link_open":
            if target := _target(str(token.attrs["href"]), names, source):
                token.attrs["href"] = target
            else:
                token.tag, token.attrs = "span", {}
    opened: list[str] = []
    for token in tokens:  # its end has the tag of its beginning
        if token.type == "link_open":
            opened.append(token.tag)
        elif token.type == "link_close":
            token.tag = opened.pop()


def pages(files: Mapping[str, str], source: str = "") -> dict[str, str]:
    """Every file of the site by its path, from those of the course. ``source``: the URL of the repository's
    files, such as ``https://github.com/owner/name/blob/main``."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    template = Template((FOLDER / "site.html").read_text(encoding="utf-8"))
    made = {}
    for name, text in files.items():
        if not name.endswith(".md"):
            made[name] = text
            continue
        tokens = markdown.parse(_MADE.sub("", text))
        _follow(tokens, files, source)
        body = markdown.renderer.render(tokens, markdown.options, {})
        body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
        body = body.replace("<p><img ", '<p class="wide"><img ')
        made[_page(name)] = template.substitute(title=text.partition("\n")[0].lstrip("# "), body=body)
    return made
