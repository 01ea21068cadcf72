"""A standby as a daemon: it has what its first has, refuses writes, and comes back."""

from __future__ import annotations

import pathlib
import re
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from tests.access import Tree, at
from tests.ops import scrape
from tests.standby.pair import LAG, PROJECT, Pair, ask, make_daemon, see, until
from tests.standby.small_standby import ID, SmallStandby
from treedbd.limits import MAX_CURSORS
from treedbd.standby.positions import cursor_name
from treedbd.standby.replacement import FOLDER
from treedbd.standby.term import read_term

OPEN = {".read": True, ".write": True}

HOOKS = "/.settings/webhooks.json"
HOOK = '{"name":"h","on":"/$id","events":["written"],"url":"https://a.example.com/"}'


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    listen = ["tcp:0:interface=127.0.0.1"]
    with Pair(tmp_path_factory.mktemp("pair"), ops_listen=listen) as pair:
        yield pair


def test_data_rules_and_new_databases_come_to_the_standby(pair: Pair) -> None:
    with pair.at_first() as first, pair.at_standby() as standby:
        first.seed("/data.json", {"a": [1, 2], "b": {".value": 3, ".priority": 4}})
        first.put_rules({**OPEN, "data": {".indexOn": ["n"]}})
        pair.await_value("/data/a", [1, 2])
        assert standby.get(at("/data.json", standby.admin, format="export")) == {
            "a": {"0": 1, "1": 2},
            "b": {".value": 3, ".priority": 4},
        }
        until(lambda: standby.status("GET", "/data.json") == 200, "the rules")
    with pair.at_first("eu") as eu:
        eu.seed("/x.json", "y")
    pair.await_value("/x", "y", "eu")
    with pair.at_first("eu") as eu:
        target = f"/.settings/database.json?confirm=eu--shop&auth={eu.admin}"
        assert eu.request("DELETE", target).status == 200
    pair.await_value("/x", None, "eu")


def test_the_standby_refuses_writes_and_names_the_first(pair: Pair) -> None:
    with pair.at_standby() as tree:
        for method, target in (
            ("PUT", "/a.json"),
            ("POST", "/a.json"),
            ("PATCH", "/a.json"),
            ("DELETE", "/a.json"),
            ("PUT", "/.settings/rules.json"),
            ("DELETE", "/.settings/database.json?confirm=shop"),
            ("PUT", HOOKS),
            ("DELETE", f"{HOOKS}?name=h"),
        ):
            body = {"/.settings/rules.json": '{"rules": {}}', HOOKS: HOOK}.get(target, '{"n": 1}')
            response = tree.request(method, at(target, tree.admin), body)
            assert response.status == 503, (method, target, response)
            assert f"standby of {pair.url}: write there" in str(response.json), target


def test_hooks_come_to_the_standby_with_how_far_they_are_done(pair: Pair) -> None:
    def shown(tree: Tree) -> list[Any]:
        listed = tree.request("GET", at(HOOKS, tree.admin)).json["webhooks"]
        return [(each["name"], each["secrets"], each["state"]["seq"]) for each in listed]

    with pair.at_first() as first, pair.at_standby() as standby:
        first.seed("/hooked.json", 1)
        assert first.request("PUT", at(HOOKS, first.admin), HOOK).status == 200
        found = shown(first)
        assert found[0][:2] == ("h", 1)
        until(lambda: shown(standby) == found, "the hook")
        assert first.request("DELETE", at(f"{HOOKS}?name=h", first.admin)).status == 200
        until(lambda: shown(standby) == [], "its end")


def test_the_lag_is_shown_and_grows_while_the_first_is_silent(pair: Pair) -> None:
    with pair.at_standby() as tree:
        target = at("/data.json", tree.admin)

        def lag_ms() -> int:
            return int(tree.request("GET", target).headers[LAG])

        assert until(lambda: lag_ms() < 1500, "a small lag")
        pair.proxy.block()
        until(lambda: lag_ms() > 2500, "a large lag")
        assert scrape(pair.standby).get("treedb_standby_lag_seconds") > 2.5
        pair.proxy.unblock()
        until(lambda: lag_ms() < 1500, "a small lag again")


def test_a_database_that_cannot_be_stored_keeps_no_other_from_following(pair: Pair) -> None:
    full = "The disk of this standby is full (shop/large)"
    with pair.at_first("large") as large, pair.at_first() as first:
        large.seed("/n.json", 1)
        pair.await_value("/n", 1, "large")
        mark, of_first = pair.standby.mark(), pair.first.mark()
        before = resource.prlimit(pair.standby.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pair.standby.pid, resource.RLIMIT_FSIZE, (2_500_000, before[1]))
        long = "x" * 5_000_000
        large.seed("/n.json", long)
        pair.standby.await_line(re.escape(full), mark)
        for number in range(2):
            first.seed("/n.json", f"other {number}")
            pair.await_value("/n", f"other {number}")
            until(lambda: full in str(ask(pair.standby, "GET", "state.json").json["problems"]))
        resource.prlimit(pair.standby.pid, resource.RLIMIT_FSIZE, before)
        pair.await_value("/n", long, "large")
        pair.standby.await_line("shop/large follows again", mark)
        until(lambda: not ask(pair.standby, "GET", "state.json").json["problems"], "no problem")
    assert pair.standby.log_since(mark).count(full) == 1
    assert "does not follow" not in pair.standby.log_since(mark)
    assert "follows the project" not in pair.first.log_since(of_first)


