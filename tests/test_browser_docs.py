"""Every line of `docs/browser.md`: its JavaScript in Chromium, its commands in a shell."""

from __future__ import annotations

import datetime
import pathlib
from collections.abc import Iterator

import jwt
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser import PATIENCE_S, POLL_S, Console, open_browser
from tests.daemon import SERVE, Daemon
from tests.pages import Check, Shell, check_blocks, no_output, read_blocks, with_ports_of
from tests.system import find_port
from treedbd.config.settings import load_settings

BLOCKS = read_blocks("browser.md")
SITE_PORT = "8000"
PAGE = "index.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    with open_browser(tmp_path_factory.mktemp("profile")) as running:
        yield running


class Reader:
    """Does what the page says, in one folder and one window."""

    def __init__(self, folder: pathlib.Path, browser: Chrome) -> None:
        """Begin in an empty folder; the daemon has ports that it keeps when it is restarted."""
        self.folder = folder
        self._browser = browser
        endpoints = [f"tcp:{find_port()}:interface=127.0.0.1"]
        endpoints.append("ssl:0:interface=127.0.0.1")
        self.daemon = Daemon(folder, listen=endpoints, arguments=["--dev"], program=SERVE)
        (folder / "treedb-data").symlink_to(self.daemon.data)
        self.site = str(find_port())
        self.shell = Shell(folder, self.adapt)
        self.console: Console | None = None
        self.kinds = {
            "sh daemon": self._serve,
            "sh site": self._serve_page,
            "sh": self.shell.run,
            "js": self._type,
            "text console": self._look,
            "html site/index.html": self._save,
            "toml": self._configure,
            "python": self._run_python,
        }

    def adapt(self, text: str) -> str:
        return with_ports_of(text, self.daemon).replace(SITE_PORT, self.site)

    def open(self) -> None:
        """Open the page in the window."""
        self._browser.get(f"http://localhost:{self.site}/")

    def close(self) -> None:
        self.shell.close()
        self.daemon.close()

    def _serve(self, text: str) -> Check:
        assert text == "treedb serve --dev\n"
        if self.daemon.urls:
            self.daemon.restart()
        else:
            self.daemon.start()
        return no_output

    def _serve_page(self, text: str) -> Check:
        self.shell.start(text.replace("python3 ", "exec python3 -u "))("Serving HTTP on …")
        self.open()
        self.console = Console(self._browser)
        return no_output

    def _type(self, text: str) -> Check:
        assert self.console is not None
        token = self.shell.output.rpartition("\n")[2]
        return self.console.run(self.adapt(text).replace('"…"', f'"{token}"'))

    def _look(self, text: str) -> Check:
        assert self.console is not None
        return self.console.check_last(text)

    def _save(self, text: str) -> Check:
        assert text.count("\n") < 60
        (self.folder / "site" / PAGE).write_text(self.adapt(text))
        return no_output

    def _configure(self, text: str) -> Check:
        (self.folder / "treedb.toml").write_text(text)
        (self.folder / "shop.secret").write_text("a secret of 32 bytes or many more\n")
        settings = load_settings(self.folder / "treedb.toml", {}, self.folder)
        assert settings.http.cors_origins == ("https://app.example.com",)
        return no_output

    def _run_python(self, text: str) -> Check:
        (self.folder / "sign_in.py").write_text(text)
        return self.shell.run("python sign_in.py")


@pytest.fixture
def reader(tmp_path: pathlib.Path, browser: Chrome) -> Iterator[Reader]:
    reader = Reader(tmp_path, browser)
    yield reader
    reader.close()


def test_every_line_does_what_the_page_says(reader: Reader) -> None:
    assert len(BLOCKS) > 25
    check_blocks(BLOCKS, reader.kinds)
    secret = (reader.folder / "shop.secret").read_text().removesuffix("\n")
    claims = jwt.decode(reader.shell.output, secret, ["HS256"])
    assert claims["uid"] == "ada"
    lasts = datetime.timedelta(seconds=claims["exp"] - claims["iat"])
    assert lasts == datetime.timedelta(hours=1)


class ListPage:
    """The shopping list, in the window that is open."""

    def __init__(self, browser: Chrome) -> None:
        self._browser = browser
        self._waiting = WebDriverWait(browser, PATIENCE_S, POLL_S)

    def await_items(self, *items: str) -> list[WebElement]:
        """Wait until the list shows these entries."""
        self._waiting.until(lambda _: self._texts() == list(items), f"It is {self._texts()}.")
        return self._browser.find_elements(By.TAG_NAME, "li")

    def await_state(self, text: str) -> None:
        """Wait until the last line of the page is this one."""
        self._waiting.until(lambda _: self._browser.find_element(By.TAG_NAME, "p").text == text)

    def await_style(self, decoration: str) -> None:
        """Wait until the first entry has this text decoration."""
        script = "return document.querySelector('li').style.textDecoration"
        self._waiting.until(lambda _: self._browser.execute_script(script) == decoration)

    def add(self, text: str) -> None:
        """Type an entry, and press the button."""
        self._browser.find_element(By.TAG_NAME, "input").send_keys(text)
        self._browser.find_element(By.CSS_SELECTOR, "form button").click()

    def _texts(self) -> list[str]:
        script = "return [...document.querySelectorAll('li')].map(line => line.firstChild.data)"
        return [text.rstrip() for text in self._browser.execute_script(script)]


def test_the_list_of_the_page_shows_what_others_write_and_goes_on_after_a_restart(
    reader: Reader, browser: Chrome
) -> None:
    kinds = ("sh daemon", "sh site", "html site/index.html")
    check_blocks([block for block in BLOCKS if block.kind in kinds], reader.kinds)
    reader.open()
    page = ListPage(browser)
    page.await_state("connected")
    page.add("<b>milk</b>")
    page.await_items("<b>milk</b>")
    assert reader.daemon.request("POST", "/shopping.json", '{"text": "tea"}').status == 200
    first, second = page.await_items("<b>milk</b>", "tea")
    assert second.text.startswith("tea")
    first.click()
    page.await_style("line-through")
    (key, milk), _ = reader.daemon.request("GET", "/shopping.json").json.items()
    assert milk == {"text": "<b>milk</b>", "done": True}
    reader.daemon.stop()
    page.await_state("waiting for the server …")
    reader.daemon.start()
    assert reader.daemon.request("PATCH", f"/shopping/{key}.json", '{"text": "oat"}').status == 200
    page.await_items("oat", "tea")[0].find_element(By.TAG_NAME, "button").click()
    page.await_items("tea")
