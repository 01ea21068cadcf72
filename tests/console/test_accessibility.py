"""All that the console shows, examined by axe-core: on each screen, in both colours."""

from __future__ import annotations

from typing import Final

from selenium.webdriver import Keys

from tests.access import Tree
from tests.console.conftest import PHONE, VIEWS, WIDE, look
from tests.console.page import ConsolePage

CONTRAST: Final = "color-contrast"
"""The one rule about colours: all others find the same in light and in dark."""


def examine(page: ConsolePage) -> list[str]:
    """Return what is found on each screen, in both colours."""
    found = []
    for size in (WIDE, PHONE):
        for colours, rules in (("light", ()), ("dark", (CONTRAST,))):
            look(page, size, colours)
            page.await_true("return innerWidth === arguments[0]", size["width"])
            place = f"{size['width']} {colours}"
            if page.run("return document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{place}: wider than the screen")
            found += [f"{place}: {each}" for each in page.examine(*rules)]
    return found


def test_the_views_are_accessible_and_fit_each_screen_in_light_and_dark(
    page: ConsolePage, tree: Tree
) -> None:
    found = {}
    for route, ready in VIEWS.items():
        look(page, WIDE, "light")
        page.go(route)
        page.await_shown(ready)
        if route == "/now":
            page.await_text("Live", ".filters")
            tree.status("GET", "/users/ada.json")
            page.await_shown(".why")
        page.await_no_text("Reading …")
        page.await_true("return !document.querySelector('.starting')")
        found[route] = examine(page)
    assert found == {route: [] for route in VIEWS}


def test_what_opens_over_the_views_is_accessible(page: ConsolePage) -> None:
    for colours, rules in (("light", ()), ("dark", (CONTRAST,))):
        look(page, WIDE, colours)
        page.click("button[aria-label=Settings]")
        page.await_shown(".menu")
        assert page.examine(*rules) == []
        page.press(Keys.ESCAPE)
        page.click(".bar button.chip")
        page.await_shown("dialog")
        assert page.examine(*rules) == []
        page.press(Keys.ESCAPE)
        page.await_true("return !document.querySelector('dialog')")
        page.click(".tree-row[data-key=users]")
        page.press("a")
        page.await_true("return !!document.querySelector('dialog, .tree-editor')")
        assert page.examine(*rules) == []
        page.press(Keys.ESCAPE)
        page.await_true("return !document.querySelector('dialog')")
        page.press("f")
        page.await_shown(".filter")
        assert page.examine(*rules) == []
        page.click("button", "Filter")
        page.await_true("return !document.querySelector('.filter')")


def test_the_sign_in_is_accessible(page: ConsolePage) -> None:
    page.forget()
    page.open()
    page.await_shown("#token")
    assert examine(page) == []
