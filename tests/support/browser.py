"""A headless Chromium, driven by chromedriver over WebDriver's HTTP, with what it logs and requests."""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

INSTALL = "apt-get install -y chromium chromium-driver"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which WebDriver names an element."""


def find() -> tuple[str, str]:
    """Return the paths of chromedriver and Chromium; skip the test where one is missing.

    Where $CI is set the reason is a warning, too, so that it stands in the summary of every run.
    """
    driver = shutil.which("chromedriver")
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    if driver is None or browser is None:
        absent = "chromedriver" if driver is None else "chromium"
        reason = f"pages were not opened in a browser: {absent} is not installed; {INSTALL}"
        if os.environ.get("CI"):
            warnings.warn(reason, stacklevel=2)
        pytest.skip(reason)
    return driver, browser


@contextmanager
def opened() -> Iterator["Browser"]:
    """Start a browser of its own, with a new profile, and end it."""
    driver, binary = find()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "driver.log").open("w+") as log:
        process = subprocess.Popen([driver, "--port=0"], stdout=log, stderr=subprocess.STDOUT, cwd=folder)
        try:
            port = _port(Path(folder) / "driver.log", process)
            browser = Browser(f"http://127.0.0.1:{port}", binary, Path(folder) / "profile")
            try:
                yield browser
            finally:
                browser.close()
        finally:
            process.terminate()
            process.wait(timeout=30)


def _port(log: Path, process: subprocess.Popen[bytes]) -> str:
    for _ in range(600):
        if found := re.search(r"started successfully on port (\d+)", log.read_text()):
            return found[1]
        try:
            process.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        break
    raise AssertionError(f"chromedriver did not start: {log.read_text()}")


class Browser:
    """One window of a headless Chromium."""

    def __init__(self, address: str, binary: str, profile: Path) -> None:
        self.address = address
        arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
        arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
        logged = {"enableNetwork": True, "enablePage": False}
        options = {"binary": binary, "args": arguments, "perfLoggingPrefs": logged}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = f"/session/{session['sessionId']}"
        self._ask("POST", f"{self.session}/url", {"url": "about:blank"})
        self.requests()  # those of the browser's own first page

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", content, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def close(self) -> None:
        self._ask("DELETE", self.session)

    def open(self, page: Path, fragment: str = "") -> None:
        self.visit(page.resolve().as_uri() + fragment)

    def visit(self, address: str) -> None:
        """Open a page and wait until all of it is there.

        On a busy machine chromedriver's own answer may come before the style sheet, of 1 page in 200.
        """
        self._ask("POST", f"{self.session}/url", {"url": address})
        for _ in range(600):
            if self.run("return document.readyState") == "complete":
                return
            time.sleep(0.05)
        raise AssertionError(f"{address} did not load within 30 s")

    @property
    def url(self) -> str:
        return str(self._ask("GET", f"{self.session}/url"))

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a function's body of JavaScript returns."""
        return self._ask("POST", f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, css: str) -> None:
        """Click the first element of a selector as a user does; one that is hidden or covered is an error."""
        found = self._ask("POST", f"{self.session}/element", {"using": "css selector", "value": css})
        self._ask("POST", f"{self.session}/element/{found[ELEMENT]}/click", {})

    def write(self, css: str, text: str) -> None:
        found = self._ask("POST", f"{self.session}/element", {"using": "css selector", "value": css})
        self._ask("POST", f"{self.session}/element/{found[ELEMENT]}/value", {"text": text})

    def _command(self, name: str, **parameters: Any) -> None:
        self._ask("POST", f"{self.session}/goog/cdp/execute", {"cmd": name, "params": parameters})

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
        entries = self._ask("POST", f"{self.session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def requests(self) -> set[str]:
        """Return the addresses that were asked for since the last call."""
        entries = self._ask("POST", f"{self.session}/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return {one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"}

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._ask("GET", f"{self.session}/screenshot")))
