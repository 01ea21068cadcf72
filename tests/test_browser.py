"""Pages in a real browser: Chromium, headless, with a real daemon over TLS.

A page has either the daemon's own origin, or another one: then it is a blank page of a small
server. What a test does in a page is done by that page's JavaScript.
"""

from __future__ import annotations

import datetime
import json
import pathlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.expected_conditions import text_to_be_present_in_element
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import PATIENCE_S, POLL_S, open_browser
from tests.daemon import Daemon, Response
from tests.rest import OPEN_RULES
from tests.system import find_port
from tests.test_lan import LanDaemon
from treedbd.config.certificate import ensure_local_certificate
from treedbd.config.endpoints import find_local_network
from treedbd.files import create_directory

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
window.received = [];
const stream = new EventSource(arguments[0]);
for (const type of ["put", "patch", "keep-alive", "cancel", "auth_revoked", "message"])
    stream.addEventListener(
        type, event => received.push([event.type, event.data, event.lastEventId]));
"""
FETCH: Final = """
const [method, url, body, headers, done] = arguments;
fetch(url, {method, body, headers}).then(
    async response =>
        done([response.status, response.headers.get("ETag"), await response.text()]),
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

TRY: Final = """
const [kind, url, done] = arguments;
const ways = {
    script: () => {
        const script = document.createElement("script");
        window.page = {take: () => done("let in")};
        script.onload = script.onerror = () => done("shut out");
        script.src = url;
        document.head.append(script);
    },
    image: () => {
        const image = new Image();
        image.onload = () => done("let in");
        image.onerror = () => done("shut out");
        image.src = url;
    },
    fetch: () => fetch(url).then(
        response => done(response.ok ? "let in" : "shut out"), () => done("shut out")),
    post: () => fetch(url, {method: "POST", mode: "no-cors", body: "null"}).then(
        () => done("sent"), () => done("shut out")),
    form: () => {
        const frame = document.createElement("iframe"), form = document.createElement("form");
        frame.name = "target";
        document.body.append(frame, form);
        form.action = url;
        form.method = "POST";
        form.enctype = "text/plain";
        form.target = "target";
        frame.onload = () => done("sent");
        form.submit();
    },
    events: () => {
        const stream = new EventSource(url);
        stream.onopen = () => done("let in");
        stream.onerror = () => { stream.close(); done("shut out"); };
    },
    socket: () => {
        const socket = new WebSocket(url.replace("http", "ws"));
        socket.onopen = () => done("let in");
        socket.onerror = () => done("shut out");
    },
};
ways[kind]();
"""
"""What a page can send to another origin; "sent" if it sees no outcome."""

Events: TypeAlias = list[tuple[str, Any]]


class Fetched(NamedTuple):
    """What the browser lets a page read of a response to `fetch`."""

    status: int
    tag: str | None
    body: str


class BlankPage(BaseHTTPRequestHandler):
    """Serves the same blank page at every path."""

    def do_GET(self) -> None:
        page = b"<!doctype html><title>blank</title>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


class Page:
    """The one open page of a browser, and the daemon that it sends requests to."""

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
        return [tuple(event) for event in self._browser.execute_script("return received")]

    def parsed_events(self) -> Events:
        """Return all events so far with their data parsed."""
        return [(kind, json.loads(data)) for kind, data, _ in self.events()]

    def changes(self) -> Events:
        """Return all events so far except keep-alives."""
        return [event for event in self.parsed_events() if event[0] != "keep-alive"]

    def await_changes(self, count: int) -> Events:
        """Wait until there are `count` events other than keep-alives; return all of them."""

        def find(_: Chrome) -> Events | Literal[False]:
            found = self.changes()
            return len(found) >= count and found

        return self._waiting.until(find, f"The page did not receive {count} events.")

    def await_keep_alive(self) -> None:
        """Wait for a keep-alive."""
        self._waiting.until(lambda _: KEEP_ALIVE in self.parsed_events(), "There is no keep-alive.")

    def fetch(
        self, method: str, target: str, value: Any = None, headers: dict[str, str] | None = None
    ) -> Fetched | str:
        """Call `fetch`; return the name of the error if the browser hides the response."""
        body = None if value is None else json.dumps(value)
        url = self.daemon.https + target
        found = self._browser.execute_async_script(FETCH, method, url, body, headers or {})
        return found if isinstance(found, str) else Fetched(*found)

    def load_script(self, target: str) -> tuple[str, Any]:
        """Add a script element; return "called" and the argument of `page.take`, or "failed"."""
        url = self.daemon.https + target
        kind, value = self._browser.execute_async_script(LOAD_SCRIPT, url)
        return kind, value


def prepare(folder: pathlib.Path, origins: list[str]) -> Daemon:
    """Return a daemon with TLS and a fixed port; pages of `origins` may read responses."""
    (folder / "open.json").write_text(OPEN_RULES)
    create_directory(folder / "data")
    files = ensure_local_certificate(folder / "data", datetime.datetime.now(datetime.UTC))
    endpoint = f"ssl:{find_port()}:interface=127.0.0.1"
    endpoint += f":privateKey={files.key}:certKey={files.certificate}"
    return Daemon(folder, config=CONFIG.format(origins=origins), listen=[endpoint])


def send(daemon: Daemon, method: str, target: str, value: Any = None) -> Response:
    """Send a request without a browser, which must succeed; the response has a tag."""
    body = None if value is None else json.dumps(value)
    response = daemon.request(method, target, body, TAG, secure=True)
    assert response.status == 200, response
    assert "ETag" in response.headers, response
    return response


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
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
    send(shared_daemon, "DELETE", "/.json")
    page = Page(browser, shared_daemon, shared_daemon.https + "/.json")
    assert page.origin == shared_daemon.https
    return page


@pytest.fixture
def foreign(browser: Chrome, shared_daemon: Daemon, site: int) -> Page:
    """A page of another origin."""
    send(shared_daemon, "DELETE", "/.json")
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


def test_a_page_receives_the_value_then_every_write_as_an_event_of_its_kind(page: Page) -> None:
    daemon = page.daemon
    send(daemon, "PUT", "/rooms.json", {"a": {"name": "Atelier ✓"}})
    page.listen("/rooms.json")
    assert page.await_changes(1) == [put("/", {"a": {"name": "Atelier ✓"}})]
    send(daemon, "PUT", "/rooms/b.json", [1, "two", {"three": 3.5}])
    send(daemon, "PATCH", "/rooms.json", {"a/name": "line\nbreak", "c": True})
    send(daemon, "PUT", "/elsewhere.json", 1)
    send(daemon, "DELETE", "/rooms/b.json")
    send(daemon, "DELETE", "/.json")
    assert page.await_changes(5)[1:] == [
        put("/b", [1, "two", {"three": 3.5}]),
        patch("/", {"a/name": "line\nbreak", "c": True}),
        put("/b", None),
        put("/", None),
    ]


def test_a_page_receives_keep_alives_while_nothing_is_written(page: Page) -> None:
    page.listen("/quiet.json")
    page.await_keep_alive()
    assert page.changes() == [put("/", None)]


def test_a_page_receives_its_own_writes(foreign: Page) -> None:
    foreign.listen("/chat.json")
    foreign.await_changes(1)
    posted = foreign.fetch("POST", "/chat.json", "hello")
    assert isinstance(posted, Fetched)
    key = json.loads(posted.body)["name"]
    assert foreign.await_changes(2)[1:] == [put(f"/{key}", "hello")]


def test_a_page_reconnects_by_itself_after_a_restart_and_begins_with_the_value(
    own: Page,
) -> None:
    send(own.daemon, "PUT", "/news.json", {"a": 1})
    own.listen("/news.json")
    own.await_changes(1)
    own.daemon.restart()
    send(own.daemon, "PUT", "/elsewhere.json", 1)
    assert own.await_changes(2)[1:] == [put("/", {"a": 1})]
    send(own.daemon, "PUT", "/news/b.json", 2)
    assert own.await_changes(3)[2:] == [put("/b", 2)]


def test_a_page_that_resumes_after_a_crash_receives_each_missed_event_once(
    foreign: Page,
) -> None:
    daemon = foreign.daemon
    send(daemon, "PUT", "/news.json", {"a": 1})
    foreign.listen("/news.json?resume=true")
    foreign.await_changes(1)
    send(daemon, "PUT", "/news/b.json", 2)
    foreign.await_changes(2)
    daemon.kill()
    daemon.start()
    send(daemon, "PATCH", "/news.json", {"c": 3})
    send(daemon, "PUT", "/news/d.json", 4)
    expected = [put("/", {"a": 1}), put("/b", 2), patch("/", {"c": 3}), put("/d", 4)]
    assert foreign.await_changes(4) == expected
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
    assert json.loads(send(foreign.daemon, "GET", "/.json").body) == {"list": {name: "x"}}


def test_a_page_from_another_origin_reads_tags_and_sends_them_as_conditions(foreign: Page) -> None:
    daemon = foreign.daemon
    old = send(daemon, "PUT", "/count.json", 1).headers["ETag"]
    assert foreign.fetch("GET", "/count.json", headers=TAG) == (200, old, "1")
    written = foreign.fetch("PUT", "/count.json", 2, {"If-Match": old})
    new = send(daemon, "GET", "/count.json").headers["ETag"]
    assert written == (200, new, "2")
    refused = foreign.fetch("DELETE", "/count.json", None, {"If-Match": old})
    assert isinstance(refused, Fetched)
    assert refused[:2] == (412, new)
    assert json.loads(refused.body)["data"] == 2


def test_a_page_from_another_origin_reads_the_reason_of_an_error(foreign: Page) -> None:
    refused = foreign.fetch("PUT", "/a$b.json", 1)
    assert isinstance(refused, Fetched)
    assert refused.status == 400
    assert json.loads(refused.body)["error"] == "invalid_path"


def test_a_script_element_calls_its_callback_with_the_value(foreign: Page) -> None:
    value = {"text": "</script>\u2028é", "list": [1, None, 2.5]}
    send(foreign.daemon, "PUT", "/value.json", value)
    assert foreign.load_script("/value.json?callback=page.take") == ("called", value)


def test_a_script_element_without_a_callback_runs_nothing(foreign: Page) -> None:
    send(foreign.daemon, "PUT", "/value.json", 1)
    assert foreign.load_script("/value.json") == ("failed", None)


def test_in_development_mode_a_page_of_another_site_reads_and_writes_nothing(
    browser: Chrome, site: int, tmp_path: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        send(daemon, "PUT", "/a.json", 1)
        page = Page(browser, daemon, f"http://evil.example:{site}")
        assert page.origin == f"http://evil.example:{site}"
        wipe = page.fetch("POST", "/a.json?auth=owner&x-http-method-override=DELETE")
        assert isinstance(wipe, Fetched)
        assert wipe.status == 403
        assert "cors_origins" in json.loads(wipe.body)["message"]
        assert page.fetch("PUT", "/a.json", 2) == "TypeError"  # its preflight is refused
        assert page.load_script("/a.json?callback=page.take") == ("failed", None)
        assert send(daemon, "GET", "/a.json").body == b"1"
        page = Page(browser, daemon, f"http://localhost:{site}")
        assert page.load_script("/a.json?callback=page.take") == ("called", 1)
        assert page.fetch("PUT", "/a.json", 2) == (200, None, "2")


def try_all(browser: Chrome, base: str) -> dict[str, str]:
    """Return the outcomes of all that the open page can send to a daemon as `owner`."""
    wipe = "/a.json?auth=owner&x-http-method-override=DELETE"
    targets = {
        "script": "/a.json?callback=page.take&auth=owner",
        "image": "/favicon.ico",
        "fetch": "/a.json?auth=owner",
        "post": wipe,
        "form": wipe,
        "events": "/a.json?onDisconnect=%7B%22b%22:1%7D",
        "socket": "/.ws?v=5&ns=demo",
    }
    return {
        kind: browser.execute_async_script(TRY, kind, base + target)
        for kind, target in targets.items()
    }


SHUT_OUT: Final = {
    **dict.fromkeys(("script", "image", "fetch", "events", "socket"), "shut out"),
    **dict.fromkeys(("post", "form"), "sent"),
}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
@pytest.mark.parametrize("secure", [False, True])
def test_in_development_mode_nothing_lets_a_page_of_another_site_in(
    browser: Chrome, site: int, tmp_path: pathlib.Path, host: str, *, secure: bool
) -> None:
    with Daemon(tmp_path) as daemon:
        send(daemon, "PUT", "/.json", {"a": 1})
        base = (daemon.https if secure else daemon.http).replace("127.0.0.1", host)
        browser.get(f"http://evil.example:{site}")
        found = try_all(browser, base)
        if host == "0.0.0.0" and not secure:
            # Chromium says nothing of the page there: it sees the icon, which says nothing.
            assert found.pop("image") == "let in"
            found["image"] = "shut out"
        assert found == SHUT_OUT
        assert send(daemon, "GET", "/.json").body == b'{"a":1}'


def test_a_name_of_another_site_that_points_at_the_daemon_reads_nothing(
    browser: Chrome, tmp_path: pathlib.Path
) -> None:
    """DNS rebinding; Chromium sends no `Sec-Fetch-Site` to such a name, nor an `Origin`."""
    with Daemon(tmp_path) as daemon:
        send(daemon, "PUT", "/.json", {"a": 1})
        base = daemon.http.replace("127.0.0.1", "evil.example")
        browser.get(f"{base}/")
        assert "is not served here" in browser.page_source
        found = try_all(browser, base)
        assert found == SHUT_OUT
        assert send(daemon, "GET", "/.json").body == b'{"a":1}'


def test_with_lan_nothing_lets_a_page_of_another_site_in(
    browser: Chrome, site: int, tmp_path: pathlib.Path
) -> None:
    addresses = [each for each in find_local_network().addresses if ":" not in each]
    if not addresses:
        pytest.skip("This machine has no address in a network.")
    with LanDaemon(tmp_path) as daemon:
        assert daemon.request("PUT", "/.json", '{"a":1}').status == 200
        secure, plain = (
            url.replace("127.0.0.1", addresses[0]) for url in (daemon.https, daemon.http)
        )
        for page in ("http://evil.example", "http://phone.local"):
            browser.get(f"{page}:{site}")
            assert try_all(browser, secure) == SHUT_OUT
        assert daemon.request("GET", "/.json").body == b'{"a":1}'
        browser.get(f"http://localhost:{site}")
        script = f"{secure}/a.json?callback=page.take"
        assert browser.execute_async_script(TRY, "script", script) == "let in"
        assert browser.execute_async_script(TRY, "fetch", f"{secure}/a.json") == "let in"
        assert (
            browser.execute_async_script(TRY, "script", script.replace(secure, plain)) == "shut out"
        )


def test_only_pages_of_configured_origins_read_and_write(
    browser: Chrome, site: int, tmp_path: pathlib.Path
) -> None:
    allowed, other = f"http://127.0.0.1:{site}", f"http://localhost:{site}"
    with prepare(tmp_path, [allowed]) as daemon:
        page = Page(browser, daemon, allowed)
        assert page.fetch("PUT", "/a.json", 1) == (200, None, "1")
        page.listen("/a.json")
        assert page.await_changes(1) == [put("/", 1)]
        page = Page(browser, daemon, other)
        assert page.origin == other
        assert page.fetch("GET", "/a.json") == "TypeError"
        assert page.fetch("PUT", "/a.json", 2) == "TypeError"
        assert send(daemon, "GET", "/a.json").body == b"1"


# The page at `/`.

PHONE: Final = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
CAPTURE: Final = "window.shown = []; console.log = (...all) => shown.push(all);"


def overflow(browser: Chrome) -> int:
    """Return by how many pixels the page is wider than the window."""
    script = "return document.documentElement.scrollWidth - window.innerWidth"
    width: int = browser.execute_script(script)
    return width


@pytest.mark.parametrize("secure", [False, True])
def test_the_lines_of_the_page_at_the_root_show_events_when_pasted(
    browser: Chrome, tmp_path: pathlib.Path, *, secure: bool
) -> None:
    with Daemon(tmp_path) as daemon:
        url = (daemon.https if secure else daemon.http).replace("127.0.0.1", "eu--demo.localhost")
        browser.get_log("browser")  # forgets that of other tests
        browser.get(f"{url}/")
        assert browser.title == "treedb"
        lines = browser.execute_script("return document.querySelector('#javascript').textContent")
        assert len(lines.splitlines()) == 10
        browser.execute_script(CAPTURE + lines)

        def find(_: Chrome) -> Any:
            shown = browser.execute_script("return shown")
            return [each for each in shown if each[2] and each[2]["text"] == "hello"]

        (event,) = WebDriverWait(browser, PATIENCE_S, POLL_S).until(find)
        assert event[:2] == ["put", "/"]
        assert isinstance(event[2]["at"], int)
        assert browser.get_log("browser") == []
        stored = daemon.request("GET", "/hello.json?ns=eu--demo", secure=secure).json
        assert stored == event[2]


def test_the_pages_fit_a_phone_and_lead_to_each_other(
    browser: Chrome, tmp_path: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        send(daemon, "PUT", f"/a.json?ns=x{'y' * 50}", 1)
        browser.get_log("browser")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        try:
            browser.get(f"{daemon.https}/")
            assert overflow(browser) == 0
            browser.find_element("partial link text", "reference").click()
            assert browser.title == "The HTTP interface · treedb"
            assert overflow(browser) == 0
            browser.find_element("link text", "treedb").click()
            assert browser.current_url == f"{daemon.https}/"
            browser.find_element("partial link text", "yyy").click()
            assert json.loads(browser.find_element("tag name", "pre").text) == {"a": 1}
            assert browser.get_log("browser") == []
        finally:
            browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_search_box_of_the_documentation_finds_a_section(
    browser: Chrome, tmp_path: pathlib.Path
) -> None:
    with Daemon(tmp_path) as daemon:
        browser.get_log("browser")
        browser.get(f"{daemon.https}/.docs")
        assert browser.current_url == f"{daemon.https}/.docs/"
        waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)
        for words, shown in (("no-such-word", "Nothing has all of these words."), ("hsts", "HSTS")):
            box = browser.find_element("id", "search")
            box.clear()
            box.send_keys(words)
            waiting.until(text_to_be_present_in_element(("id", "found"), shown))
        browser.find_element("css selector", "#found a").click()
        waiting.until(lambda _: ".md#" in browser.current_url)
        assert browser.get_log("browser") == []
