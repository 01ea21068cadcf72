"""A page that was changed in its bytes is the page that its changed members make."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treedbd.store.pages import as_member, encode_page, remove_member, set_member
from treedbd.store.rows import Member, Page
from treedbd.tree.path import encode_key, encode_path

CONTAINER = encode_path(("users",))
TEXT_KEYS = st.sampled_from(["a", "b", "ba", "bb", "é", 'q"', "\\", "z" * 30])
INT_KEYS = st.sampled_from([str(number) for number in range(-3, 12)])
RAWS = st.sampled_from([b"1", b"22", b"[3]", b'{"a":"bc"}', b'"%b"' % (b"x" * 300)])
PAGES = st.dictionaries(TEXT_KEYS.map(encode_key), RAWS, min_size=2) | st.dictionaries(
    INT_KEYS.map(encode_key), RAWS, min_size=2
)


def member(segment: bytes, raw: bytes) -> Member:
    made = as_member(CONTAINER + segment, len(CONTAINER), raw, 4040)
    assert made is not None
    return made


def page_of(rows: dict[bytes, bytes]) -> Page:
    return Page(*encode_page(CONTAINER, [member(*row) for row in sorted(rows.items())]))


@given(PAGES, st.data())
def test_a_member_that_is_set_is_there_as_if_it_had_always_been(
    rows: dict[bytes, bytes], data: st.DataObject
) -> None:
    first = min(rows)
    keys = INT_KEYS if first[0] == encode_key("1")[0] else TEXT_KEYS
    segment = data.draw(keys.map(encode_key).filter(lambda key: key >= first))
    raw = data.draw(RAWS)
    changed = set_member(page_of(rows), member(segment, raw))
    assert changed == page_of({**rows, segment: raw}).content


@given(PAGES.filter(lambda rows: len(rows) > 2), st.data())
def test_a_page_without_a_member_is_as_if_it_had_never_been_there(
    rows: dict[bytes, bytes], data: st.DataObject
) -> None:
    page = page_of(rows)
    number = data.draw(st.integers(1, len(rows) - 1))
    changed = remove_member(page, number)
    assert (
        changed
        == page_of({key: rows[key] for key in rows if key != page.member_keys()[number]}).content
    )
