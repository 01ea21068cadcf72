"""`treedb console`: what it opens and prints, with which token, and who can read that token."""

from __future__ import annotations

import os
import pathlib
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator, Mapping
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.closing import Closing
from tests.command import COMMAND, PATIENCE_S, CommandResult, environment, result_of, start
from tests.daemon import Daemon
from tests.system import find_port, wait_until
from treedbd.cli import console
from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import parse_url
from treedbd.cli.parser import parse as parse_words
from treedbd.config.settings import load_settings
from treedbd.web.auth.jwt import (
    DEVELOPMENT_SECRET,
    derive_project_secret,
    parse,
    verify_by_secret,
)

SECRET = b"shop-secret-" * 4
BROWSER = """#!{python}
import os, pathlib, sys
from urllib.parse import urlsplit
(url,) = sys.argv[1:]
page = pathlib.Path(urlsplit(url).path)
seen = pathlib.Path({seen!r})
modes = f"{{page.stat().st_mode & 0o777:o}} {{page.parent.stat().st_mode & 0o777:o}}"
parent = pathlib.Path(f"/proc/{{os.getppid()}}/cmdline").read_bytes()
(seen / "command").write_bytes(parent + " ".join(sys.argv).encode())
(seen / "environment").write_bytes(repr(dict(os.environ)).encode())
(seen / "modes").write_text(modes)
(seen / "page").write_text(page.read_text())
(seen / "done").touch()
"""


@pytest.fixture(scope="module")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("development")) as running:
        yield running


def run(
    *words: str | pathlib.Path, token: str = "", variables: Mapping[str, str] | None = None
) -> CommandResult:
    """Run `treedb console` to its end."""
    return result_of(start(["console", *words], token, variables=variables))


def printed(*words: str | pathlib.Path, **more: Any) -> tuple[str, dict[str, str]]:
    """Return the URL that the command prints without its fragment, and what is in that."""
    url, _, fragment = run(*words, "--no-browser", **more).text.partition("#")
    return url, {name: value for name, (value,) in parse_qs(fragment).items()}


def claims_of(token: str, secret: bytes) -> dict[str, Any]:
    parsed = parse(token)
    assert verify_by_secret(parsed, [secret]) == secret
    return dict(parsed.claims)


def secret_of(daemon: Daemon, project: str) -> bytes:
    return derive_project_secret((daemon.data / DEVELOPMENT_SECRET).read_bytes().strip(), project)


