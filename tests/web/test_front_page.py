"""The page at `/`: what it shows, to whom, and that nothing in it is taken for markup."""

from __future__ import annotations

import html
import pathlib
import re

import attrs
import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer
from treedbd import __version__
from treedbd.config.settings import HttpSettings
from treedbd.rules.ruleset import DENY
from treedbd.web.pages import MAX_SHOWN_DATABASES, curl_line

AS_HTML = "Accept: text/html,application/xml;q=0.9,*/*;q=0.8"
DEVELOPMENT = attrs.evolve(
    SETTINGS,
    default_project="demo",
    data=pathlib.Path("/data here"),
    development=True,
    quiet=True,
    emulator=True,
)


class Served:
    """A server whose page is read, from this machine or from another address."""

    def __init__(self, server: TreeServer, address: str = "127.0.0.1") -> None:
        self.server = server
        self.address = address

    def read(self, host: str = "localhost", target: str = "/", *headers: str) -> ParsedReply:
        accepted = (AS_HTML, *headers)
        return self.server.request("GET", target, b"", accepted, host, address=self.address)

    def text(self, host: str = "localhost", target: str = "/", *headers: str) -> str:
        reply = self.read(host, target, *headers)
        assert (reply.status, reply[b"content-type"]) == (200, b"text/html; charset=utf-8")
        return reply.body.decode()


