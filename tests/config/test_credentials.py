"""The credentials of the projects: all files are read before any takes effect."""

from __future__ import annotations

import os
import pathlib
import stat
import time
from typing import Any

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, eventAsText

from tests.access import secret_of, token, write_secret
from tests.database.test_rules_work import LARGE, STEP_S
from tests.database.world import TurnClock
from tests.web.auth.test_jwt import PEM
from treedbd.config.credentials import MAX_UNCONFIGURED, Credentials
from treedbd.config.settings import ProjectSettings, ProviderSettings, Settings
from treedbd.config.values import SettingLocation
from treedbd.database.catalog import Catalog
from treedbd.database.requests import ProjectSpec
from treedbd.database.runtime import Runtime
from treedbd.rules.ruleset import DENY
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.jwt import (
    DEVELOPMENT_SECRET,
    BadCredentials,
    BadToken,
    derive_project_secret,
    ensure_development_secret,
    read_project_secret,
)

ISSUER = "https://127.0.0.1:1"


class ProjectCredentials:
    """The credentials of some projects, whose files are in one folder."""

    def __init__(
        self, folder: pathlib.Path, *, development: bool = False, **projects: ProjectSettings
    ) -> None:
        self.folder = folder
        self.projects = projects
        self.clock = TurnClock(STEP_S)
        self.catalog = Catalog(
            folder,
            "memory",
            {
                name: ProjectSpec(name, is_file_managed=project.rules_file is not None)
                for name, project in projects.items()
            },
            any_project=development,
            first_rules=DENY,
            runtime=Runtime(self.clock, os.urandom, lambda _: Deferred()),
            retain_events=1,
        )
        settings = Settings(
            data=folder / "data",
            projects=projects,
            development=development,
            location=SettingLocation("treedb.toml", folder),
        )
        self.credentials = Credentials(settings, self.catalog, MemoryReactorClock())

    def accepts(self, project: str, token: str) -> bool:
        """Return whether a project accepts a token."""
        try:
            verifier = self.credentials.verifier(project)
            assert verifier is not None
            found = verifier.verify(token, time.time())
        except BadToken:
            return False
        assert isinstance(found, Identity)
        return True

    def rules(self, project: str) -> str:
        """Return the text of the rules in force in a project."""
        return self.catalog.rules(project).current.text


def with_secrets(folder: pathlib.Path, *names: str, **more: Any) -> ProjectSettings:
    for name in names:
        write_secret(folder, name)
    return ProjectSettings(secret_files=tuple(folder / f"{name}.secret" for name in names), **more)


def load_error(world: ProjectCredentials) -> str:
    """Return the sentence with which loading fails."""
    with pytest.raises(BadCredentials) as found:
        world.credentials.load()
    sentence = str(found.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def signed_by(name: str) -> str:
    return token("shop", secret_of(name), uid="alice")


# Secrets.


def test_no_token_is_trusted_before_the_files_are_loaded(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(tmp_path, shop=with_secrets(tmp_path, "a"))
    assert not world.accepts("shop", signed_by("a"))
    world.credentials.load()
    assert world.accepts("shop", signed_by("a"))


def test_any_secret_of_a_project_verifies_tokens_and_no_other(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(
        tmp_path, shop=with_secrets(tmp_path, "a", "b"), other=with_secrets(tmp_path, "c")
    )
    world.credentials.load()
    assert [world.accepts("shop", signed_by(name)) for name in "abc"] == [True, True, False]
    assert [world.accepts("other", signed_by(name)) for name in "abc"] == [False, False, True]


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
def test_the_error_of_a_bad_secret_names_its_file(
    tmp_path: pathlib.Path, content: bytes | str | None, words: list[str]
) -> None:
    file = tmp_path / "bad.secret"
    if isinstance(content, str):
        file.mkdir()
    elif content is not None:
        file.write_bytes(content)
    world = ProjectCredentials(
        tmp_path,
        good=with_secrets(tmp_path, "a"),
        shop=ProjectSettings(secret_files=(file,)),
    )
    sentence = load_error(world)
    assert sentence.startswith(f"treedb.toml: projects.shop.secret_files names {file}, which ")
    assert ": use a file with 32 random bytes or more" in sentence
    for word in words:
        assert word in sentence
    assert not world.accepts("good", signed_by("a"))


@pytest.mark.parametrize("copy", ["a", "b"])
def test_two_projects_with_one_secret_are_refused(tmp_path: pathlib.Path, copy: str) -> None:
    one = with_secrets(tmp_path, "c", "a")
    write_secret(tmp_path, "b", secret_of("a"))
    other = ProjectSettings(secret_files=(tmp_path / f"{copy}.secret",))
    sentence = load_error(ProjectCredentials(tmp_path, one=one, other=other))
    for word in (f"{tmp_path / copy}.secret", "one and other share the secret", "each"):
        assert word in sentence
    assert secret_of("a").strip("- ") not in sentence


def test_one_project_may_name_a_secret_twice(tmp_path: pathlib.Path) -> None:
    write_secret(tmp_path, "b", secret_of("a"))
    shop = with_secrets(tmp_path, "a", "a")
    twice = attrs.evolve(shop, secret_files=(*shop.secret_files, tmp_path / "b.secret"))
    world = ProjectCredentials(tmp_path, shop=twice)
    world.credentials.load()
    assert world.accepts("shop", signed_by("a"))


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True)])
def test_a_secret_that_other_users_can_read_is_warned_of(
    tmp_path: pathlib.Path, mode: int, warned: bool
) -> None:
    world = ProjectCredentials(tmp_path, shop=with_secrets(tmp_path, "a"))
    (tmp_path / "a.secret").chmod(mode)
    with capturedLogs() as logged:
        world.credentials.load()
    lines = [eventAsText(event) for event in logged]
    warning = f"Other users of this machine can read {tmp_path / 'a.secret'}"
    assert any(warning in line for line in lines) is warned
    assert world.accepts("shop", signed_by("a"))


