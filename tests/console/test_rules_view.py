"""The rules in the console: edited, compared, published, gone back to, and tried."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome, Keys

from tests.access import RULES, Tree, admin, at, token
from tests.console.conftest import FILED_RULES as TEXT
from tests.console.page import HOSTILE, ConsolePage
from tests.daemon import Daemon

READ_LINE: Final = 6
AGE_LINE: Final = 8
CHANGED: Final = TEXT.replace("<= 10", "<= 20")
VERSIONS: Final = "/.settings/rules/versions.json"
PROJECT: Final = "demo"
FILED: Final = "filed"
"""A project whose rules a file manages."""
FRESH: Final = "fresh"
"""A project that nothing was published for."""
DEVICE: Final = "Emulation.setDeviceMetricsOverride"
PHONE: Final = {"width": 375, "height": 720, "deviceScaleFactor": 1, "mobile": True}
DIFFERENCE: Final = "[...document.querySelector('treedb-difference').shadowRoot.querySelectorAll"
DRAFT: Final = "document.querySelector('treedb-editor').value"


@pytest.fixture
def tree(daemon: Daemon) -> Iterator[Tree]:
    """Another client of the project; its rules are those of `TEXT`."""
    with Tree(daemon, PROJECT) as client:
        publish(client, TEXT)
        client.seed("/.json", {"editor": "bob", HOSTILE: 1})
        yield client


@pytest.fixture
def page(browser: Chrome, daemon: Daemon, tree: Tree) -> Iterator[ConsolePage]:
    """The rules in the console of an admin."""
    shown = ConsolePage(browser, daemon.urls[-1])
    shown.resume("/rules/edit", admin(PROJECT))
    shown.await_text("No problems. In force.")
    yield shown
    shown.check_quiet(is_away=True)  # the browser logs each dry run with errors


def publish(tree: Tree, text: str) -> None:
    """Put rules as another client."""
    assert tree.status("PUT", at(RULES, tree.admin), text) == 200


def in_force(tree: Tree) -> str:
    return tree.request("GET", at(RULES, tree.admin)).body.decode()


def type_at(page: ConsolePage, line: int, column: int, text: str) -> None:
    """Type a text in the editor."""
    editor = "document.querySelector('treedb-editor')"
    page.run(f"{editor}.goTo(arguments[0], arguments[1])", line, column)
    page.press(text)


def shown_difference(page: ConsolePage, side: str) -> str:
    """Return what is marked as changed on one side of the difference."""
    page.await_shown("dialog treedb-difference")
    page.await_true(f"return {DIFFERENCE}('.cm-merge-{side} .cm-changedLine')].length")
    found = f"return {DIFFERENCE}('.cm-merge-{side} .cm-changedLine')].map(e => e.textContent)"
    return "\n".join(page.run(found))


def test_errors_are_shown_as_one_types_and_lead_to_their_place(page: ConsolePage) -> None:
    type_at(page, READ_LINE, 19, "x")
    page.await_text("1 error. Not published.")
    page.await_text("error 6:19", ".problems")
    page.await_text("Unknown variable 'xauth'. Did you mean 'auth'?", ".problems")
    type_at(page, AGE_LINE, 31, "y")
    page.await_text("2 errors. Not published.")
    assert page.await_shown("button.primary").get_attribute("disabled")
    page.click(".problems button", "8:")
    page.press("?")
    assert page.run(f"return {DRAFT}").splitlines()[AGE_LINE - 1].count("?y") == 1


@pytest.mark.slow
def test_what_the_editor_has_closed_is_typed_over(page: ConsolePage) -> None:
    line = '".read": "auth.uid === $uid && root.child(\'a\').exists()", "x": {".write": true},'
    type_at(page, READ_LINE, 1, line)
    assert page.run(f"return {DRAFT}").splitlines()[READ_LINE - 1].startswith(f"{line} ")


def test_a_completed_key_has_one_quote_at_its_end(page: ConsolePage) -> None:
    type_at(page, READ_LINE, 1, '".va')
    options = "document.querySelector('treedb-editor').shadowRoot.querySelector('[role=option]')"
    page.await_true(f"return {options}?.textContent.startsWith('\".validate')")
    page.run(f"{options}.dispatchEvent(new MouseEvent('mousedown', {{bubbles: true}}))")
    changed = page.run(f"return {DRAFT}").splitlines()[READ_LINE - 1]
    assert changed.startswith('".validate": ""  ')


@pytest.mark.slow
def test_columns_are_those_of_characters(page: ConsolePage) -> None:
    type_at(page, READ_LINE, 9, "/* 😀😀 */ ")
    type_at(page, READ_LINE, 30, "x")
    page.await_text("error 6:28", ".problems")
    page.click(".problems button", "6:28")
    page.press("!")
    assert '"!xauth' in page.run(f"return {DRAFT}")


@pytest.mark.slow
def test_warnings_do_not_keep_one_from_publishing(page: ConsolePage, tree: Tree) -> None:
    type_at(page, READ_LINE, 19, "$uid == 5 || ")
    page.await_text("1 warning. Not published.")
    page.await_text("warning 6:", ".problems")
    page.click("button", "Publish")
    page.await_text("There is 1 warning", "dialog")
    page.click("dialog button", "Publish")
    page.await_text("1 warning. In force.")
    assert "$uid == 5" in in_force(tree)


@pytest.mark.slow
def test_rules_that_are_open_to_all_are_warned_of(page: ConsolePage, tree: Tree) -> None:
    for text, verbs in (
        ('{"rules": {".read": true, ".write": "true"}}', "read and write"),
        ('{"rules": {".read": false /* ".read": true */, ".write": true, }, }', "write"),
        ('{"rules": {".read": "\ttrue\n"} // all\n}', "read"),
    ):
        publish(tree, text)
        page.await_text(f"Everyone can {verbs} all data", ".banner")
    publish(tree, '{"rules": {"open": {".read": true}, // ".write": true\n ".read": "1 < 0"}}')
    page.await_no_text("Everyone can")


@pytest.mark.slow
def test_rules_without_comments_are_formatted(page: ConsolePage, tree: Tree) -> None:
    button = "[...document.querySelectorAll('button')].find(e => e.textContent === 'Format')"
    assert page.run(f"return {button}.disabled")  # they have a comment
    publish(tree, '{"rules":{"a":{".read":"auth.uid === \'}{,\'"},"10":{},"2":{".write":false}}}')
    page.await_true(f"return !{button}.disabled")
    page.click("button", "Format")
    page.await_text("No problems. Not published.")
    assert (
        page.run(f"return {DRAFT}")
        == """{
  "rules": {
    "a": {
      ".read": "auth.uid === '}{,'"
    },
    "10": {},
    "2": {
      ".write": false
    }
  }
}
"""
    )
    assert page.run(f"return {button}.disabled")


def test_a_draft_is_compared_and_published(page: ConsolePage, tree: Tree) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    page.click("button", "Show changes")
    assert "true || " not in shown_difference(page, "a")
    assert "true || " in shown_difference(page, "b")
    page.click("dialog button", "Close")
    assert in_force(tree) == TEXT
    page.click("button", "Publish")
    page.await_text("Publish these changes?", "dialog h2")
    page.await_text("all databases of the project demo", "dialog")
    assert page.run(f"return {DIFFERENCE}('.names span')].map(e => e.textContent)") == [
        "In force",
        "Draft",
    ]
    page.click("dialog button", "Publish")
    page.await_text("No problems. In force.")
    assert in_force(tree) == TEXT.replace('"auth.uid', '"true || auth.uid', 1)


def test_the_keyboard_publishes(page: ConsolePage, tree: Tree) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    page.chord("s")
    page.await_shown("dialog treedb-difference")
    page.press(Keys.ESCAPE)
    page.await_true("return !document.querySelector('dialog')")
    page.chord("s")
    page.await_shown("dialog treedb-difference")
    page.press(Keys.ENTER)
    page.await_text("No problems. In force.")
    assert "true || " in in_force(tree)


@pytest.mark.slow
def test_a_draft_survives_a_reload_and_another_view(page: ConsolePage) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    page.go("/now/tokens")
    page.await_text("Make a token")
    page.go("/rules/edit")
    page.await_text("No problems. Not published.")
    page.open("/rules/edit")
    page.await_text("No problems. Not published.")
    assert "true || " in page.run(f"return {DRAFT}")
    page.click("button", "Discard")
    page.click("dialog button", "Discard")
    page.await_text("No problems. In force.")
    assert page.run(f"return {DRAFT}") == TEXT


@pytest.mark.slow
def test_rules_of_others_are_shown_where_there_is_no_draft(page: ConsolePage, tree: Tree) -> None:
    publish(tree, CHANGED)
    page.await_text("The rules were changed by another client", ".toasts")
    page.await_true(f"return {DRAFT}.includes('<= 20')")


def test_a_draft_does_not_replace_the_rules_of_others_unseen(page: ConsolePage, tree: Tree) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    publish(tree, CHANGED)
    page.click("button", "Publish")  # before it was looked whether others have changed them
    page.await_text("what they changed is undone", "dialog")
    assert "<= 20" in shown_difference(page, "a")
    page.click("dialog button", "Cancel")
    page.await_text("were changed meanwhile by an admin", ".banner")
    assert in_force(tree) == CHANGED
    page.click(".banner button", "What they changed")
    assert "<= 10" in shown_difference(page, "a")
    page.click("dialog button", "Close")
    page.click(".banner button", "Take theirs")
    page.click("dialog button", "Discard")
    page.await_no_text("were changed meanwhile")
    assert page.run(f"return {DRAFT}") == CHANGED


def test_rules_that_others_put_while_one_confirms_are_not_replaced(
    page: ConsolePage, tree: Tree
) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    page.click("button", "Publish")
    page.await_text("Publish these changes?", "dialog h2")
    publish(tree, CHANGED)
    page.click("dialog button", "Publish")
    page.await_text("The rules were changed meanwhile, and yours were not put in force", ".toasts")
    page.await_text("were changed meanwhile by an admin", ".banner")
    assert in_force(tree) == CHANGED
    assert "true || " in page.run(f"return {DRAFT}")


@pytest.mark.slow
def test_a_kept_draft_replaces_the_rules_of_others(page: ConsolePage, tree: Tree) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    publish(tree, CHANGED)
    page.await_text("were changed meanwhile", ".banner")
    page.click(".banner button", "Keep mine")
    page.await_no_text("were changed meanwhile")
    page.click("button", "Publish")
    page.click("dialog button", "Publish")
    page.await_text("No problems. In force.")
    assert "<= 10" in in_force(tree)


def test_going_back_to_a_version(page: ConsolePage, tree: Tree) -> None:
    publish(tree, CHANGED)
    newest = tree.get(at(VERSIONS, tree.admin))[0]["version"]
    page.go("/rules/versions")
    page.await_text(f"{newest} in force")
    page.click(f"[aria-label='Compare version {newest - 1} with what is in force']")
    assert "<= 10" in shown_difference(page, "b")
    page.click("dialog button", "Close")
    page.click(f"[aria-label='Back to this … (version {newest - 1})']")
    page.click("dialog button", "Put it in force")
    page.await_text(f"{newest + 1} in force")
    assert in_force(tree) == TEXT


@pytest.mark.slow
def test_one_can_go_back_to_the_rules_of_the_beginning(browser: Chrome, daemon: Daemon) -> None:
    page = ConsolePage(browser, daemon.urls[-1])
    page.resume("/rules/edit", admin(FRESH), FRESH)
    page.await_text("No problems. In force.")
    first = page.run(f"return {DRAFT}")
    type_at(page, 1, 1, "// ours\n")
    page.await_text("No problems. Not published.")
    page.click("button", "Publish")
    page.click("dialog button", "Publish")
    page.await_text("The rules are in force.", ".toasts")
    page.go("/rules/versions")
    page.await_text("2 in force")
    page.click("[aria-label='Back to this … (version 1)']")
    page.click("dialog button", "Put it in force")
    page.await_text("3 in force")
    page.go("/rules/edit")
    page.await_true(f"return {DRAFT} === arguments[0]", first)
    page.check_quiet(is_away=True)


def test_a_version_becomes_the_draft(page: ConsolePage, tree: Tree) -> None:
    publish(tree, CHANGED)
    newest = tree.get(at(VERSIONS, tree.admin))[0]["version"]
    page.go("/rules/versions")
    page.click(f"[aria-label='Edit version {newest - 1} as a draft']")
    page.await_text("No problems. Not published.")
    assert page.run(f"return {DRAFT}") == TEXT
    assert in_force(tree) == CHANGED


def test_a_request_is_tried(page: ConsolePage) -> None:
    page.go("/rules/playground")
    page.choose("#who", "uid")
    page.fill("#uid", "ada")
    page.choose("#method", "PUT")
    page.fill("#path", "/users/ada/age")
    page.fill("#value", "-1")
    page.click("form button", "Try")
    page.await_text("✕ Denied", ".verdict")
    page.await_text("rules/users/$uid/age/.validate is not true", ".verdict")
    page.await_text("newData.isNumber() && newData.val() >= 0", ".verdict .source")
    assert page.await_shown(".decisive .values").text.splitlines()[1:] == [
        '$uid "ada"',
        "newData at /users/ada/age -1",
    ]
    page.fill("#value", "12345678901234567890")
    page.await_text("Of the request before", ".verdict")
    page.click("form button", "Try")
    page.await_text("✓ Allowed", ".verdict")
    page.click(".decisive a", "line 7")
    page.await_true("return document.querySelector('treedb-editor')?.checkVisibility()")
    page.await_true("return document.activeElement.localName === 'treedb-editor'")
    page.press("z")
    assert page.run(f"return {DRAFT}").splitlines()[6].count("z") == 1


@pytest.mark.slow
def test_a_query_is_tried_by_its_parameters(page: ConsolePage) -> None:
    page.go("/rules/playground")
    page.choose("#who", "anonymous")
    page.choose("#method", "GET")
    page.fill("#path", "/list")
    for query, outcome in (
        ('orderBy="age"&limitToFirst=30', "✕ Denied"),
        ('orderBy="age"&limitToFirst=10', "✓ Allowed"),
    ):
        page.fill("#query", query)
        page.click("form button", "Try")
        page.await_text(outcome, ".verdict:not(.old)")
    page.fill("#query", "order=1")
    page.click("form button", "Try")
    page.await_text("A query has no parameter 'order'.", "form .problem")


def test_a_draft_is_tried_and_what_is_in_force_too(page: ConsolePage) -> None:
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("No problems. Not published.")
    page.go("/rules/playground")
    page.choose("#who", "anonymous")
    page.choose("#method", "GET")
    page.fill("#path", "/users/ada")
    page.choose("#source", "draft")
    page.click("form button", "Try")
    page.await_text("✓ Allowed", ".verdict")
    page.choose("#source", "current")
    page.click("form button", "Try")
    page.await_text("✕ Denied", ".verdict:not(.old)")
    assert "true ||" not in page.await_shown(".verdict .source").text


@pytest.mark.parametrize(
    ("field", "text", "problem"),
    [
        ("claims", "{", "The claims are not valid JSON"),
        ("claims", "[]", "The claims must be a JSON object."),
        ("value", "{,}", "The value is not valid JSON"),
        ("value", " ", "A value is missing"),
        ("uid", "", "A user has a uid."),
    ],
)
def test_what_is_wrong_with_a_request_is_said(
    page: ConsolePage, field: str, text: str, problem: str
) -> None:
    page.go("/rules/playground")
    page.choose("#who", "uid")
    page.choose("#method", "PUT")
    for name, fine in (("uid", "ada"), ("claims", "{}"), ("value", "1")):
        page.fill(f"#{name}", text if name == field else fine)
    page.click("form button", "Try")
    page.await_text(problem, "form .problem")


def test_rules_of_a_file_are_shown_and_tried_only(browser: Chrome, daemon: Daemon) -> None:
    page = ConsolePage(browser, daemon.urls[-1])
    page.resume("/rules/edit", admin(FILED), FILED)
    page.await_text("managed by", ".banner")
    page.press(Keys.TAB)
    page.run("document.querySelector('treedb-editor').focus()")
    page.press("x")
    assert page.run(f"return {DRAFT}") == TEXT
    assert page.await_shown("button.primary").get_attribute("disabled")
    page.go("/rules/versions")
    page.await_text("No versions")
    page.go("/rules/playground?method=GET&path=%2Fusers%2Fada&uid=eve")
    page.await_text("✕ Denied", ".verdict")
    page.check_quiet(is_away=True)


def test_a_token_that_may_only_read_checks_and_tries(
    browser: Chrome, daemon: Daemon, tree: Tree
) -> None:
    page = ConsolePage(browser, daemon.urls[-1])
    page.resume("/rules/edit", token(PROJECT, admin=True, read_only=True))
    page.await_text("Read-only: rules can be tried", ".banner")
    page.await_text("No problems. In force.")
    page.run("document.querySelector('treedb-editor').focus()")
    page.press("x")
    assert page.run(f"return {DRAFT}") == TEXT
    publish(tree, CHANGED)
    page.go("/rules/versions")
    page.await_text("Compare")
    disabled = (
        "return [...document.querySelectorAll('tbody button:disabled')].map(e => e.textContent)"
    )
    assert set(page.run(disabled)) == {"Edit", "Back to this …"}
    page.go("/rules/playground?method=GET&path=%2Fusers%2Fada&uid=ada")
    page.await_text("✓ Allowed", ".verdict")
    page.check_quiet(is_away=True)


def test_values_stay_text(page: ConsolePage) -> None:
    auth = quote(json.dumps({"uid": HOSTILE, "token": {"name": HOSTILE}}))
    path = quote(f"/users/{HOSTILE.replace('/', '')}", safe="")
    page.go(
        f"/rules/playground?method=PUT&path={path}&auth={auth}&value={quote(json.dumps(HOSTILE))}"
    )
    page.await_text("Rules see auth", ".verdict")
    page.await_text(HOSTILE, ".verdict")


def test_the_server_goes_and_comes_back(page: ConsolePage, daemon: Daemon, tree: Tree) -> None:
    daemon.stop()
    type_at(page, READ_LINE, 19, "true || ")
    page.await_text("Not checked: The server does not answer.")
    daemon.start()
    page.await_text("No problems. Not published.")


def test_all_is_on_a_phone(page: ConsolePage, tree: Tree) -> None:
    publish(tree, CHANGED)
    page.browser.execute_cdp_cmd(DEVICE, PHONE)
    try:
        for route, text in (
            ("edit", "In force."),
            ("versions", "Back to this"),
            ("playground", "Try"),
        ):
            page.go(f"/rules/{route}")
            page.await_text(text)
            assert page.run("return document.documentElement.scrollWidth") <= PHONE["width"]
        page.go("/rules/edit")
        type_at(page, READ_LINE, 19, "true || ")
        page.click("button", "Show changes")
        page.await_true(f"return {DIFFERENCE}('.cm-deletedChunk')].length")
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
