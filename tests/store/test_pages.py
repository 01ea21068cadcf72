from __future__ import annotations

import pytest

from treedbd.store.engine import Row
from treedbd.store.pages import (
    PAGE_BYTES,
    as_member,
    container_of_row,
    encode_page,
    is_child,
    pack,
    place_rows,
)
from treedbd.store.rows import Page, is_page
from treedbd.tree.path import encode_path

C = encode_path(("c",))


def page_of(members: dict[str, bytes]) -> Row:
    found = [
        as_member(C + encode_path((name,)), len(C), raw, PAGE_BYTES)
        for name, raw in members.items()
    ]
    return encode_page(C, [member for member in found if member is not None])


@pytest.mark.parametrize(
    "members",
    [
        {"a": b"1", "b": b'{"x":[2]}', "é": b'"s"'},
        {"a": b"1", 'q"\\': b"2"},
        {"-5": b"1", "0": b"2", "7": b"3", "07": b"4"},
        {"1": b"1", "770": b"2", "771": b"3", "197121": b"4"},
        {"a": b' {".value":1,".priority":2}', "b": b"1"},
    ],
)
def test_a_page_has_the_members_that_were_encoded(members: dict[str, bytes]) -> None:
    key, content = page_of(members)
    page = Page(key, content)
    segments = [encode_path((name,)) for name in members]
    assert is_page(key)
    assert (page.container, page.count, page.member_keys()) == (C, len(members), segments)
    assert page.raws() == list(members.values())
    assert [page.find(C + segment) for segment in segments] == page.rows()
    assert page.rows() == [
        (C + segment, raw) for segment, raw in zip(segments, page.raws(), strict=True)
    ]
    assert [page.find(C + segment + encode_path(("8",))) for segment in segments] == page.rows()
    assert page.find(C + encode_path(("8",))) is page.find(C + encode_path(("zz",))) is None
    assert page.find(C) is page.find(b"\x03other\0" + segments[0]) is None
    assert encode_page(C, page.members()) == (key, content)
    assert page.is_marked == any(raw.startswith(b" ") for raw in members.values())


def test_the_body_is_printed_as_it_is() -> None:
    assert Page(*page_of({"a": b"1", 'b"': b"[2]"})).body == b'"a":1,"b\\"":[2]'


def test_a_single_member_is_a_row_of_its_own() -> None:
    assert page_of({"a": b"12"}) == (C + encode_path(("a",)), b"12")


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (C + C, b"x" * 1500),
        (C + C, b' {".priority":1}'),
        (C + encode_path(("k" * 1020,)), b"1"),
    ],
)
def test_what_is_long_or_a_priority_row_is_no_member(key: bytes, raw: bytes) -> None:
    assert as_member(key, len(C), raw, PAGE_BYTES) is None


def test_the_container_of_a_row_is_found_in_its_key() -> None:
    assert container_of_row(b"") is None
    assert container_of_row(C) == b""
    assert container_of_row(C + encode_path(("5",))) == C
    assert container_of_row(encode_path(("c", "k" * 600))[:480]) is None
    assert is_child(C, C + encode_path(("5",)))
    assert not is_child(C, C)
    assert not is_child(C, C + C + C)


def test_rows_of_different_containers_and_kinds_of_keys_do_not_share_a_page() -> None:
    paths = [("c", "0"), ("c", "1"), ("c", "a"), ("c", "b"), ("d", "a"), ("d", "b")]
    rows = [(encode_path(path), b"1") for path in paths]
    assert [Page(*row).count for row in pack(place_rows(rows), PAGE_BYTES)] == [2, 2, 2]
