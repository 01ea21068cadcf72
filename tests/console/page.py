"""The console in Chromium: how a test opens it, clicks and types there, and what it must not do."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlencode

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.access import RULES, Tree, at, write_secret
from tests.browser import POLL_S
from tests.daemon import Daemon
from tests.system import find_port

HERE: Final = pathlib.Path(__file__).parent
AXE: Final = HERE / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_S: Final = 30
HOSTILE: Final = "<img src=x onerror=alert(1)>"
"""What must stay text wherever it comes from."""

_COLLECT: Final = """
window.violations = [];
addEventListener("securitypolicyviolation", event =>
    violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
_EXAMINE: Final = """
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(
    found => done(found.violations.map(each => [
        each.impact, each.id, each.nodes.map(node => `${node.target.join(" ")} ${node.html}`)])),
    error => done([["critical", String(error), []]]));
"""
_CONFIG: Final = """
console_listen = ["tcp:{port}:interface=127.0.0.1"]
domains = ["db.test"]
default_project = "demo"
[projects.demo]
secret_files = ["demo.secret"]
databases = "*"
"""
_NETWORK: Final = ("Failed to load resource", "net::ERR_")


def make_daemon(folder: pathlib.Path) -> Daemon:
    """Return a daemon with the project `demo`; its last URL, which stays, has the console."""
    write_secret(folder, "demo")
    return Daemon(folder, config=_CONFIG.format(port=find_port()))


def seed(daemon: Daemon, rules: Any, data: Any, database: str = "") -> None:
    """Put rules and data as an admin."""
    with Tree(daemon, "demo", database) as tree:
        tree.put(at(RULES, tree.admin), rules)
        tree.seed("/.json", data)


class ConsolePage:
    """The page of the console in a browser, at the URL of a daemon or of a proxy before it."""

    def __init__(self, browser: Chrome, base: str) -> None:
        """Collect from now on what a policy refuses in the pages of the browser."""
        self.browser = browser
        self.base = base
        script = {"source": _COLLECT}
        browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", script)

    @property
    def url(self) -> str:
        """The URL of the console, without a route."""
        return f"{self.base}/.console/"

    @property
    def text(self) -> str:
        """The text of the page, as it is seen."""
        text: str = self.run("return document.body.innerText")
        return text

    def forget(self) -> None:
        """Forget what the tab remembers, while no console runs that would keep it again."""
        self.browser.get(f"{self.url}icon.svg")
        self.run("sessionStorage.clear(); localStorage.clear()")
        self.browser.get_log("browser")

    def open(self, route: str = "/data", *, token: str | None = None, database: str = "") -> None:
        """Open the page again: signed in by a token in the fragment, or as the tab remembers it."""
        self.browser.get("about:blank")
        if token is None:
            self.browser.get(f"{self.url}#{route}")
            return
        given = {"token": token, **({"ns": database} if database else {})}
        self.browser.get(f"{self.url}#{urlencode(given)}")
        self.await_shown(".tabs")
        self.go(route)

    def go(self, route: str) -> None:
        """Go to a route, such as `/data/users`."""
        self.run("location.hash = arguments[0]", f"#{route}")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.browser.execute_script(script, *arguments)

    def await_true(self, script: str, *arguments: object) -> None:
        """Wait until a script returns what is true."""
        self._wait(lambda: self.run(script, *arguments), script)

    def await_shown(self, selector: str) -> WebElement:
        """Wait until there is a visible element, and return the first."""

        def find() -> WebElement | None:
            found = self.browser.find_elements(By.CSS_SELECTOR, selector)
            return next((each for each in found if each.is_displayed()), None)

        shown: WebElement = self._wait(find, selector)
        return shown

    def await_text(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        script = "return [...document.querySelectorAll(arguments[0])].some("
        script += "each => each.innerText.includes(arguments[1]))"
        self._wait(lambda: self.run(script, selector, text), f"{text!r} in {selector}")

    def await_no_text(self, text: str, selector: str = "body") -> None:
        """Wait until no element shows a text."""
        script = "return ![...document.querySelectorAll(arguments[0])].some("
        script += "each => each.innerText.includes(arguments[1]))"
        self._wait(lambda: self.run(script, selector, text), f"no {text!r} in {selector}")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first visible element that a selector finds and that has a text."""

        def try_click() -> bool:
            for each in self.browser.find_elements(By.CSS_SELECTOR, selector):
                if each.is_displayed() and text in each.text and each.is_enabled():
                    ActionChains(self.browser).move_to_element(each).click().perform()
                    return True
            return False

        self._wait(try_click, f"{selector} {text!r}")

    def fill(self, selector: str, text: str) -> None:
        """Type a text into a field, in place of what is there."""
        field = self.await_shown(selector)
        field.clear()
        field.send_keys(text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list by its value."""
        option = f"{selector} option[value={json.dumps(value)}]"
        self._wait(lambda: self.browser.find_elements(By.CSS_SELECTOR, option), option)
        self.browser.find_element(By.CSS_SELECTOR, option).click()

    def press(self, *keys: str) -> None:
        """Type keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def chord(self, key: str) -> None:
        """Type a key with Ctrl held."""
        held = ActionChains(self.browser).key_down(Keys.CONTROL).send_keys(key)
        held.key_up(Keys.CONTROL).perform()

    def examine(self) -> list[str]:
        """Return what axe-core finds in the page that is serious or critical."""
        if not self.run("return 'axe' in window"):
            # The debugger's evaluation is not bound by the policy of the page.
            words = {"expression": AXE.read_text(), "returnByValue": False}
            self.browser.execute_cdp_cmd("Runtime.evaluate", words)
        found = self.browser.execute_async_script(_EXAMINE)
        return [
            f"{name}: {place}"
            for impact, name, places in found
            if impact in ("serious", "critical")
            for place in places or [""]
        ]

    def check_quiet(self, *, is_away: bool = False) -> None:
        """Assert that the policy refused nothing, and that no script failed.

        With `is_away` requests may have failed, as they do while the server is away.
        """
        assert self.run("return window.violations ?? []") == []
        images = "return [...document.images].map(each => each.getAttribute('src'))"
        assert set(self.run(images)) <= {"icon.svg"}
        lines = [each["message"] for each in self.browser.get_log("browser")]
        if is_away:
            lines = [each for each in lines if not any(part in each for part in _NETWORK)]
        assert lines == []

    def _wait(self, find: Callable[[], Any], what: str) -> Any:
        """Wait until `find` returns what is true, and return that."""
        waiting = WebDriverWait(
            self.browser, PATIENCE_S, POLL_S, ignored_exceptions=[StaleElementReferenceException]
        )
        try:
            return waiting.until(lambda _: find())
        except Exception as error:
            lines = [each["message"] for each in self.browser.get_log("browser")]
            shown = f"{self.browser.current_url}\n{self.text}\n{lines}"
            raise AssertionError(f"The console does not show {what}, but:\n{shown}") from error
