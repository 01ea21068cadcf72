"""Whom the projects trust: every file is good before any is put in force."""

from __future__ import annotations

import os
import pathlib
import stat
import time
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, eventAsText

from tests.access import secret_of, token, write_secret
from tests.web.identity.test_tokens import PEM
from treedbd.config import Project, Settings, TrustedProvider
from treedbd.database.catalog import Catalog, ProjectSpec
from treedbd.database.platform import Platform
from treedbd.keys import Place
from treedbd.rules.ruleset import DENY
from treedbd.trust import (
    DEVELOPMENT_SECRET,
    MOST_GUESTS,
    Trust,
    Untrustworthy,
    development_secret_of,
    keep_development_secret,
    read_project_secret,
)
from treedbd.web.identity.identity import Identity
from treedbd.web.identity.tokens import BadToken

ISSUER = "https://127.0.0.1:1"


class World:
    """The trust of some projects, whose files lie in one folder."""

    def __init__(self, folder: pathlib.Path, *, development: bool = False, **projects: Project):
        self.folder = folder
        self.projects = projects
        self.catalog = Catalog(
            folder,
            "memory",
            {
                name: ProjectSpec(name, is_governed=project.rules_file is not None)
                for name, project in projects.items()
            },
            any_project=development,
            first_rules=DENY,
            platform=Platform(Clock(), os.urandom, lambda _: Deferred()),
            retain_events=1,
        )
        settings = Settings(
            data=folder / "data",
            projects=projects,
            development=development,
            place=Place("treedb.toml", folder),
        )
        self.trust = Trust(settings, self.catalog, MemoryReactorClock())

    def takes(self, project: str, bearer: str) -> bool:
        try:
            verifier = self.trust.verifier(project)
            assert verifier is not None
            found = verifier.verify(bearer, time.time())
        except BadToken:
            return False
        assert isinstance(found, Identity)
        return True

    def rules(self, project: str) -> str:
        return self.catalog.rulebook(project).rules.text


def with_secrets(folder: pathlib.Path, *names: str, **more: Any) -> Project:
    for name in names:
        write_secret(folder, name)
    return Project(secret_files=tuple(folder / f"{name}.secret" for name in names), **more)


def refusal(world: World) -> str:
    with pytest.raises(Untrustworthy) as found:
        world.trust.read()
    sentence = str(found.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def signed(name: str) -> str:
    return token("shop", secret_of(name), uid="alice")


# Secrets.


def test_nobody_is_trusted_before_the_files_are_read(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, shop=with_secrets(tmp_path, "a"))
    assert not world.takes("shop", signed("a"))
    world.trust.read()
    assert world.takes("shop", signed("a"))


def test_any_secret_of_a_project_vouches_and_no_other(tmp_path: pathlib.Path) -> None:
    world = World(
        tmp_path, shop=with_secrets(tmp_path, "a", "b"), other=with_secrets(tmp_path, "c")
    )
    world.trust.read()
    assert [world.takes("shop", signed(name)) for name in "abc"] == [True, True, False]
    assert [world.takes("other", signed(name)) for name in "abc"] == [False, False, True]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["No such file"]),
        (b"", ["0 bytes", "32"]),
        (b"x" * 31, ["31 bytes"]),
        (b"x" * 31 + b"\n", ["31 bytes"]),
        (b"x" * 31 + b"\r\n", ["31 bytes"]),
        (b"x" * 70_000, ["more than"]),
        (PEM, ["random bytes"]),
        ("a directory", ["Is a directory"]),
    ],
)
def test_a_secret_that_is_no_good_is_named(
    tmp_path: pathlib.Path, content: bytes | str | None, words: list[str]
) -> None:
    file = tmp_path / "bad.secret"
    if isinstance(content, str):
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    world = World(
        tmp_path,
        good=with_secrets(tmp_path, "a"),
        shop=Project(secret_files=(file,)),
    )
    sentence = refusal(world)
    assert sentence.startswith(f"treedb.toml: projects.shop.secret_files names {file} (the secret ")
    assert "): let it hold 32 random bytes or more" in sentence
    for word in words:
        assert word in sentence
    assert not world.takes("good", signed("a"))


@pytest.mark.parametrize("copy", ["a", "b"])
def test_two_projects_with_one_secret_are_refused(tmp_path: pathlib.Path, copy: str) -> None:
    one = with_secrets(tmp_path, "c", "a")
    write_secret(tmp_path, "b", secret_of("a"))
    other = Project(secret_files=(tmp_path / f"{copy}.secret",))
    sentence = refusal(World(tmp_path, one=one, other=other))
    for word in (f"{tmp_path / copy}.secret", "projects one and other", "each"):
        assert word in sentence
    assert secret_of("a").strip("- ") not in sentence


