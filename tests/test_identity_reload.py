"""Credentials of a running daemon: files with which it does not start, and reloads by SIGHUP.

Which files are invalid is tested in `config/test_credentials`, `web/auth/test_jwt` and
`rules/test_document`.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from tests.access import (
    AUTH_REVOKED,
    CANCEL,
    RULES,
    Tree,
    at,
    put_event,
    reload,
    secret_of,
    statuses_by_method,
    token,
    trusting,
    write_secret,
)
from tests.daemon import Daemon
from tests.oidc import AUDIENCE, OidcProvider, authority_pem

OPEN = json.dumps({"rules": {".read": "auth != null", ".write": "auth != null"}})
CLOSED = json.dumps({"rules": {}})
SHOP = """
[projects.shop]
secret_files = ["new.secret", "old.secret"]
rules_file = "rules.json"
dialect = "standard"
"""


@attrs.frozen
class ReloadedDaemon:
    """A daemon whose project `shop` has the secrets `new` and `old`, and two providers."""

    folder: pathlib.Path
    daemon: Daemon
    one: OidcProvider
    two: OidcProvider
    config: str

    def edit(self, old: str, new: str) -> None:
        """Replace a part of the configuration."""
        file = self.folder / "treedb.toml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def restore(self) -> None:
        """Write all files as they were at the start, and reload them."""
        for name in ("new", "old", "other"):
            write_secret(self.folder, name)
        (self.folder / "rules.json").write_text(OPEN)
        (self.folder / "treedb.toml").write_text(self.config)
        reload(self.daemon)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReloadedDaemon]:
    folder = tmp_path_factory.mktemp("reload")
    (folder / "ca.pem").write_bytes(authority_pem())
    (folder / "rules.json").write_text(OPEN)
    write_secret(folder, "new")
    write_secret(folder, "old")
    with OidcProvider() as one, OidcProvider() as two:
        config = SHOP + provider_table(one) + provider_table(two, "two:")
        with trusting(folder, config, ["other"]) as daemon:
            text = (folder / "treedb.toml").read_text()
            yield ReloadedDaemon(folder, daemon, one, two, text)


@pytest.fixture
def world(started: ReloadedDaemon) -> Iterator[ReloadedDaemon]:
    yield started
    started.restore()


@pytest.fixture
def shop(world: ReloadedDaemon) -> Iterator[Tree]:
    with Tree(world.daemon, "shop") as tree:
        yield tree


def provider_table(provider: OidcProvider, uid_prefix: str = "") -> str:
    return (
        f'[[projects.shop.providers]]\nissuer = "{provider.issuer}"\n'
        f'audience = "{AUDIENCE}"\nca_file = "ca.pem"\nuid_prefix = "{uid_prefix}"\n'
    )


def signed_by(name: str, **claims: Any) -> str:
    return token("shop", secret_of(name), **{"uid": "alice", **claims})


# The start.


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ('[projects.shop]\nsecret_files = ["weak.secret"]', ["weak.secret", "31 bytes", "32"]),
        (
            '[projects.a]\nsecret_files = ["a.secret"]\n[projects.b]\nsecret_files = ["a.secret"]',
            ["a.secret", "a and b share the secret"],
        ),
        ('[projects.shop]\nrules_file = "bad.json"', ["bad.json:2:", "assignments"]),
    ],
)
def test_an_invalid_file_prevents_the_start_with_one_sentence(
    tmp_path: pathlib.Path, config: str, words: list[str]
) -> None:
    (tmp_path / "weak.secret").write_text("x" * 31 + "\n")
    write_secret(tmp_path, "a")
    (tmp_path / "bad.json").write_text('{"rules": {\n".read": "auth.uid = 1"}}')
    done = Daemon(tmp_path, config=config).run()
    assert done.returncode == 1
    assert "treedb ready" not in done.stdout
    assert done.stderr.startswith("treedb: treedb.toml: projects")
    assert done.stderr.endswith(".\n")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
    assert "x" * 31 not in done.stderr + done.stdout
    assert secret_of("a").strip("- ") not in done.stderr + done.stdout


def test_emulator_mode_does_not_listen_for_other_machines(tmp_path: pathlib.Path) -> None:
    listen = ["tcp:0:interface=127.0.0.1", "tcp:0:interface=0.0.0.0"]
    done = Daemon(tmp_path, config="emulator = true", listen=listen).run()
    assert done.returncode == 1
    assert "emulator" in done.stderr


# Secrets.


def test_a_withdrawn_secret_ends_its_streams_and_verifies_nothing(
    world: ReloadedDaemon, shop: Tree
) -> None:
    old, new = signed_by("old"), signed_by("new")
    with (
        shop.listen(at("/a.json", old)) as ended,
        shop.listen(at("/a.json", new)) as kept,
        shop.listen(at("/a.json", signed_by("old", admin=True))) as ended_too,
    ):
        for stream in (ended, kept, ended_too):
            stream.expect(put_event("/", None))
        write_secret(world.folder, "old", secret_of("newest"))
        reload(world.daemon)
        ended.expect_end(AUTH_REVOKED)
        ended_too.expect_end(AUTH_REVOKED)
        assert set(statuses_by_method(shop, "/b.json", old).values()) == {401}
        assert shop.status("PUT", at("/a.json", new), "1") == 200
        kept.expect(put_event("/", 1))
    assert shop.status("DELETE", at("/a.json", signed_by("newest"))) == 200


def test_a_secret_is_withdrawn_by_removing_its_file(world: ReloadedDaemon, shop: Tree) -> None:
    assert shop.status("GET", at("/a.json", signed_by("old"))) == 200
    (world.folder / "old.secret").unlink()
    assert f"{world.folder / 'old.secret'} has been removed" in reload(world.daemon)
    assert shop.status("GET", at("/a.json", signed_by("old"))) == 401
    assert shop.status("GET", at("/a.json", signed_by("new"))) == 200


def test_a_secret_is_withdrawn_by_removing_it_from_the_configuration(
    world: ReloadedDaemon, shop: Tree
) -> None:
    with shop.listen(at("/a.json", signed_by("old"))) as stream:
        stream.expect(put_event("/", None))
        world.edit(', "old.secret"', "")
        reload(world.daemon)
        stream.expect_end(AUTH_REVOKED)
    assert shop.status("GET", at("/a.json", signed_by("old"))) == 401
    assert shop.status("GET", at("/a.json", signed_by("new"))) == 200


def test_a_project_that_is_no_longer_configured_trusts_no_token(world: ReloadedDaemon) -> None:
    with Tree(world.daemon, "other") as tree:
        assert tree.status("GET", at("/a.json", tree.admin)) == 200
        world.edit(world.config[world.config.index("[projects.other]") :], "")
        reload(world.daemon)
        assert tree.status("GET", at("/a.json", tree.admin)) == 401


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("new.secret", "short", ["new.secret", "at least 32"]),
        ("new.secret", secret_of("other"), ["other.secret", "share the secret", "shop", "other"]),
        ("rules.json", '{"rules": 1}', ["rules.json:1:", "Expected"]),
        ("treedb.toml", "nonsense = 1", ["treedb.toml: nonsense", "not a key"]),
    ],
)
def test_one_bad_file_changes_nothing_and_is_logged(
    world: ReloadedDaemon, shop: Tree, file: str, content: str, words: list[str]
) -> None:
    with shop.listen(at("/a.json", signed_by("old"))) as stream:
        stream.expect(put_event("/", None))
        (world.folder / file).write_text(content)
        log = reload(world.daemon)
        for word in [*words, "before stay", "failed, for the reasons above."]:
            assert word in log
        assert "is done" not in log
        for name in ("new", "old"):
            assert shop.status("PUT", at("/a.json", signed_by(name)), f'"{name}"') == 200
            stream.expect(put_event("/", name))
    assert shop.status("DELETE", at("/a.json", signed_by("new"))) == 200
    assert "Traceback" not in log


def test_while_one_file_is_bad_the_others_take_no_effect(world: ReloadedDaemon, shop: Tree) -> None:
    (world.folder / "rules.json").write_text(CLOSED)
    write_secret(world.folder, "old", secret_of("newest"))
    (world.folder / "new.secret").write_text("short")
    reload(world.daemon)
    assert shop.status("GET", at("/a.json", signed_by("old"))) == 200
    assert shop.status("GET", at("/a.json", signed_by("newest"))) == 401


# Providers.


def test_a_withdrawn_provider_ends_its_streams_and_verifies_nothing(
    world: ReloadedDaemon, shop: Tree
) -> None:
    one, two = world.one, world.two
    with (
        shop.listen(at("/a.json", one.token())) as ended,
        shop.listen(at("/a.json", two.token())) as kept,
        shop.listen(at("/a.json", signed_by("new"))) as kept_too,
    ):
        for stream in (ended, kept, kept_too):
            stream.expect(put_event("/", None))
        world.edit(provider_table(one), "")
        reload(world.daemon)
        ended.expect_end(AUTH_REVOKED)
        assert set(statuses_by_method(shop, "/b.json", one.token()).values()) == {401}
        assert b"unknown issuer" in shop.request("GET", at("/b.json", one.token())).body
        assert shop.status("PUT", at("/a.json", two.token()), "1") == 200
        for stream in (kept, kept_too):
            stream.expect(put_event("/", 1))
    world.restore()
    assert shop.status("DELETE", at("/a.json", one.token())) == 200


# Rules files.


def test_a_rules_file_is_reloaded_and_takes_effect_at_once(
    world: ReloadedDaemon, shop: Tree
) -> None:
    bearer = signed_by("new")
    with shop.listen(at("/a.json", bearer)) as stream:
        stream.expect(put_event("/", None))
        (world.folder / "rules.json").write_text(CLOSED)
        reload(world.daemon)
        stream.expect_end(CANCEL)
    assert set(statuses_by_method(shop, "/a.json", bearer).values()) == {403}
    (world.folder / "rules.json").write_text(OPEN)
    reload(world.daemon)
    assert set(statuses_by_method(shop, "/a.json", bearer).values()) == {200}
    assert shop.request("GET", at(RULES, signed_by("new", admin=True))).body == OPEN.encode()


def test_a_project_whose_rules_are_managed_by_a_file_accepts_no_others(shop: Tree) -> None:
    target = at(RULES, signed_by("new", admin=True))
    assert shop.request("GET", target).body == OPEN.encode()
    for document in (CLOSED, '{"rules":'):
        response = shop.request("PUT", target, document)
        assert (response.status, response.json["error"]) == (409, "conflict")
    assert shop.status("PUT", f"{target}&dryRun=true", CLOSED) == 200
    assert shop.status("PUT", f"{target}&dryRun=true", '{"rules":') == 400
    assert shop.status("PUT", at(RULES, signed_by("new")), CLOSED) == 403
    assert shop.status("PUT", RULES, CLOSED) == 401
    assert shop.status("GET", at("/a.json", signed_by("new"))) == 200


def test_a_reload_of_the_same_files_changes_nothing(world: ReloadedDaemon, shop: Tree) -> None:
    with shop.listen(at("/a.json", signed_by("old"))) as stream:
        stream.expect(put_event("/", None))
        for number in range(3):
            assert "rules files is done." in reload(world.daemon)
            assert shop.status("PUT", at("/a.json", signed_by("new")), str(number)) == 200
            stream.expect(put_event("/", number))
    assert shop.status("DELETE", at("/a.json", signed_by("new"))) == 200


def test_a_rules_file_can_be_added_at_a_reload(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rules.json").write_text(OPEN)
    with trusting(tmp_path, "", ["other"]) as daemon, Tree(daemon, "other") as tree:
        tree.put_rules({"a": {".read": True}})
        assert tree.status("GET", "/a.json") == 200
        config = tmp_path / "treedb.toml"
        config.write_text(config.read_text() + 'rules_file = "rules.json"\n')
        reload(daemon)
        assert tree.status("GET", "/a.json") == 403
        assert tree.request("GET", at(RULES, tree.admin)).body == OPEN.encode()
        assert tree.status("PUT", at(RULES, tree.admin), CLOSED) == 409


def test_a_rules_file_can_be_removed_at_a_reload(tmp_path: pathlib.Path) -> None:
    (tmp_path / "rules.json").write_text(OPEN)
    managed = 'rules_file = "rules.json"\n'
    config = tmp_path / "treedb.toml"
    with trusting(tmp_path, "", ["other"]) as daemon, Tree(daemon, "other") as tree:
        unmanaged = config.read_text()
        config.write_text(unmanaged + managed)
        reload(daemon)
        assert tree.status("PUT", at(RULES, tree.admin), CLOSED) == 409
        config.write_text(unmanaged)
        assert "The rules of other are no longer managed by a file" in reload(daemon)
        assert tree.request("GET", at(RULES, tree.admin)).body == OPEN.encode()
        assert tree.status("PUT", at(RULES, tree.admin), CLOSED) == 200
        assert tree.request("GET", at(RULES, tree.admin)).body == CLOSED.encode()
