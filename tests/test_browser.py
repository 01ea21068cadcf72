"""What a page in a real browser gets: Chromium, headless, against a real daemon over TLS.

A page is either the daemon's own, opened from it, or one from another origin: a blank one that a
small server gives. Whatever a test does in a page is done by that page's JavaScript.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import pathlib
import random
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

from tests.daemon import Answer, Daemon
from tests.rest import OPEN_RULES
from treedbd.certificate import keep_local_certificate
from treedbd.store.files import make_directory

BROWSER: Final = "/usr/bin/chromium"
DRIVER: Final = "/usr/bin/chromedriver"
ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--ignore-certificate-errors",
)
PATIENCE_S: Final = 30
POLL_S: Final = 0.02

CONFIG: Final = """
default_project = "demo"
[streams]
keep_alive_s = 0.3
[http]
cors_origins = {origins}
[projects.demo]
rules_file = "open.json"
"""
TAG: Final = {"X-TreeDB-ETag": "true"}
KEEP_ALIVE: Final = ("keep-alive", None)

LISTEN: Final = """
window.heard = [];
const stream = new EventSource(arguments[0]);
for (const type of ["put", "patch", "keep-alive", "cancel", "auth_revoked", "message"])
    stream.addEventListener(type, event => heard.push([event.type, event.data, event.lastEventId]));
"""
FETCH: Final = """
const [method, url, body, headers, done] = arguments;
fetch(url, {method, body, headers}).then(
    async answer => done([answer.status, answer.headers.get("ETag"), await answer.text()]),
    error => done(error.name));
"""
LOAD_SCRIPT: Final = """
const [url, done] = arguments;
const script = document.createElement("script");
window.page = {take: value => done(["called", value])};
script.onerror = () => done(["failed", null]);
script.src = url;
document.head.append(script);
"""

Heard: TypeAlias = list[tuple[str, Any]]


class Fetched(NamedTuple):
    """What `fetch` let a page read of an answer."""

    status: int
    tag: str | None
    body: str


class BlankPage(BaseHTTPRequestHandler):
    """Gives the same blank page for every path."""

    def do_GET(self) -> None:
        page = b"<!doctype html><title>blank</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 its name in the library
        pass


class Page:
    """The one open page of a browser, and a daemon that it talks to."""

    def __init__(self, browser: Chrome, daemon: Daemon, address: str) -> None:
        """Open the page at an address."""
        self.daemon = daemon
        self._browser = browser
        self._waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)
        browser.get(address)

    @property
    def origin(self) -> str:
        """The origin as the browser sees it."""
        origin: str = self._browser.execute_script("return window.origin")
        return origin

    def listen(self, target: str) -> None:
        """Open an `EventSource`."""
        self._browser.execute_script(LISTEN, self.daemon.https + target)

    def events(self) -> list[tuple[str, str, str]]:
        """Return all events so far: type, data, last id."""
        return [tuple(event) for event in self._browser.execute_script("return heard")]

    def all_heard(self) -> Heard:
        """Return all events so far with their data parsed."""
        return [(kind, json.loads(data)) for kind, data, _ in self.events()]

    def heard(self) -> Heard:
        """Return all events so far but keep-alives."""
        return [event for event in self.all_heard() if event[0] != "keep-alive"]

    def await_heard(self, count: int) -> Heard:
        """Wait until there are so many events that are no keep-alives; return all of those."""

        def look(_: Chrome) -> Heard | Literal[False]:
            found = self.heard()
            return len(found) >= count and found

        return self._waiting.until(look, f"The page did not hear {count} events.")

    def await_keep_alive(self) -> None:
        """Wait until there is a keep-alive."""
        self._waiting.until(lambda _: KEEP_ALIVE in self.all_heard(), "There is no keep-alive.")

    def fetch(
        self, method: str, target: str, value: Any = None, headers: dict[str, str] | None = None
    ) -> Fetched | str:
        """Ask by `fetch`; the name of the error where the browser lets the page read nothing."""
        body = None if value is None else json.dumps(value)
        url = self.daemon.https + target
        found = self._browser.execute_async_script(FETCH, method, url, body, headers or {})
        return found if isinstance(found, str) else Fetched(*found)

    def load_script(self, target: str) -> tuple[str, Any]:
        """Add a script element; tell whether it called `page.take` or failed, and with what."""
        url = self.daemon.https + target
        kind, value = self._browser.execute_async_script(LOAD_SCRIPT, url)
        return kind, value


def find_port() -> int:
    """Return a free port, below those that the system hands out, so that it stays free."""
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as server, contextlib.suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port
    raise AssertionError("There is no free port.")


def prepare(folder: pathlib.Path, origins: list[str]) -> Daemon:
    """Return a daemon with TLS, at the same port in all its lives; pages of `origins` may read."""
    (folder / "open.json").write_text(OPEN_RULES)
    make_directory(folder / "data")
    files = keep_local_certificate(folder / "data", datetime.datetime.now(datetime.UTC))
    endpoint = f"ssl:{find_port()}:interface=127.0.0.1"
    endpoint += f":privateKey={files.key}:certKey={files.certificate}"
    return Daemon(folder, config=CONFIG.format(origins=origins), listen=[endpoint])


def ask(daemon: Daemon, method: str, target: str, value: Any = None) -> Answer:
    """Ask without a browser; it must succeed."""
    body = None if value is None else json.dumps(value)
    answer = daemon.request(method, target, body, TAG, secure=True)
    assert answer.status == 200, answer
    return answer


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = BROWSER
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    with Chrome(options, Service(DRIVER)) as running:
        running.set_script_timeout(PATIENCE_S)
        yield running


@pytest.fixture(scope="module")
def site() -> Iterator[int]:
    """The port of a server of blank pages."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BlankPage) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with prepare(tmp_path_factory.mktemp("daemon"), ["*"]) as running:
        yield running


