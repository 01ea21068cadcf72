"""The hooks of the configuration: what is wrong with them, whose they are, what they may call."""

from __future__ import annotations

import ipaddress
import json
import pathlib

import pytest
from hypothesis import given, strategies

from tests.config.test_credentials import ProjectCredentials
from treedbd.config.credentials import Credentials
from treedbd.config.hooks import ConfiguredHooks
from treedbd.config.settings import Settings, load_settings
from treedbd.config.values import ConfigError
from treedbd.limits import MAX_HOOKS
from treedbd.names import (
    DatabaseName,
    InvalidProxy,
    InvalidTarget,
    check_hook_url,
    is_inside,
    parse_allowed_targets,
    without_mapping,
)
from treedbd.web.auth.jwt import BadCredentials

SHOP = DatabaseName("shop")


def hook(**keys: object) -> str:
    """Return the table of a hook of the project shop."""
    usual = {"name": "a", "on": "/a/$id", "url": "https://a.example.com/", "secret_file": "a"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in (usual | keys).items() if value]
    return "\n".join(["[[projects.shop.webhooks]]", *lines, ""])


def load(folder: pathlib.Path, *tables: str) -> Settings:
    (folder / "treedb.toml").write_text("\n".join(tables))
    return load_settings(pathlib.Path("treedb.toml"), {}, folder)


def test_a_hook_is_of_the_databases_that_its_table_names(tmp_path: pathlib.Path) -> None:
    eu = hook(name="eu", events=["created"], databases=["eu"])
    project = '[projects.shop]\ndatabases = ["default", "eu"]\n'
    hooks = ConfiguredHooks(load(tmp_path, project, eu, hook(name="all"), "[projects.other]"))
    first, second = hooks.of(DatabaseName("shop", "eu"))
    assert (first.name, first.on.text, first.url) == ("eu", "/a/$id", "https://a.example.com/")
    assert first.kinds == {"created"}
    assert second.name == "all"
    assert second.kinds == {"created", "updated", "deleted"}
    assert first.is_configured
    assert hooks.of(SHOP) == (second,)
    assert hooks.of(DatabaseName("other")) == ()
    assert hooks.of(DatabaseName("not-configured")) == ()


