"""`treedb promote`, and what is done then: writes of sessions, a notice to the old first."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.access import Tree, admin, at, token
from tests.command import run_command
from tests.daemon import Daemon
from tests.standby.pair import GAMES, Pair, ask, make_daemon, see, until
from treedbd.database.session_owners import OWNER_FILE
from treedbd.standby.term import read_term

ADMIN = admin("shop")


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> Iterator[Pair]:
    with Pair(tmp_path) as pair:
        yield pair


def promote(*words: str) -> tuple[int, str, str]:
    result = run_command("promote", *words, token=ADMIN)
    return result.status, result.output.decode(), result.errors


def test_writes_that_sessions_at_the_old_first_had_kept_are_done(pair: Pair) -> None:
    offline = quote(json.dumps({"state": "offline"}))
    with pair.at_first() as first, pair.at_first() as other:
        first.seed("/ada.json", {"state": "online"})
        stream = first.listen(f"{at('/ada.json', first.admin)}&onDisconnect={offline}")
        stream.next()
        with pair.at_first("eu") as eu:
            eu.seed("/bob.json", {"state": "online"})
            second = eu.listen(f"{at('/bob.json', eu.admin)}&onDisconnect={offline}")
            second.next()
            pair.await_value("/ada/state", "online")
            other.seed("/last.json", 1)
            pair.await_value("/last", 1)
            until(lambda: noted(pair) == 2, "the owners")
            pair.await_complete()
            pair.first.kill()
    assert see(pair.at_standby(), "/ada/state") == "online"
    pair.standby.kill()  # what was noted is durable
    pair.standby.start()
    status, output, errors = promote(f"{pair.standby.http}?ns=shop")
    assert status == 0, errors
    assert "in the term 2" in output
    assert "may be missing" in errors
    pair.await_value("/ada/state", "offline")
    pair.await_value("/bob/state", "offline", "eu")
    until(lambda: noted(pair) == 0, "the end of the owners")


def noted(pair: Pair) -> int:
    """Return for how many databases writes of sessions at the first are noted at the standby."""
    files = pair.standby.data.glob(f"{OWNER_FILE}*")
    return sum(len(each.read_text().splitlines()) for each in files)


def test_a_first_with_other_projects_steps_down_by_force_only(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path, first_has=GAMES) as pair:
        pair.await_complete()
        url = f"{pair.standby.http}?ns=shop"
        status, _, errors = promote(url)
        assert (status, "refuses to step down: This concerns all projects" in errors) == (1, True)
        pair.await_value("/a", None)
        with pair.at_first() as tree:
            tree.seed("/a.json", 1)  # it goes on
        status, output, errors = promote(url, "--force")
        assert (status, "may be missing" in errors) == (0, True)
        assert "in the term 2" in output


def test_a_directory_is_promoted_without_a_daemon(pair: Pair) -> None:
    data = pair.standby.data
    with pair.at_first() as first:
        first.seed("/n.json", 1)
    pair.await_value("/n", 1)
    pair.await_complete()
    config = str(pair.standby.folder / "treedb.toml")
    flags = ("--config", config, "--data", str(data))
    status, _, errors = promote(*flags)
    assert status == 1
    assert "give the URL" in errors
    pair.standby.stop()
    status, output, errors = promote(*flags)
    assert (status, "in the term 2" in output) == (0, True), errors
    status, _, errors = promote(*flags)
    assert status == 1
    assert "is not the directory of a standby" in errors
    pair.standby.start()  # standby_of is still set
    with pair.at_standby() as tree:
        until(lambda: tree.status("PUT", at("/n.json", tree.admin), "2") == 200, "writes")
    pair.standby.await_line("standby_of is set")
    with pair.at_first() as old:
        until(lambda: old.status("PUT", at("/n.json", old.admin), "3") == 503, "the notice")
    pair.first.stop()
    old_data = str(pair.first.data)
    old_config = str(pair.first.folder / "treedb.toml")
    status, _, errors = promote("--config", old_config, "--data", old_data)
    assert status == 1
    assert "superseded" in errors
    status, output, _ = promote("--config", old_config, "--data", old_data, "--force")
    assert (status, "in the term 3" in output) == (0, True)
    assert read_term(pair.first.data).role == "first"


def test_an_incomplete_standby_is_promoted_by_force_only(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path) as pair:
        pair.standby.kill()
        pair.first.kill()
        for file in pair.standby.data.glob("treedb.term"):
            file.unlink()
        pair.standby.start()
        url = f"{pair.standby.http}?ns=shop"
        status, _, errors = promote(url)
        assert status == 1
        assert "has not received all data" in errors
        status, output, errors = promote(url, "--force")
        assert (status, "is the first" in output) == (0, True), errors
        pair.restart_first()  # it receives the notice
        with pair.at_first() as old:
            until(lambda: old.status("PUT", at("/n.json", old.admin), "3") == 503, "the notice")
        pair.first.await_line("was superseded")


def test_one_of_two_standbys_is_promoted(tmp_path: pathlib.Path) -> None:
    with Pair(tmp_path) as pair:
        other = make_daemon(tmp_path / "other", standby_of=pair.url)
        with other:
            pair.await_complete()
            with pair.at_first() as first:
                first.seed("/n.json", 1)
            with Tree(other, "shop", "") as tree:
                until(lambda: see(tree, "/n") == 1)
            assert pair.promote().json["is_current"]
            with pair.at_standby() as tree:
                tree.seed("/n.json", 2)
            until(
                lambda: "another server was promoted" in str(ask(other, "GET", "state.json").json)
            )
            answer = ask(other, "POST", "promote.json", {})
            assert (answer.status, "was promoted in its place" in str(answer.json)) == (503, True)
            with pair.at_standby() as tree:
                tree.seed("/n.json", 3)
            answer = ask(other, "POST", "promote.json", {"force": True})
            assert (answer.json["term"], answer.json["is_current"]) == (3, False)
            pair.standby.await_line("was superseded")
            assert read_term(pair.first.data).term == 3


def test_of_two_that_were_promoted_the_one_that_the_old_first_knows_stays(
    tmp_path: pathlib.Path,
) -> None:
    with Pair(tmp_path) as pair:
        other = make_daemon(tmp_path / "other", standby_of=pair.url)
        with other:
            pair.await_complete()
            until(lambda: ask(other, "GET", "state.json").json["is_complete"])
            pair.proxy.block()
            for each in (other, pair.standby):
                assert ask(each, "POST", "promote.json", {"force": True}).json["term"] == 2
            assert ask(pair.first, "POST", "superseded.json", notice(pair.standby)).status == 200
            pair.proxy.unblock()
            other.await_line("was superseded")
            with pair.at_standby() as tree:
                tree.seed("/n.json", 1)


def notice(daemon: Daemon) -> dict[str, object]:
    """Return what a daemon that was promoted tells its old first."""
    term = read_term(daemon.data)
    return {"term": term.term, "id": term.id, "url": None}


def test_the_directory_of_a_standby_serves_as_a_first_after_a_promotion_only(pair: Pair) -> None:
    pair.await_complete()
    pair.standby.stop()
    config = pair.standby.folder / "treedb.toml"
    config.write_text("".join(line for line in config.open() if "standby_of" not in line))
    result = pair.standby.run()
    assert (result.returncode, "and was not promoted" in result.stderr) == (1, True)


def test_tokens_of_a_file_are_used(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# tokens\nshop {ADMIN}\n")
    with Pair(tmp_path, standby_token_file=str(file)) as pair:
        with pair.at_first() as first:
            first.seed("/n.json", 1)
        pair.await_value("/n", 1)
        pair.await_complete()
        file.write_text(f"other {ADMIN}\n")
        pair.proxy.cut()
        pair.standby.await_line("has no line with shop")
        file.unlink()
        os.mkfifo(file)  # to read it would block
        pair.standby.await_line(r"standby_token_file cannot be read \(Not a regular file\)")
        file.unlink()
        file.write_text(token("shop", admin=True, read_only=True) + "\n")
        pair.standby.await_line("the token is not that of an admin who may write")
        health = pair.standby.request("GET", f"/.health?ns=shop&auth={ADMIN}")
        assert health.status == 503
        assert "does not follow" in str(health.json)
        status, _, errors = promote(f"{pair.standby.http}?ns=shop")
        assert (status, "can be reached, but" in errors) == (1, True), errors
        with pair.at_first() as first:
            first.seed("/n.json", 2)  # it did not step down
        file.write_text(ADMIN + "\n")
        until(lambda: not ask(pair.standby, "GET", "state.json").json["problems"], "the stream")
        health = pair.standby.request("GET", "/.health")
        assert health.json["role"] == "standby"
        assert pair.standby.request("GET", "/.health?ready").status == 503