def test_one_project_may_name_a_secret_twice(tmp_path: pathlib.Path) -> None:
    write_secret(tmp_path, "b", secret_of("a"))
    shop = with_secrets(tmp_path, "a", "a")
    twice = attrs.evolve(shop, secret_files=(*shop.secret_files, tmp_path / "b.secret"))
    world = World(tmp_path, shop=twice)
    world.trust.read()
    assert world.takes("shop", signed("a"))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_secret_that_others_may_read_is_warned_of(
    tmp_path: pathlib.Path, mode: int, warned: bool
) -> None:
    world = World(tmp_path, shop=with_secrets(tmp_path, "a"))
    (tmp_path / "a.secret").chmod(mode)
    with capturedLogs() as logged:
        world.trust.read()
    said = [eventAsText(event) for event in logged]
    assert any(f"Others may read {tmp_path / 'a.secret'}" in line for line in said) is warned
    assert world.takes("shop", signed("a"))


# Reading again.


def test_what_is_bad_at_a_later_reading_leaves_everything_as_it_is(
    tmp_path: pathlib.Path,
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"rules": {}}')
    world = World(
        tmp_path,
        first=with_secrets(tmp_path, "a", rules_file=rules),
        second=with_secrets(tmp_path, "b"),
    )
    world.trust.read()
    write_secret(tmp_path, "a", secret_of("new"))
    rules.write_text('{"rules": {".read": true}}')
    (tmp_path / "b.secret").write_text("short")
    refusal(world)
    assert world.takes("first", signed("a"))
    assert world.takes("second", signed("b"))
    assert world.rules("first") == '{"rules": {}}'
    write_secret(tmp_path, "b")
    world.trust.read()
    assert not world.takes("first", signed("a"))
    assert world.takes("first", signed("new"))
    assert world.rules("first") == '{"rules": {".read": true}}'


def test_a_secret_whose_file_is_gone_is_withdrawn(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, shop=with_secrets(tmp_path, "a", "b"))
    world.trust.read()
    (tmp_path / "a.secret").unlink()
    with capturedLogs() as logged:
        world.trust.read()
    assert [world.takes("shop", signed(name)) for name in "ab"] == [False, True]
    assert [str(tmp_path / "a.secret")] == [event["file"] for event in logged]


def test_what_is_configured_no_more_is_trusted_no_more(tmp_path: pathlib.Path) -> None:
    shop = with_secrets(tmp_path, "a", "b")
    other = with_secrets(tmp_path, "c")
    world = World(tmp_path, shop=shop, other=other)
    world.trust.read()
    world.trust.read({"shop": attrs.evolve(shop, secret_files=shop.secret_files[1:])})
    assert [world.takes("shop", signed(name)) for name in "ab"] == [False, True]
    assert not world.takes("other", signed("c"))
    world.trust.read({"shop": shop, "other": other, "new": with_secrets(tmp_path, "d")})
    assert world.takes("shop", signed("a"))
    assert world.takes("other", signed("c"))
    assert "new" not in world.trust.verifiers


def test_once_closed_nobody_is_trusted(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, shop=with_secrets(tmp_path, "a"))
    world.trust.read()
    world.trust.close()
    assert not world.takes("shop", signed("a"))


# Rules files.


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["No such file"]),
        (b"", [":1:1: "]),
        (b'{"rules": {\n".read": "auth.uid = 1"}}', [":2:", "assignments"]),
        (b"\xff", [":1:1: ", "UTF-8"]),
    ],
)
def test_a_rules_file_with_a_fault_is_named_with_its_place(
    tmp_path: pathlib.Path, content: bytes | None, words: list[str]
) -> None:
    file = tmp_path / "rules.json"
    if content is not None:
        file.write_bytes(content)
    world = World(tmp_path, shop=Project(rules_file=file))
    sentence = refusal(world)
    assert sentence.startswith("treedb.toml: projects.shop.rules_file ")
    assert sentence.endswith((": correct it there.", ", or name another file."))
    for word in [str(file), *words]:
        assert word in sentence
    assert world.rules("shop") == DENY.text


def test_a_rules_file_governs_its_project(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {".read": true}}')
    world = World(tmp_path, shop=Project(rules_file=file), other=Project())
    world.trust.read()
    assert world.rules("shop") == file.read_text()
    assert world.catalog.rulebook("shop").is_governed
    assert not world.catalog.rulebook("other").is_governed


