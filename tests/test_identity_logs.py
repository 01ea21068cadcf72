"""Tokens and secrets are never in the log or in a response, whatever happens to the request."""

from __future__ import annotations

import contextlib
import json
import pathlib
import re
import signal
from collections.abc import Iterator

import pytest

from tests.access import (
    DATABASES,
    RULES,
    Tree,
    admin,
    at,
    ending,
    reload,
    secret_of,
    token,
    trusting,
    user,
    write_secret,
)
from tests.daemon import Daemon
from tests.oidc import AUDIENCE, OidcProvider, authority_pem
from tests.rest import Wire, print_request
from tests.sse import EVENTS
from tests.web.auth.test_jwt import FORGED, MALFORMED

METHODS = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "BREW")
TARGETS = (
    *("/a.json", "/denied.json", "/a", "/a%ff.json", "/.x.json", "/a.json?timeout=1h"),
    *("/a.json?orderBy=%22x%22", "/a.json?ns=nowhere", RULES, DATABASES, "/.health", "/.console/"),
)
RULE_SET = {"a": {".read": True, ".write": True}, "b": {".write": True}}
MISTAKEN = (
    *("/a.json%3Fauth={}", "/a.json%3fauth={}", "/a.json%253Fauth={}", "/a.json#auth={}"),
    *("/a.json%23auth={}", "/a.json;auth={}", "/a.json&{}", "/{}.json", "/a/{}/b.json", "/{}"),
    *("http://me:{}@elsewhere.example/a.json", "/a-name-of-a-place.{}"),
)
TOKEN_SHAPE = re.compile(r"[A-Za-z0-9_-]{12,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
MIN_PART_CHARACTERS = 12


class Run:
    """A daemon under many requests; records every token that was sent, and every response."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.hidden: set[str] = {secret_of("shop"), secret_of("gone")}
        self.responses: list[bytes] = []

    def hide(self, bearer: str) -> str:
        """Record a token that must not be shown; return it."""
        parts = re.split(r"[.\s]", bearer)
        self.hidden |= {part for part in parts if len(part) >= MIN_PART_CHARACTERS}
        return bearer

    def send(self, method: str, target: str, headers: dict[str, str]) -> None:
        """Send a request with an invalid body, and record the response."""
        body = '{"rules":{"a":1}}' if method == "PUT" else "{"
        response = self.tree.request(method, target, body, headers)
        self.responses += [response.body, str(response.headers).encode()]

    def send_raw(self, request: bytes) -> None:
        """Send bytes on a new connection, and record the response."""
        with contextlib.suppress(OSError), Wire(self.tree.daemon.http) as wire:
            wire.send(request)
            self.responses.append(wire.receive().body)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "ca.pem").write_bytes(authority_pem())
    write_secret(folder, "shop")
    write_secret(folder, "gone").chmod(0o644)
    with OidcProvider() as provider, OidcProvider() as stopped:
        stopped.stop()
        lines = ["[http]", "access_log = true", "[projects.shop]"]
        lines.append('secret_files = ["shop.secret", "gone.secret"]')
        for each in (provider, stopped):
            lines += ["[[projects.shop.providers]]", f'issuer = "{each.issuer}"']
            lines += [f'audience = "{AUDIENCE}"', 'ca_file = "ca.pem"']
            lines.append(f'uid_prefix = "{each.port}:"')
        with trusting(folder, "\n".join(lines), ["other"]) as daemon, Tree(daemon, "shop") as tree:
            tree.put_rules(RULE_SET)
            found = Run(tree)
            found.hide(tree.admin)
            send_tokens_everywhere(found, provider, stopped)
            provoke_errors(found, folder)
            assert daemon.stop() == 0
            yield found


def tokens_to_send(provider: OidcProvider, stopped: OidcProvider) -> list[str]:
    return [
        *(admin("shop"), user("shop", "a-user-of-the-tests"), token("shop", secret_of("gone"))),
        *(admin("other"), user("shop", "a", exp=1), user("shop", "a", nbf=9e9), "rubbish" * 3),
        *(provider.token(), provider.token(exp=1, iat=0), stopped.token()),
        *(
            bad
            for bad in (*MALFORMED.values(), *FORGED.values())
            if "\n" not in bad and len(bad) < 5000
        ),
    ]


def send_tokens_everywhere(run: Run, provider: OidcProvider, stopped: OidcProvider) -> None:
    """Send each token to many targets, in each place of a request."""
    for number, bearer in enumerate(tokens_to_send(provider, stopped)):
        run.hide(bearer)
        targets = TARGETS if number < len(METHODS) else ("/a.json", RULES)
        for target in targets:
            for method in METHODS if number < 3 else ("GET", "PUT"):
                run.send(method, at(target, bearer), {"X-TreeDB-Explain": "true"})
        header = {"Authorization": f"Bearer {bearer}"} if bearer.isascii() else {}
        run.send("GET", "/a.json", header)
        run.send("GET", at("/a.json?access_token=another-token-than-that", bearer), {})
        run.send("GET", f"{at('/a.json', bearer)}&%zz", {})
        if TOKEN_SHAPE.fullmatch(bearer):
            for place in MISTAKEN:
                for dot in (".", "%2E", "%252e", "%25252E"):
                    run.tree.request("GET", place.format(bearer.replace(".", dot)))
        run.send("GET", f"http://elsewhere.example{at('/a.json', bearer)}", {})
    run.hide("another-token-than-that")


def provoke_errors(run: Run, folder: pathlib.Path) -> None:
    """Send requests with tokens that fail in every other way."""
    tree = run.tree
    bearer = tree.admin
    query = f"auth={bearer}".encode()
    for request in (
        b"GET /\xff.json?" + query + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /a.json?" + query + b" HTTP/9.9\r\n\r\n",
        b"GET /a.json?" + query + b"\r\n\r\n",
        b"GET /a.json HTTP/1.1\r\nAuthorization: Bearer " + bearer.encode() + b"\r\n\x00: \r\n\r\n",
        b"GET /a.json?" + query * 5000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"PUT /a.json?" + query + b" HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
        b"PUT /a.json?" + query + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: x\r\n\r\n",
    ):
        run.send_raw(request)
    soon = run.hide(user("shop", "whose-token-expires-soon", exp=ending(2)))
    with (
        tree.listen(at("/a.json", soon)) as ending_stream,
        tree.listen("/a.json", {**EVENTS, "Authorization": f"Bearer {bearer}"}) as kept,
        tree.listen(at("/a.json", run.hide(token("shop", secret_of("gone"), uid="a")))) as revoked,
    ):
        for stream in (ending_stream, kept, revoked):
            stream.next()
        (folder / "gone.secret").unlink()
        reload(tree.daemon)
        while ending_stream.next().kind != "auth_revoked":
            pass
        while revoked.next().kind != "auth_revoked":
            pass
    with Wire(tree.daemon.http) as leaving:
        leaving.send(print_request("PUT", at("/a.json", bearer), "1", host=tree.host))
    rules = tree.daemon.data / "shop" / "rules.json"
    rules.unlink()
    rules.mkdir()  # so that rules cannot be stored
    refused = tree.request("PUT", at(RULES, bearer), json.dumps({"rules": {}}))
    assert refused.status == 503, refused
    rules.rmdir()
    tree.daemon.signal(signal.SIGHUP)


def test_no_token_and_no_secret_is_in_the_log(run: Run) -> None:
    log = run.tree.daemon.log
    assert len(run.hidden) > 50
    assert [hidden for hidden in run.hidden if hidden in log] == []
    assert "auth=" not in log
    assert "access_token" not in log
    assert "Bearer" not in log


def test_the_log_has_everything_else(run: Run) -> None:
    log = run.tree.daemon.log
    for words in (
        *("GET /a.json 401", "PUT /a.json", "GET /.settings/rules.json"),
        "Other users of this machine can read",
    ):
        assert words in log
    assert "Traceback" not in log


def test_no_response_contains_a_token_or_a_secret(run: Run) -> None:
    responses = b"\n".join(run.responses).decode()
    assert [hidden for hidden in run.hidden if hidden in responses] == []


def test_the_command_line_contains_no_secret(run: Run) -> None:
    daemon: Daemon = run.tree.daemon
    assert not any(secret_of("shop") in part for part in daemon._command)
