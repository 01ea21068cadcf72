"""A daemon with data, a browser, and the console in it, signed in as an admin."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote

import pytest
from selenium.webdriver import Chrome

from tests.access import Tree, admin, write_secret
from tests.browser import open_browser
from tests.console.page import HOSTILE, ConsolePage, collect_violations, seed
from tests.daemon import Daemon
from tests.system import find_port

CONFIG: Final = """
console_listen = ["tcp:{port}:interface=127.0.0.1"]
domains = ["db.test"]
default_project = "demo"
{backups}
[projects.demo]
secret_files = ["demo.secret"]
databases = "*"
[projects.filed]
secret_files = ["filed.secret"]
rules_file = "filed.rules.json"
[projects.fresh]
secret_files = ["fresh.secret"]
"""
FILED_RULES: Final = """{
  "rules": {
    // each user has a place
    "users": {
      "$uid": {
        ".read": "auth.uid === $uid",
        ".write": "auth.uid === $uid",
        "age": {".validate": "newData.isNumber() && newData.val() >= 0"}
      }
    },
    "list": {".read": "query.limitToFirst <= 10", ".write": "auth.uid === 'bob'"}
  }
}
"""
RULES: Final = {
    "rules": {
        "users": {"$uid": {".read": "auth.uid === $uid", ".write": "auth.uid === $uid"}},
        HOSTILE: {".read": f"auth.uid === '{HOSTILE}'"},
    }
}
LONG: Final = "a key that is longer than a screen of a phone has room for in one line of it"
DATA: Final = {
    "users": {"ada": {"name": "Ada", "age": 36}, "bob": {"name": "Bob", "age": 41, "ok": True}},
    "words": {f"word{number:03}": {"text": "text " * 60, "n": number} for number in range(300)},
    HOSTILE: {HOSTILE: HOSTILE},
    LONG: {LONG: {LONG: LONG}},
    "big": 12345678901234567890,
}
VIEWS: Final = {
    "/data": ".tree-row[data-key=users]",
    "/data/words": ".tree-row[data-key=word000]",
    f"/data/{quote(LONG)}/{quote(LONG)}": ".tree-row .tree-value",
    "/data/nothing/here": ".tree-row.note",
    "/rules": "treedb-editor",
    "/rules/playground": ".playground",
    "/rules/versions": "treedb-rules-versions table",
    "/now": ".requests",
    "/now/profile": "treedb-profile table",
    "/now/connections": "treedb-connections h2",
    "/now/databases": "treedb-databases table",
    "/now/tokens": "treedb-tokens form",
    "/now/backups": "treedb-backups",
}
"""The views, each with what it shows when it is ready."""
Screen: TypeAlias = Mapping[str, int | bool]
WIDE: Final[Screen] = {"width": 1200, "height": 800, "deviceScaleFactor": 1, "mobile": False}
PHONE: Final[Screen] = {"width": 375, "height": 720, "deviceScaleFactor": 2, "mobile": True}


def make_daemon(folder: pathlib.Path, backups: str = "") -> Daemon:
    """Return a daemon with three projects; its last URL, which stays, has the console.

    `demo` is the default, a file manages the rules of `filed`, and `fresh` has the first ones.
    """
    for project in ("demo", "filed", "fresh"):
        write_secret(folder, project)
    (folder / "filed.rules.json").write_text(FILED_RULES)
    return Daemon(folder, config=CONFIG.format(port=find_port(), backups=backups))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that has a directory for backups."""
    folder = tmp_path_factory.mktemp("daemon")
    with make_daemon(folder, f'backups = "{folder / "backups"}"') as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that shows what a policy refuses."""
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        collect_violations(running)
        yield running


@pytest.fixture
def tree(daemon: Daemon) -> Iterator[Tree]:
    """Another client, whose data and rules are put again before each test."""
    seed(daemon, RULES, DATA)
    with Tree(daemon, "demo") as client:
        yield client


@pytest.fixture
def page(browser: Chrome, daemon: Daemon, tree: Tree) -> Iterator[ConsolePage]:
    """The console, signed in as an admin."""
    shown = ConsolePage(browser, daemon.urls[-1])
    look(shown, WIDE, "light")
    shown.resume("/data", admin("demo"))
    shown.await_text("users", ".tree-row")
    yield shown
    shown.check_quiet(is_away=True)


def look(page: ConsolePage, size: Screen, colours: str) -> None:
    """Show pages on another screen."""
    features = [{"name": "prefers-color-scheme", "value": colours}]
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", dict(size))
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
