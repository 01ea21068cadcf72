"""A reader of a change log that lags too much, as operators of several workers see it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from tests.access import Tree, admin, at, trusting
from tests.cursors import seed_readers
from tests.daemon import Daemon
from tests.ops import OPS_LISTEN, health, scrape
from tests.system import wait_until
from treedbd.limits import KIB, MIB
from treedbd.store.changelog import TRIM_EVERY

CONFIG = f"{OPS_LISTEN}\n[readers]\nlag_bytes = {MIB}\n"
CURSORS = "/.settings/cursors.json"
ADMIN = admin("shop")


def exceed(tree: Tree) -> None:
    """Write more than a reader may leave unread, and so often that the log is trimmed."""
    body = json.dumps("x" * (2 * MIB // TRIM_EVERY))
    assert len(body) < 48 * KIB
    for number in range(2 * TRIM_EVERY):
        assert tree.status("PUT", at(f"/n{number}.json", ADMIN, print="silent"), body) == 204


def problems(daemon: Daemon) -> list[Any]:
    return [each for each in health(daemon)[1]["problems"] if "lost its place" in each["reason"]]


def test_a_reader_that_lost_its_place_is_reported_until_its_cursor_is_removed(
    tmp_path: pathlib.Path,
) -> None:
    seed_readers(tmp_path / "data", ["read--shop"])
    workers = ("--workers", "2")
    with (
        trusting(tmp_path, CONFIG, ["shop"], *workers) as daemon,
        Tree(daemon, "shop", "read") as tree,
    ):
        assert health(daemon)[0] == 200
        exceed(tree)
        wait_until(lambda: scrape(daemon).get("treedb_log_cursors_dropped_total") == 1)
        wait_until(lambda: problems(daemon) != [])
        (problem,) = problems(daemon)
        assert (problem["database"], problem["refuses_writes"]) == ("read", False)
        assert "remove its cursor (treedb cursors --remove archive)" in problem["reason"]
        assert health(daemon, "?ready")[0] == 200
        assert "The reader archive of the change log of read--shop has lost its place" in daemon.log
        (cursor,) = tree.request("GET", at(CURSORS, ADMIN)).json["cursors"]
        assert cursor["dropped"] is not None
        assert scrape(daemon).of("treedb_log_cursor_lag_entries") == {}
        daemon.stop()
    with (
        trusting(tmp_path, CONFIG, ["shop"], *workers) as daemon,
        Tree(daemon, "shop", "read") as tree,
    ):
        assert tree.status("GET", at("/n0.json", ADMIN)) == 200
        wait_until(lambda: problems(daemon) != [])
        removed = tree.request("DELETE", at(CURSORS, ADMIN, cursor="archive"))
        assert removed.status == 200
        wait_until(lambda: health(daemon)[0] == 200)
        assert tree.request("GET", at(CURSORS, ADMIN)).json["cursors"] == []
