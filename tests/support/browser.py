"""A headless Chromium, driven by Selenium, with what it logs and requests."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

INSTALL = "apt-get install -y chromium chromium-driver"
ARGUMENTS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


class Browser(webdriver.Chrome):
    """One window of a headless Chromium."""

    def open(self, page: Path, fragment: str = "") -> None:
        """Open a page and wait until all of it is there.

        On a busy machine chromedriver's own answer may come before the style sheet, of 1 page in 200.
        """
        address = page.resolve().as_uri() + fragment
        self.get(address)
        waiting = WebDriverWait(self, 30, poll_frequency=0.05)
        waiting.until(lambda _: self.run("return document.readyState") == "complete", f"{address} did not load")

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function's body of JavaScript returns."""
        return self.execute_script(script, *arguments)

    def click(self, css: str) -> None:
        """Click the first element of a selector as a user does; one that is hidden or covered is an error."""
        self.find_element(By.CSS_SELECTOR, css).click()

    def resize(self, width: int, height: int = 900) -> None:
        sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)

    def paint(self, scheme: str) -> None:
        """Prefer "light" or "dark" colours."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def point_at(self, x: float, y: float) -> None:
        self.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def complaints(self) -> list[str]:
        """Return warnings and errors of the console since the last call."""
        return [one["message"] for one in self.get_log("browser") if one["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> set[str]:
        """Return the addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.get_log("performance")]
        return {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}


@contextmanager
def opened() -> Iterator[Browser]:
    """Start a browser of its own, with a new profile, and end it; skip the test where it is not installed.

    Both paths are given, so that Selenium neither looks for a driver nor asks the network for one.
    """
    driver = shutil.which("chromedriver")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if driver is None or binary is None:
        absent = "chromedriver" if driver is None else "chromium"
        pytest.skip(f"pages were not opened in a browser: {absent} is not installed; {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        for argument in (*ARGUMENTS, *root, f"--user-data-dir={folder}/profile"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
        with Browser(options, Service(driver, log_output=f"{folder}/driver.log")) as browser:
            browser.get("about:blank")
            browser.requests()  # those of the browser's own first page
            yield browser