@pytest.fixture
def own(browser: Chrome, shared_daemon: Daemon) -> Page:
    """A page of the daemon's own origin."""
    ask(shared_daemon, "DELETE", "/.json")
    page = Page(browser, shared_daemon, shared_daemon.https + "/.json")
    assert page.origin == shared_daemon.https
    return page


@pytest.fixture
def foreign(browser: Chrome, shared_daemon: Daemon, site: int) -> Page:
    """A page of another origin."""
    ask(shared_daemon, "DELETE", "/.json")
    page = Page(browser, shared_daemon, f"http://127.0.0.1:{site}/")
    assert page.origin == f"http://127.0.0.1:{site}"
    return page


@pytest.fixture(params=["own", "foreign"])
def page(request: pytest.FixtureRequest) -> Page:
    """A page of each kind."""
    found: Page = request.getfixturevalue(request.param)
    return found


def put(path: str, value: Any) -> tuple[str, Any]:
    return "put", {"path": path, "data": value}


def patch(path: str, value: Any) -> tuple[str, Any]:
    return "patch", {"path": path, "data": value}


# Streams.


def test_a_page_hears_the_value_then_every_write_as_an_event_of_its_kind(page: Page) -> None:
    daemon = page.daemon
    ask(daemon, "PUT", "/rooms.json", {"a": {"name": "Atelier ✓"}})
    page.listen("/rooms.json")
    assert page.await_heard(1) == [put("/", {"a": {"name": "Atelier ✓"}})]
    ask(daemon, "PUT", "/rooms/b.json", [1, "two", {"three": 3.5}])
    ask(daemon, "PATCH", "/rooms.json", {"a/name": "line\nbreak", "c": True})
    ask(daemon, "PUT", "/elsewhere.json", 1)
    ask(daemon, "DELETE", "/rooms/b.json")
    ask(daemon, "DELETE", "/.json")
    assert page.await_heard(5)[1:] == [
        put("/b", [1, "two", {"three": 3.5}]),
        patch("/", {"a/name": "line\nbreak", "c": True}),
        put("/b", None),
        put("/", None),
    ]


def test_a_page_hears_keep_alives_while_nothing_is_written(page: Page) -> None:
    page.listen("/quiet.json")
    page.await_keep_alive()
    assert page.heard() == [put("/", None)]


def test_a_page_hears_its_own_writes(foreign: Page) -> None:
    foreign.listen("/chat.json")
    foreign.await_heard(1)
    posted = foreign.fetch("POST", "/chat.json", "hello")
    assert isinstance(posted, Fetched)
    key = json.loads(posted.body)["name"]
    assert foreign.await_heard(2)[1:] == [put(f"/{key}", "hello")]