def code(page: str, name: str) -> str:
    """Return the text of a piece of code of the page."""
    found = re.search(rf'<code id="{name}">(.*?)</code>', page, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


@pytest.fixture
def development(tmp_path: pathlib.Path) -> Served:
    return Served(TreeServer(tmp_path, options=DEVELOPMENT))


@pytest.fixture
def configured(tmp_path: pathlib.Path) -> Served:
    options = attrs.evolve(SETTINGS, default_project="demo", listen=())
    return Served(TreeServer(tmp_path, options=options))


def test_development_mode_shows_version_databases_and_lines(development: Served) -> None:
    for target in ("/a.json?ns=shop", "/a.json?ns=eu--shop"):
        development.server.request("PUT", target, b"1", host="localhost")
        development.server.clock.advance(0)
    page = development.text("localhost:9000")
    assert __version__ in page
    assert '<a href="/.json?ns=shop&amp;print=pretty">shop</a>' in page
    assert '<a href="/.json?ns=eu--shop&amp;print=pretty">eu--shop</a>' in page
    assert code(page, "curl") == "curl -X PUT -d '\"world\"' http://localhost:9000/hello.json"
    assert len(code(page, "javascript").splitlines()) == 10
    assert 'url = "/hello.json"' in code(page, "javascript")
    assert 'href="/.docs/interface.md"' in page
    assert '<a href="/.console/">Open the console</a>' in page


def test_a_database_that_the_host_or_ns_names_is_the_one_of_the_lines(development: Served) -> None:
    development.server.request("PUT", "/a.json?ns=shop", b"1", host="localhost")
    development.server.clock.advance(0)
    page = development.text("eu--demo.localhost:9000")
    assert "http://eu--demo.localhost:9000/hello.json" in code(page, "curl")
    assert '<a href="//shop.localhost:9000/.json?print=pretty">shop</a>' in page
    assert "<span>eu--demo (empty)</span>" in page
    page = development.text("localhost", "/?ns=EU--demo")
    assert "http://localhost/hello.json?ns=eu--demo" in code(page, "curl")
    assert '"/hello.json?ns=eu--demo&resume=true"' in code(page, "javascript")


def test_other_machines_see_no_database_but_the_one_that_they_name(development: Served) -> None:
    for label in ("demo", "shop", "eu--shop"):
        development.server.request("PUT", f"/a.json?ns={label}", b"1", host="localhost")
    development.server.clock.advance(0)
    far = Served(development.server, "192.0.2.77")
    for target in ("/", "/?ns=demo"):
        page = far.text("192.0.2.1:9000", target)
        assert "demo</a>" in page
        assert "shop" not in page
    assert "shop" in development.text("192.0.2.1:9000")


def test_the_list_of_databases_is_bounded(development: Served) -> None:
    for number in range(MAX_SHOWN_DATABASES + 3):
        development.server.request("PUT", f"/a.json?ns=p{number:03}", b"1", host="localhost")
    development.server.clock.advance(0)
    page = development.text("localhost")
    assert page.count("print=pretty") == MAX_SHOWN_DATABASES
    assert "There are 3 more." in page


def test_where_rules_are_in_force_the_lines_have_the_token_that_all_know(
    tmp_path: pathlib.Path,
) -> None:
    page = Served(TreeServer(tmp_path, options=DEVELOPMENT, rules=DENY)).text()
    assert "'Authorization: Bearer owner'" in code(page, "curl")
    assert '"/hello.json?auth=owner&resume=true"' in code(page, "javascript")
    secretive = attrs.evolve(DEVELOPMENT, emulator=False)
    page = Served(TreeServer(tmp_path, options=secretive, rules=DENY)).text()
    assert "owner" not in page
    assert "Where they deny, these lines need one." in page


def test_a_configured_service_shows_no_version_and_no_database(configured: Served) -> None:
    configured.server.request("PUT", "/a.json?ns=shop", b"1", host="localhost")
    configured.server.clock.advance(0)
    page = configured.text("db.example.com:8443")
    assert __version__ not in page
    assert "shop" not in page
    assert "javascript" not in page
    assert ".console" not in page
    assert code(page, "curl") == "curl 'http://db.example.com:8443/.json?shallow=true'"
    assert 'href="/.docs/interface.md"' in page


def test_behind_a_proxy_with_tls_the_line_has_the_scheme_of_the_browser(configured: Served) -> None:
    page = configured.text("db.example.com", "/", "Sec-Fetch-Site: none")
    assert "'https://db.example.com/.json?shallow=true'" in code(page, "curl")
    page = configured.text("127.0.0.1:8080", "/", "Sec-Fetch-Site: none")
    assert "'http://127.0.0.1:8080/.json?shallow=true'" in code(page, "curl")


def test_without_a_default_project_the_line_says_what_to_put_in(tmp_path: pathlib.Path) -> None:
    options = attrs.evolve(SETTINGS, default_project="", listen=())
    page = Served(TreeServer(tmp_path, options=options)).text("db.example.com")
    assert "?ns=PROJECT&shallow=true" in code(page, "curl")
    assert "Put the name of a project" in page


@pytest.mark.parametrize("host", ["<script>alert(1)<script>", "a\"'`$(id);&<b>", "%00", "&lt;"])
def test_a_host_is_escaped(configured: Served, host: str) -> None:
    page = configured.text(host)
    assert "<script" not in page
    assert "<b>" not in page
    assert page.count("<code id=") == 1
    assert code(page, "curl") == curl_line(f"http://{host}/.json?shallow=true", (), None, None)


def test_a_host_or_ns_that_is_not_served_is_refused_before_anything_is_shown(
    development: Served,
) -> None:
    for host, target, status in (
        ("evil.example", "/", 421),
        ("a_b.localhost", "/", 404),
        ("localhost", "/?ns=a_b", 400),
        ("a.localhost", "/?ns=b", 400),
        ("a b", "/", 400),
    ):
        reply = development.read(host, target)
        assert (reply.status, reply[b"content-type"][:16]) == (status, b"application/json")


def test_only_get_and_head_of_who_prefers_html_see_it(development: Served) -> None:
    server = development.server
    assert server.request("HEAD", "/", headers=(AS_HTML,)).status == 200
    for method in ("PUT", "POST", "PATCH", "DELETE"):
        assert server.request(method, "/", b"1", (AS_HTML,)).status == 404
    for accept in ((), ("Accept: */*",), ("Accept: application/json",)):
        reply = server.request("GET", "/", headers=accept)
        assert (reply.status, reply[b"content-type"][:16]) == (404, b"application/json")
    assert server.request("GET", "/a", headers=(AS_HTML,)).status == 404


def test_the_headers_of_the_page_let_nothing_else_in(development: Served) -> None:
    reply = development.read()
    policy = reply[b"content-security-policy"].decode().split("; ")
    assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert not [each for each in policy if "unsafe" in each]
    assert reply[b"x-frame-options"] == b"DENY"
    assert reply[b"x-content-type-options"] == b"nosniff"
    assert reply[b"cache-control"] == b"no-cache"
    assert b"Accept" in reply[b"vary"].split(b", ")
    page = reply.body.decode()
    assert "<script" not in page
    assert not re.search(r'(?:src|href)="(?:https?:)?//(?!\w+\.localhost)', page)


def test_the_icon_may_be_kept(development: Served) -> None:
    reply = development.server.request("GET", "/favicon.ico", host="localhost")
    assert (reply.status, reply[b"content-type"]) == (200, b"image/svg+xml")
    assert reply[b"cache-control"] == b"public, max-age=86400"
    assert reply.body.startswith(b"<svg ")
    assert development.server.request("GET", "/favicon.ico", host="evil.example").status == 421
    assert development.server.request("OPTIONS", "/favicon.ico", host="evil.example").status == 421


def test_the_page_icon_and_documents_can_be_switched_off(tmp_path: pathlib.Path) -> None:
    server = TreeServer(tmp_path, options=attrs.evolve(DEVELOPMENT, http=HttpSettings(page=False)))
    for target in ("/", "/favicon.ico", "/.docs/interface.md"):
        reply = server.request("GET", target, headers=(AS_HTML,))
        assert (reply.status, reply[b"content-type"][:16]) == (404, b"application/json")


def test_a_curl_line_quotes_what_a_shell_would_read() -> None:
    line = curl_line("https://h/$(id)", ("-X", "PUT"), "/a b/c.pem", "t k")
    assert line == (
        "curl --cacert '/a b/c.pem' -H 'Authorization: Bearer t k' -X PUT 'https://h/$(id)'"
    )