def test_a_hook_may_have_the_form_of_functions(tmp_path: pathlib.Path) -> None:
    hooks = ConfiguredHooks(load(tmp_path, "[projects.shop]", hook(form="functions-2")))
    assert [each.form for each in hooks.of(SHOP)] == ["functions-2"]


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (hook(form="functions"), "form must be"),
        (hook(name=""), "webhooks lacks name"),
        (hook(on=""), "webhooks lacks on"),
        (hook(url=""), "webhooks lacks url"),
        (hook(secret_file=""), "webhooks has no secret_file for a"),
        (hook(secret="x"), "webhooks.secret is not a key (did you mean secret_file?)"),
        (hook(name="A"), 'webhooks has the name "A": use a-z'),
        (hook(name="a" * 51), "50 characters at most"),
        (
            hook(on="/a/$id/$id"),
            "has an `on` for a that is not valid (Two captures",
        ),
        (hook(on="/a.b"), "has an `on` for a that is not valid"),
        (hook(events="created"), "webhooks.events must be a list"),
        (hook(events=["made"]), 'webhooks.events must be a list of events: "created"'),
        (hook(events=["written", "created"]), "webhooks.events must be events"),
        (hook() + "events = []", "webhooks.events must be events"),
        (hook(databases=["eu"]), 'names the database "eu" for a, which is not one of the project'),
        (hook(databases=["--"]), "webhooks.databases holds"),
        (hook() + hook(), 'webhooks holds two with the name "a"'),
        ("".join(hook(name=f"a{n}") for n in range(MAX_HOOKS + 1)), "holds more than 32"),
        (hook(url="http://a.example.com/"), "has a url for a that is not https"),
        (hook(url="https://me:pw@a.example.com/"), "that has a user name or a password"),
        (hook(url="https://127.0.0.1/"), "that has an address inside"),
        ("[webhooks]\nallow = '10.0.0.0/8'", "webhooks.allow must be a list"),
        ("[webhooks]\nallow = ['10.0.0.1/8']", "the network is 10.0.0.0/8"),
        ("[webhooks]\nallow = ['a/b']", "nor a host"),
        ("[webhooks]\nattempts = 0", "webhooks.attempts must be an integer from 1"),
        ("[webhooks]\nallowed = []", "webhooks.allowed is not a key (did you mean allow?)"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    tmp_path: pathlib.Path, tables: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        ConfiguredHooks(load(tmp_path, tables))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
    assert "pw" not in str(error.value)


def test_what_is_allowed_may_be_inside_and_without_tls(tmp_path: pathlib.Path) -> None:
    allow = '[webhooks]\nallow = ["10.1.0.0/16", "*.internal"]\n'
    for url in ("http://10.1.2.3:8000/x", "http://hooks.internal/"):
        assert ConfiguredHooks(load(tmp_path, allow, hook(url=url))).of(SHOP)[0].url == url
    with pytest.raises(ConfigError, match="an address inside"):
        load(tmp_path, allow, hook(url="https://10.2.0.1/"))


# Secrets.


def credentials_of(folder: pathlib.Path, table: str) -> tuple[ConfiguredHooks, Credentials]:
    settings = load(folder, table)
    hooks = ConfiguredHooks(settings)
    catalog = ProjectCredentials(folder, shop=settings.projects["shop"]).catalog
    return hooks, Credentials(settings, catalog, None, hooks)


def secrets_of(hooks: ConfiguredHooks) -> tuple[str, ...]:
    return hooks.of(SHOP)[0].secrets


def test_secrets_are_read_again_and_none_is_shown(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_text("n" * 32 + "\n")
    (tmp_path / "old").write_text("o" * 32)
    hooks, credentials = credentials_of(tmp_path, hook(old_secret_file="old"))
    assert secrets_of(hooks) == ()
    credentials.load()
    assert secrets_of(hooks) == ("n" * 32, "o" * 32)
    assert "nnn" not in repr(hooks.of(SHOP))
    (tmp_path / "a").write_text("m" * 32)
    (tmp_path / "old").unlink()
    credentials.load()
    assert secrets_of(hooks) == ("m" * 32,)


@pytest.mark.parametrize("content", [None, b"short", b"\xff" * 32])
def test_a_bad_secret_changes_nothing(tmp_path: pathlib.Path, content: bytes | None) -> None:
    (tmp_path / "a").write_text("n" * 32)
    hooks, credentials = credentials_of(tmp_path, hook())
    credentials.load()
    (tmp_path / "a").unlink()
    if content is not None:
        (tmp_path / "a").write_bytes(content)
    with pytest.raises(BadCredentials, match=r"webhooks\.secret_file"):
        credentials.load()
    assert secrets_of(hooks) == ("n" * 32,)


# URLs and addresses.

INSIDE = (
    *("127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0"),
    *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd00::1", "fec0::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::ffff:0:7f00:1"),
    *("2001:0:4136:e378:8000:63bf:80ff:fffe", "168.63.129.16", "192.88.99.1", "64:ff9b:1::1"),
)
OUTSIDE = ("1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101")


def problem_of(url: str, *allow: str, is_development: bool = False) -> str:
    """Return what is wrong with a URL; empty for nothing."""
    try:
        check_hook_url(url, parse_allowed_targets(allow), is_development=is_development)
    except InvalidTarget as error:
        return str(error)
    return ""


@pytest.mark.parametrize("address", INSIDE)
def test_an_address_inside_is_refused(address: str) -> None:
    assert is_inside(ipaddress.ip_address(address))
    host = f"[{address}]" if ":" in address else address
    assert "inside" in problem_of(f"https://{host}:8443/x")
    assert not parse_allowed_targets([]).may_call("a.example.com", address)
    allowed = str(without_mapping(ipaddress.ip_address(address)))
    assert parse_allowed_targets([allowed]).may_call("a.example.com", address)
    assert parse_allowed_targets(["*.example.com"]).may_call("a.example.com", address)
    assert not parse_allowed_targets(["*.example.com"]).may_call("example.com", address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_other_addresses_may_be_called(address: str) -> None:
    assert not is_inside(ipaddress.ip_address(address))
    assert parse_allowed_targets([]).may_call("a.example.com", address)


@given(strategies.ip_addresses(v=4))
def test_an_address_of_ipv4_is_the_same_however_it_is_written(
    address: ipaddress.IPv4Address,
) -> None:
    for prefix, shift in (("::ffff:0:0", 0), ("64:ff9b::", 0), ("2002::", 80)):
        number = int(ipaddress.IPv6Address(prefix)) + (int(address) << shift)
        embedding = ipaddress.IPv6Address(number)
        assert is_inside(embedding) == is_inside(address)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "ftp://a.example.com/", "https://", "https:///x", "https://a.example.com:0/"),
        *("https://a.example.com:99999/", "https://a example.com/", "https://a.example.com/\n"),
        *("https://é.example.com/", "https://u@a.example.com/", "https://a.example.com/#x"),
        *("https://a.example.com/#", "https://127.1/", "https://2130706433/", "https://0x7f.1/"),
        *("https://0x7f000001/", "https://localhost/", "https://x.localhost/", "https://[::1"),
        *("https://*.example.com/", "https://a..example.com/", "https://localhost./"),
        *("https://" + "a." * 127 + "com/", "https://a.example.com/" + "x" * 2048),
        *("http://a.example.com/", "https://[fe80::1%25eth0]/", "//a.example.com/"),
    ],
)
def test_a_url_that_must_not_be_called_is_refused(url: str) -> None:
    assert problem_of(url)


def test_urls_that_may_be_called() -> None:
    assert not problem_of("https://a.example.com")
    assert not problem_of("HTTPS://A.Example.com:8443/x?token=1")
    assert not problem_of("https://[2606:4700::1111]/")
    assert not problem_of("http://a.example.com/", is_development=True)
    assert not problem_of("http://A.example.com/", "a.EXAMPLE.com")
    assert not problem_of("http://localhost:5000/", "localhost")
    assert not problem_of("https://localhost/", "127.0.0.0/8")
    assert problem_of("https://127.0.0.1/", is_development=True)


@pytest.mark.parametrize("entry", ["", "10.0.0.0/99", "127.1", "a b", "http://a", "-a", "*"])
def test_an_entry_of_allow_that_is_none_is_refused(entry: str) -> None:
    with pytest.raises(InvalidProxy):
        parse_allowed_targets([entry])
