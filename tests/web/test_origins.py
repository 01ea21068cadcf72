"""In development mode only pages of this machine, and named ones, may send requests."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterable

import attrs
import pytest

from tests.http1.peer import ParsedReply
from tests.web.tree_server import SETTINGS, TreeServer, make_verifier
from treedbd.config.endpoints import LocalNetwork
from treedbd.config.settings import HttpSettings

LOCAL = [
    "http://localhost",
    "http://localhost:3000",
    "https://LOCALHOST:5173",
    "http://app.localhost:8080",
    "http://127.0.0.1",
    "http://127.8.9.1:1",
    "http://[::1]:3000",
    "capacitor://localhost",
]
FOREIGN = [
    "https://evil.example",
    "http://localhost.evil.example",
    "http://evil-localhost",
    "http://localhost@evil.example",
    "http://127.0.0.1.evil.example",
    "http://0.0.0.0:3000",
    "http://192.168.0.1",
    "http://[::2]",
    "null",
    "",
    "localhost",
    "http://localhost http://evil.example",
    "file://",
    "*",
]
NAMED = "https://app.example.com"
EVENTS = "Accept: text/event-stream"
CROSS_SITE = "Sec-Fetch-Site: cross-site"


class OriginServer(TreeServer):
    """Development mode; `cors_origins` names some origins, and all by a star."""

    def __init__(self, folder: pathlib.Path, *, only_local_pages: bool = True) -> None:
        verifier = make_verifier(emulator=True)
        options = attrs.evolve(
            SETTINGS, http=HttpSettings(cors_origins=("*", NAMED)), emulator=only_local_pages
        )
        super().__init__(folder, verifier=lambda _: verifier, options=options)

    def status(self, *headers: str, method: str = "GET", target: str = "/a.json") -> int:
        """Send a request with headers, and return the status of its reply."""
        return self.request(method, target, b"1", headers).status

    def is_stored(self) -> bool:
        """Return whether `/a.json` has a value."""
        return self.request("GET", "/a.json").body != b"null"


@pytest.fixture
def world(tmp_path: pathlib.Path) -> OriginServer:
    return OriginServer(tmp_path)


def check_refused(reply: ParsedReply) -> str:
    """Check a refusal for its form in the standard dialect; return its sentence."""
    error = json.loads(reply.body)
    assert (reply.status, error["error"]) == (403, "permission_denied")
    message: str = error["message"]
    assert "cors_origins" in message
    return message


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_may_do_everything(world: OriginServer, origin: str) -> None:
    for site in ("", "same-site", "cross-site"):
        headers = (f"Origin: {origin}", *([f"Sec-Fetch-Site: {site}"] if site else []))
        assert world.status(*headers, method="PUT") == 200
        assert world.status(*headers, "Authorization: Bearer owner") == 200
        assert world.status(*headers, target="/.settings/rules.json?auth=owner") == 200


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("site", ["", "cross-site", "same-site"])
def test_pages_of_other_sites_may_do_nothing(world: OriginServer, origin: str, site: str) -> None:
    headers = (f"Origin: {origin}", *([f"Sec-Fetch-Site: {site}"] if site else []))
    for method in ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "BREW"):
        for target in ("/a.json", "/a.json?auth=owner", "/a.json?x-http-method-override=PUT"):
            assert world.status(*headers, method=method, target=target) == 403
    for target in ("/", "/a", "/.settings/rules.json?auth=owner", "/.health", "/.console/"):
        assert world.status(*headers, target=target) == 403
    assert not world.is_stored()


def test_a_simple_post_of_a_foreign_page_writes_nothing(world: OriginServer) -> None:
    world.write("PUT", "/a", 1)
    headers = ("Origin: https://evil.example", "Content-Type: text/plain", CROSS_SITE)
    for target in ("/.json?x-http-method-override=DELETE", "/.json?x-http-method-override=PUT"):
        check_refused(world.request("POST", f"{target}&auth=owner", b"null", headers))
    assert world.is_stored()


def test_scripts_and_streams_of_foreign_pages_are_refused(world: OriginServer) -> None:
    script = (CROSS_SITE, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script")
    check_refused(world.request("GET", "/a.json?callback=x", headers=script))
    referer = "Referer: https://evil.example/localhost"
    check_refused(world.request("GET", "/a.json?callback=x", headers=(*script, referer)))
    check_refused(world.request("GET", "/a.json", headers=(EVENTS, "Origin: https://evil.example")))
    assert len(world.resource.streams) == 0


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:5173"])
def test_a_script_of_a_local_page_is_known_by_its_referer(world: OriginServer, origin: str) -> None:
    for referer in (origin, f"{origin}/", f"{origin}/page?x#y"):
        headers = (CROSS_SITE, f"Referer: {referer}")
        assert world.status(*headers, target="/a.json?callback=x") == 200
    for referer in ("http://localhost@evil.example/", "http://localhost.evil.example", "localhost"):
        assert world.status(CROSS_SITE, f"Referer: {referer}") == 403


SCRIPTS = ("/a.json?callback=x", "/a.json?c%61llback=x", "/.lp?cb=1")


@pytest.mark.parametrize("target", SCRIPTS)
@pytest.mark.parametrize(
    "header",
    [
        *("Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: same-site", "Sec-Fetch-Site: none"),
        *("Referer: http://localhost:3000/page", "Referer: http://127.0.0.1:1/"),
        *("Referer: http://app.localhost", f"Referer: {NAMED}/page"),
    ],
)
def test_a_script_is_for_pages_of_this_machine(
    world: OriginServer, target: str, header: str
) -> None:
    for _ in range(3):
        assert world.status(header, target=target) == 200


@pytest.mark.parametrize("target", SCRIPTS)
@pytest.mark.parametrize("referer", ["https://evil.example/", "http://localhost.evil.example/"])
def test_a_script_of_an_old_browser_is_known_by_its_referer(
    world: OriginServer, target: str, referer: str
) -> None:
    reply = world.request("GET", target, headers=(f"Referer: {referer}",))
    assert "--origin" in check_refused(reply)


@pytest.mark.parametrize("target", SCRIPTS)
@pytest.mark.parametrize("headers", [(), ("Referer: ",), ("Referer: localhost",)])
def test_a_script_for_an_unnamed_page_is_refused(
    world: OriginServer, target: str, headers: tuple[str, ...]
) -> None:
    reply = world.request("GET", target, headers=headers)
    assert reply.status == 403
    assert "send Sec-Fetch-Site: none with a program" in json.loads(reply.body)["message"]


FORM = ("User-Agent: Mozilla/5.0", "Accept: text/html,*/*;q=0.8", "Content-Type: text/plain")
WIPE = "/.json?x-http-method-override=DELETE&auth=owner"
POSTED = ("/.settings/compact.json?auth=owner", "/.settings/tokens.json?auth=owner")


@pytest.mark.parametrize("referer", ["", "Referer: https://evil.example/", "Referer: localhost"])
def test_a_form_of_an_old_browser_writes_nothing_for_a_page_of_another_site(
    world: OriginServer, referer: str
) -> None:
    world.write("PUT", "/a", 1)
    headers = (*FORM, *([referer] if referer else []))
    for target in (WIPE, "/a.json", "/a.json?onDisconnect={}", *POSTED):
        reply = world.request("POST", target, b"1", headers)
        assert (reply.status, json.loads(reply.body)["error"]) == (403, "permission_denied")
    assert world.request("GET", "/.json").body == b'{"a":1}'


@pytest.mark.parametrize("page", ["http://localhost:3000/x", "http://127.0.0.1", NAMED])
def test_a_form_of_an_old_browser_is_known_by_its_referer(world: OriginServer, page: str) -> None:
    assert world.status(*FORM, f"Referer: {page}", method="POST") == 200


@pytest.mark.parametrize(
    "headers",
    [
        ("User-Agent: curl/8.5", "Accept: */*", "Content-Type: application/x-www-form-urlencoded"),
        ("User-Agent: Java/17", "Accept: text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2"),
        ("User-Agent: Mozilla/5.0 (Windows NT) WindowsPowerShell/5.1", "Content-Type: text/plain"),
        (*FORM, "Sec-Fetch-Site: none"),
        (*FORM, "Origin: http://localhost:3000"),
    ],
)
def test_a_post_of_a_program_is_no_form(world: OriginServer, headers: tuple[str, ...]) -> None:
    assert world.status(*headers, method="POST") == 200


@pytest.mark.parametrize(
    "headers",
    [
        (),
        ("Sec-Fetch-Site: none",),
        ("Sec-Fetch-Site: same-origin",),
        ("Sec-Fetch-Site: same-site",),
        ("Referer: https://evil.example/",),
        ("Origin: http://demo.localhost:9000", "Sec-Fetch-Site: same-origin"),
    ],
)
def test_programs_the_address_bar_and_own_pages_may_do_everything(
    world: OriginServer, headers: tuple[str, ...]
) -> None:
    assert world.status(*headers, method="PUT", target="/a.json?auth=owner") == 200
    assert world.status(*headers, target="/.settings/rules.json?access_token=owner") == 200


@pytest.mark.parametrize("site", ["cross-site", "Cross-Site", "other", ""])
def test_another_site_without_an_origin_is_refused(world: OriginServer, site: str) -> None:
    check_refused(world.request("GET", "/a.json", headers=(f"Sec-Fetch-Site: {site}",)))


def test_the_page_of_the_root_may_be_visited_by_a_link(world: OriginServer) -> None:
    visit = (CROSS_SITE, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert world.status(*visit, target="/") == 404  # as without the headers
    assert world.status(*visit, target="/?auth=owner") == 404
    assert world.status(*visit, target="/.json") == 403
    assert world.status(*visit, "Origin: null", target="/") == 403
    assert world.status(*visit, method="POST", target="/") == 403
    for name, value in (("Mode", "cors"), ("Dest", "iframe")):
        changed = [each for each in visit if name not in each]
        assert world.status(*changed, f"Sec-Fetch-{name}: {value}", target="/") == 403


def test_a_named_origin_may_send_requests_but_is_no_owner(world: OriginServer) -> None:
    for headers in ((f"Origin: {NAMED}",), (f"Origin: {NAMED}", CROSS_SITE)):
        assert world.status(*headers, method="PUT") == 200
        assert world.status(*headers, method="OPTIONS") == 204
        for bearer in ("/a.json?auth=owner", "/a.json?access_token=owner"):
            reply = world.request("GET", bearer, headers=headers)
            error = json.loads(reply.body)
            assert (reply.status, error["error"]) == (401, "auth_required")
            assert "owner" in error["message"]
        assert world.status(*headers, "Authorization: Bearer owner") == 401
        assert world.status(*headers, target="/.settings/rules.json?auth=owner") == 401
    assert world.status(f"Origin: {NAMED}:8443") == 403
    assert world.status(f"Origin: {NAMED}, {NAMED}") == 403
    assert world.status(f"Origin: {NAMED}", "Origin: https://evil.example") == 403


def test_the_refusal_says_how_to_allow_the_origin_in_both_dialects(world: OriginServer) -> None:
    sentence = (
        "A page of another site (https://evil.example) may not send requests in development mode: "
        "to allow it, start treedb with --origin https://evil.example, or name its origin in "
        "cors_origins of a configuration."
    )
    headers = ("Origin: https://evil.example",)
    reply = world.request("GET", "/a.json", headers=headers)
    assert check_refused(reply) == sentence
    assert reply[b"access-control-allow-origin"] == b"*"  # so that its developer can read that
    reply = world.request("GET", "/a.json?ns=demo", headers=headers)
    assert (reply.status, json.loads(reply.body)) == (403, {"error": sentence})
    unnamed = check_refused(world.request("GET", "/a.json", headers=("Origin: null",)))
    assert "start treedb with --origin URL, or" in unnamed
    long = world.request("GET", "/a.json", headers=(f"Origin: https://{'x' * 5000}.example",))
    assert len(check_refused(long)) < 300


def test_an_origin_that_is_the_host_itself_is_no_other_site(tmp_path: pathlib.Path) -> None:
    options = attrs.evolve(SETTINGS, domains=("db.test",), emulator=True)
    server = TreeServer(tmp_path, options=options)

    def status(origin: str, *more: str) -> int:
        headers = (f"Origin: {origin}", *more)
        return server.request("GET", "/a.json", b"", headers, "demo.db.test:9000").status

    assert status("http://demo.db.test:9000") == 200
    assert status("http://DEMO.db.test:3000", "Sec-Fetch-Site: same-site") == 200
    assert status("http://demo.db.test:9000", CROSS_SITE) == 403
    assert status("http://www.db.test:9000") == 403
    assert status("http://db.test", "Sec-Fetch-Site: same-site") == 403


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
def test_outside_development_mode_every_page_may_send_requests(
    tmp_path: pathlib.Path, origin: str
) -> None:
    world = OriginServer(tmp_path, only_local_pages=False)
    headers: Iterable[str] = (f"Origin: {origin}", CROSS_SITE)
    assert world.status(*headers, method="PUT") == 200
    assert world.status(*headers, method="OPTIONS") == 204


class LanServer(OriginServer):
    """Development mode for the local network, on a machine with a name and two addresses."""

    def __init__(self, folder: pathlib.Path) -> None:
        verifier = make_verifier(admin_token=LAN_TOKEN)
        network = LocalNetwork(LAN_TOKEN, ("box", "box.local"), ("192.168.7.5", "fd00::5"))
        options = attrs.evolve(SETTINGS, development=True, quiet=True, network=network)
        TreeServer.__init__(self, folder, verifier=lambda _: verifier, options=options)


LAN_TOKEN = "0123456789abcdef0123456789abcdef"
ADMIN = f"Authorization: Bearer {LAN_TOKEN}"
RULES = "/.settings/rules.json"


@pytest.mark.parametrize(
    "origin",
    ["http://box:3000", "https://box.local", "http://192.168.7.5:5173", "http://[fd00::5]:1"],
)
def test_pages_of_this_machine_may_do_everything_in_the_network(
    tmp_path: pathlib.Path, origin: str
) -> None:
    world = LanServer(tmp_path)
    for page in (f"Origin: {origin}", "Origin: http://localhost:3000"):
        assert world.status(page, CROSS_SITE, ADMIN, method="PUT") == 200
        assert world.status(page, CROSS_SITE, ADMIN, target=RULES) == 200


@pytest.mark.parametrize(
    "origin", ["http://192.168.7.6:3000", "http://phone.local", "http://*.local", *FOREIGN]
)
def test_pages_of_other_machines_may_do_nothing(tmp_path: pathlib.Path, origin: str) -> None:
    world = LanServer(tmp_path)
    for target in ("/a.json", RULES, f"{RULES}?auth={LAN_TOKEN}"):
        reply = world.request("GET", target, headers=(f"Origin: {origin}", ADMIN))
        assert reply.status == 403
        assert LAN_TOKEN.encode() not in reply.body


def test_the_token_of_lan_counts_for_programs_and_owner_does_not(tmp_path: pathlib.Path) -> None:
    world = LanServer(tmp_path)
    assert world.status(ADMIN, target=RULES) == 200
    assert world.status(target=f"{RULES}?auth={LAN_TOKEN}") == 200
    assert world.status("Authorization: Bearer owner", target=RULES) == 401
    assert world.status(target="/a.json?auth=owner") == 401
