"""Addresses of the command line: paths below a base, the default project, Unix sockets."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
import pytest_twisted

from tests.command import error_of, output_of, run_command, treedb
from tests.daemon import Daemon
from treedbd.cli.options import InvalidUrl, parse_url


@pytest.fixture(autouse=True)
def empty(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder without data, and without the variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREEDB_URL", raising=False)
    monkeypatch.delenv("TREEDB_PROJECT", raising=False)


@pytest.fixture
def at_socket(tmp_path: pathlib.Path) -> Iterator[Daemon]:
    """A daemon that listens on a Unix socket alone, `<folder>/s.sock`."""
    with Daemon(tmp_path, listen=["unix:s.sock"]) as daemon:
        yield daemon


@pytest_twisted.ensureDeferred
async def test_a_path_is_below_the_variable(
    shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREEDB_URL", f"{shared_daemon.http}/base.json?ns=address")
    assert await output_of("set", "/users/ada", "1") == "1"
    assert await output_of("get", "users") == '{"ada":1}'
    assert await output_of("get", 'users.json?orderBy="$key"') == '{"ada":1}'
    url = f"{shared_daemon.http}/base/users?ns=address"
    assert await output_of("get", url) == '{"ada":1}'


@pytest_twisted.ensureDeferred
async def test_without_the_variable_a_path_is_that_of_the_running_daemon(
    shared_daemon: Daemon,
) -> None:
    path = "bare?ns=address"
    assert await output_of("set", path, "1", "--data", shared_daemon.data) == "1"
    assert await output_of("get", f"{shared_daemon.http}/bare?ns=address") == "1"


@pytest_twisted.ensureDeferred
async def test_a_path_without_a_base_is_a_usage_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "treedb-data").mkdir()
    (tmp_path / "treedb-data" / "treedb.lock").write_text("1\nhttp://127.0.0.1:1\n")
    done = await treedb("get", "users")
    assert done.status == 2
    assert "no daemon serves" in done.errors
    assert "set TREEDB_URL" in done.errors
    monkeypatch.setenv("TREEDB_URL", "nonsense")
    done = await treedb("get", "users")
    assert done.status == 2
    assert "the variable TREEDB_URL must begin with https://" in done.errors


@pytest_twisted.ensureDeferred
async def test_the_default_project_is_used_where_the_url_names_none(
    shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{shared_daemon.http}/p"
    assert await output_of("set", url, "1", "--project", "eu--address") == "1"
    monkeypatch.setenv("TREEDB_PROJECT", "eu--address")
    assert await output_of("get", url) == "1"
    assert await output_of("get", f"{url}?ns=address") == "null"
    named = shared_daemon.http.replace("127.0.0.1", "address.localhost")
    assert await output_of("get", f"{named}/p") == "null"
    assert await output_of("get", url, "--project", "address") == "null"
    data = ("--data", shared_daemon.data)
    assert (await output_of("token", "--uid", "a", *data)).count(".") == 2
    monkeypatch.setenv("TREEDB_PROJECT", "/")
    assert "TREEDB_PROJECT must hold a project" in (await treedb("get", url)).errors
    assert (await treedb("get", url, "--project", "a/b")).status == 2


def test_a_daemon_at_a_unix_socket_is_reached(at_socket: Daemon, tmp_path: pathlib.Path) -> None:
    url = f"unix:{tmp_path}/s.sock"
    assert run_command("set", f"{url}:/users/ada b", "1").text == "1"
    assert run_command("get", f"{url}:/users.json?shallow=true").text == '{"ada b":true}'
    assert run_command("get", "users", "--data", at_socket.data).text == '{"ada b":1}'
    file = tmp_path / "out.json"
    assert run_command("export", f"{url}:/users", file, "--quiet").status == 0
    assert file.read_text().strip() == '{"ada b":1}'
    assert run_command("import", file, f"{url}:/copy", "--quiet").status == 0
    assert run_command("get", url).text == '{"copy":{"ada b":1},"users":{"ada b":1}}'


@pytest_twisted.ensureDeferred
async def test_a_socket_without_a_daemon_is_one_sentence() -> None:
    assert await error_of("get", "unix:none.sock:/a") == "No server listens at unix:none.sock."


@pytest.mark.parametrize("typed", ["unix:", "unix://h/s", "unix::/a", "unix:/s:a", "unix:/s:/a#b"])
def test_an_invalid_address_of_a_socket_is_refused(typed: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(typed)


def test_the_file_of_a_socket_may_have_any_name() -> None:
    url = parse_url("unix:/run/a b%3Ac.sock:/x y?ns=p").to_json()
    assert (url.socket, url.target) == ("/run/a b:c.sock", "/x%20y.json?ns=p")
    assert str(url) == "unix:/run/a%20b%3Ac.sock:/x%20y.json?ns=p"
    assert parse_url("unix:s").to_json().target == "/.json"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["ls"], "found"),
        (["tree"], "└── found: 1"),
        (["top", "--once"], " unnamed-root"),
    ],
)
@pytest_twisted.ensureDeferred
async def test_the_root_need_not_be_named(
    shared_daemon: Daemon, words: list[str], shown: str
) -> None:
    given = ("--data", shared_daemon.data, "--project", "unnamed-root")
    await output_of("set", "/found", "1", *given)
    assert shown in await output_of(*words, *given, token="owner")
