"""The frame of the console: who signs in and how, as whom data is seen, and what the tab keeps."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Iterator
from typing import Final

import jwt
import pytest
from selenium.webdriver import Chrome, Keys

from tests.access import LEEWAY_S, admin, ending, token, user
from tests.console.page import HOSTILE, ConsolePage, seed
from tests.daemon import Daemon

RULES: Final = {
    "rules": {
        "open": {".read": True},
        "users": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}},
        "papers": {".read": "auth.token.role === 'editor'"},
    }
}
DATA: Final = {
    "open": {"greeting": "hello"},
    "users": {"ada": {"name": "Ada"}, HOSTILE: {"name": HOSTILE}},
    "papers": {"title": "On numbers"},
    "private": {"plan": "secret"},
}
LIFE_S: Final = LEEWAY_S + 1
KEPT: Final = "return sessionStorage.getItem('treedb.console')"


@pytest.fixture(scope="module")
def daemon(daemon: Daemon) -> Daemon:
    """The daemon, with data and rules in two databases."""
    seed(daemon, RULES, DATA)
    seed(daemon, RULES, {"branch": "north"}, "branch")
    return daemon


@pytest.fixture
def page(browser: Chrome, daemon: Daemon) -> Iterator[ConsolePage]:
    """The console before sign-in."""
    shown = ConsolePage(browser, daemon.urls[-1])
    shown.forget()
    shown.open()
    shown.await_shown("#token")
    yield shown
    shown.check_quiet(is_away=True)  # the browser logs each answer of 401 and 403


def sign_in(page: ConsolePage, text: str, database: str = "") -> None:
    """Paste a token into the form, and send it."""
    page.fill("#token", text)
    page.fill("#label", database)
    page.click("form button", "Sign in")


def test_a_pasted_token_signs_in_and_is_kept_in_the_tab_only(page: ConsolePage) -> None:
    secret = admin("demo")
    sign_in(page, f"  {secret}\n")
    page.await_text("private", ".tree-row")
    page.await_text("as admin", ".bar")
    assert json.loads(page.run(KEPT))["token"] == secret
    assert secret not in page.run("return JSON.stringify(localStorage) + location.href")
    page.browser.refresh()
    page.await_text("private", ".tree-row")
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Sign out")
    page.await_shown("#token")
    assert json.loads(page.run(KEPT))["token"] is None
    page.browser.refresh()
    page.await_shown("#token")
    assert "private" not in page.text


def test_a_token_in_the_fragment_leaves_the_address_and_the_history(page: ConsolePage) -> None:
    secret = admin("demo")
    page.open("/data/open", token=secret)
    page.await_text("greeting", ".tree-row")
    assert "token" not in page.browser.current_url
    page.browser.back()
    page.await_true("return !document.querySelector('.tree-row')?.textContent.includes('open')")
    assert secret not in page.browser.current_url
    history = page.browser.execute_cdp_cmd("Page.getNavigationHistory", {})
    assert not [each["url"] for each in history["entries"] if secret in each["url"]]


def test_the_token_of_a_link_is_replaced_at_once(page: ConsolePage) -> None:
    now = int(time.time())
    link = token("demo", uid="console", admin=True, iat=now, exp=now + 120, session_s=1800)
    page.open("/data/open", token=link)
    page.await_text("Signed in as admin, by the link", ".toast")
    page.await_true(
        f"return JSON.parse({KEPT.removeprefix('return ')}).token !== arguments[0]", link
    )
    kept = jwt.decode(json.loads(page.run(KEPT))["token"], options={"verify_signature": False})
    assert kept["exp"] - kept["iat"] == 1800
    page.await_text("greeting", ".tree-row")


def test_a_token_given_to_an_open_console_replaces_its_caller(page: ConsolePage) -> None:
    page.open(token=admin("demo"))
    page.await_text("private", ".tree-row")
    page.run("location.hash = arguments[0]", f"#token={user('demo', 'ada')}")
    page.await_text("as uid ada", ".bar")
    page.await_no_text("private", ".tree-row")
    assert "token" not in page.browser.current_url


def test_a_wrong_token_is_refused_with_the_reason(page: ConsolePage) -> None:
    sign_in(page, token("demo", "another secret that is long enough ------------", admin=True))
    page.await_shown(".sign-in .problem")
    assert "expired" not in page.text
    assert page.run("return JSON.parse(sessionStorage.getItem('treedb.console'))?.token") is None
    sign_in(page, HOSTILE)
    page.await_shown(".sign-in .problem")
    sign_in(page, admin("demo"))
    page.await_text("private", ".tree-row")
    page.open(token=None)
    page.run("location.hash = '#token=wrong'")
    page.await_shown(".sign-in .problem")
    assert "no longer" not in page.text


def test_a_token_that_expires_ends_the_session_and_a_new_one_goes_on_there(
    page: ConsolePage,
) -> None:
    sign_in(page, user("demo", "ada", exp=ending(LIFE_S)))
    page.await_text("as uid ada", ".bar")
    page.go("/data/users/ada")
    page.await_text("Ada", ".tree-row")
    page.await_text("Your token is no longer valid.")
    assert "Ada" not in page.text
    sign_in(page, user("demo", "ada"))
    page.await_text("Ada", ".tree-row")
    assert page.browser.current_url.endswith("#/data/users/ada")


def test_an_admin_whose_token_ends_soon_stays(page: ConsolePage) -> None:
    sign_in(page, token("demo", admin=True, iat=ending(LEEWAY_S), exp=ending(LEEWAY_S + 3)))
    page.await_text("private", ".tree-row")
    first = page.run(KEPT)
    page.await_true(f"{KEPT} !== arguments[0]", first)
    second = page.run(KEPT)
    page.await_true(f"{KEPT} !== arguments[0]", second)
    page.await_text("private", ".tree-row")


def test_a_token_that_may_only_read_offers_no_changes(page: ConsolePage) -> None:
    sign_in(page, token("demo", admin=True, read_only=True))
    page.await_text("read-only", ".bar .chip")
    page.await_text("private", ".tree-row")
    assert not page.run("return document.querySelectorAll('[aria-label^=\"Add a child\"]').length")
    page.click(".tree-row")
    page.press("a")
    page.await_text("may only read", ".toasts")
    page.click("button[aria-label=Settings]")
    assert not page.await_shown(".menu button[disabled]").is_enabled()
    page.press(Keys.ESCAPE)


def test_editing_can_be_switched_off_and_stays_off_over_a_reload(page: ConsolePage) -> None:
    sign_in(page, admin("demo"))
    page.await_text("private", ".tree-row")
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Read-only mode")
    page.await_text("read-only", ".bar .chip")
    page.browser.refresh()
    page.await_text("read-only", ".bar .chip")
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Allow editing")
    page.await_no_text("read-only", ".bar")


def test_a_users_token_sees_what_the_rules_allow_and_no_views_of_admins(page: ConsolePage) -> None:
    sign_in(page, user("demo", "ada"))
    page.await_text("as uid ada", ".bar")
    page.await_text("The rules do not allow this read.", ".tree-row")
    assert page.run("return [...document.querySelectorAll('.tabs a')].map(a => a.innerText)") == [
        "Data"
    ]
    page.go("/data/users/ada")
    page.await_text("Ada", ".tree-row")
    page.go("/rules")
    page.await_text("For admins only")


def view_as(page: ConsolePage, who: str, uid: str = "", claims: str = "") -> None:
    """View as another caller by the dialog."""
    page.click(".bar button.chip")
    page.choose("#field-who", who)
    for field, text in (("uid", uid), ("claims" if who == "uid" else "auth", claims)):
        if text:
            page.fill(f"#field-{field}", text)
    page.click("dialog button", "View")


def test_an_admin_sees_as_others_what_these_may(page: ConsolePage) -> None:
    page.open("/data/users/ada", token=admin("demo"))
    page.await_text("Ada", ".tree-row")
    view_as(page, "anonymous")
    page.await_text("You see and change data as anonymous.", ".banner")
    page.await_text("The rules do not allow this read.", ".tree-row")
    view_as(page, "uid", "ada")
    page.await_text("as uid ada", ".banner")
    page.await_text("Ada", ".tree-row")
    page.browser.refresh()  # the tab keeps as whom data is seen
    page.await_text("as uid ada", ".banner")
    page.await_text("Ada", ".tree-row")
    page.go("/data/papers")
    page.await_text("The rules do not allow this read.", ".tree-row")
    view_as(page, "uid", "ada", '{"role":"editor"}')
    page.await_text("On numbers", ".tree-row")
    view_as(page, "auth", "", '{"token":{"role":"editor"}}')
    page.await_text("these claims", ".banner")
    page.await_text("On numbers", ".tree-row")
    page.click(".banner button", "Back to yourself")
    page.await_no_text("You see and change data as")
    page.go("/data/private")
    page.await_text("plan", ".tree-row")


def test_the_page_names_each_module_of_its_first_view(page: ConsolePage) -> None:
    sign_in(page, admin("demo"))
    page.await_text("private", ".tree-row")
    named = "return [...document.querySelectorAll('link[rel=modulepreload]')].map(e => e.href)"
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    modules = {each for each in page.run(loaded) if each.endswith(".js")}
    assert modules - set(page.run(named)) == {f"{page.url}main.js"}


@pytest.mark.slow
def test_a_typed_uid_is_whom_one_views_as(page: ConsolePage) -> None:
    page.open("/data/users/ada", token=admin("demo"))
    page.await_text("Ada", ".tree-row")
    page.click(".bar button.chip")
    page.fill("#field-uid", "eve")
    page.click("dialog button", "View")
    page.await_text("as uid eve", ".banner")
    page.await_text("uid eve may not read this place", ".tree-row")
    assert "Ada" not in page.text


def test_the_dialog_shows_only_the_fields_of_the_chosen_caller(page: ConsolePage) -> None:
    page.open(token=admin("demo"))
    page.click(".bar button.chip")
    page.fill("#field-uid", "eve")
    shown = "return [...document.querySelectorAll('dialog [id^=field-]')].map(e => e.id.slice(6))"
    for who, fields in (
        ("auth", ["auth"]),
        ("anonymous", []),
        ("self", []),
        ("uid", ["uid", "claims"]),
    ):
        page.choose("#field-who", who)
        assert page.run(shown) == ["who", *fields]
    assert page.await_shown("#field-uid").get_attribute("value") == "eve"
    page.choose("#field-who", "self")
    page.click("dialog button", "View")
    page.await_true("return !document.querySelector('dialog')")
    page.await_text("as admin", ".bar")


@pytest.mark.slow
def test_the_dialog_refuses_claims_that_are_not_an_object(page: ConsolePage) -> None:
    page.open(token=admin("demo"))
    view_as(page, "uid", "", "[1]")
    page.await_text("A user has a uid.", "dialog .problem")
    page.await_text("Must be a JSON object.", "dialog .problem")
    page.fill("#field-uid", HOSTILE)
    page.fill("#field-claims", json.dumps({"x": HOSTILE}))
    page.click("dialog button", "View")
    page.await_text(f"uid {HOSTILE}", ".banner")


def test_another_database_is_chosen_at_sign_in_or_in_the_bar(page: ConsolePage) -> None:
    sign_in(page, admin("demo"), "branch--demo")
    page.await_text("north", ".tree-row")
    page.choose("select.database", "demo")
    page.await_text("private", ".tree-row")
    page.await_no_text("north", ".tree-row")
    page.browser.refresh()
    page.await_text("private", ".tree-row")
    page.choose("select.database", "branch--demo")
    page.await_text("north", ".tree-row")


@pytest.mark.slow
def test_another_callers_view_is_not_shown_to_the_next(page: ConsolePage) -> None:
    sign_in(page, admin("demo"), "branch--demo")
    page.await_text("north", ".tree-row")
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Sign out")
    first = "window.first = document.querySelector('.tree-row')"
    sign_in(page, admin("demo"), "demo")
    page.await_shown(".tree-row")
    page.run(first)
    assert "north" not in page.text
    page.await_text("private", ".tree-row")


def test_the_views_are_reached_by_keys(page: ConsolePage) -> None:
    page.open(token=admin("demo"))
    page.await_text("private", ".tree-row")
    for key, view in (("2", "Rules"), ("3", "Now"), ("1", "Data")):
        page.press(key)
        page.await_text(view, ".tabs a[aria-current=page]")
    page.press("?")
    page.await_text("Up and down the rows", "dialog")
    page.press(Keys.ESCAPE)
    page.await_true("return !document.querySelector('dialog')")


def test_the_page_about_the_console_is_opened_in_a_tab_of_its_own(
    page: ConsolePage, browser: Chrome
) -> None:
    page.open(token=admin("demo"))
    first = browser.current_window_handle
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Documentation")
    page.await_true("return true")
    (second,) = set(browser.window_handles) - {first}
    browser.switch_to.window(second)
    try:
        page.await_text("console")
        assert browser.current_url == f"{page.base}/.docs/console.md"
        assert "Key" in page.text
    finally:
        browser.close()
        browser.switch_to.window(first)


def test_development_mode_signs_in_without_a_token(browser: Chrome, tmp_path: pathlib.Path) -> None:
    with Daemon(tmp_path) as running:
        page = ConsolePage(browser, running.http)
        page.open()
        page.click("button", "Sign in as owner")
        page.await_text("as admin", ".bar")
        page.await_text("Nothing is stored here.")
