"""Nodes that go by a `.ttl`, of whole daemons: workers, a kill, a standby, explanations."""

from __future__ import annotations

import pathlib
import time
from typing import Any

from tests.access import Tree, admin, at, trusting
from tests.daemon import Daemon
from tests.ops import OPS_LISTEN, scrape
from tests.standby.pair import Pair
from tests.system import wait_until
from tests.workers_of import is_running, worker_pids

ADMIN = admin("shop")
RULES = {
    ".read": True,
    ".write": True,
    "chat": {"$id": {".ttl": 0.5}},
    "jobs": {"$id": {".ttl": "data.child('at').val()"}},
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def explain(tree: Tree, path: str) -> Any:
    target, headers = at(f"{path}.json", ADMIN), {"X-TreeDB-Explain": "true"}
    return tree.request("GET", target, None, headers).json


def test_one_of_the_workers_removes_each_node_once_also_after_a_kill(
    tmp_path: pathlib.Path,
) -> None:
    with trusting(tmp_path, f"{OPS_LISTEN}\n", ["shop"], "--workers", "2") as daemon:
        due = sweep_with_workers(daemon)
        pids = worker_pids(daemon)
        daemon.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        daemon.start()
        with Tree(daemon, "shop") as tree:
            wait_until(lambda: tree.see("/jobs/late.json") is None)
            assert now_ms() >= due
            shown = explain(tree, "/jobs/later")["ttl"]
            assert [(each["rule"], each["path"], each["expires"]) for each in shown] == [
                ("rules/jobs/$id/.ttl", "/jobs/later", due + 3_600_000)
            ]
            assert explain(tree, "/jobs/gone/x")["ttl"][0]["expires"] is None
            assert "ttl" not in explain(tree, "/other")


def sweep_with_workers(daemon: Daemon) -> int:
    """Write by two connections, and see all go that should; return when the next node goes."""
    with Tree(daemon, "shop") as tree, Tree(daemon, "shop") as other:
        tree.put_rules(RULES)
        for number in range(10):
            (tree, other)[number % 2].seed(f"/chat/n{number}.json", number)
        other.seed("/jobs/kept.json", {"at": "never"})
        wait_until(lambda: other.see("/chat.json") is None)
        assert tree.see("/.json") == {"jobs": {"kept": {"at": "never"}}}
        wait_until(lambda: scrape(daemon).get("treedb_expired_nodes_total") == 10)
        due = now_ms() + 1000
        tree.seed("/jobs.json", {"late": {"at": due}, "later": {"at": due + 3_600_000}})
        return due


def test_a_standby_removes_nothing_before_it_is_promoted(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path) as pair:
        due = now_ms() + 3000
        with pair.at_first() as first:
            first.put_rules(RULES)
            first.seed("/chat/x.json", 1)
            first.seed("/jobs.json", {"a": {"at": due}, "b": {"at": "never"}})
        pair.await_value("/chat", None)  # as the first has removed it
        pair.await_value("/jobs/a/at", due)
        pair.await_complete()
        pair.first.kill()
        wait_until(lambda: now_ms() > due + 1500)
        with pair.at_standby() as tree:
            assert tree.see("/jobs/a.json") == {"at": due}
        assert pair.promote(force=True).status == 200
        pair.await_value("/jobs", {"b": {"at": "never"}})
