"""The course in a real browser, as on a phone: nothing is wider than the screen, each picture is there and
says what it shows, answers open, links lead somewhere.

As for the report, screenshots are written to results/, to be looked at.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.course import LESSONS, command
from tests.browser.chromium import PHONE, Browser
from tests.ladder import PROJECT

pytestmark = pytest.mark.browser
LOADED = "return document.readyState === 'complete'"
WIDTH = "return document.documentElement.scrollWidth"
PICTURES = (
    "return [...document.images].map(e => "
    "[e.alt, e.naturalWidth, e.parentElement.getBoundingClientRect().right])"
)
LINKS = "return [...document.links].filter(e => e.protocol === 'file:').map(e => e.pathname)"
NAMES = ["index", "other-lessons", *(f"{place}-{lesson.stage}" for place, lesson in enumerate(LESSONS))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [
        "--project",
        str(PROJECT.root),
        "--html",
        str(folder),
        "--source",
        "https://example.org/blob/main",
    ]
    assert command.main(words) == 0
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_a_phone_with_its_pictures_answers_and_links(
    name: str, browser: Browser, site: Path
) -> None:
    browser.open(site / f"{name}.html", width=PHONE, dark=name == "index", drawn=LOADED)
    assert browser.run(WIDTH) <= PHONE
    pictures = browser.run(PICTURES)
    lesson = name[0].isdigit()
    assert len(pictures) == lesson + (name == "10-warp_tiled")
    for said, width, right in pictures:
        assert len(said) > 30
        assert width > 0
        assert right <= PHONE
    for path in browser.run(LINKS):
        assert Path(path).is_file(), path
    answers = "[...document.querySelectorAll('details')]"
    hidden = f"return {answers}.map(e => e.querySelector('p').checkVisibility())"
    assert browser.run(hidden) == [False] * (2 * lesson)
    browser.run(f"{answers}.forEach(e => e.querySelector('summary').click())")
    assert browser.run(hidden) == [True] * (2 * lesson)
    assert browser.run(WIDTH) <= PHONE
    if name in ("index", "15-stream_k", "other-lessons"):
        browser.picture(PROJECT.root / "results" / f"course-{name}.png")
    assert browser.errors() == []


def test_what_is_too_wide_without_a_picture_or_leads_nowhere_is_seen(
    browser: Browser, tmp_path: Path
) -> None:
    """That the checks above can fail."""
    page = tmp_path / "page.html"
    page.write_text(
        '<p style="width: 900px">x</p><img src="gone.svg"><a href="gone.html">x</a>', encoding="utf-8"
    )
    browser.open(page, width=PHONE, drawn=LOADED)
    assert browser.run(WIDTH) > PHONE
    ((said, width, _),) = browser.run(PICTURES)
    assert (said, width) == ("", 0)
    (link,) = browser.run(LINKS)
    assert not Path(link).is_file()
    assert browser.errors() != []