class Opening(Closing):
    """A `treedb console` whose browser notes what it is given, in the folder `seen`."""

    def __init__(self, folder: pathlib.Path, *words: str | pathlib.Path) -> None:
        self.seen = folder / "seen"
        self.home = folder / "home"
        self.seen.mkdir()
        self.home.mkdir(exist_ok=True)
        browser = folder / "browser"
        browser.write_text(BROWSER.format(python=sys.executable, seen=str(self.seen)))
        browser.chmod(0o700)
        self.process = subprocess.Popen(
            [*COMMAND, "console", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment(), "BROWSER": str(browser), "HOME": str(self.home)},
            text=True,
        )
        wait_until(lambda: (self.seen / "done").exists() or self.process.poll() is not None)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        """End the command by a signal; return its status and outputs."""
        self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output, errors

    def url(self) -> str:
        """Return the URL to which the page leads."""
        page = (self.seen / "page").read_text()
        found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page)
        assert found is not None
        return unescape(found[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_browser_gets_a_page_that_no_other_user_can_read(
    development: Daemon, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
    with Opening(tmp_path, development.http, "--data", development.data) as opening:
        url = opening.url()
        assert (opening.seen / "modes").read_text() == "600 700"
        (folder,) = opening.home.iterdir()
        assert not folder.name.startswith(".")
        assert folder.stat().st_uid == os.getuid()
        assert opening.end(number) == (0, f"{development.http}/.console/\n", "")
        assert list(opening.home.iterdir()) == []
    assert url.startswith(f"{development.http}/.console/#token=")
    token = urlsplit(url).fragment.removeprefix("token=")
    for name in ("command", "environment"):
        assert token not in (opening.seen / name).read_text()
    headers = {"Authorization": f"Bearer {token}"}
    assert development.request("GET", "/.settings/rules.json", headers=headers).status == 200


def test_what_a_killed_command_has_left_is_removed_by_the_next(
    development: Daemon, tmp_path: pathlib.Path
) -> None:
    with Opening(tmp_path, development.http, "--data", development.data) as killed:
        killed.end(signal.SIGKILL)
        (left,) = killed.home.iterdir()
        recent, other = killed.home / "treedb-console-recent", killed.home / "treedb-console-other"
        recent.mkdir()
        other.mkdir()
        (other / "mine").write_text("kept")
        for folder in (left, other):
            os.utime(folder, (1_700_000_000, 1_700_000_000))
    again = tmp_path / "again"
    again.mkdir()
    (again / "home").symlink_to(killed.home)
    with Opening(again, development.http, "--data", development.data) as opening:
        assert not left.exists()
        assert (recent.exists(), other.exists()) == (True, True)
        opening.end(signal.SIGTERM)


def test_the_page_is_removed_after_a_while(
    development: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "KEPT_S", 0.0)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(pathlib.Path(urlsplit(url).path).read_text())
        return True

    monkeypatch.setattr(webbrowser, "open", open_page)
    console.open_browser("http://127.0.0.1/.console/#token=a&ns=b")
    assert 'href="http://127.0.0.1/.console/#token=a&amp;ns=b"' in opened[0]
    assert list(tmp_path.iterdir()) == []


def test_without_a_browser_it_fails_and_leaves_nothing(
    development: Daemon, tmp_path: pathlib.Path
) -> None:
    variables = {"BROWSER": "/bin/false", "HOME": str(tmp_path), "PATH": "", "DISPLAY": ""}
    result = run(development.http, "--data", development.data, variables=variables)
    assert result.status == 1
    assert result.output.decode() == f"{development.http}/.console/\n"
    assert result.errors.startswith("treedb: No browser could be started: use --no-browser")
    assert list(tmp_path.iterdir()) == []


def test_without_a_home_directory_the_page_is_in_another_folder(
    development: Daemon, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    folder = pathlib.Path(console._make_folder())
    assert folder.parent == tmp_path / "temporary"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_the_token_is_an_admins_for_half_an_hour(development: Daemon) -> None:
    before = int(time.time())
    url, given = printed(development.http, "--data", development.data)
    assert url == f"{development.http}/.console/"
    assert set(given) == {"token"}
    claims = claims_of(given["token"], secret_of(development, "demo"))
    assert set(claims) == {"uid", "admin", "auth_time", "session_s", "iat", "exp"}
    assert (claims["uid"], claims["admin"]) == ("console", True)
    assert before <= claims["auth_time"] <= int(time.time())
    assert (claims["exp"] - claims["iat"], claims["session_s"]) == (300, 1800)


def test_it_may_only_read_and_live_as_long_as_it_is_told(development: Daemon) -> None:
    words = (development.http, "--data", development.data)
    _, given = printed(*words, "--read-only", "--ttl", "5m")
    claims = claims_of(given["token"], secret_of(development, "demo"))
    assert claims["read_only"] is True
    assert (claims["exp"] - claims["iat"], claims["session_s"]) == (300, 300)
    assert (
        claims_of(printed(*words, "--ttl", "30s")[1]["token"], secret_of(development, "demo"))[
            "session_s"
        ]
        == 30
    )
    for ttl in ("13h", "never", "0s", "soon"):
        result = run(*words, "--ttl", ttl)
        assert (result.status, result.output) == (2, b"")
        assert "argument --ttl: must be" in result.errors


@pytest.mark.parametrize(
    ("host", "words", "project", "label"),
    [
        ("127.0.0.1", (), "demo", None),
        ("shop.localhost", (), "shop", None),
        ("eu--shop.localhost", (), "shop", None),
        ("localhost", ("--project", "shop"), "shop", "shop"),
        ("localhost", ("--project", "eu--shop"), "shop", "eu--shop"),
    ],
)
def test_it_is_for_the_project_that_the_url_addresses(
    development: Daemon, host: str, words: tuple[str, ...], project: str, label: str | None
) -> None:
    base = f"http://{host}:{development.port}"
    url, given = printed(base, *words, "--data", development.data)
    assert url == f"{base}/.console/"
    assert claims_of(given["token"], secret_of(development, project))["admin"] is True
    assert given.get("ns") == label


def test_the_default_is_the_variable_or_the_daemon_of_the_data_directory(
    development: Daemon,
) -> None:
    data = ("--data", development.data)
    assert printed(*data)[0] == f"{development.http}/.console/"
    variables = {"TREEDB_URL": f"http://localhost:{development.port}/", "TREEDB_PROJECT": "shop"}
    url, given = printed(*data, variables=variables)
    assert url == f"http://localhost:{development.port}/.console/"
    assert given["ns"] == "shop"
    url, _ = printed(development.https.replace("127.0.0.1", "localhost"), *data)
    assert url.startswith("https://localhost:")


def test_without_a_daemon_it_says_what_to_do(tmp_path: pathlib.Path) -> None:
    result = run("--data", tmp_path / "nothing")
    assert (result.status, result.output) == (2, b"")
    assert "argument URL: no daemon serves" in result.errors
    port = find_port()
    assert run(f"http://localhost:{port}").error == f"No server listens at http://localhost:{port}."


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("configured")
    (folder / "shop.secret").write_bytes(SECRET)
    config = (
        f'console_listen = ["tcp:{find_port()}:interface=127.0.0.1"]\ndefault_project = "shop"\n'
        f'data = "data"\ndomains = ["db.example.com"]\n'
        '[projects.shop]\nsecret_files = ["shop.secret"]\nmax_token_life_s = 600\n'
    )
    with Daemon(folder, config=config) as running:
        yield running


def config_of(daemon: Daemon) -> tuple[str, pathlib.Path]:
    return "--config", daemon.folder / "treedb.toml"


def test_a_configuration_signs_and_its_console_is_found(configured: Daemon) -> None:
    url, given = printed(*config_of(configured))
    assert url == f"{configured.urls[-1]}/.console/"
    claims = claims_of(given["token"], SECRET)
    assert claims["session_s"] == 600  # which the project allows
    token = {"Authorization": f"Bearer {given['token']}"}
    assert configured.request("GET", "/.settings/rules.json", headers=token).status == 200


def test_an_endpoint_without_a_console_is_an_error(configured: Daemon) -> None:
    error = run(configured.http, *config_of(configured)).error
    assert error.startswith(f"{configured.http} serves no console: development mode does, and ")


def test_another_project_must_be_configured(configured: Daemon) -> None:
    words = (configured.urls[-1], *config_of(configured), "--project", "other")
    assert run(*words).error == "There is no project other; the configured projects: shop."


def test_a_token_that_exists_is_used_if_a_file_names_it(
    configured: Daemon, tmp_path: pathlib.Path
) -> None:
    url = configured.urls[-1]
    (tmp_path / "token").write_text("a.b.c\n")
    words = (url, "--token-file", tmp_path / "token")
    assert printed(*words)[1] == {"token": "a.b.c"}
    assert printed(*words, *config_of(configured))[1] == {"token": "a.b.c"}
    result = run(*words, "--read-only")
    assert (result.status, result.output) == (2, b"")


def test_without_a_secret_the_token_of_the_variable_is_used(
    configured: Daemon, tmp_path: pathlib.Path
) -> None:
    words = (configured.urls[-1], "--data", tmp_path)
    assert printed(*words, token="x.y.z")[1] == {"token": "x.y.z"}
    assert run(*words).error.startswith("There is no secret to sign a token with: name the ")
    assert list(tmp_path.iterdir()) == []  # no secret was made


def test_a_token_of_development_mode_is_not_sent_to_another_machine() -> None:
    settings = load_settings(None, {}, pathlib.Path())
    arguments = parse_words(["console", "https://db.example.com"])
    with pytest.raises(CommandFailed, match="is not this machine: name its configuration"):
        console._check_receiver(arguments, parse_url("https://db.example.com"), settings)
    console._check_receiver(arguments, parse_url("https://eu.localhost:8443"), settings)


def test_a_browser_cannot_open_a_unix_socket() -> None:
    assert run("unix:/run/treedb.sock:/").error.startswith("A browser cannot open a Unix socket")


@pytest.mark.parametrize("url", ["http://localhost:1/#x", "http://localhost:1/?auth=x"])
def test_a_url_with_a_token_is_refused(url: str) -> None:
    assert run(url).status == 2