def test_it_goes_on_after_cuts_and_ends_of_both(pair: Pair) -> None:
    with pair.at_first() as first:
        first.seed("/n.json", 1)
    pair.await_value("/n", 1)
    pair.proxy.cut()
    with pair.at_first() as first:
        first.seed("/n.json", 2)
    pair.await_value("/n", 2)
    pair.standby.kill()
    with pair.at_first() as first:
        first.seed("/n.json", 3)
    pair.first.kill()
    pair.standby.start()
    pair.await_value("/n", 2)
    health = pair.standby.request("GET", "/.health")
    assert health.status in (200, 503)
    pair.restart_first()
    pair.await_value("/n", 3)


def test_events_of_a_stream_are_the_same_and_go_on_after_a_promotion(
    tmp_path: pathlib.Path,
) -> None:
    with Pair(tmp_path) as pair:
        with pair.at_first() as first:
            first.seed("/n.json", 0)
        pair.await_value("/n", 0)
        with pair.at_standby() as reader, pair.at_first() as first, pair.at_standby() as writer:
            stream = reader.listen(at("/n.json", reader.admin))
            assert stream.next().data == {"path": "/", "data": 0}
            for number in range(1, 20):
                first.seed("/n.json", number)
            found = [stream.next().data["data"] for _ in range(1, 20)]
            assert found == list(range(1, 20))
            pair.await_complete()
            answer = pair.promote()
            assert answer.status == 200, answer
            assert answer.json["is_current"] is True
            for number in range(20, 25):
                writer.seed("/n.json", number)
            found = [stream.next().data["data"] for _ in range(20, 25)]
            assert found == list(range(20, 25))
            assert LAG not in writer.request("GET", at("/n.json", writer.admin)).headers
            refused = first.request("PUT", at("/n.json", first.admin), "1")
            assert refused.status == 503
        pair.first.kill()
        assert "superseded" in pair.first.run().stderr


def test_a_promotion_fetches_what_was_written_while_the_first_was_cut_off(
    tmp_path: pathlib.Path,
) -> None:
    with Pair(tmp_path) as pair, pair.at_first() as first:
        first.seed("/n.json", 1)
        pair.await_value("/n", 1)
        pair.await_complete()
        pair.proxy.block()
        pair.proxy.cut()
        until(lambda: ask(pair.standby, "GET", "state.json").json["problems"], "the cut")
        first.seed("/n.json", 2)
        pair.proxy.unblock()
        assert pair.promote().json["is_current"] is True
        with pair.at_standby() as tree:
            assert tree.see("/n.json") == 2


def test_an_old_first_comes_back_as_a_standby_of_the_new_one(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path) as pair:
        with pair.at_first() as first:
            first.seed("/n.json", 1)
        pair.await_value("/n", 1)
        pair.await_complete()
        pair.first.kill()
        assert pair.promote().json["is_current"] is False
        with pair.at_standby() as tree:
            tree.seed("/n.json", 2)
        config = pair.first.folder / "treedb.toml"
        url = f"http://127.0.0.1:{pair.standby.port}"
        config.write_text(f'standby_of = "{url}"\n' + config.read_text())
        pair.first.start()
        with pair.at_first() as old:
            until(lambda: see(old, "/n") == 2, "what the new first has")
            assert old.status("PUT", at("/n.json", old.admin), "3") == 503
        assert not list((pair.first.data / FOLDER).glob("*"))


def test_a_base_is_taken_where_the_log_does_not_continue(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path) as pair:
        with pair.at_first() as first:
            first.seed("/n.json", {"a": 0})
            first.seed("/n.json", {"a": 1})
        pair.await_value("/n", {"a": 1})
        pair.standby.kill()
        pair.first.stop()
        for file in (pair.first.data / PROJECT).glob("default.shelf*"):
            file.unlink()
        pair.restart_first()  # with another history
        with pair.at_first() as first:
            first.seed("/n.json", {"b": 2})
        pair.standby.start()
        pair.await_value("/n", {"b": 2})
        pair.standby.await_line("ends with the write 1: what was here ended with the write 2")


def test_a_directory_with_data_of_its_own_is_refused(tmp_path: pathlib.Path) -> None:
    daemon = make_daemon(tmp_path / "own")
    with daemon:
        with Tree(daemon, PROJECT) as tree:
            tree.seed("/a.json", 1)
        assert daemon.stop() == 0
    config = daemon.folder / "treedb.toml"
    config.write_text('standby_of = "http://127.0.0.1:9"\n' + config.read_text())
    result = daemon.run()
    assert result.returncode == 1
    assert "would be replaced" in result.stderr


def test_a_database_whose_log_has_too_many_readers_is_a_problem(pair: Pair) -> None:
    with pair.at_first("full") as full:
        full.seed("/a.json", 1)
        pair.await_value("/a", 1, "full")
        pair.proxy.block()
        pair.proxy.cut()
        own = cursor_name(read_term(pair.standby.data).id)
        target = f"/.settings/cursors.json?cursor={own}&auth={full.admin}"
        assert full.request("DELETE", target).status == 200
    for number in range(MAX_CURSORS):
        with SmallStandby(pair.first, standby=f"{number:02x}{ID[2:]}") as other:
            other.until(lambda line: line.get("db") == "shop/full" and "begins" in line)
    pair.proxy.unblock()

    def problems() -> str:
        return str(ask(pair.standby, "GET", "state.json").json["problems"])

    until(lambda: f"shop/full is not sent: The change log has {MAX_CURSORS} readers" in problems())
    with pair.at_first("full") as full:
        target = f"/.settings/database.json?confirm=full--shop&auth={full.admin}"
        assert full.request("DELETE", target).status == 200
    until(lambda: problems() == "[]", "the end of the problem")


def test_promotion_needs_an_admin_and_a_standby(pair: Pair) -> None:
    refused = pair.standby.request("POST", "/.standby/promote.json?ns=shop", "{}")
    assert refused.status in (401, 403)
    assert ask(pair.first, "POST", "promote.json", {}).status in (409, 503)
