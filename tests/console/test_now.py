"""What happens now, in the console: requests, connections, databases, tokens and backups."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from datetime import datetime
from typing import Final

import jwt
import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from tests.access import Tree, admin, at, secret_of, token, user
from tests.console.conftest import make_daemon
from tests.console.page import HOSTILE, ConsolePage
from tests.daemon import Daemon
from tests.realtime import RealtimeClient

PROJECT: Final = "demo"
ROOM: Final = "room--demo"
RULES: Final = {
    "users": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}},
    "list": {".read": "query.limitToFirst <= 10", ".write": "auth.token.role === 'editor'"},
    "open": {".read": True, ".write": True},
}
HIDDEN_S: Final = 3
"""More than the interval of what is read most often."""
LARGE: Final = "12345678901234567890"
"""A number that JavaScript would round."""
DEVICE: Final = "Emulation.setDeviceMetricsOverride"
PHONE: Final = {"width": 375, "height": 720, "deviceScaleFactor": 1, "mobile": True}
TABS: Final = {
    "requests": "Live",
    "profile": "Live",
    "connections": "Who is present",
    "databases": "Project demo",
    "tokens": "Make a token",
    "backups": "backup",
}
_HIDE: Final = """
Object.defineProperty(document, "hidden", {configurable: true, get: () => arguments[0]});
document.dispatchEvent(new Event("visibilitychange"));
"""
_HOLD_READS: Final = """
window.held = [];
window.read = 0;
window.plainFetch = window.fetch;
window.fetch = async (url, options) => {
    const isRead = String(url).includes(".inspect/requests") && !options.headers.Accept;
    if (isRead) await new Promise(go => held.push(go));
    const response = await plainFetch(url, options);
    const text = () => response.text().finally(() => setTimeout(() => { read += 1; }));
    return isRead ? {ok: response.ok, status: response.status, text} : response;
};
"""
_COUNT_FETCHES: Final = """
window.fetched = 0;
window.plainFetch ??= window.fetch;
window.fetch = (...words) => { fetched += 1; return plainFetch(...words); };
"""


@pytest.fixture
def tree(daemon: Daemon) -> Iterator[Tree]:
    """Another client of the project."""
    with Tree(daemon, PROJECT) as client:
        client.put_rules(RULES)
        client.seed("/.json", {"users": {"ada": {"age": 36}}, "list": {"a": 1}, "open": {"n": 1}})
        yield client


@pytest.fixture
def page(browser: Chrome, daemon: Daemon, tree: Tree) -> Iterator[ConsolePage]:
    """The requests in the console of an admin."""
    shown = begin(browser, daemon)
    yield shown
    shown.check_quiet(is_away=True)  # the browser logs each refused request


def begin(browser: Chrome, daemon: Daemon, admin_token: str = "") -> ConsolePage:
    """Return the console of a tab that remembers nothing."""
    shown = ConsolePage(browser, daemon.urls[-1])
    shown.resume("/now/requests", admin_token or admin(PROJECT))
    shown.await_text("Live", ".filters")
    return shown


def rows(page: ConsolePage) -> list[str]:
    """Return the methods and paths of the requests that are shown."""
    script = "return [...document.querySelectorAll('.requests tbody tr td:nth-child(2)')]"
    found: list[str] = page.run(f"{script}.map(e => e.textContent.replace(/\\s+/g, ' ').trim())")
    return found


def seconds_of(tree: Tree) -> float:
    """Return the last second of the rates of the daemon."""
    shown = tree.get(at("/.inspect/activity.json", tree.admin))
    return datetime.fromisoformat(shown["series"]["to"]).timestamp()


def test_requests_appear_as_they_come(page: ConsolePage, tree: Tree) -> None:
    tree.status("GET", "/open/first.json")
    page.await_text("GET /open/first", ".requests")
    assert tree.status("GET", at("/users/ada.json", user(PROJECT, "eve"))) == 403
    page.await_text("403 permission denied", ".requests")
    page.await_text("eve", ".requests")
    page.click(".requests a", "/open/first")
    page.await_true("return location.hash === '#/data/open/first'")
    page.go("/now/requests")
    page.await_text("GET /open/first", ".requests")


def test_operations_are_shown_by_path_with_the_index_that_is_needed(
    page: ConsolePage, tree: Tree
) -> None:
    page.go("/now/profile")
    page.await_text("Live: 0 operations", ".filters")
    tree.status("GET", '/open.json?orderBy="n"')
    tree.status("GET", "/users/ada.json")
    page.await_text("2 operations", ".filters")
    assert rows(page) == ["/open", "/users/ada"] or rows(page) == ["/users/ada", "/open"]
    page.await_text('1 query at /open: add ".indexOn": "n" to the rules there', ".missing")
    page.click(".requests a", "/open")
    page.await_true("return location.hash === '#/data/open'")


def test_the_server_filters_requests(page: ConsolePage, tree: Tree) -> None:
    page.fill("[name=path]", "/users")
    page.press(Keys.ENTER)
    page.choose("[name=status]", "denied")
    page.choose("[name=who]", "user")
    page.fill("[name=uid]", "zoe")
    page.press(Keys.ENTER)
    page.await_true("return location.hash.includes('uid=zoe')")
    page.await_text("Live", ".filters")
    tree.status("GET", at("/users/ada.json", user(PROJECT, "kim")))
    tree.status("GET", at("/open.json", user(PROJECT, "zoe")))
    tree.status("GET", at("/users/zoe.json", user(PROJECT, "zoe")))
    tree.status("GET", at("/users/max.json", user(PROJECT, "zoe")))
    page.await_text("GET /users/max", ".requests")
    assert rows(page) == ["GET /users/max"]
    page.choose("[name=who]", "none")
    page.await_no_text("/users/max", ".requests")
    tree.status("GET", "/users/nobody.json")
    page.await_text("GET /users/nobody", ".requests")
    page.fill("[name=slower]", "x")
    page.press(Keys.ENTER)
    page.await_text("slower must be a number of milliseconds.", "[role=alert]")


@pytest.mark.slow
def test_slow_ones_come_first(page: ConsolePage, tree: Tree) -> None:
    for _ in range(3):
        tree.status("GET", "/open/quick.json")
        tree.seed("/open/slow.json", {f"k{at}": "x" * 2000 for at in range(200)})
    page.await_text("/open/quick", ".requests")
    page.click("[name=slow-first]")
    script = "return [...document.querySelectorAll('.requests tbody tr td:nth-child(4)')]"
    sorted_script = (
        f"{script}.map(e => parseFloat(e.textContent) * (/ s$/.test(e.textContent) ? 1000 : 1))"
    )
    times = page.run(sorted_script)
    assert times == sorted(times, reverse=True)


def test_a_pause_keeps_what_comes(page: ConsolePage, tree: Tree) -> None:
    page.click("button", "Clear")
    page.click("button", "Pause")
    tree.status("GET", "/open/meanwhile.json")
    page.await_text("Paused: 1 new", ".filters")
    assert rows(page) == []
    page.click("button", "Go on")
    page.await_text("GET /open/meanwhile", ".requests")


def test_what_was_cleared_stays_away_when_the_page_is_seen_again(
    page: ConsolePage, tree: Tree
) -> None:
    tree.status("GET", "/open/before.json")
    page.await_text("GET /open/before", ".requests")
    page.click("button", "Clear")
    page.run(_HIDE, True)
    tree.status("GET", "/open/hidden.json")
    page.run(_HIDE, False)
    page.await_text("GET /open/hidden", ".requests")
    assert rows(page) == ["GET /open/hidden"]


def test_what_is_being_read_when_it_is_cleared_is_not_shown(page: ConsolePage, tree: Tree) -> None:
    tree.status("GET", "/open/before.json")
    page.run(_HIDE, True)
    page.run(_HOLD_READS)
    page.run(_HIDE, False)
    page.await_true("return held.length")
    page.click("button", "Clear")
    page.run("for (const go of held) go()")
    page.await_true("return read")
    tree.status("GET", "/open/after.json")
    page.await_text("GET /open/after", ".requests")
    page.run("window.fetch = plainFetch")
    assert rows(page) == ["GET /open/after"]


def test_a_denied_read_is_explained_with_its_query(page: ConsolePage, tree: Tree) -> None:
    target = at("/list.json", user(PROJECT, "ada", role="x"), orderBy='"$key"', limitToFirst="30")
    assert tree.status("GET", target) == 403
    page.await_text("/list?", ".requests")
    page.click(".requests .why")
    page.await_text("✕ Denied", ".verdict")
    assert page.await_shown("#query").get_attribute("value") == 'orderBy="$key"&limitToFirst=30'
    assert page.await_shown("#uid").get_attribute("value") == "ada"
    assert json.loads(page.await_shown("#claims").get_attribute("value") or "")["role"] == "x"
    page.fill("#query", 'orderBy="$key"&limitToFirst=10')
    page.click("form button", "Try")
    page.await_text("✓ Allowed", ".verdict")


def test_a_denied_write_is_explained_with_what_was_sent(page: ConsolePage, tree: Tree) -> None:
    body = f'{{"a":{LARGE},"b":{json.dumps(HOSTILE)}}}'
    assert tree.request("PATCH", at("/list.json", user(PROJECT, "ada")), body).status == 403
    page.await_text("PATCH /list", ".requests")
    page.click(".requests .why")
    page.await_text("✕ Denied", ".verdict")
    assert page.await_shown("#value").get_attribute("value") == body
    page.fill("#claims", '{"role":"editor"}')
    page.click("form button", "Try")
    page.await_text("✓ Allowed", ".verdict")


@pytest.mark.slow
def test_a_denied_write_whose_body_is_too_large_to_be_kept(page: ConsolePage, tree: Tree) -> None:
    tree.request("POST", "/list.json", json.dumps("x" * 5000))
    page.await_text("POST /list", ".requests")
    page.click(".requests .why")
    page.await_text("enter a value like it", "form .problem")


@pytest.mark.slow
def test_what_was_denied_to_a_socket_is_explained(page: ConsolePage, tree: Tree) -> None:
    with RealtimeClient(tree, "/.ws?v=5&ns=demo") as client:
        client.request("q", {"p": "/list", "h": "", "q": {"i": "age", "sp": 3, "l": 30}, "t": 1})
        page.await_text("LISTEN", ".requests")
    page.click(".requests .why")
    page.await_text("✕ Denied", ".verdict")
    query = page.await_shown("#query").get_attribute("value")
    assert query == 'orderBy="age"&startAt=3&limitToFirst=30'


def test_rates_are_plotted(page: ConsolePage, tree: Tree) -> None:
    page.await_shown(".plot:nth-child(5)")
    tree.seed("/open/n.json", 2)
    page.await_true(
        r"return /: \d[\d.]* ms/.test(document.querySelector('.plot:last-child').ariaLabel)"
    )
    assert page.run("return document.querySelector('.plot path:last-child').getAttribute('d')")


@pytest.mark.slow
def test_nothing_is_read_while_the_page_is_hidden(page: ConsolePage, tree: Tree) -> None:
    page.await_true("return document.querySelector('.plot path:last-child')?.getAttribute('d')")
    page.run(_HIDE, True)
    page.run(_COUNT_FETCHES)
    begin_s = seconds_of(tree)
    while seconds_of(tree) < begin_s + HIDDEN_S:
        assert page.run("return fetched") == 0
    tree.status("GET", "/open/hidden.json")
    page.run(_HIDE, False)
    page.await_text("GET /open/hidden", ".requests")
    page.await_true("return fetched > 2")


def test_connections_show_who_is_present(page: ConsolePage, tree: Tree) -> None:
    page.go("/now/connections")
    page.await_text("No client is connected")
    with tree.listen(at("/users/ada.json", user(PROJECT, "ada"))):
        page.await_text("ada 1 connection", ".present")
        page.await_text("1 stream")
        with RealtimeClient(tree, "/.ws?v=5&ns=demo") as client:
            client.listen("/open")
            page.await_text("1 socket")
            page.await_text("without uid 1 connection", ".present")
    page.await_text("No client is connected")


def test_a_database_is_created_and_opened(page: ConsolePage, tree: Tree) -> None:
    page.go("/now/databases")
    page.await_text("demo open", "tbody")
    page.await_true(
        "return document.querySelector('tbody tr td:nth-child(2)').textContent.trim() === '3'"
    )
    page.click("button", "New database")
    page.fill("#field-database", "No good")
    page.press(Keys.ENTER)
    page.await_text("Small letters, digits", "dialog .problem")
    page.fill("#field-database", "room")
    page.press(Keys.ENTER)
    page.await_text(f"{ROOM} is created.", ".toasts")
    page.await_text(ROOM, "tbody")
    page.await_true(f"return document.querySelector('select.database option[value={ROOM}]')")
    page.click("button", "New database")
    page.fill("#field-database", "room")
    page.press(Keys.ENTER)
    page.await_text("Not created: The database room--demo exists already.", ".toasts")
    page.click(f"[aria-label='Open {ROOM}']")
    page.await_true("return location.hash.startsWith('#/data')")
    page.await_true(f"return document.querySelector('select.database').value === '{ROOM}'")


def test_the_open_database_is_deleted_with_its_name_typed(
    page: ConsolePage, daemon: Daemon
) -> None:
    with Tree(daemon, PROJECT, "room") as other:
        other.seed("/.json", {"a": 1})
    page.go("/now/databases")
    page.click(f"[aria-label='Open {ROOM}']")
    page.await_true("return location.hash.startsWith('#/data')")
    page.go("/now/databases")
    page.await_text(f"{ROOM} open", "tbody")
    page.click(f"[aria-label='Delete … {ROOM}']")
    page.await_text("demo is opened then", "dialog")
    page.fill("[name=confirmation]", "room")
    assert page.await_shown("dialog button.danger").get_attribute("disabled")
    page.fill("[name=confirmation]", ROOM)
    page.click("dialog button", "Delete")
    page.await_text(f"{ROOM} is deleted.", ".toasts")
    page.await_true("return document.querySelector('select.database').value === 'demo'")
    page.await_text("demo open", "tbody")
    page.await_no_text(ROOM, "tbody")
    page.await_true(f"return !document.querySelector('select.database option[value={ROOM}]')")


def test_the_default_database_is_empty_afterwards(page: ConsolePage, tree: Tree) -> None:
    page.go("/now/databases")
    page.click("[aria-label='Delete … demo']")
    page.await_text("empty afterwards", "dialog")
    page.fill("[name=confirmation]", "demo")
    page.press(Keys.ENTER)
    page.await_text("demo is empty.", ".toasts")
    page.await_true(
        "return document.querySelector('tbody tr td:nth-child(2)').textContent.trim() === '0'"
    )
    assert tree.see("/.json") is None


def test_a_token_is_made(page: ConsolePage, tree: Tree) -> None:
    page.go("/now/tokens")
    page.fill("#uid", "ada")
    for claims, problem in (
        ("{", "The claims are not valid JSON"),
        ("[1]", "The claims must be a JSON object"),
        ('{"admin":true}', "admin"),
    ):
        page.fill("#claims", claims)
        page.click("form button", "Make")
        page.await_text(problem, "#token-problem")
    page.fill("#claims", '{"role":"editor"}')
    page.choose("#ttl", "7d")
    page.click("form button", "Make")
    page.await_text("Token of ada", ".made-token")
    made = page.await_shown(".made-token textarea").get_attribute("value") or ""
    decoded = jwt.decode(made, secret_of(PROJECT), ["HS256"])
    assert decoded["exp"] - decoded["iat"] == 7 * 86_400
    assert tree.request("PUT", at("/list/b.json", made), "1").status == 200
    page.click(".made-token button", "View the data as ada")
    page.await_text("You see and change data as uid ada", ".banner")
    page.click(".banner button", "Back to yourself")
    page.go("/now/tokens")
    page.click(".made-token button", "Forget it")
    page.await_true("return !document.querySelector('.made-token')")


def test_a_backup_is_taken(page: ConsolePage) -> None:
    page.go("/now/backups")
    page.await_text("None is complete yet.")
    page.click("button", "Take one now")
    page.await_text("The backup is complete.", ".toasts")
    page.await_text("complete", "tbody")
    page.await_text("1 backup", "h2")


def test_without_a_directory_it_is_said_how_to_set_one(
    browser: Chrome, tmp_path: pathlib.Path
) -> None:
    with make_daemon(tmp_path) as running:
        page = begin(browser, running)
        page.go("/now/backups")
        page.await_text("No directory for backups is set")


def test_a_token_that_may_only_read_changes_nothing(
    browser: Chrome, daemon: Daemon, tree: Tree
) -> None:
    page = begin(browser, daemon, token(PROJECT, admin=True, read_only=True))
    for tab, label in (
        ("databases", "New database"),
        ("tokens", "Make"),
        ("backups", "Take one now"),
    ):
        page.go(f"/now/{tab}")
        page.await_text(TABS[tab])
        page.await_shown(".now button:disabled")
        found = page.browser.find_elements(By.CSS_SELECTOR, ".now button:disabled")
        assert any(label in each.text for each in found)
    page.check_quiet(is_away=True)


@pytest.mark.slow
def test_the_server_goes_and_comes_back(page: ConsolePage, daemon: Daemon, tree: Tree) -> None:
    tree.status("GET", "/open/before.json")
    page.await_text("/open/before", ".requests")
    daemon.stop()
    page.await_text("The server does not answer", ".banner")
    page.await_text("/open/before", ".requests")
    daemon.start()
    page.await_no_text("The server does not answer", ".banner")
    page.await_text("Live", ".filters")
    with Tree(daemon, PROJECT) as again:
        again.status("GET", "/open/after.json")
    page.await_text("/open/after", ".requests")


def test_the_views_fit_a_phone(page: ConsolePage, tree: Tree) -> None:
    tree.status("GET", "/users/ada.json")
    page.await_shown(".why")
    page.browser.execute_cdp_cmd(DEVICE, PHONE)
    try:
        for tab, text in TABS.items():
            page.go(f"/now/{tab}")
            page.await_text(text)
            page.await_true("return !document.querySelector('.starting')")
            assert page.run("return document.documentElement.scrollWidth") <= PHONE["width"]
            current = page.await_shown(".subtabs [aria-current=page]").rect
            assert 0 <= current["x"] <= PHONE["width"] - current["width"]
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
