"""The SDK for browsers in Chromium, and `docs/examples/chat.html`, through restarts."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import PATIENCE_S, POLL_S, open_browser
from tests.clients.sdk_site import Site
from tests.daemon import Daemon
from tests.pages import DOCS
from tests.system import find_port

CHAT: Final = (DOCS / "examples" / "chat.html").read_text()
NOTE: Final = "return localStorage.getItem('firebase:previous_websocket_failure')"

PAGE: Final = """<!doctype html>
<meta charset="utf-8">
<title>presence</title>
<script type="module">
import { initializeApp } from "/sdk/firebase-app.js";
import { getDatabase, onDisconnect, onValue, ref, set } from "/sdk/firebase-database.js";
const db = getDatabase(initializeApp({ databaseURL: "ADDRESS" }));
window.shown = { connected: null, news: null, written: 0 };
onValue(ref(db, "news"), (snapshot) => { shown.news = snapshot.val(); });
onValue(ref(db, ".info/connected"), async (snapshot) => {
  shown.connected = snapshot.val();
  if (!shown.connected) return;
  await onDisconnect(ref(db, "here")).set(false);
  await set(ref(db, "here"), true);
  shown.written += 1;
});
window.write = (value) => { set(ref(db, "pending"), value).then(() => { shown.sent = value; }); };
</script>
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture
def browser(chromium: Chrome) -> Iterator[Chrome]:
    """A browser without a page; each site is an origin that has no note of an earlier failure."""
    yield chromium
    chromium.get("about:blank")


@pytest.fixture
def fixed(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A daemon in development mode that has the same ports after a restart."""
    endpoints = [f"{kind}:{find_port()}:interface=127.0.0.1" for kind in ("tcp", "ssl")]
    with Daemon(tmp_path, listen=endpoints) as running:
        yield running


class Page:
    """The page that is open."""

    def __init__(self, browser: Chrome) -> None:
        """Take the page that a browser shows."""
        self._browser = browser
        self._waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)

    def await_shown(self, **expected: Any) -> None:
        """Wait until the page has received these values."""
        self._await(lambda: expected.items() <= self.shown.items(), lambda: f"It has {self.shown}.")

    def await_text(self, element: str, expected: str) -> None:
        """Wait until an element shows a text."""
        self._await(lambda: self.text(element) == expected, lambda: f"It is {self.text(element)}.")

    def await_note(self) -> None:
        """Wait until the SDK has noted that a socket failed: from then on it begins by polling."""
        self._await(lambda: self._browser.execute_script(NOTE) is not None, lambda: "No note.")

    def await_stored(self, daemon: Daemon, path: str, expected: Any) -> None:
        """Wait until the daemon has a value."""
        self._await(lambda: read(daemon, path) == expected, lambda: f"It is {read(daemon, path)}.")

    @property
    def shown(self) -> dict[str, Any]:
        """What the page has received."""
        shown: dict[str, Any] = self._browser.execute_script("return window.shown ?? {}")
        return shown

    @property
    def has_note(self) -> bool:
        """Whether the SDK's note of a failure is there."""
        return self._browser.execute_script(NOTE) is not None

    def text(self, element: str) -> str:
        """Return the text that an element shows."""
        return self._browser.find_element(By.ID, element).text

    def say(self, text: str) -> None:
        """Type a message, and press the button."""
        self._browser.find_element(By.TAG_NAME, "input").send_keys(text)
        self._browser.find_element(By.TAG_NAME, "button").click()

    def write(self, value: int) -> None:
        """Let the page write."""
        self._browser.execute_script("write(arguments[0])", value)

    def _await(self, holds: Callable[[], bool], say: Callable[[], str]) -> None:
        try:
            self._waiting.until(lambda _: holds())
        except Exception as error:
            raise AssertionError(say()) from error


def put(daemon: Daemon, path: str, value: Any) -> None:
    """Write a value of the project `demo`."""
    assert daemon.request("PUT", f"{path}.json?ns=demo", json.dumps(value)).status == 200


def read(daemon: Daemon, path: str) -> Any:
    """Return a value of the project `demo`."""
    return daemon.request("GET", f"{path}.json?ns=demo").json


def local(url: str) -> str:
    """Return the URL with the name of this machine."""
    return url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize("scheme", ["http", "https", "ws", "wss"])
def test_a_page_goes_on_by_itself_after_an_outage(
    scheme: str, fixed: Daemon, browser: Chrome
) -> None:
    netloc = urlsplit(fixed.https if scheme in ("https", "wss") else fixed.http).netloc
    page_text = PAGE.replace("ADDRESS", local(f"{scheme}://{netloc}/?ns=demo"))
    with Site({"page": page_text}) as site:
        browser.get(site.url("page"))
        page = Page(browser)
        page.await_shown(connected=True, written=1)
        fixed.stop()
        page.await_shown(connected=False)
        page.await_note()
        page.write(1)
        fixed.start()
        put(fixed, "/news", "after")
        page.await_shown(connected=True, written=2, news="after", sent=1)
        assert read(fixed, "/here") is True
        assert read(fixed, "/pending") == 1
        assert not page.has_note


def test_a_page_with_the_note_of_a_failure_connects_when_it_is_opened(
    fixed: Daemon, browser: Chrome
) -> None:
    with Site({"page": PAGE.replace("ADDRESS", local(f"{fixed.http}/?ns=demo"))}) as site:
        fixed.stop()
        browser.get(site.url("page"))
        page = Page(browser)
        page.await_note()
        browser.refresh()
        assert page.has_note
        fixed.start()
        page.await_shown(connected=True, written=1)


def test_the_chat_keeps_messages_and_presence_through_a_restart(
    fixed: Daemon, browser: Chrome
) -> None:
    assert CHAT.count("\n") < 60
    chat = CHAT.replace("localhost:9000", urlsplit(local(fixed.http)).netloc)
    with Site({"chat.html": chat}) as site:
        browser.get(site.url("chat.html") + "#ada")
        page = Page(browser)
        page.await_text("state", "connected")
        page.await_text("people", "ada")
        page.say("hello")
        page.await_text("messages", "ada: hello")
        fixed.stop()
        page.await_text("state", "waiting for the server …")
        page.say("are you there?")
        fixed.start()
        page.await_text("state", "connected")
        page.await_text("people", "ada")
        put(fixed, "/chat/people/other", {"name": "alan"})
        page.await_text("people", "ada, alan")
        page.await_text("messages", "ada: hello\nada: are you there?")
        put(fixed, "/chat/messages/-0", {"from": "alan", "text": "first"})
        page.await_text("messages", "alan: first\nada: hello\nada: are you there?")
        said = [message["text"] for message in read(fixed, "/chat/messages").values()]
        assert said == ["first", "hello", "are you there?"]
        browser.get("about:blank")
        page.await_stored(fixed, "/chat/people", {"other": {"name": "alan"}})
