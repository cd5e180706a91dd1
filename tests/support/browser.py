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
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

INSTALL = "apt-get install -y chromium chromium-driver"
ARGUMENTS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")


def find() -> tuple[str, str]:
    """Return the paths of chromedriver and Chromium; skip the test where one is missing."""
    driver = shutil.which("chromedriver")
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if driver is None or browser is None:
        absent = "chromedriver" if driver is None else "chromium"
        pytest.skip(f"pages were not opened in a browser: {absent} is not installed; {INSTALL}")
    return driver, browser


@contextmanager
def opened() -> Iterator["Browser"]:
    """Start a browser of its own, with a new profile, and end it.

    Both paths are given, so that Selenium neither looks for a driver nor asks the network for one.
    """
    driver, binary = find()
    with tempfile.TemporaryDirectory() as folder:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        for argument in (*ARGUMENTS, *root, f"--user-data-dir={folder}/profile"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        options.add_experimental_option("perfLoggingPrefs", {"enableNetwork": True, "enablePage": False})
        chrome = webdriver.Chrome(options, Service(driver, log_output=f"{folder}/driver.log"))
        try:
            yield Browser(chrome)
        finally:
            chrome.quit()


class Browser:
    """One window of a headless Chromium."""

    def __init__(self, chrome: webdriver.Chrome) -> None:
        self._chrome = chrome
        chrome.get("about:blank")
        self.requests()  # those of the browser's own first page

    def open(self, page: Path, fragment: str = "") -> None:
        self.visit(page.resolve().as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Open a page and wait until all of it is there.

        On a busy machine chromedriver's own answer may come before the style sheet, of 1 page in 200.
        """
        self._chrome.get(address)
        waiting = WebDriverWait(self._chrome, 30, poll_frequency=0.05)
        waiting.until(lambda _: self.run("return document.readyState") == "complete", f"{address} did not load")

    @property
    def url(self) -> str:
        return str(self._chrome.current_url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function's body of JavaScript returns."""
        return self._chrome.execute_script(script, *arguments)

    def _find(self, css: str) -> WebElement:
        return self._chrome.find_element(By.CSS_SELECTOR, css)

    def click(self, css: str) -> None:
        """Click the first element of a selector as a user does; one that is hidden or covered is an error."""
        self._find(css).click()

    def _command(self, name: str, **parameters: Any) -> None:
        self._chrome.execute_cdp_cmd(name, parameters)

    def resize(self, width: int, height: int = 900) -> None:
        self._command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def paint(self, scheme: str) -> None:
        """Prefer "light" or "dark" colours."""
        self._command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point_at(self, x: float, y: float) -> None:
        self._command("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[str]:
        """Return warnings and errors of the console since the last call."""
        entries = self._chrome.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> set[str]:
        """Return the addresses that were asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self._chrome.get_log("performance")]
        return {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}
