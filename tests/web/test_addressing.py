"""Addresses: the database that a host and `ns` name, and the place that a path names."""

from __future__ import annotations

import pytest

from treedbd.names import DatabaseName
from treedbd.tree.types import InvalidPath, Place
from treedbd.web.request import (
    Addressing,
    Misdirected,
    MissingSuffix,
    NoDatabaseNamed,
    parse_path,
    parse_segments,
    parse_short_path,
    split_target,
)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        (b".json", Place(())),
        (b"/.json", Place(())),
        (b"a.json", Place(("a",))),
        (b"a/b.json", Place(("a", "b"))),
        (b"a/b/.json", Place(("a", "b"))),
        (b"//a///b//.json", Place(("a", "b"))),
        (b"a%20b/c+d.json", Place(("a b", "c+d"))),
        (b"%C3%BC.json", Place(("ü",))),
        ("ü.json".encode(), Place(("ü",))),
        (b"a%2Ejson", Place(("a",))),
        (b"a/.priority.json", Place(("a",), is_priority=True)),
        (b".priority.json", Place((), is_priority=True)),
        (b"a/.priority/.json", Place(("a",), is_priority=True)),
    ],
)
def test_a_path_names_a_place(path: bytes, place: Place) -> None:
    assert parse_segments(path.split(b"/")) == place


@pytest.mark.parametrize(
    "path",
    [
        b"a%2Fb.json",
        b"a.b.json",
        b"a.json.json",
        b"a%00b.json",
        b"a%7F.json",
        b"a%2.json",
        b"a%.json",
        b"a%zz.json",
        b"%zz%2Ejson",
        b"%zz/a.json",
        b"%zz/.json/",
        b"%%2Ejson",
        b"%FF.json",
        b"%ED%A0%80.json",
        b"\xff.json",
        b".value/a.json",
        b"a/.value.json",
        b".settings/rules2.json",
        b".priority/a.json",
        b"../a.json",
        b"./a.json",
        b"/".join([b"a"] * 33) + b".json",
        b"a" * 769 + b".json",
    ],
)
def test_a_path_that_no_node_can_have_is_an_error(path: bytes) -> None:
    with pytest.raises(InvalidPath):
        parse_segments(path.split(b"/"))


@pytest.mark.parametrize(
    "path",
    [
        *(b"", b"a", b"a/b", b"a.json/b", b"a.JSON", b"a/", b"a.b"),
        *(b"%zz", b"%zz/a", b"a/%", b"%ff", b"\xff", b"a.json/%zz", b"%2Ejso%6", b"a%2Ejson%zz"),
    ],
)
def test_a_path_without_the_suffix_names_nothing(path: bytes) -> None:
    with pytest.raises(MissingSuffix, match=r"\.json"):
        parse_segments(path.split(b"/"))


def test_a_path_has_at_most_32_keys() -> None:
    keys = [b"k"] * 31
    assert len(parse_segments([*keys, b"k.json"]).path) == 32
    assert len(parse_segments([*keys, b"k", b".priority.json"]).path) == 32
    with pytest.raises(InvalidPath, match="deeper than 32"):
        parse_segments([*keys, b"k", b"k.json"])


@pytest.mark.parametrize(
    ("raw_path", "prefix_segments", "place"),
    [
        (b"/.json", 0, Place(())),
        (b"/a/b.json", 0, Place(("a", "b"))),
        (b"/tree/a/b.json", 1, Place(("a", "b"))),
        (b"/tree/v1/.json", 2, Place(())),
        (b"//a.json", 0, Place(("a",))),
        (b"/tree//a.json", 1, Place(("a",))),
        (b"/a%20b.json", 0, Place(("a b",))),
    ],
)
def test_a_path_is_parsed_below_its_prefix_with_and_without_the_cache(
    raw_path: bytes, prefix_segments: int, place: Place
) -> None:
    assert parse_path(raw_path, prefix_segments) == place
    assert parse_short_path(raw_path, prefix_segments) == place


