"""What the console does when things go wrong, and what it never does, in each of its views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome, Keys

from tests.access import Tree, admin
from tests.browser import open_browser
from tests.console.conftest import RULES, VIEWS, WIDE, look
from tests.console.page import HOSTILE, ConsolePage, collect_violations
from tests.console.slow_proxy import SlowProxy
from tests.daemon import Daemon

CLOSED: Final = {"rules": {"users": {"$uid": {".write": "auth.uid === $uid"}}}}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that logs all requests."""
    with open_browser(tmp_path_factory.mktemp("profile"), logs_network=True) as running:
        collect_violations(running)
        yield running


def view_as(page: ConsolePage, uid: str) -> None:
    """View as a user."""
    page.click(".bar button.chip")
    page.choose("#field-who", "uid")
    page.fill("#field-uid", uid)
    page.click("dialog button", "View")
    page.await_text(f"uid {uid}", ".banner")


def open_ada(page: ConsolePage) -> None:
    page.go("/data/users/ada")
    page.await_text("36", ".tree-row")
    page.await_text("live", ".live")


def test_rows_go_on_by_themselves_when_the_daemon_is_back(
    page: ConsolePage, daemon: Daemon
) -> None:
    open_ada(page)
    daemon.kill()
    page.await_text("The server does not answer.", ".banner")
    assert '"Ada"' in page.text  # what was known is still shown
    daemon.start()
    page.await_no_text("The server does not answer.")
    with Tree(daemon, "demo") as tree:
        tree.seed("/users/ada/age.json", 37)
        page.await_text("37", ".tree-row")
        page.await_text("live", ".live")
        tree.seed("/users/ada/age.json", 38)
        page.await_text("38", ".tree-row")


def test_a_page_that_is_opened_while_the_daemon_is_away_waits_for_it(
    page: ConsolePage, daemon: Daemon
) -> None:
    open_ada(page)
    daemon.kill()
    page.await_text("The server does not answer.", ".banner")
    page.go("/now")
    page.await_shown(".tabs")
    page.go("/data/users/ada")
    daemon.start()
    page.await_no_text("The server does not answer.")
    page.await_text("36", ".tree-row")


def test_what_is_typed_while_the_network_is_away_is_not_lost(page: ConsolePage, tree: Tree) -> None:
    open_ada(page)
    away = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.browser.execute_cdp_cmd("Network.enable", {})
    page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", away)
    page.await_text("The server does not answer.", ".banner")
    tree.seed("/users/ada/age.json", 40)
    page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", {**away, "offline": False})
    page.await_no_text("The server does not answer.")
    page.await_text("40", ".tree-row")
    tree.seed("/users/ada/age.json", 41)
    page.await_text("41", ".tree-row")


def test_pages_that_were_left_hold_no_connections(page: ConsolePage, tree: Tree) -> None:
    for _ in range(8):  # a browser has six connections to one origin
        page.open("/data/users/ada")
        page.await_text("live", ".live")
    page.browser.back()
    page.browser.back()
    page.await_text("live", ".live")
    tree.seed("/users/ada/age.json", 39)
    page.await_text("39", ".tree-row")
    shown = tree.see("/.inspect/connections.json")
    assert shown["streams"]["count"] == 1


def test_a_right_that_is_lost_is_said_and_its_data_is_not_shown_longer(
    page: ConsolePage, tree: Tree
) -> None:
    page.go("/data/users/ada")
    view_as(page, "ada")
    open_ada(page)
    tree.put_rules(CLOSED["rules"])
    page.await_text("The rules do not allow this read.", ".tree-row")
    page.await_no_text("Ada", ".tree-row")
    assert "36" not in page.text
    tree.put_rules(RULES["rules"])
    page.click("button", "Try again")
    page.await_text("36", ".tree-row")
    page.await_text("live", ".live")
    tree.seed("/users/ada/age.json", 42)
    page.await_text("42", ".tree-row")


