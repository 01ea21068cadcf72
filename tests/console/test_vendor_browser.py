"""lit and CodeMirror work in Chromium under the Content-Security-Policy of the console."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
from selenium.webdriver import ActionChains, Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import PATIENCE_S, POLL_S, open_browser
from tests.closing import Closing
from tests.console.test_vendor import PROJECT, VENDOR

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
)
PAGE: Final = b"""<!doctype html>
<meta charset="utf-8">
<title>vendored files</title>
<script type="module" src="/page.js"></script>
<div id="lit"></div>
<div id="editor"></div>
<div id="merge"></div>
<div id="unified"></div>
<div id="outside"></div>
"""
SCRIPT: Final = PROJECT / "tests" / "console" / "vendor_page.js"
HOSTILE: Final = "<img src=x onerror=alert(1)>"


class Site(Closing):
    """Serves the page and the vendored files with the policy, until it is closed."""

    def __init__(self) -> None:
        """Start the server in a thread."""
        self._served = {f"/vendor/{file.name}": file.read_bytes() for file in VENDOR.glob("*.js")}
        self._served["/page.js"] = SCRIPT.read_bytes()
        self._served["/"] = PAGE
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the page."""
        return f"http://127.0.0.1:{self._server.server_port}/"

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        served = self._served

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = served.get(self.path)
                is_script = self.path.endswith(".js")
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", "text/javascript" if is_script else "text/html")
                self.send_header("Content-Security-Policy", POLICY)
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                pass

        return Handler


