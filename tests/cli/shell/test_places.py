"""Paths of the shell, and the database that a URL names."""

from __future__ import annotations

import pytest

from treedbd.cli.exit import CommandFailed
from treedbd.cli.options import (
    InvalidUrl,
    label_of,
    parse_url,
    split_url,
    with_host,
    with_parameter,
)
from treedbd.cli.options import (
    resolve_path as resolve,
)

HERE = ("users", "ada")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (".", HERE),
        ("", HERE),
        ("..", ("users",)),
        ("../..", ()),
        ("../../../..", ()),
        ("/", ()),
        ("age", (*HERE, "age")),
        ("./-Nx", (*HERE, "-Nx")),
        ("-Nx/a", (*HERE, "-Nx", "a")),
        ("../alan//age/", ("users", "alan", "age")),
        ("/log", ("log",)),
        ("a b/名", (*HERE, "a b", "名")),
    ],
)
def test_a_path_is_relative_to_the_place(text: str, path: tuple[str, ...]) -> None:
    assert resolve(text, HERE) == path


@pytest.mark.parametrize("text", ["a.b", "a#", "$x", "[0]", "...", "x" * 800, "a/" * 33])
def test_a_path_that_cannot_exist_is_an_error(text: str) -> None:
    with pytest.raises(CommandFailed):
        resolve(text, ())


def test_a_url_is_a_database_and_a_path() -> None:
    root, path = split_url(parse_url("https://h:8443/a%20b/c.json?ns=shop"))
    assert str(root) == "https://h:8443?ns=shop"
    assert path == ("a b", "c")
    assert split_url(parse_url("http://h"))[1] == ()
    assert split_url(parse_url("http://h/.json"))[1] == ()


@pytest.mark.parametrize("url", ["http://h/a?print=pretty", "http://h/a%2Eb", "http://h/a%2Fb"])
def test_a_url_that_is_no_path_is_an_error(url: str) -> None:
    with pytest.raises(InvalidUrl, match=r"^must "):
        split_url(parse_url(url))


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("http://demo.localhost:9000", "demo"),
        ("https://eu--shop.db.example.com", "eu--shop"),
        ("http://localhost:9000", "default"),
        ("http://127.0.0.1", "default"),
        ("http://localhost?ns=shop", "shop"),
        ("unix:/run/x.sock:/", "default"),
    ],
)
def test_the_prompt_names_the_database(url: str, label: str) -> None:
    assert label_of(parse_url(url), "default") == label


def test_a_host_that_names_no_database_is_shown() -> None:
    assert label_of(parse_url("https://example.com"), "") == "example.com"


def test_another_database_is_named_by_a_parameter_or_by_the_host() -> None:
    root = parse_url("https://shop.db.example.com?ns=shop")
    assert str(with_parameter(root, "eu--shop")) == "https://shop.db.example.com?ns=eu--shop"
    assert str(with_host(root, "eu--shop")) == "https://eu--shop.db.example.com"