def test_a_project_whose_rules_file_is_configured_no_more_keeps_the_rules_and_takes_others(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {".read": true}}')
    world = World(tmp_path, shop=Project(rules_file=file), gone=Project(rules_file=file))
    world.trust.read()
    with capturedLogs() as logged:
        world.trust.read({"shop": Project()})
        world.trust.read({"shop": Project()})
    assert [event["project"] for event in logged] == ["shop"]
    assert world.rules("shop") == file.read_text()
    assert not world.catalog.rulebook("shop").is_governed
    assert world.catalog.rulebook("gone").is_governed


# Providers.


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (TrustedProvider("http://a.example", "shop"), ["http://a.example", "https"]),
        (TrustedProvider(ISSUER, "shop", "http://a.example/keys"), [ISSUER, "https"]),
        (
            TrustedProvider(ISSUER, "shop", "", pathlib.Path("/none.pem")),
            ["/none.pem, the ca_file of the provider", ISSUER, "No such file"],
        ),
        (
            TrustedProvider(ISSUER, "shop", "", pathlib.Path("/dev/null")),
            ["/dev/null, the ca_file of the provider", ISSUER, "PEM"],
        ),
    ],
)
def test_a_provider_that_is_no_good_is_named(
    tmp_path: pathlib.Path, provider: TrustedProvider, words: list[str]
) -> None:
    sentence = refusal(World(tmp_path, shop=Project(providers=(provider,))))
    assert sentence.startswith("treedb.toml: projects.shop.providers names ")
    for word in words:
        assert word in sentence


# Development mode.


def test_two_projects_that_trust_the_same_tokens_of_a_provider_are_refused(
    tmp_path: pathlib.Path,
) -> None:
    provider = TrustedProvider(issuer=ISSUER, audience="shop")
    other = attrs.evolve(provider, audience="blog")
    shop = Project(providers=(provider,))
    World(tmp_path, shop=shop, blog=Project(providers=(other,))).trust.read()
    world = World(tmp_path, shop=shop, blog=Project(providers=(other, provider)))
    assert "shop and blog trust the same tokens" in refusal(world)


def test_development_mode_makes_a_secret_of_its_own_and_keeps_it(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, development=True, demo=Project(None))
    world.trust.read()
    file = tmp_path / "data" / DEVELOPMENT_SECRET
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_bytes()
    assert len(secret) >= 32
    assert keep_development_secret(tmp_path / "data") == secret
    place = Place("treedb.toml", tmp_path, "projects.demo")
    assert read_project_secret(file, place) == secret


def test_in_development_mode_each_project_takes_its_own_tokens_and_no_others(
    tmp_path: pathlib.Path,
) -> None:
    world = World(tmp_path, development=True, demo=Project(None))
    world.trust.read()
    secret = keep_development_secret(tmp_path / "data")
    names = ("demo", *(f"p{number}" for number in range(MOST_GUESTS + 1)))
    bearers = {
        name: token(name, development_secret_of(secret, name).decode(), uid="a") for name in names
    }
    for name, bearer in bearers.items():
        assert world.takes(name, bearer)
    assert world.takes("p0", bearers["p0"])
    assert not world.takes("p0", bearers["p1"])
    assert not world.takes("demo", bearers["p0"])
    assert not world.takes("p0", bearers["demo"])
    assert not world.takes("demo", token("demo", secret.decode(), uid="a"))


def test_a_development_secret_that_others_could_read_is_closed_to_them_and_told(
    tmp_path: pathlib.Path,
) -> None:
    keep_development_secret(tmp_path / "data")
    file = tmp_path / "data" / DEVELOPMENT_SECRET
    file.chmod(0o644)
    world = World(tmp_path, development=True, demo=Project(None))
    with capturedLogs() as logged:
        world.trust.read()
        world.trust.read()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (said,) = map(eventAsText, logged)
    assert f"Others could read {file}" in said


def test_a_development_secret_that_is_no_good_says_what_to_do(tmp_path: pathlib.Path) -> None:
    file = tmp_path / DEVELOPMENT_SECRET
    file.write_text("short")
    with pytest.raises(Untrustworthy, match=rf"^{file} is no good \(.*\): remove it, "):
        keep_development_secret(tmp_path)


def test_elsewhere_there_is_no_such_secret(tmp_path: pathlib.Path) -> None:
    world = World(tmp_path, shop=Project())
    world.trust.read()
    assert world.trust.verifier("new") is None
    assert not (tmp_path / "data").exists()


def test_a_development_secret_that_cannot_be_made_is_said(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Untrustworthy, match="cannot be made"):
        keep_development_secret(tmp_path / "file" / "data")
