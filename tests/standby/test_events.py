"""Programs that read events go on at a standby that was promoted."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

from tests.access import Tree, admin, at
from tests.command import RunningCommand, run_command
from tests.standby.pair import Pair
from tests.system import wait_until

ADMIN = admin("shop")
EVENTS = "/.settings/events.json"


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Pair]:
    with Pair(tmp_path) as pair:
        yield pair


def test_a_run_goes_on_at_a_standby_that_was_promoted(pair: Pair, tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    append = ("--", "sh", "-c", 'echo "$TREEDB_PATH" >> "$0"', str(log))
    words = ("run", "--on", "/orders/$id", "--cursor", tmp_path / "cursor")
    with pair.at_first() as first:
        first.seed("/orders/before.json", 1)
        at_first = ("--url", f"{pair.first.http}/?ns=shop", "--once")
        assert run_command(*words, *at_first, *append, token=ADMIN).status == 0
        first.seed("/orders/a.json", 1)
        assert run_command(*words, *at_first, *append, token=ADMIN).status == 0
        assert log.read_text().splitlines() == ["/orders/a"]
        first.seed("/orders/b.json", 1)
        pair.await_value("/orders/b", 1)
        pair.await_complete()
        pair.first.kill()
    with Tree(pair.standby, "shop", "default") as standby:
        refused = standby.request("PUT", at(EVENTS, ADMIN), json.dumps({"name": "a", "on": "/a"}))
        assert refused.status == 503
    at_standby = ("--url", f"{pair.standby.http}/?ns=shop")
    with RunningCommand(*words, *at_standby, *append, token=ADMIN) as running:
        assert "Trying again." in running.errors.next()
        promoted = run_command("promote", f"{pair.standby.http}?ns=shop", token=ADMIN)
        assert promoted.status == 0, promoted
        wait_until(lambda: log.read_text().splitlines() == ["/orders/a", "/orders/b"])
        with Tree(pair.standby, "shop", "default") as tree:
            assert tree.status("PUT", at("/orders/c.json", ADMIN), "1") == 200
        wait_until(lambda: log.read_text().splitlines()[2:] == ["/orders/c"])