def test_the_cache_returns_the_same_place_and_distinguishes_prefixes() -> None:
    path = b"/tree/a/cached.json"
    first = parse_short_path(path, 1)
    hits = parse_short_path.cache_info().hits
    assert parse_short_path(path, 1) is first
    assert parse_short_path.cache_info().hits == hits + 1
    assert parse_short_path(path, 0) == Place(("tree", "a", "cached"))
    assert parse_path(path, 1) is not first


@pytest.mark.parametrize(
    ("path", "error"), [(b"/a", MissingSuffix), (b"/a.b.json", InvalidPath), (b"", MissingSuffix)]
)
def test_errors_are_not_cached(path: bytes, error: type[Exception]) -> None:
    size = parse_short_path.cache_info().currsize
    for parse in (parse_path, parse_short_path, parse_short_path):
        with pytest.raises(error):
            parse(path, 0)
    assert parse_short_path.cache_info().currsize == size


def test_the_cache_is_bounded() -> None:
    limit = parse_short_path.cache_info().maxsize
    assert limit is not None
    for number in range(limit + 10):
        parse_short_path(b"/bounded/%d.json" % number, 0)
    assert parse_short_path.cache_info().currsize == limit


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"/a.json?x", (None, b"/a.json?x")),
        (b"//a", (None, b"//a")),
        (b"http://h/a.json?x", (b"h", b"/a.json?x")),
        (b"HTTPS://h:1/a", (b"h:1", b"/a")),
        (b"http://h", (b"h", b"/")),
        (b"http://h?x=/", (b"h", b"/?x=/")),
        (b"http:///a", (b"", b"/a")),
    ],
)
def test_a_target_is_split_into_authority_and_rest(
    target: bytes, parts: tuple[bytes | None, bytes]
) -> None:
    assert split_target(target) == parts


@pytest.mark.parametrize("target", [b"a.json", b"?x", b"*", b"ftp://h/a", b""])
def test_a_target_of_another_form_is_an_error(target: bytes) -> None:
    with pytest.raises(InvalidPath, match="request target"):
        split_target(target)


def test_the_longest_domain_counts() -> None:
    addressing = Addressing(("test", "db.test"), "")
    assert addressing.find(b"shop.db.test", None) == DatabaseName("shop")
    assert addressing.find(b"shop.test", None) == DatabaseName("shop")
    assert addressing.check_host([b"db.test"], None) is None


def test_with_any_host_those_outside_the_domains_name_nothing() -> None:
    for domains in ((), ("db.test",)):
        addressing = Addressing(domains, "main", any_host=True)
        for host in (b"example.com", b"shop.example.com:80", b"127.0.0.1", b"localhost"):
            assert addressing.find(host, None) == DatabaseName("main")
            assert addressing.find(host, "shop") == DatabaseName("shop")
            assert addressing.check_host([host], None) is None
    assert addressing.find(b"shop.db.test", None) == DatabaseName("shop")
    with pytest.raises(InvalidPath):
        addressing.find(b"a b", None)
    with pytest.raises(NoDatabaseNamed):
        addressing.find(b"a_b.db.test", None)


def test_found_databases_are_cached_and_errors_are_not() -> None:
    addressing = Addressing(("db.test",), "")
    assert addressing.find(b"shop.db.test", None) is addressing.find(b"shop.db.test", None)
    for _ in range(2):
        with pytest.raises(Misdirected):
            addressing.find(b"elsewhere.test", None)
    info = addressing.find.cache_info()
    assert (info.hits, info.currsize) == (1, 1)


def test_own_hosts_name_nothing_and_others_are_misdirected() -> None:
    hosts = ("box", "box.example.com", "192.168.7.5", "*.local")
    addressing = Addressing(("localhost",), "main", own_hosts=hosts)
    for host in ("box", "BOX.:8443", "box.example.com", "box.local", "phone.local:9000"):
        assert addressing.find(host.encode(), None).label == "main"
        assert addressing.find(host.encode(), "eu--shop").label == "eu--shop"
    assert addressing.find(b"192.168.7.5", None).label == "main"
    assert addressing.find(b"shop.localhost", None).label == "shop"
    for host in ("local", "evillocal", "a.box", "example.com", "x.box.example.com", "box.local.at"):
        with pytest.raises(Misdirected):
            addressing.find(host.encode(), None)