def test_a_slow_network_that_loses_packets_loses_no_change(
    browser: Chrome, daemon: Daemon, tree: Tree
) -> None:
    port = int(daemon.urls[-1].rpartition(":")[2])
    with SlowProxy(port) as proxy:
        page = ConsolePage(browser, f"http://127.0.0.1:{proxy.port}")
        look(page, WIDE, "light")
        page.open("/data/users/ada", token=admin("demo"))
        page.await_text("live", ".live")
        for age in range(50, 150):
            tree.seed("/users/ada/age.json", age)
        page.await_text("149", ".tree-row")
        page.click(".tree-row[data-key=name]")
        page.press(Keys.ENTER)
        page.await_shown(".tree-editor input, .tree-editor textarea")
        page.chord("a")
        page.press("Lovelace", Keys.ENTER)
        page.await_text("Lovelace", ".tree-row .tree-value")
        assert tree.see("/users/ada/name.json") == "Lovelace"
        page.go("/data/words")
        page.await_text("word000", ".tree-row")
        page.run("document.querySelector('.rows').scrollTop = 1e6")
        page.await_text("word299", ".tree-row")
        page.check_quiet()
        browser.get("about:blank")


def test_what_looks_like_markup_stays_text_in_every_view(page: ConsolePage, tree: Tree) -> None:
    page.go(f"/data/{quote(HOSTILE)}")
    page.await_text(f'"{HOSTILE}"', ".tree-row")
    page.await_text(HOSTILE, ".place")
    page.go("/now")
    page.await_shown(".requests")
    assert tree.status("GET", f"/{quote(HOSTILE)}/{quote(HOSTILE)}.json") in (401, 403)
    page.await_text(HOSTILE, ".requests")
    page.go("/rules")
    page.await_shown("treedb-editor")
    page.check_quiet(is_away=True)
    page.run(
        "document.querySelector('treedb-editor').shadowRoot.querySelector('.cm-content').focus()"
    )
    page.chord(Keys.HOME)
    page.press(f"{HOSTILE} ")
    page.await_shown(".problems li")
    page.chord("z")
    page.go("/data")
    view_as(page, HOSTILE)
    page.go(f"/data/{quote(HOSTILE)}")
    page.await_text(f'"{HOSTILE}"', ".tree-row")
    page.go(f"/data/{quote(HOSTILE)}.{quote(HOSTILE)}")  # a key that is not allowed
    page.await_shown(".tree-row .problem")


def requests_of(browser: Chrome) -> list[dict[str, Any]]:
    """Return the requests that the browser has sent since this was called before."""
    messages = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    return [
        each["params"]["request"]
        for each in messages
        if each["method"] == "Network.requestWillBeSent"
    ]


def test_no_request_leaves_the_origin_or_has_the_token_in_its_url(
    page: ConsolePage, browser: Chrome
) -> None:
    requests_of(browser)
    for route, ready in VIEWS.items():
        page.go(route)
        page.await_shown(ready)
    page.go("/data")
    view_as(page, "ada")
    sent = [each for each in requests_of(browser) if not each["url"].startswith("data:")]
    assert len(sent) > 40
    secret = admin("demo")
    for each in sent:
        assert each["url"].startswith(f"{page.base}/"), each["url"]
        assert secret not in each["url"]
        assert secret not in each["headers"].get("Referer", "")
        assert "Cookie" not in each["headers"]
    read = [each for each in sent if ".json" in each["url"]]
    assert read
    assert all(each["headers"].get("Authorization") == f"Bearer {secret}" for each in read)


def test_the_text_editor_is_loaded_when_rules_are_shown_and_not_before(
    page: ConsolePage, browser: Chrome
) -> None:
    requests_of(browser)
    page.go("/data/words")
    page.await_text("word000", ".tree-row")
    page.go("/now")
    page.await_shown(".requests")
    assert not [each["url"] for each in requests_of(browser) if "codemirror" in each["url"]]
    page.go("/rules")
    page.await_shown("treedb-editor")
    assert [each["url"] for each in requests_of(browser) if "codemirror" in each["url"]]


def test_the_colours_that_are_chosen_stay(page: ConsolePage) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Dark")
    page.await_true(f"{colour} !== arguments[0]", light)
    page.browser.refresh()
    page.await_true(f"{colour} !== arguments[0]", light)
    page.await_shown(".tabs")
    assert "dark" in page.run("return JSON.stringify(localStorage)")
    page.click("button[aria-label=Settings]")
    page.click(".menu button", "Colours of the system")
    page.await_true(f"{colour} === arguments[0]", light)
