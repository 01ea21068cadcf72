"""A first and its standby, as two daemons with the same project; a proxy is between them."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any, Final

from tests.access import Tree, admin, write_secret
from tests.closing import Closing
from tests.daemon import Daemon, Response
from tests.tcp_proxy import TcpProxy
from treedbd.standby.term import read_term

PROJECT: Final = "shop"
PATIENCE_S: Final = 60.0
LAG: Final = "TreeDB-Lag-Ms"
CONFIG: Final = """
domains = ["db.test"]
default_project = "shop"
{more}

[projects.shop]
databases = "*"
secret_files = ["shop.secret"]
"""
GAMES: Final = """
[projects.games]
secret_files = ["games.secret"]
"""


def until(is_so: Callable[[], Any], what: str = "it") -> Any:
    """Return what `is_so` returns as soon as that is true."""
    end = time.monotonic() + PATIENCE_S
    while not (found := is_so()):
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(0.02)  # between two looks
    return found


def make_daemon(folder: pathlib.Path, projects: str = "", **keys: object) -> Daemon:
    """Return a daemon with the project, other ones, and other keys of the configuration."""
    folder.mkdir()
    write_secret(folder, PROJECT)
    write_secret(folder, "games")
    more = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    return Daemon(folder, config=CONFIG.format(more=more) + projects)


class Pair(Closing):
    """A first, a proxy before it, and a standby that follows it by way of the proxy.

    Attributes:
        first, standby: the daemons.
        proxy: between them.

    """

    def __init__(self, folder: pathlib.Path, *, first_has: str = "", **keys: object) -> None:
        """Start both; `keys` are further ones of the standby's configuration.

        The first has the projects `first_has`, too.
        """
        self.first = make_daemon(folder / "first", first_has)
        self.first.start()
        self.proxy = TcpProxy(self.first.port)
        self.url = f"http://127.0.0.1:{self.proxy.port}"
        self.standby = make_daemon(folder / "standby", "", standby_of=self.url, **keys)
        self.standby.start()

    def close(self) -> None:
        """End all."""
        self.standby.close()
        self.first.close()
        self.proxy.close()

    def restart_first(self) -> None:
        """Start the first again, which was killed or stopped."""
        self.first.start()
        self.proxy.lead_to(self.first.port)

    def at_first(self, database: str = "") -> Tree:
        """Return a client of the first."""
        return Tree(self.first, PROJECT, database)

    def at_standby(self, database: str = "") -> Tree:
        """Return a client of the standby."""
        return Tree(self.standby, PROJECT, database)

    def await_value(self, path: str, value: object, database: str = "") -> None:
        """Wait until the standby shows a value."""
        with self.at_standby(database) as tree:
            until(lambda: see(tree, path) == value, f"{value!r} at {path}")

    def await_complete(self) -> None:
        """Wait until it is durable that the standby has had a state of the first."""

        def is_complete() -> bool:
            peers = read_term(self.standby.data).peers
            return bool(peers and peers[-1].seen_ms)

        until(is_complete, "all data")

    def promote(self, *, force: bool = False) -> Response:
        """Promote the standby."""
        return ask(self.standby, "POST", "promote.json", {"force": force})


def see(tree: Tree, path: str) -> Any:
    """Return a value, or the error of a database that is not there at present."""
    response = tree.request("GET", f"{path}.json?auth={tree.admin}")
    return response.json


def ask(daemon: Daemon, method: str, name: str, body: object = None) -> Response:
    """Send a request to a resource of standbys, as an admin."""
    headers = {"Authorization": f"Bearer {admin(PROJECT)}"}
    content = None if body is None else json.dumps(body)
    return daemon.request(method, f"/.standby/{name}?ns={PROJECT}", content, headers)
