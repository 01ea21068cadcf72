"""Every line of `docs/moving-from-firebase.md`; a second daemon plays the hosted database."""

from __future__ import annotations

import json
import pathlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization

from tests.clients.harness import HERE, NODE, PYTHON
from tests.clients.test_firebase_tools import PROGRAM, prepare_tool
from tests.daemon import SERVE, Daemon
from tests.oidc import private_key
from tests.pages import Check, Shell, check_blocks, no_output, read_blocks
from treedbd.config.settings import load_settings

BLOCKS: Final = read_blocks("moving-from-firebase.md")
HOSTED: Final = "https://shop-default-rtdb.firebaseio.com"
SERVED: Final = "https://shop.db.example.com"
LOCAL: Final = "http://shop.localhost:9000"
CONFIGURED: Final = "/etc/treedb/"
OWNER: Final = {"Authorization": "Bearer owner"}
HOST: Final = {"Host": "shop.localhost"}

RULES: Final = """{
  // The rules of a shop.
  "rules": {
    "orders": {
      "$order": {".read": "data.child('of').val() == auth.uid", ".write": "auth != null"}
    },
    "users": {".read": true, ".indexOn": ["age"]}
  }
}
"""
DATA: Final[dict[str, dict[str, Any]]] = {
    "orders": {"7": {"of": "ada", "lines": ["tea", "milk"], ".priority": 3}},
    "users": {"ada": {"age": 36, ".priority": "p"}},
}
CONFIG: Final = """
domains = ["db.localhost"]
[projects.shop]
secret_files = ["shop.secret"]
"""


