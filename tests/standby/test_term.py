"""The file of a term: what is written is read again; what is not of treedb is refused."""

from __future__ import annotations

import pathlib

import attrs
import pytest

from treedbd.standby.term import (
    MAX_PEERS,
    TERM_FILE,
    Peer,
    Term,
    TermUnreadable,
    ensure_term,
    read_term,
    write_term,
)


def test_a_directory_without_a_file_is_a_first_in_term_1(tmp_path: pathlib.Path) -> None:
    assert read_term(tmp_path) == Term(term=1, role="first")


def test_what_is_written_is_read_again(tmp_path: pathlib.Path) -> None:
    term = Term(7, "ab" * 16, "standby", 1234, (Peer("cd", "https://a:1", 5),), "https://first")
    write_term(tmp_path, term)
    assert read_term(tmp_path) == term
    assert (tmp_path / TERM_FILE).stat().st_mode & 0o777 == 0o600


def test_a_first_is_known_by_a_promotion_or_as_the_one_that_was_followed() -> None:
    assert Term(1).knows("a", 1)
    term = Term(2, peers=(Peer("a"), Peer("b"), Peer("c", is_other=True)), by="d")
    assert [term.knows(each, 2) for each in "abcde"] == [True, True, False, True, False]
    assert term.knows("c", 3)
    assert term.knows("e", 3)


def test_an_id_is_made_once(tmp_path: pathlib.Path) -> None:
    made = ensure_term(tmp_path, lambda count: b"\x01" * count)
    again = ensure_term(tmp_path, lambda count: b"\x02" * count)
    assert made == again == Term(id="01" * 16)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"treedb-term":2,"term":1,"id":"","role":"first","changed_ms":0,"peers":[],'
        b'"first_url":null}',
        b'{"treedb-term":1,"term":0,"id":"","role":"first","changed_ms":0,"peers":[],'
        b'"first_url":null}',
        b'{"treedb-term":1,"term":true,"id":"","role":"first","changed_ms":0,"peers":[],'
        b'"first_url":null}',
        b'{"treedb-term":1,"term":1,"id":"","role":"king","changed_ms":0,"peers":[],'
        b'"first_url":null}',
        b'{"treedb-term":1,"term":1,"id":"","role":"first","changed_ms":0,"peers":[{"id":1,'
        b'"url":null,"seen_ms":0}],"first_url":null}',
    ],
)
def test_a_file_of_other_content_is_refused(tmp_path: pathlib.Path, content: bytes) -> None:
    (tmp_path / TERM_FILE).write_bytes(content)
    with pytest.raises(TermUnreadable, match=TERM_FILE):
        read_term(tmp_path)


def test_a_promotion_begins_a_term_which_a_superseded_first_knows() -> None:
    standby = Term(3, "ab").to_standby(5, "https://first", 100)
    assert standby == Term(5, "ab", "standby", 100, (), "https://first")
    assert standby.to_standby(5, "https://other", 200).changed_ms == 100
    assert standby.to_first(6, 300) == Term(6, "ab", "first", 300, (), "https://first")
    superseded = Term(5, "cd").to_superseded("https://new", 400, 6)
    assert superseded == Term(6, "cd", "superseded", 400, (), "https://new")


def test_peers_that_were_met_last_are_kept() -> None:
    term = Term().with_peer(Peer("x", "https://x", 1))
    for number in range(MAX_PEERS - 1):
        term = term.with_peer(Peer(str(number)))
    term = term.with_peer(Peer("x", None, 2))
    assert len(term.peers) == MAX_PEERS
    assert term.peers[-1] == Peer("x", "https://x", 2)
    term = term.with_peer(Peer("new"))
    assert [each.id for each in term.peers][:1] == ["1"]
    assert attrs.asdict(term)["peers"][-1]["id"] == "new"
