"""The console in Chromium: how a test opens it, clicks and types there, and what it must not do."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any, Final
from urllib.parse import urlencode

from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.access import RULES, Tree, at
from tests.daemon import Daemon

HERE: Final = pathlib.Path(__file__).parent
AXE: Final = HERE / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE_S: Final = 60
HOSTILE: Final = "<img src=x onerror=alert(1)>"
"""What must stay text wherever it comes from."""

_COLLECT: Final = """
window.violations = [];
addEventListener("securitypolicyviolation", event =>
    violations.push(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`));
"""
_WAIT: Final = """
const end = performance.now() + arguments[arguments.length - 1];
return new Promise((resolve, reject) => {
    const look = () => {
        try {
            const found = (() => {
                SCRIPT
            })();
            if (found || performance.now() > end) resolve(found || null);
            else setTimeout(look, 20);
        } catch (error) {
            reject(error);
        }
    };
    look();
});
"""
"""Looks in the page itself: each look from here costs four processes a message."""
_SHOWN: Final = """
const isShown = each => each.getClientRects().length > 0
    && each.checkVisibility({opacityProperty: true, visibilityProperty: true});
const shown = [...document.querySelectorAll(arguments[0])].filter(isShown);
"""
_FIND: Final = f"{_SHOWN} return shown[0];"
_FIND_FIELD: Final = f"{_SHOWN} shown[0]?.focus(); shown[0]?.select(); return shown[0] ?? false;"
_FIND_FREE: Final = f"""
{_SHOWN}
const found = shown.find(
    each => each.innerText.includes(arguments[1]) && !each.matches(":disabled"));
if (!found) return false;
const centre = () => {{
    const {{x, y, width, height}} = found.getBoundingClientRect();
    return [x + width / 2, y + height / 2];
}};
if (!document.elementFromPoint(...centre())) found.scrollIntoView({{block: "center"}});
return found.contains(document.elementFromPoint(...centre())) && found;
"""
"""Finds what nothing covers, as a message does for some seconds."""
_CHOOSE: Final = """
const list = document.querySelector(arguments[0]);
const found = [...list?.options ?? []].find(
    each => each.value === arguments[1] || each.text === arguments[1]);
if (!found) return false;
list.focus();
found.selected = true;
for (const type of ["input", "change"]) list.dispatchEvent(new Event(type, {bubbles: true}));
return true;
"""
_HAS_TEXT: Final = """[...document.querySelectorAll(arguments[0])].some(
    each => each.innerText.includes(arguments[1]))"""
_KEEP: Final = """
sessionStorage.clear();
localStorage.clear();
if (arguments[0]) sessionStorage.setItem("treedb.console", arguments[0]);
"""
_EXAMINE: Final = """
const done = arguments[1];
const only = arguments[0].length ? {runOnly: arguments[0]} : {};
axe.run(document, {resultTypes: ["violations"], ...only}).then(
    found => done(found.violations.map(each => [
        each.impact, each.id, each.nodes.map(node => `${node.target.join(" ")} ${node.html}`)])),
    error => done([["critical", String(error), []]]));
"""
_IMAGES: Final = "[...document.images].map(each => each.getAttribute('src'))"
_NETWORK: Final = ("Failed to load resource", "net::ERR_")


def seed(daemon: Daemon, rules: Any, data: Any, database: str = "") -> None:
    """Put rules and data as an admin."""
    with Tree(daemon, "demo", database) as tree:
        tree.put(at(RULES, tree.admin), rules)
        tree.seed("/.json", data)


def collect_violations(browser: Chrome) -> None:
    """Collect from now on what a policy refuses in the pages of a browser."""
    browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _COLLECT})


class ConsolePage:
    """The page of the console in a browser, at the URL of a daemon or of a proxy before it."""

    def __init__(self, browser: Chrome, base: str) -> None:
        """Prepare; `open` or `resume` opens the page."""
        self.browser = browser
        self.base = base

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
        self._keep(None)

    def open(self, route: str = "/data", *, token: str | None = None, database: str = "") -> None:
        """Open the page again: signed in by a token in the fragment, or as the tab remembers it."""
        self._leave()
        if token is None:
            self.browser.get(f"{self.url}#{route}")
            return
        given = {"token": token, **({"ns": database} if database else {})}
        self.browser.get(f"{self.url}#{urlencode(given)}")
        self.await_shown(".tabs")
        self.go(route)

    def resume(self, route: str, token: str, database: str = "") -> None:
        """Open the page in a tab that remembers a token and a database, and nothing else."""
        self._keep(json.dumps({"token": token, "label": database or None}))
        self.browser.get(f"{self.url}#{route}")
        self.await_shown(".tabs")

    def go(self, route: str) -> None:
        """Go to a route, such as `/data/users`."""
        self.run("location.hash = arguments[0]", f"#{route}")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.browser.execute_script(script, *arguments)

    def await_true(self, script: str, *arguments: object) -> Any:
        """Wait until a script returns what is true, and return that."""
        return self._wait(script, *arguments)

    def await_shown(self, selector: str) -> WebElement:
        """Wait until there is a visible element, and return the first."""
        shown: WebElement = self._wait(_FIND, selector)
        return shown

    def await_text(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        self._wait(f"return {_HAS_TEXT}", selector, text)

    def await_no_text(self, text: str, selector: str = "body") -> None:
        """Wait until no element shows a text."""
        self._wait(f"return !{_HAS_TEXT}", selector, text)

    def click(self, selector: str, text: str = "") -> None:
        """Click the first visible element that a selector finds and that has a text.

        Another one may have taken its place before the mouse is there: then that one is clicked.
        """
        is_clicked = False
        while not is_clicked:
            try:
                self.click_on(self._wait(_FIND_FREE, selector, text))
                is_clicked = True
            except StaleElementReferenceException:
                pass

    def click_on(self, element: WebElement) -> None:
        """Click an element."""
        self._act().move_to_element(element).click().perform()

    def fill(self, selector: str, text: str) -> None:
        """Put a text into a field, as if pasted, in place of what is there."""
        self._wait(_FIND_FIELD, selector)
        if text:
            self.browser.execute_cdp_cmd("Input.insertText", {"text": text})
        else:
            self.press(Keys.DELETE)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list by its value or its text."""
        self._wait(_CHOOSE, selector, value)

    def press(self, *keys: str) -> None:
        """Type keys where the focus is."""
        self._act().send_keys(*keys).perform()

    def chord(self, key: str) -> None:
        """Type a key with Ctrl held."""
        self._act().key_down(Keys.CONTROL).send_keys(key).key_up(Keys.CONTROL).perform()

    def examine(self, *rules: str) -> list[str]:
        """Return what axe-core finds that is serious or critical, by some rules or by all."""
        if not self.run("return 'axe' in window"):
            # The debugger's evaluation is not bound by the policy of the page.
            words = {"expression": AXE.read_text(), "returnByValue": False}
            self.browser.execute_cdp_cmd("Runtime.evaluate", words)
        found = self.browser.execute_async_script(_EXAMINE, rules)
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
        violations, images = self.run(f"return [window.violations ?? [], {_IMAGES}]")
        assert violations == []
        assert set(images) <= {"icon.svg"}
        lines = [each["message"] for each in self.browser.get_log("browser")]
        if is_away:
            lines = [each for each in lines if not any(part in each for part in _NETWORK)]
        assert lines == []

    def _act(self) -> ActionChains:
        return ActionChains(self.browser, duration=0)

    def _leave(self) -> None:
        """Go to a file of the same origin: another fragment alone would not load the page again."""
        self.browser.get(f"{self.url}icon.svg")

    def _keep(self, session: str | None) -> None:
        self._leave()
        self.run(_KEEP, session)
        self.browser.get_log("browser")

    def _wait(self, script: str, *arguments: object) -> Any:
        """Wait until a script returns what is true, and return that; the page may be left."""
        end = time.monotonic() + PATIENCE_S
        while (left := end - time.monotonic()) > 0:
            try:
                found = self.run(_WAIT.replace("SCRIPT", script), *arguments, left * 1000)
                if found:
                    return found
            except TimeoutException as error:
                if "aborted by navigation" not in str(error):
                    raise
        lines = [each["message"] for each in self.browser.get_log("browser")]
        shown = f"{self.browser.current_url}\n{self.text}\n{lines}"
        raise AssertionError(f"Not so: {script} {arguments}\n{shown}")
