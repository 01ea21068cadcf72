"""All that the console shows, examined by axe-core: on each screen, in both colours."""

from __future__ import annotations

import pytest
from selenium.webdriver import Keys

from tests.console.conftest import PHONE, VIEWS, WIDE, look
from tests.console.page import ConsolePage


@pytest.mark.parametrize("route", VIEWS)
def test_a_view_is_accessible_and_fits_each_screen_in_light_and_dark(
    page: ConsolePage, route: str
) -> None:
    page.go(route)
    page.await_shown(VIEWS[route])
    page.await_no_text("Reading …")
    found = []
    for size in (WIDE, PHONE):
        for colours in ("light", "dark"):
            look(page, size, colours)
            page.await_true("return innerWidth === arguments[0]", size["width"])
            place = f"{size['width']} {colours}"
            if page.run("return document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{place}: wider than the screen")
            found += [f"{place}: {each}" for each in page.examine()]
    assert found == []


def test_what_opens_over_the_views_is_accessible(page: ConsolePage) -> None:
    for colours in ("light", "dark"):
        look(page, WIDE, colours)
        page.click("button[aria-label=Settings]")
        page.await_shown(".menu")
        assert page.examine() == []
        page.press(Keys.ESCAPE)
        page.click(".bar button.chip")
        page.await_shown("dialog")
        assert page.examine() == []
        page.press(Keys.ESCAPE)
        page.await_true("return !document.querySelector('dialog')")
        page.click(".tree-row[data-key=users]")
        page.press("a")
        page.await_true("return !!document.querySelector('dialog, .tree-editor')")
        assert page.examine() == []
        page.press(Keys.ESCAPE)
        page.await_true("return !document.querySelector('dialog')")
        page.press("f")
        page.await_shown(".filter")
        assert page.examine() == []
        page.click("button", "Filter")
        page.await_true("return !document.querySelector('.filter')")


def test_the_sign_in_is_accessible(page: ConsolePage) -> None:
    page.forget()
    page.open()
    page.await_shown("#token")
    for size in (WIDE, PHONE):
        for colours in ("light", "dark"):
            look(page, size, colours)
            assert page.examine() == []
