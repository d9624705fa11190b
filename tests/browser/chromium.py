"""Headless Chromium, with which the tests here open a page."""

from __future__ import annotations

import base64
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

ASKED = "GEMM_BROWSER"  # Set where a missing browser is an error.
DRAWN = "return document.documentElement.dataset.drawn"
WIDE, PHONE = 1100, 390


def program(*names: str) -> str:
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        said = f"no {names[0]} on this machine"
        if os.environ.get(ASKED):
            pytest.fail(f"{said}, and GEMM_BROWSER asks for it")
        pytest.skip(said)
    return found


class Browser:
    """One page at a time, in headless Chromium."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(
        self, path: Path, link: str = "", width: int = WIDE, dark: bool = False, drawn: str = DRAWN
    ) -> None:
        command = self.driver.execute_cdp_cmd
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width == PHONE}
        command("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        command("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")
        self.driver.get(f"{path.as_uri()}{link}")
        self.wait(drawn)

    def wait(self, script: str) -> None:
        """Until a script gives something, at most half a minute."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 30).until(lambda driver: driver.execute_script(script), script)

    def run(self, script: str) -> Any:
        return self.driver.execute_script(script)

    def errors(self) -> list[str]:
        return [line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]

    def choose(self, control: str, value: str) -> None:
        """As a user does: the value, then the event. Waits until the chart has followed."""
        self.run(
            f"const e = document.getElementById('{control}'); e.value = {value!r};"
            "e.dispatchEvent(new Event(e.tagName === 'SELECT' ? 'change' : 'input', {bubbles: true}));"
        )

    def rows(self, column: int = 0) -> list[str]:
        cells = f"#cases-table tbody tr td:nth-child({column + 1})"
        texts: list[str] = self.run(f"return [...document.querySelectorAll('{cells}')].map(e => e.innerText)")
        return texts

    def picture(self, to: Path) -> None:
        height = self.run("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.run("return innerWidth"), "height": height, "scale": 1}
        command = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", command)
        to.parent.mkdir(exist_ok=True)
        to.write_bytes(base64.b64decode(shot["data"]))
