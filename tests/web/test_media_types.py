"""Who prefers HTML: browsers do, programs do not."""

from __future__ import annotations

import pytest

from treedbd.web.pages import MAX_ACCEPT_CHARACTERS, prefers_html

JSON = "application/json"
CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8"


def prefers(*accept: str) -> bool:
    return prefers_html({b"accept": [each.encode("latin-1") for each in accept]}, JSON)


@pytest.mark.parametrize(
    "accept",
    [
        CHROMIUM,
        "text/html",
        "TEXT/HTML",
        "text/*",
        "text/html; charset=utf-8",
        "text/html;charset=utf-8;q=0.5, application/json;q=0.4",
        "application/json;q=0.9, text/html",
        "application/json;q=0, */*",
        "*/*;q=0.1, text/html;q=0.2",
    ],
)
def test_these_prefer_html(accept: str) -> None:
    assert prefers(accept)


@pytest.mark.parametrize(
    "accept",
    [
        "",
        "*/*",
        "*",
        "application/json",
        "application/json, text/plain, */*",
        "text/html, application/json",
        "text/html;q=0.5, application/json;q=0.6",
        "text/html;q=0",
        "text/html;q=0, */*",
        "text/html;q=0.1, */*",
        "text/html;q=no",
        "text/event-stream",
        "text/htmlx",
        "\xff/\xff;q=\xff, \x00",
        ";;;,,,===",
    ],
)
def test_these_do_not(accept: str) -> None:
    assert not prefers(accept)


def test_several_fields_are_one_list_and_none_prefers_nothing() -> None:
    assert prefers("application/json;q=0.5", "text/html")
    assert not prefers("application/json", "text/html;q=0.5")
    assert not prefers_html({}, JSON)


def test_a_field_that_is_too_long_is_not_parsed() -> None:
    padding = ", a/b" * MAX_ACCEPT_CHARACTERS
    fitting = f"text/html{padding}"[:MAX_ACCEPT_CHARACTERS]
    assert prefers(fitting)
    assert not prefers(f"{fitting}b")
