"""The console in Chromium: how `treedb console` opens it, and what its policy keeps out."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Iterator
from html import escape
from http.server import ThreadingHTTPServer
from typing import Any, Final

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import PATIENCE_S, POLL_S, open_browser
from tests.daemon import Daemon
from tests.system import find_port
from tests.test_browser import BlankPage
from treedbd.cli.console import PAGE

TRY: Final = """
const [kind, url, done] = arguments;
const element = (name, attribute) => {
    const made = document.createElement(name);
    made.onload = () => done("let in");
    made.onerror = () => done("shut out");
    made[attribute] = url;
    document.head.append(made);
};
const ways = {
    fetch: () => fetch(url).then(
        response => done(response.ok ? "let in" : "shut out"), () => done("shut out")),
    opaque: () => fetch(url, {mode: "no-cors"}).then(() => done("let in"), () => done("shut out")),
    script: () => element("script", "src"),
    image: () => element("img", "src"),
    markup: () => {
        document.body.innerHTML = "<b>bold</b>";
        done("let in");
    },
    inline: () => {
        const script = document.createElement("script");
        script.textContent = "window.hasRun = true";
        try { document.body.append(script); } catch {}
        done(window.hasRun ? "let in" : "shut out");
    },
};
try { ways[kind](); } catch { done("shut out"); }
"""
FRAME: Final = """
const frame = document.createElement("iframe");
frame.id = "framed";
frame.onload = () => arguments[1]();
frame.src = arguments[0];
document.body.append(frame);
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The origin of a server of blank pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://site.example:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=["development", "configured"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a daemon that serves the console."""
    config = None
    if request.param == "configured":
        config = f'console_listen = ["tcp:{find_port()}:interface=127.0.0.1"]\n'
        config += 'default_project = "demo"\n[projects.demo]\n'
    with Daemon(tmp_path_factory.mktemp(request.param), config=config) as daemon:
        yield daemon.urls[-1]


def attempt(browser: Chrome, kind: str, url: str = "") -> Any:
    return browser.execute_async_script(TRY, kind, url)


def test_the_page_of_the_command_leads_to_the_console(
    browser: Chrome, base: str, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "open.html"
    file.write_text(PAGE.format(url=escape(f"{base}/.console/#token=a.b.c&ns=shop")))
    browser.get_log("browser")  # of earlier pages
    browser.get(file.as_uri())
    waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)
    waiting.until(lambda _: browser.current_url.startswith(f"{base}/.console/"))
    waiting.until(lambda _: browser.execute_script("return document.readyState") == "complete")
    assert browser.execute_script("return document.referrer") == ""
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(each => each.name)"
    )
    assert f"{base}/.console/main.js" in loaded
    assert not [each for each in loaded if not each.startswith((base, "data:"))]
    errors = [each["message"] for each in browser.get_log("browser")]
    assert not [each for each in errors if "Content Security Policy" in each]


def test_the_page_of_the_console_reaches_its_own_origin_only(
    browser: Chrome, base: str, site: str
) -> None:
    browser.get(f"{base}/.console/")
    assert attempt(browser, "fetch", "/.health") == "let in"
    for kind in ("fetch", "opaque", "script", "image"):
        assert attempt(browser, kind, f"{site}/") == "shut out", kind
    assert attempt(browser, "inline") == "shut out"
    assert attempt(browser, "markup") == "shut out"


def test_a_page_of_another_origin_neither_frames_nor_reads_the_console(
    browser: Chrome, base: str, site: str
) -> None:
    browser.get(f"{site}/")
    for kind in ("fetch", "script"):
        assert attempt(browser, kind, f"{base}/.console/main.js") == "shut out", kind
    assert attempt(browser, "fetch", f"{base}/.console/") == "shut out"
    browser.execute_async_script(FRAME, f"{base}/.console/")
    browser.switch_to.frame("framed")
    is_blocked = browser.execute_script("return document.URL").startswith("chrome-error:")
    assert is_blocked or "permission_denied" in browser.page_source
    browser.switch_to.default_content()
