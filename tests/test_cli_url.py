"""URLs of the command line, and the requests they become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treedbd.cli.options import InvalidUrl, is_local, parse_url
from treedbd.web.request import parse_segments


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ("http://localhost:9000", "http://localhost:9000/.json"),
        ("http://localhost:9000/", "http://localhost:9000/.json"),
        ("http://localhost:9000/.json", "http://localhost:9000/.json"),
        ("HTTPS://Demo.LOCALHOST/a", "https://demo.localhost/a.json"),
        ("https://h:443/a.json", "https://h/a.json"),
        ("http://h:443/a", "http://h:443/a.json"),
        ("http://h/a/b/", "http://h/a/b/.json"),
        ("http://h//a//b", "http://h//a//b.json"),
        ("http://h/a b/ü", "http://h/a%20b/%C3%BC.json"),
        ("http://h/a%20b%2Fc", "http://h/a%20b%2Fc.json"),
        ("http://h/%zz", "http://h/%zz.json"),
        ("http://h/a;b,c=(d)'!$&*+~:@", "http://h/a;b,c=(d)'!$&*+~:@.json"),
        ('http://h/a?orderBy="b"&x', "http://h/a.json?orderBy=%22b%22&x"),
        ("http://h/a.json?x=?/:@{}+", "http://h/a.json?x=?/:@%7B%7D+"),
        ("https://[::1]:8443/a", "https://[::1]:8443/a.json"),
        ("https://bücher.example/a", "https://xn--bcher-kva.example/a.json"),
    ],
)
def test_a_path_is_requested_as_it_was_typed(typed: str, sent: str) -> None:
    assert str(parse_url(typed).to_json()) == sent


@pytest.mark.parametrize(
    "typed",
    [
        "http://h",
        "http://h/",
        "http://h/.json",
        "http://h/.settings/rules.json",
    ],
)
def test_the_rules_are_those_of_the_root(typed: str) -> None:
    assert str(parse_url(typed).to_rules()) == "http://h/.settings/rules.json"


def test_a_prefix_and_a_query_are_kept_for_the_rules() -> None:
    url = parse_url("http://h/api/db/?ns=shop").to_rules()
    assert str(url) == "http://h/api/db/.settings/rules.json?ns=shop"


def test_parameters_are_added_after_existing_ones() -> None:
    url = parse_url("http://h/a?ns=shop").with_parameters(
        {"orderBy": '"a&b/ü"', "limitToFirst": "2"}
    )
    assert str(url) == "http://h/a?ns=shop&orderBy=%22a%26b%2F%C3%BC%22&limitToFirst=2"
    assert str(parse_url("http://h/a").with_parameters({})) == "http://h/a"


def test_a_parameter_is_found_with_a_value_and_without() -> None:
    url = parse_url("http://h/a?resume&%6Es=x")
    assert url.has("resume")
    assert url.has("ns")
    assert not url.has("res")


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "localhost:9000/a",
        "/a.json",
        "ftp://h/a",
        "http://",
        "http:///a",
        "http://a b/",
        "http://h:port/",
        "http://h:99999/",
        "http://[zz]/",
        "http://[::1/",
        "http://h/a#b",
        "http://h/a\nb",
        "http://h/\udcff",
        f"http://{'a' * 64}.example/",
    ],
)
def test_an_invalid_url_is_refused(typed: str) -> None:
    with pytest.raises(InvalidUrl):
        parse_url(typed)


@pytest.mark.parametrize(
    "typed",
    [
        "http://h/a?auth=hidden",
        "http://h/a?x=1&access_token=hidden",
        "http://h/a?%61uth=hidden",
        "http://hidden@h/a",
        "http://me:hidden@h/a",
    ],
)
def test_a_token_in_a_url_is_refused_and_not_repeated(typed: str) -> None:
    with pytest.raises(InvalidUrl, match="TREEDB_TOKEN") as refused:
        parse_url(typed)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("eu--shop.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("mylocalhost", False),
        ("localhost.example.com", False),
        ("192.0.2.1", False),
    ],
)
def test_names_and_addresses_of_this_machine_are_recognised(host: str, expected: bool) -> None:
    assert is_local(host) is expected


@given(
    st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="./?#[]$%")
        ).filter(bool),
        min_size=1,
        max_size=4,
    )
)
def test_any_key_may_be_typed_without_escaping(keys: list[str]) -> None:
    url = parse_url("http://h/" + "/".join(keys)).to_json()
    assert parse_segments(url.path.encode().split(b"/")[1:]).path == tuple(keys)
