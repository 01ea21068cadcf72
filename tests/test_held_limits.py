"""What one caller makes a daemon hold: refused beyond the bounds, and free when it has gone."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.access import Tree, at, trusting
from tests.daemon import Daemon
from tests.ops import OPS_LISTEN, scrape
from tests.realtime import RealtimeClient
from tests.system import wait_until

HELD = 600_000
FIELDS = 3
CONFIG = f"""
{OPS_LISTEN}
[limits]
held_bytes_per_address = {HELD}
watched_fields_per_path = {FIELDS}
"""
LONG = "b" * 100_000


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: pathlib.Path = tmp_path_factory.mktemp("held")
    with trusting(folder, CONFIG, ["shop"], "--workers", "1") as running:
        with Tree(running, "shop") as tree:
            tree.put_rules({"open": {".read": True, ".write": True}})
            tree.seed("/open/many.json", {f"k{number:04}": number for number in range(800)})
        yield running


@pytest.fixture
def tree(daemon: Daemon) -> Iterator[Tree]:
    with Tree(daemon, "shop") as client:
        yield client
    wait_until(lambda: scrape(daemon).get("treedb_held_bytes") == 0)


def refused(daemon: Daemon) -> float:
    name = "treedb_held_refusals_total"
    return scrape(daemon).get(name, limit="held_bytes_per_address")


def test_listens_with_long_queries_are_unavailable_until_others_end(
    daemon: Daemon, tree: Tree
) -> None:
    before = refused(daemon)
    with RealtimeClient(tree) as client:

        def listen(number: int) -> str:
            query = {"i": "name", "sp": f"{number}{LONG}"}
            return client.request("q", {"p": "open/none", "q": query, "t": number}).status

        statuses = [listen(number) for number in range(8)]
        assert statuses[0] == "ok"
        assert statuses[-1] == "unavailable"
        assert refused(daemon) > before
        query = {"i": "name", "sp": f"0{LONG}"}
        client.succeed("n", {"p": "open/none", "q": query, "t": 0})
        assert listen(9) == "ok"


def test_windows_of_streams_are_refused_beyond_the_bound(daemon: Daemon, tree: Tree) -> None:
    before = refused(daemon)
    with ExitStack() as stack:

        def target(number: int) -> str:
            return at("/open/many.json", orderBy='"$key"', limitToFirst=f"{1000 + number}")

        first = stack.enter_context(tree.listen(target(0)))
        first.next()
        again = stack.enter_context(tree.listen(target(0)))
        again.next()  # which shares its window
        stack.enter_context(tree.listen(target(1))).next()
        assert stack.enter_context(tree.try_to_listen(target(2))).status == 503
        assert refused(daemon) == before + 1


def test_a_path_has_a_bound_of_fields_that_are_watched(tree: Tree) -> None:
    with ExitStack() as stack:

        def target(number: int) -> str:
            return at("/open/few.json", orderBy=f'"field{number}"')

        for number in range(FIELDS):
            stack.enter_context(tree.listen(target(number))).next()
        stack.enter_context(tree.listen(target(0))).next()
        assert stack.enter_context(tree.try_to_listen(target(FIELDS))).status == 503
        assert tree.status("GET", target(FIELDS)) == 200
        with RealtimeClient(tree) as client:
            query = {"i": "another"}
            answer = client.request("q", {"p": "open/few", "q": query, "t": 1})
            assert answer.status == "unavailable"
