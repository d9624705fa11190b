"""The browser of the tests here, one for each of their files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser.chromium import Browser, program


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    missing = "selenium, of the group `browser`, is missing"
    webdriver = pytest.importorskip("selenium.webdriver", reason=missing)
    options = webdriver.ChromeOptions()
    options.binary_location = program("chromium", "chromium-browser", "google-chrome", "chrome")
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(program("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield Browser(driver)
    driver.quit()
