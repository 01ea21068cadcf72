"""Chromium, headless, for tests: how it is started, and the console of its open page."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from tests.pages import Check, matches

BROWSER: Final = "/usr/bin/chromium"
DRIVER: Final = "/usr/bin/chromedriver"
ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--process-per-site",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--ignore-certificate-errors",
    "--host-resolver-rules=MAP *.example 127.0.0.1, MAP phone.local 127.0.0.1",
)
"""Pages of a site share a process: to start one costs more than to load a page."""
PATIENCE_S: Final = 120
POLL_S: Final = 0.02

_COLLECT: Final = """
window.shown = [];
console.log = (...words) => shown.push(
    words.map(word => typeof word === "string" ? word : JSON.stringify(word)).join(" "));
"""


@contextlib.contextmanager
def open_browser(profile: pathlib.Path, *, logs_network: bool = False) -> Iterator[Chrome]:
    """Start Chromium with a profile of its own; its log `performance` may have all requests."""
    options = ChromeOptions()
    options.binary_location = BROWSER
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={profile}")
    logs = {"browser": "ALL", **({"performance": "ALL"} if logs_network else {})}
    options.set_capability("goog:loggingPrefs", logs)
    with Chrome(options, Service(DRIVER)) as running:
        running.set_script_timeout(PATIENCE_S)
        yield running


class Console:
    """The console of the open page: what is typed there, and what `console.log` shows."""

    def __init__(self, browser: Chrome) -> None:
        """Collect what the open page shows from now on."""
        self._browser = browser
        self._waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)
        browser.execute_script(_COLLECT)

    def run(self, text: str) -> Check:
        """Evaluate JavaScript as the console does, with `await` and its variables kept."""
        begin = len(self._lines())
        words = {"expression": text, "replMode": True, "awaitPromise": True}
        found: dict[str, Any] = self._browser.execute_cdp_cmd("Runtime.evaluate", words)
        assert "exceptionDetails" not in found, f"{text}\n{json.dumps(found, indent=1)}"
        return lambda shown: self.check(shown, begin)

    def check(self, shown: str, begin: int = 0) -> None:
        """Wait until the lines from `begin` on are those that are shown."""

        def is_shown(_: Chrome) -> bool:
            return matches(shown, "\n".join(self._lines()[begin:]))

        try:
            self._waiting.until(is_shown)
        except Exception as error:
            lines = "\n".join(self._lines()[begin:])
            raise AssertionError(f"The page shows:\n{lines}\ninstead of:\n{shown}") from error

    def check_last(self, text: str) -> Check:
        """Wait until `text` is what was shown last."""
        count = len(text.splitlines())
        self._waiting.until(lambda _: matches(text.rstrip("\n"), "\n".join(self._lines()[-count:])))
        return lambda _: None

    def _lines(self) -> list[str]:
        lines: list[str] = self._browser.execute_script("return shown")
        return lines