class TokenService(BaseHTTPRequestHandler):
    """Plays the service that makes access tokens for service accounts."""

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
        body = json.dumps({"access_token": "owner", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@pytest.fixture(scope="module")
def token_service() -> Iterator[str]:
    """The URL of a service that makes access tokens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), TokenService) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/token"
        server.shutdown()
        thread.join()


def request(daemon: Daemon, method: str, target: str, body: Any = None) -> Any:
    """Send an admin's request to the project `shop` of a daemon in development mode."""
    sent = body if body is None or isinstance(body, str) else json.dumps(body)
    response = daemon.request(method, target, sent, {**OWNER, **HOST})
    assert response.status == 200, response
    return response.json


class Mover:
    """Does what the page says, in one folder."""

    def __init__(self, folder: pathlib.Path, token_service: str) -> None:
        """Fill the hosted database; start what the page takes for granted."""
        self.folder = folder
        for name in ("hosted", "served", "rehearsal"):
            (folder / name).mkdir()
        (folder / "served/shop.secret").write_text("a secret of 32 bytes or many more\n")
        self.hosted = Daemon(folder / "hosted")
        self.served = Daemon(folder / "served", config=CONFIG)
        self.rehearsal = Daemon(folder / "rehearsal", arguments=["--dev"], program=SERVE)
        self.hosted.start()
        self.served.start()
        request(self.hosted, "PUT", "/.json", DATA)
        request(self.hosted, "PUT", "/.settings/rules.json", RULES)
        self._write_account(token_service)
        self.shell = Shell(folder, self._adapt, self._add_programs())
        self.tool: Shell | None = None

    def close(self) -> None:
        self.shell.close()
        for daemon in (self.hosted, self.served, self.rehearsal):
            daemon.close()

    @staticmethod
    def url(daemon: Daemon, host: str = "shop.localhost") -> str:
        return f"http://{host}:{urlsplit(daemon.http).port}"

    def _adapt(self, text: str) -> str:
        text = text.replace(HOSTED, self.url(self.hosted))
        text = text.replace(SERVED, self.url(self.served, "shop.db.localhost"))
        text = text.replace(CONFIGURED, f"{self.folder}/served/")
        return text.replace(LOCAL, self.url(self.rehearsal)) if self.rehearsal.urls else text

    def _write_account(self, token_service: str) -> None:
        key = private_key("RS256").private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        account = {
            "type": "service_account",
            "client_email": "shop@example.com",
            "private_key": key.decode(),
            "token_uri": token_service,
        }
        (self.folder / "account.json").write_text(json.dumps(account))

    def _add_programs(self) -> pathlib.Path:
        """Return a folder with the Python and the tool that the page has been installed with."""
        programs = self.folder / "programs"
        programs.mkdir()
        lines = {
            "python3": f'exec {PYTHON} "$@"',
            "firebase": f'exec {NODE} --require {HERE / "names.cjs"} {PROGRAM} "$@"',
        }
        for name, line in lines.items():
            (programs / name).write_text(f"#!/bin/sh\n{line}\n")
            (programs / name).chmod(0o755)
        return programs

    def run_kinds(self) -> dict[str, Any]:
        """Return how each kind of block is run."""
        return {
            "sh daemon": self._serve,
            "sh": self.shell.run,
            "sh tool": self._run_tool,
            "sh follow": self._follow,
            "sh change": self._change,
            "text ctrl-c": self.shell.interrupt,
            "python source_token.py": self._save("source_token.py"),
            "python same.py": self._save("same.py"),
            "json cases.json": self._save("cases.json"),
            "toml": self._configure,
        }

    def _serve(self, text: str) -> Check:
        assert text == "treedb serve --dev\n"
        self.rehearsal.start()
        return no_output

    def _run_tool(self, text: str) -> Check:
        """Run the tool of Firebase, signed in as its documentation here says."""
        home = self.folder / "tool"
        home.mkdir()
        settings = {"PLAY_DOMAIN": "localhost", "PLAY_ASKED": str(home / "asked")}
        prepared = prepare_tool(home, "shop", self.url(self.hosted), "owner")
        variables = {**prepared, **settings}
        checked = Shell(self.folder, self._adapt, self.folder / "programs", variables)
        return checked.run(text)

    def _follow(self, text: str) -> Check:
        """Begin to follow, and wait until the old database is followed: the rules are copied."""
        mark = self.hosted.mark()
        checked = self.shell.start(text)
        self.hosted.await_line(r"GET /\.json stream opened", mark)
        return checked

    def _change(self, text: str) -> Check:
        request(self.hosted, "PUT", "/orders/8/of.json", '"alan"')
        return self.shell.run(text)

    def _save(self, name: str) -> Any:
        def save(text: str) -> Check:
            (self.folder / name).write_text(text)
            return no_output

        return save

    def _configure(self, text: str) -> Check:
        (self.folder / "treedb.toml").write_text(text)
        settings = load_settings(self.folder / "treedb.toml", {}, self.folder)
        (provider,) = settings.projects["shop"].providers
        assert provider.issuer == "https://securetoken.google.com/shop"
        return no_output


@pytest.fixture
def mover(tmp_path: pathlib.Path, token_service: str) -> Iterator[Mover]:
    mover = Mover(tmp_path, token_service)
    yield mover
    mover.close()


def test_every_line_does_what_the_page_says(mover: Mover) -> None:
    assert len(BLOCKS) > 35
    check_blocks(BLOCKS, mover.run_kinds())
    # The last block has brought the data back, and has allowed writing there again.
    seventh = {**DATA["orders"]["7"], "lines": {"0": "tea", "1": "milk"}}
    orders = {"7": seventh, "8": {"of": "alan"}}
    expected = {"orders": orders, "users": DATA["users"], "moved": True}
    assert request(mover.hosted, "GET", "/.json?format=export") == expected
    assert (mover.folder / "shop.rules.json").read_text() == RULES
    rules = mover.hosted.request("GET", "/.settings/rules.json", None, {**OWNER, **HOST}).body
    assert rules.decode() == RULES


def test_the_rules_of_the_moment_forbid_writing_only(mover: Mover) -> None:
    folder = mover.folder
    (folder / "shop.rules.json").write_text(RULES)
    (block,) = [block for block in BLOCKS if "without_writes" in block.text]
    mover.shell.run(block.text.partition("curl")[0])
    left = json.loads((folder / "readonly.rules.json").read_text())["rules"]
    assert left["users"] == {".read": True, ".indexOn": ["age"]}
    assert list(left["orders"]["$order"]) == [".read"]
    assert mover.shell.output == "readonly.rules.json: ok"


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        ({"a": ["x", None, {"b": [1]}], "n": None}, "the same"),
        ({"a": {"0": "x", "2": {"b": {"0": 1}}}}, "the same"),
        ({"a": {"0": "x", "2": {"b": {"0": 2}}}}, "different"),
        ({"a": ["x", {"b": [1]}]}, "different"),
    ],
)
def test_two_exports_are_the_same_however_they_write_lists(
    mover: Mover, other: Any, verdict: str
) -> None:
    check_blocks([block for block in BLOCKS if block.kind == "python same.py"], mover.run_kinds())
    (mover.folder / "one.json").write_text('{"a": ["x", null, {"b": [1]}]}')
    (mover.folder / "other.json").write_text(json.dumps(other))
    mover.shell.run("python3 same.py one.json other.json")
    assert mover.shell.output == verdict