def test_a_page_reconnects_by_itself_after_a_restart_and_begins_with_the_value(
    own: Page,
) -> None:
    ask(own.daemon, "PUT", "/news.json", {"a": 1})
    own.listen("/news.json")
    own.await_heard(1)
    own.daemon.restart()
    ask(own.daemon, "PUT", "/elsewhere.json", 1)
    assert own.await_heard(2)[1:] == [put("/", {"a": 1})]
    ask(own.daemon, "PUT", "/news/b.json", 2)
    assert own.await_heard(3)[2:] == [put("/b", 2)]


def test_a_page_that_resumes_hears_after_a_crash_what_it_missed_and_nothing_twice(
    foreign: Page,
) -> None:
    daemon = foreign.daemon
    ask(daemon, "PUT", "/news.json", {"a": 1})
    foreign.listen("/news.json?resume=true")
    foreign.await_heard(1)
    ask(daemon, "PUT", "/news/b.json", 2)
    foreign.await_heard(2)
    daemon.kill()
    daemon.start()
    ask(daemon, "PATCH", "/news.json", {"c": 3})
    ask(daemon, "PUT", "/news/d.json", 4)
    expected = [put("/", {"a": 1}), put("/b", 2), patch("/", {"c": 3}), put("/d", 4)]
    assert foreign.await_heard(4) == expected
    changes = [event for event in foreign.events() if event[0] != "keep-alive"]
    assert len({last_id for _, _, last_id in changes}) == 4


# Requests of pages from another origin.


def test_a_page_from_another_origin_reads_and_writes_with_every_method(foreign: Page) -> None:
    assert foreign.fetch("PUT", "/ada.json", {"age": 36}) == (200, None, '{"age":36}')
    assert foreign.fetch("GET", "/ada/age.json") == (200, None, "36")
    assert foreign.fetch("PATCH", "/ada.json", {"seen": True}) == (200, None, '{"seen":true}')
    assert foreign.fetch("GET", "/ada.json") == (200, None, '{"age":36,"seen":true}')
    posted = foreign.fetch("POST", "/list.json", "x")
    assert isinstance(posted, Fetched)
    name = json.loads(posted.body)["name"]
    assert foreign.fetch("DELETE", "/ada.json") == (200, None, "null")
    assert json.loads(ask(foreign.daemon, "GET", "/.json").body) == {"list": {name: "x"}}


def test_a_page_from_another_origin_reads_tags_and_writes_by_them(foreign: Page) -> None:
    daemon = foreign.daemon
    old = ask(daemon, "PUT", "/count.json", 1).headers["ETag"]
    assert foreign.fetch("GET", "/count.json", headers=TAG) == (200, old, "1")
    written = foreign.fetch("PUT", "/count.json", 2, {"If-Match": old})
    new = ask(daemon, "GET", "/count.json").headers["ETag"]
    assert written == (200, new, "2")
    refused = foreign.fetch("DELETE", "/count.json", None, {"If-Match": old})
    assert isinstance(refused, Fetched)
    assert refused[:2] == (412, new)
    assert json.loads(refused.body)["data"] == 2


def test_a_page_from_another_origin_reads_why_it_was_refused(foreign: Page) -> None:
    refused = foreign.fetch("PUT", "/a$b.json", 1)
    assert isinstance(refused, Fetched)
    assert refused.status == 400
    assert json.loads(refused.body)["error"] == "invalid_path"


def test_a_script_element_calls_back_with_the_value(foreign: Page) -> None:
    value = {"text": "</script>\u2028é", "list": [1, None, 2.5]}
    ask(foreign.daemon, "PUT", "/value.json", value)
    assert foreign.load_script("/value.json?callback=page.take") == ("called", value)


def test_a_script_element_without_a_callback_runs_nothing(foreign: Page) -> None:
    ask(foreign.daemon, "PUT", "/value.json", 1)
    assert foreign.load_script("/value.json") == ("failed", None)


def test_only_pages_of_configured_origins_read_and_write(
    browser: Chrome, site: int, tmp_path: pathlib.Path
) -> None:
    allowed, other = f"http://127.0.0.1:{site}", f"http://localhost:{site}"
    with prepare(tmp_path, [allowed]) as daemon:
        page = Page(browser, daemon, allowed)
        assert page.fetch("PUT", "/a.json", 1) == (200, None, "1")
        page.listen("/a.json")
        assert page.await_heard(1) == [put("/", 1)]
        page = Page(browser, daemon, other)
        assert page.origin == other
        assert page.fetch("GET", "/a.json") == "TypeError"
        assert page.fetch("PUT", "/a.json", 2) == "TypeError"
        assert ask(daemon, "GET", "/a.json").body == b"1"