class Page:
    """The page, open in a browser."""

    def __init__(self, browser: Chrome, url: str) -> None:
        """Open the page, and wait until its script has run."""
        self.browser = browser
        browser.get(url)
        self.await_true("return window.isReady === true")

    def run(self, script: str) -> Any:
        """Run a script in the page, and return what it returns."""
        return self.browser.execute_script(script)

    def await_true(self, script: str) -> None:
        """Wait until a script returns true."""
        waiting = WebDriverWait(self.browser, PATIENCE_S, POLL_S)
        waiting.until(lambda _: self.run(script), script)

    def await_shown(self, host: str, selector: str) -> None:
        """Wait until an element is in the shadow root of a host."""
        root = f"document.querySelector('{host}').shadowRoot"
        self.await_true(f"return {root}.querySelector('{selector}') !== null")

    def style(self, host: str, selector: str, name: str) -> str:
        """Return a property of the computed style of an element in the shadow root of a host."""
        root = f"document.querySelector('{host}').shadowRoot"
        found: str = self.run(
            f"return getComputedStyle({root}.querySelector('{selector}'))['{name}']"
        )
        return found

    def check_accepted(self) -> None:
        """Assert that the policy has refused nothing, and that no script has failed."""
        assert self.run("return violations") == []
        shown = [entry["message"] for entry in self.browser.get_log("browser")]
        assert [message for message in shown if "favicon" not in message] == []


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser."""
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """The site with the page."""
    with Site() as running:
        yield running


@pytest.fixture
def page(browser: Chrome, site: Site) -> Iterator[Page]:
    """The page, just opened; the policy refuses nothing until the test ends."""
    browser.get_log("browser")
    shown = Page(browser, site.url)
    yield shown
    shown.check_accepted()


def test_what_the_console_needs_is_exported(page: Page) -> None:
    exported = page.run("return exported")
    assert {"html", "svg", "nothing", "render", "LitElement", "css"} <= set(exported["lit"])
    assert not {"unsafeHTML", "unsafeSVG", "styleMap"} & set(exported["lit"])
    assert len(exported["codemirror"]) > 60


def test_templates_are_rendered_and_values_stay_text(page: Page) -> None:
    page.await_true("return document.querySelector('#lit em') !== null")
    items = "return [...document.querySelectorAll('#lit li')].map(each => each.textContent)"
    assert page.run(items) == ["a", "b", HOSTILE]
    page.run("window.first = document.querySelector('#lit li'); reverse()")
    assert page.run(items) == [HOSTILE, "b", "a"]
    assert page.run("return first === document.querySelectorAll('#lit li')[2]")
    assert page.run("return document.querySelector('#lit img')") is None
    page.browser.find_element(By.CSS_SELECTOR, "#lit button").click()
    page.await_true("return document.querySelector('#lit button').textContent === 'clicked 1'")
    assert page.run("return getComputedStyle(document.querySelector('input')).width") == "123px"


def test_the_editor_is_styled_by_constructed_sheets(page: Page) -> None:
    assert page.style("#editor", ".cm-gutters", "backgroundColor") == "rgb(4, 5, 6)"
    assert page.style("#editor", ".cm-content", "letterSpacing") == "3px"
    assert page.style("#editor", ".cm-scroller", "display") == "flex"
    assert page.style("#editor", ".cm-line:nth-child(2) span", "color") == "rgb(1, 2, 3)"
    assert page.run("return document.head.querySelectorAll('style').length") == 0


def test_errors_panels_and_completions_are_shown(page: Page) -> None:
    page.await_shown("#editor", ".cm-lint-marker-error")
    page.run("openAll()")
    page.await_shown("#editor", ".cm-panel-lint")
    page.await_shown("#editor", ".cm-search input")
    marker = page.run(
        "return document.querySelector('#editor').shadowRoot.querySelector('.cm-lint-marker-error')"
    )
    ActionChains(page.browser).move_to_element(marker).perform()
    page.await_shown("#editor", ".cm-tooltip-lint .cm-diagnostic-error")
    page.run("complete()")
    page.await_shown("#editor", ".cm-tooltip-autocomplete li[aria-selected]")
    page.await_shown("#editor", ".cm-completionInfo")
    assert page.style("#editor", ".cm-tooltip-autocomplete", "position") in ("fixed", "absolute")


def test_typing_works_as_in_an_editor(page: Page) -> None:
    page.run("editor.dispatch({changes: {from: 0, to: editor.state.doc.length}}); editor.focus()")
    page.await_shown("#editor", ".cm-placeholder")
    keys = ActionChains(page.browser)
    keys.send_keys('{"a').perform()
    page.await_true("return editor.state.doc.toString() === '{\"a\"}'")
    keys.key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    page.await_true("return editor.state.doc.toString() !== '{\"a\"}'")
    page.run("complete()")
    page.await_shown("#editor", ".cm-tooltip-autocomplete li[aria-selected]")
    ActionChains(page.browser).send_keys(Keys.ENTER).perform()
    page.await_true("return editor.state.doc.toString().includes('newData')")


def test_a_message_of_another_language_stays_text(page: Page) -> None:
    page.run("useWords(); openAll()")
    page.await_shown("#editor", ".cm-diagnosticAction")
    panel = "return document.querySelector('#editor').shadowRoot.querySelector('.cm-panel-lint')"
    assert HOSTILE in page.run(f"{panel}.textContent")
    assert page.run(f"{panel}.querySelector('img')") is None
    page.await_shown("#editor", ".cm-lintRange-error")
    page.await_shown("#editor", ".cm-specialChar")
    assert page.style("#editor", ".cm-lintRange-error *", "fontWeight") == "700"


def test_differences_are_shown_in_both_views(page: Page) -> None:
    page.await_shown("#merge", ".cm-merge-a .cm-deletedLine .cm-changedText")
    page.await_shown("#merge", ".cm-merge-b .cm-insertedLine")
    page.await_shown("#merge", ".cm-collapsedLines")
    page.browser.execute_script(
        "document.querySelector('#merge').shadowRoot.querySelector('.cm-merge-revert button')"
        ".dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}))"
    )
    page.await_true("return merge.a.state.doc.toString() === merge.b.state.doc.toString()")
    assert page.style("#merge", ".cm-mergeViewEditors", "display") == "flex"
    page.await_shown("#unified", ".cm-deletedChunk .cm-deletedText")
    page.await_shown("#unified", ".cm-insertedLine")


def test_an_editor_in_the_document_is_refused_its_styles(browser: Chrome, site: Site) -> None:
    page = Page(browser, site.url)
    page.run("mountInDocument()")
    page.await_true("return violations.length > 0")
    assert page.run("return violations")[0].startswith("style-src-elem: inline")