# Reload.


def test_a_bad_file_at_a_reload_changes_nothing(
    tmp_path: pathlib.Path,
) -> None:
    rules = tmp_path / "rules.json"
    rules.write_text('{"rules": {}}')
    world = ProjectCredentials(
        tmp_path,
        first=with_secrets(tmp_path, "a", rules_file=rules),
        second=with_secrets(tmp_path, "b"),
    )
    world.credentials.load()
    write_secret(tmp_path, "a", secret_of("new"))
    rules.write_text('{"rules": {".read": true}}')
    (tmp_path / "b.secret").write_text("short")
    load_error(world)
    assert world.accepts("first", signed_by("a"))
    assert world.accepts("second", signed_by("b"))
    assert world.rules("first") == '{"rules": {}}'
    write_secret(tmp_path, "b")
    world.credentials.load()
    assert not world.accepts("first", signed_by("a"))
    assert world.accepts("first", signed_by("new"))
    assert world.rules("first") == '{"rules": {".read": true}}'


def test_a_secret_whose_file_was_removed_is_withdrawn(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(tmp_path, shop=with_secrets(tmp_path, "a", "b"))
    world.credentials.load()
    (tmp_path / "a.secret").unlink()
    with capturedLogs() as logged:
        world.credentials.load()
    assert [world.accepts("shop", signed_by(name)) for name in "ab"] == [False, True]
    assert [str(tmp_path / "a.secret")] == [event["file"] for event in logged]


def test_what_is_no_longer_configured_is_no_longer_trusted(
    tmp_path: pathlib.Path,
) -> None:
    shop = with_secrets(tmp_path, "a", "b")
    other = with_secrets(tmp_path, "c")
    world = ProjectCredentials(tmp_path, shop=shop, other=other)
    world.credentials.load()
    world.credentials.load({"shop": attrs.evolve(shop, secret_files=shop.secret_files[1:])})
    assert [world.accepts("shop", signed_by(name)) for name in "ab"] == [False, True]
    assert not world.accepts("other", signed_by("c"))
    world.credentials.load({"shop": shop, "other": other, "new": with_secrets(tmp_path, "d")})
    assert world.accepts("shop", signed_by("a"))
    assert world.accepts("other", signed_by("c"))
    assert "new" not in world.credentials.verifiers


def test_once_closed_no_token_is_trusted(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(tmp_path, shop=with_secrets(tmp_path, "a"))
    world.credentials.load()
    world.credentials.close()
    assert not world.accepts("shop", signed_by("a"))


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
def test_the_error_of_a_bad_rules_file_names_the_file_and_the_position(
    tmp_path: pathlib.Path, content: bytes | None, words: list[str]
) -> None:
    file = tmp_path / "rules.json"
    if content is not None:
        file.write_bytes(content)
    world = ProjectCredentials(tmp_path, shop=ProjectSettings(rules_file=file))
    sentence = load_error(world)
    assert sentence.startswith("treedb.toml: projects.shop.rules_file ")
    assert sentence.endswith((": correct it there.", ", or name another file."))
    for word in [str(file), *words]:
        assert word in sentence
    assert world.rules("shop") == DENY.text


def test_a_rules_file_manages_the_rules_of_its_project(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {".read": true}}')
    world = ProjectCredentials(
        tmp_path, shop=ProjectSettings(rules_file=file), other=ProjectSettings()
    )
    world.credentials.load()
    assert world.rules("shop") == file.read_text()
    assert world.catalog.rules("shop").is_file_managed
    assert not world.catalog.rules("other").is_file_managed


def test_a_project_whose_rules_file_is_no_longer_configured_keeps_its_rules_and_accepts_others(
    tmp_path: pathlib.Path,
) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {".read": true}}')
    managed = ProjectSettings(rules_file=file)
    world = ProjectCredentials(tmp_path, shop=managed, gone=managed)
    world.credentials.load()
    with capturedLogs() as logged:
        world.credentials.load({"shop": ProjectSettings()})
        world.credentials.load({"shop": ProjectSettings()})
    assert [event["project"] for event in logged] == ["shop"]
    assert world.rules("shop") == file.read_text()
    assert not world.catalog.rules("shop").is_file_managed
    assert world.catalog.rules("gone").is_file_managed


# Providers.


@pytest.mark.parametrize(
    ("provider", "words"),
    [
        (ProviderSettings("http://a.example", "shop"), ["http://a.example", "https"]),
        (ProviderSettings(ISSUER, "shop", "http://a.example/keys"), [ISSUER, "https"]),
        (
            ProviderSettings(ISSUER, "shop", "", pathlib.Path("/none.pem")),
            [f"/none.pem as the ca_file of {ISSUER}", "No such file"],
        ),
        (
            ProviderSettings(ISSUER, "shop", "", pathlib.Path("/dev/null")),
            [f"/dev/null as the ca_file of {ISSUER}", "PEM"],
        ),
    ],
)
def test_the_error_of_a_bad_provider_names_it(
    tmp_path: pathlib.Path, provider: ProviderSettings, words: list[str]
) -> None:
    sentence = load_error(ProjectCredentials(tmp_path, shop=ProjectSettings(providers=(provider,))))
    assert sentence.startswith("treedb.toml: projects.shop.providers names ")
    for word in words:
        assert word in sentence


def test_two_projects_that_trust_the_same_tokens_of_a_provider_are_refused(
    tmp_path: pathlib.Path,
) -> None:
    provider = ProviderSettings(issuer=ISSUER, audience="shop")
    other = attrs.evolve(provider, audience="blog")
    shop = ProjectSettings(providers=(provider,))
    ProjectCredentials(
        tmp_path, shop=shop, blog=ProjectSettings(providers=(other,))
    ).credentials.load()
    world = ProjectCredentials(
        tmp_path, shop=shop, blog=ProjectSettings(providers=(other, provider))
    )
    assert "shop and blog trust the same tokens" in load_error(world)


# Development mode.


def test_development_mode_creates_a_secret_and_keeps_it(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(tmp_path, development=True, demo=ProjectSettings(None))
    world.credentials.load()
    file = tmp_path / "data" / DEVELOPMENT_SECRET
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret = file.read_bytes()
    assert len(secret) >= 32
    assert ensure_development_secret(tmp_path / "data") == secret
    location = SettingLocation("treedb.toml", tmp_path, "projects.demo")
    assert read_project_secret(file, location) == secret


def test_in_development_mode_each_project_accepts_its_own_tokens_and_no_others(
    tmp_path: pathlib.Path,
) -> None:
    world = ProjectCredentials(tmp_path, development=True, demo=ProjectSettings(None))
    world.credentials.load()
    secret = ensure_development_secret(tmp_path / "data")
    names = ("demo", *(f"p{number}" for number in range(MAX_UNCONFIGURED + 1)))
    tokens = {
        name: token(name, derive_project_secret(secret, name).decode(), uid="a") for name in names
    }
    for name in names:
        assert world.accepts(name, tokens[name])
    assert world.accepts("p0", tokens["p0"])
    assert not world.accepts("p0", tokens["p1"])
    assert not world.accepts("demo", tokens["p0"])
    assert not world.accepts("p0", tokens["demo"])
    assert not world.accepts("demo", token("demo", secret.decode(), uid="a"))


def test_a_development_secret_that_other_users_could_read_is_made_private_and_warned_of(
    tmp_path: pathlib.Path,
) -> None:
    ensure_development_secret(tmp_path / "data")
    file = tmp_path / "data" / DEVELOPMENT_SECRET
    file.chmod(0o644)
    world = ProjectCredentials(tmp_path, development=True, demo=ProjectSettings(None))
    with capturedLogs() as logged:
        world.credentials.load()
        world.credentials.load()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (line,) = map(eventAsText, logged)
    assert f"Other users of this machine could read {file}" in line


def test_the_error_of_a_bad_development_secret_says_what_to_do(tmp_path: pathlib.Path) -> None:
    file = tmp_path / DEVELOPMENT_SECRET
    file.write_text("short")
    with pytest.raises(BadCredentials, match=rf"^{file} has .*: remove it: "):
        ensure_development_secret(tmp_path)


def test_there_is_no_such_secret_outside_development_mode(tmp_path: pathlib.Path) -> None:
    world = ProjectCredentials(tmp_path, shop=ProjectSettings())
    world.credentials.load()
    assert world.credentials.verifier("new") is None
    assert not (tmp_path / "data").exists()


def test_a_development_secret_that_cannot_be_created_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadCredentials, match="cannot be created"):
        ensure_development_secret(tmp_path / "file" / "data")


# A reload, which must not delay requests.


def test_a_reload_of_large_rules_is_done_in_slices_and_takes_effect_as_a_whole(
    tmp_path: pathlib.Path,
) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for file in (first, second):
        file.write_bytes(LARGE)
    world = ProjectCredentials(
        tmp_path,
        shop=with_secrets(tmp_path, "a", rules_file=first),
        blog=ProjectSettings(rules_file=second),
    )
    world.credentials.load()
    assert not world.clock.calls
    write_secret(tmp_path, "a", secret_of("b"))
    changed = LARGE.replace(b"now >", b"now <")
    for file in (first, second):
        file.write_bytes(changed)
    reloading = Deferred.fromCoroutine(world.credentials.reload())
    turns = 0
    while world.clock.calls:
        assert {world.rules("shop"), world.rules("blog")} == {LARGE.decode()}
        assert [name for name in "ab" if world.accepts("shop", signed_by(name))] == ["a"]
        world.clock.take_turn()
        turns += 1
    assert turns > 20
    assert reloading.called
    assert {world.rules("shop"), world.rules("blog")} == {changed.decode()}
    assert [name for name in "ab" if world.accepts("shop", signed_by(name))] == ["b"]


def test_a_reload_with_an_error_in_the_last_file_changes_nothing(tmp_path: pathlib.Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for file in (first, second):
        file.write_text('{"rules": {}}')
    world = ProjectCredentials(
        tmp_path, shop=ProjectSettings(rules_file=first), blog=ProjectSettings(rules_file=second)
    )
    world.credentials.load()
    first.write_text('{"rules": {".read": true}}')
    second.write_text('{"rules": {".raed": "true"}}')
    failures: list[Any] = []
    Deferred.fromCoroutine(world.credentials.reload()).addErrback(failures.append)
    (failure,) = failures
    assert f"{second}:1:21: Expected '{{'. Did you mean '.read'?" in str(failure.value)
    assert (world.rules("shop"), world.rules("blog")) == ('{"rules": {}}', '{"rules": {}}')


def test_a_rules_file_that_has_not_changed_is_not_compiled_again(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_bytes(LARGE)
    world = ProjectCredentials(tmp_path, shop=ProjectSettings(rules_file=file))
    world.credentials.load()
    rules = world.catalog.rules("shop").current
    reloading = Deferred.fromCoroutine(world.credentials.reload())
    assert reloading.called
    assert world.catalog.rules("shop").current is rules


def test_a_reload_that_is_under_way_at_the_end_changes_nothing(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {}}')
    world = ProjectCredentials(tmp_path, shop=with_secrets(tmp_path, "a", rules_file=file))
    world.credentials.load()
    file.write_bytes(LARGE)
    reloading = Deferred.fromCoroutine(world.credentials.reload())
    world.credentials.close()
    while world.clock.calls:
        world.clock.take_turn()
    assert reloading.called
    assert world.rules("shop") == '{"rules": {}}'
    assert not world.accepts("shop", signed_by("a"))


def test_warnings_about_a_rules_file_are_logged_when_it_is_read(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": {".read": "auth.uid.matches(/^a|b$/)"}}')
    world = ProjectCredentials(tmp_path, shop=ProjectSettings(rules_file=file))
    with capturedLogs() as logged:
        world.credentials.load()
        world.credentials.load()
    (event,) = logged
    assert eventAsText(event, includeTimestamp=False, includeSystem=False).startswith(
        f"{file}:1:42: ^ and $ bind the whole pattern"
    )
