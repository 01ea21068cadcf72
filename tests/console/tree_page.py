"""The tree of the console in a browser, as a user has it: keys, clicks, and what is seen."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from selenium.webdriver import Chrome
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import POLL_S, open_browser
from tests.console.page import PATIENCE_S, ConsolePage, collect_violations
from tests.daemon import Daemon
from tests.system import find_port

OWNER: Final = {"Authorization": "Bearer owner"}
WIDTH: Final = 1200
HEIGHT: Final = 800

_ROWS: Final = """
return [...document.querySelectorAll(".tree-row:not(.unknown):not(.note)")].map(row =>
    [row.dataset.key, row.querySelector(".tree-value")?.textContent.trim() ?? null]);
"""
_FLASHES: Final = """
window.flashes = [];
new MutationObserver(() => {
    for (const row of document.querySelectorAll("[class*=flash-]")) {
        const seen = `${row.dataset.key} ${row.className.match(/flash-(\\w+)/)[1]}`;
        if (!flashes.includes(seen)) flashes.push(seen);
    }
}).observe(document.body, {subtree: true, childList: true, attributes: true});
"""
_ROW: Final = "return [...document.querySelectorAll('.tree-row')].find("
_BUTTON: Final = """
return [...(document.querySelector("dialog, .menu") ?? document).querySelectorAll("button")]
    .find(each => each.textContent.trim().startsWith(arguments[0]));
"""


class TreePage(ConsolePage):
    """The console of a daemon in development mode, open in a browser and signed in as owner."""

    def __init__(self, browser: Chrome, daemon: Daemon) -> None:
        """Sign in."""
        super().__init__(browser, daemon.http)
        self.daemon = daemon
        self.resume("/data", "owner")

    def show(self, route: str) -> None:
        """Show a route, such as `/data/users`, from the beginning."""
        self.go(route)
        self.await_shown(".tree-row:not(.unknown), .records, .tree .empty")
        self.run(_FLASHES)
        if "table=" not in route:
            self.await_shown(".liveness.live, .tree .problem")
            self.run("document.querySelector('.rows').focus()")

    def push(self, label: str) -> None:
        """Click on the button that begins with a label: in a dialog or a menu if one is open."""
        self.click_on(self.await_true(_BUTTON, label))

    def row(self, key: str) -> WebElement:
        """Wait for the row of a child on the screen, and return it."""
        found: WebElement = self.await_true(f"{_ROW} row => row.dataset.key === arguments[0])", key)
        return found

    def choose_row(self, key: str) -> None:
        """Click on the row of a child."""
        self.click_on(self.row(key))
        self.await_true(
            "return document.querySelector('.tree-row.active')?.dataset.key === arguments[0]", key
        )

    def choose_of_menu(self, key: str, label: str) -> None:
        """Choose from the menu of a row."""
        self.choose_row(key)
        self.press("m")
        self.push(label)

    @property
    def rows(self) -> dict[str, str | None]:
        """The keys of the rows on the screen, with what is shown of their values."""
        return dict(self.run(_ROWS))

    def wait_for_rows(self, rows: Mapping[str, str | None]) -> None:
        """Wait until these are the rows, with the one of the place itself."""
        self.await_true(
            f"return JSON.stringify((() => {{{_ROWS}}})()) === arguments[0]",
            json.dumps(
                [[key, value] for key, value in rows.items()],
                separators=(",", ":"),
                ensure_ascii=False,
            ),
        )

    def wait_for_value(self, key: str, value: str | None) -> None:
        """Wait until a row shows a value; None: until there is no such row."""
        self.await_true(
            f"return ((() => {{{_ROWS}}})().find(([key]) => key === arguments[0])?.[1] ?? null)"
            " === arguments[1]",
            key,
            value,
        )

    def wait_for_message(self, text: str) -> None:
        """Wait until a message contains a text."""
        self.await_text(text, ".toasts")

    def put(self, path: str, value: Any, method: str = "PUT") -> None:
        """Write as another client of the daemon."""
        self.put_json(path, json.dumps(value), method)

    def put_json(self, path: str, text: str, method: str = "PUT") -> None:
        """Write JSON text as another client of the daemon."""
        response = self.daemon.request(method, f"{path}.json", text.encode(), OWNER)
        assert response.status == 200, response.body

    def read(self, path: str, query: str = "") -> str:
        """Read as another client of the daemon; return the JSON text."""
        response = self.daemon.request("GET", f"{path}.json{query}", headers=OWNER)
        assert response.status == 200, response.body
        return response.body.decode()

    def read_value(self, path: str) -> Any:
        """Read as another client of the daemon."""
        return json.loads(self.read(path))

    def wait_for_server(self, path: str, value: Any) -> None:
        """Wait until the daemon has a value at a path."""
        WebDriverWait(self.browser, PATIENCE_S, POLL_S).until(
            lambda _: self.read_value(path) == value, f"{path} is not {value}"
        )

    def resize(self, width: int, height: int = HEIGHT) -> None:
        """Give the page a width and a height in pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@contextlib.contextmanager
def open_console(folder: pathlib.Path) -> Iterator[TreePage]:
    """Start a daemon in development mode and a browser, and open the console."""
    listen = f"tcp:{find_port()}:interface=127.0.0.1"
    with Daemon(folder, listen=[listen]) as daemon, open_browser(folder / "profile") as browser:
        collect_violations(browser)
        page = TreePage(browser, daemon)
        page.resize(WIDTH)
        yield page
