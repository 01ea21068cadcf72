"""Three daemons, three PostgreSQL servers, and one fault at a time: what every client may rely on.

Each fault happens while clients write and read at the daemons and followers watch: the history is
judged as a whole, so nothing that was acknowledged is lost, nothing comes twice, out of order or
late, and a write whose outcome is unknown was applied once or not at all.
"""

from __future__ import annotations

import pathlib
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.cluster_world import (
    COMMIT,
    LOCAL_PROJECT,
    ClusterWorld,
    new_project,
    put_rules,
    timed,
    with_local_reads,
    with_wrong_clock,
)
from tests.history import UNSEEN, History, Outcome
from tests.postgresql import servers
from tests.rest import Client, check_error, print_request
from tests.stream_judge import check_events
from tests.system import wait_until
from tests.trial import Report, Trial
from tests.workload import TAG, Caller, Plan, fetch
from treedbd.cluster.service import POLL_S

A, B, C = range(3)
ROOT = f"/{Plan().root}"
CLIENTS = 6
SWAPS = 6
HEALTH_S = 5.0
MISSED = 5
LAG_S = 2.0
PATIENCE_S = 60.0
FIRST = 80
"""How many operations have ended when a fault happens."""


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterWorld]:
    with (
        servers(standbys=2) as running,
        ClusterWorld(running, tmp_path_factory.mktemp("world")) as world,
    ):
        yield world


@pytest.fixture
def world(whole_world: ClusterWorld) -> Iterator[ClusterWorld]:
    """The servers and daemons, for a test that may break them."""
    yield whole_world
    whole_world.heal()


@pytest.fixture(params=[300, pytest.param(1000, marks=pytest.mark.slow)])
def operations(request: pytest.FixtureRequest) -> int:
    """How many operations a trial has, of which most are left for the time of the fault."""
    count: int = request.param
    return count


def trial(world: ClusterWorld, operations: int, timeout: str = "30s", *, daemons: int = 3) -> Trial:
    """Return clients at the first daemons, and a follower that begins at each of them."""
    plan = Plan(operations=operations, query=f"timeout={timeout}")
    return Trial(world.urls(new_project(), daemons), plan, followers=daemons)


def finish(running: Trial) -> Report:
    running.finish()
    report = running.check()
    assert {each.restarts for each in report.streams} == {0}
    return report


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_answer_that_a_killed_daemon_owes_is_of_a_write_that_is_there_once(
    world: ClusterWorld, kills: int
) -> None:
    with trial(world, kills * 500).start() as running:
        for part in range(1, kills + 1):
            running.workload.await_ended(part * FIRST)  # so that many are left for the daemon
            way = world.far.proxies[world.servers.primary.name]
            way.lose_answer(*COMMIT)
            way.await_lost()
            world.kill(C)
            world.restart(C)
        assert finish(running).outcomes["unknown"]


def test_no_acknowledged_write_is_lost_with_the_primary(
    world: ClusterWorld, operations: int
) -> None:
    with trial(world, operations, "2s").start() as running:
        running.workload.await_ended(operations // 2)  # with many commits under way
        world.servers.fail_over()
        finish(running)


def test_a_daemon_that_is_cut_off_with_the_old_primary_shows_nothing_stale(
    world: ClusterWorld, operations: int
) -> None:
    with trial(world, operations, "1s").start() as running:
        running.workload.await_ended(FIRST)
        world.fail_over_cut_off()
        running.workload.await_ended(running.workload.ended + FIRST)
        response = world.daemons[C].request("GET", "/.json?timeout=1s")
        assert response.status in (503, 504)
        world.heal()
        report = finish(running)
    assert report.outcomes["refused"]


def test_a_write_that_no_standby_confirms_is_in_doubt_and_settled_later(
    world: ClusterWorld, operations: int
) -> None:
    project = new_project()
    with (
        trial(world, operations, "1s").start() as running,
        world.client(C, project) as client,
        world.follower(project, A) as follower,
    ):
        client.put("/before.json", 1)
        follower.await_child("before", 1)
        running.workload.await_ended(FIRST)
        for standby in world.servers.standbys:
            standby.freeze()
        check_error(client.request("PUT", "/doubted.json?timeout=1s", "1"), 504, "in_doubt")
        response = world.daemons[A].request("GET", "/.json?timeout=1s")
        assert response.status in (503, 504)
        wait_until(lambda: client.request("GET", "/.health").status == 503)
        for standby in world.servers.standbys:
            standby.thaw()
        finish(running)
        world.await_healthy()
        client.put("/after.json", 1)
        follower.await_child("after", 1)
        assert follower.replica.equals(client.get("/.json"))
        assert len([each for each in follower.events if each.path == "/doubted"]) <= 1


def test_an_old_primary_that_comes_back_acknowledges_nothing(world: ClusterWorld) -> None:
    project = new_project()
    with (
        world.client(A, project) as near,
        world.client(C, project) as far,
        world.follower(project, C) as follower,
    ):
        near.put("/a.json", 1)
        assert far.get("/a.json") == 1
        old = world.fail_over_cut_off()
        wait_until(lambda: near.request("PUT", "/a.json?timeout=5s", "2").status == 200)
        response = far.request("PUT", "/b.json?timeout=1s", "1")
        assert response.status in (503, 504), response
        assert old.query("SELECT pg_is_in_recovery()") == [(False,)]
        near.put("/a.json", 3)
        world.heal()
        assert far.get("/.json") == near.get("/.json") == {"a": 3}
        far.put("/c.json", 1)
        follower.await_child("c", 1)
        kinds = [(each.path, each.value) for each in follower.events[1:]]
        assert kinds == [("/a", 1), ("/a", 2), ("/a", 3), ("/c", 1)]


def test_hints_that_are_lost_delay_streams_until_the_poll(world: ClusterWorld) -> None:
    project = new_project()
    with world.client(A, project) as near, world.follower(project, C) as follower:
        near.put("/a.json", 0)
        follower.await_child("a", 0)
        wait_until(lambda: world.far.mute(b"LISTEN treedb") == 1)
        delays = []
        for number in range(1, 8):
            near.put("/a.json", number)
            begin = time.monotonic()
            follower.await_child("a", number)
            delays.append(time.monotonic() - begin)
        assert world.far.lost_bytes
        assert statistics.median(delays) < 2 * POLL_S
        assert [each.value for each in follower.events[1:]] == list(range(8))


def test_swaps_at_all_daemons_count_each_of_them_once(world: ClusterWorld) -> None:
    project = new_project()
    urls = world.urls(project)
    history = History()

    def count(client: int) -> None:
        caller = Caller(client, urls, Plan(), history, client)
        for _ in range(SWAPS):
            swap = caller.call("read", "/n", headers=TAG)
            while True:
                assert isinstance(caller.tag, str)
                found = None if swap.result is UNSEEN else swap.result
                value = int(found or 0) + 1
                swap = caller.call("swap", "/n", value, found, {"If-Match": caller.tag})
                if swap.outcome is Outcome.OK:
                    break
                assert swap.outcome is Outcome.MISMATCH
        caller.close()

    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(count, range(CLIENTS)))
    for url in urls:
        assert fetch(url, "/n.json") == CLIENTS * SWAPS
    numbers = [[each["seq"] for each in world.log(number, project)] for number in range(len(urls))]
    assert numbers == [list(range(1, CLIENTS * SWAPS + 1))] * len(urls)


@pytest.mark.parametrize("seconds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_daemon_that_wakes_is_not_late(world: ClusterWorld, seconds: int) -> None:
    project = new_project()
    with (
        trial(world, 300).start() as running,
        world.client(A, project) as near,
        world.client(C, project) as far,
    ):
        far.put("/a.json", 1)
        assert far.get("/a.json") == 1
        running.workload.await_ended(FIRST)
        world.stop(C)
        end = time.monotonic() + seconds
        near.put("/a.json", 2)
        put_rules(near, {".read": True, "b": {".write": True}})
        time.sleep(max(0.0, end - time.monotonic()))  # that is the fault
        with far.connect() as read, far.connect() as write:
            read.send(print_request("GET", "/a.json", host=far.host))
            write.send(print_request("PUT", "/a.json", "3", host=far.host))
            world.go_on(C)
            check_error(write.receive(), 403, "permission_denied")
            assert read.receive().json == 2
        far.put("/b.json", 1)
        finish(running)


def test_a_daemon_that_slept_while_the_log_was_trimmed_takes_a_fresh_copy(
    world: ClusterWorld,
) -> None:
    project = new_project()
    urls = world.urls(project, 2)
    with (
        Trial(urls, Plan(operations=150)) as running,
        world.follower(project, C, ROOT) as follower,
    ):
        finish(running.start())
        history = running.workload.history
        follower.await_child("end", str(list(history)[-1].argument))
        with closing(Caller(-2, urls, running.plan, history)) as caller:
            world.stop(C)
            for number in range(MISSED):
                caller.call("write", f"{ROOT}/r0", f"missed {number}")
            assert world.trim(project)
            world.go_on(C)
            follower.await_child("r0", f"missed {MISSED - 1}")
            caller.call("write", f"{ROOT}/r0", "after")
        follower.await_child("r0", "after")
        assert fetch(world.urls(project)[C], f"{ROOT}/r0.json") == "after"
    assert check_events(follower.events, history, ROOT, restarts=1).restarts == 1


def test_a_daemon_without_postgresql_says_so_and_harms_nobody(
    world: ClusterWorld, operations: int
) -> None:
    project = new_project()
    with (
        Trial(world.urls(project, 2), Plan(operations=operations)) as running,
        world.follower(project, C, ROOT) as follower,
        world.client(C, project) as far,
    ):
        running.start().workload.await_ended(FIRST)
        assert [far.request("GET", "/a.json").status for _ in range(3)] == [200] * 3
        begin = time.monotonic()
        world.far.cut_off(*world.servers.nodes)
        assert timed(far, "GET", "/a.json?timeout=1s").status in (503, 504)
        wait_until(lambda: far.request("GET", "/.health").status == 503)
        assert time.monotonic() - begin < HEALTH_S
        check_error(timed(far, "GET", "/a.json?timeout=1s"), 503, "unavailable")
        assert timed(far, "PUT", "/lost.json?timeout=1s", "1").status in (503, 504)  # in doubt
        check_error(timed(far, "PUT", "/lost.json?timeout=1s", "1"), 503, "unavailable")
        running.finish()
        world.heal()
        report = running.check(is_alone=False)
        assert not report.outcomes["refused"]
        assert not report.outcomes["unknown"]
        last = fetch(world.urls(project)[A], f"{ROOT}.json")
        follower.await_change(lambda: follower.replica.equals(last))
        check_events(follower.events, running.workload.history, ROOT, is_alone=False)


def test_local_reads_are_never_older_than_they_say(
    world: ClusterWorld, tmp_path: pathlib.Path
) -> None:
    """Also a daemon that can reach only the old primary, which says that there is nothing new."""
    acknowledged: list[tuple[float, int]] = []
    with (
        with_local_reads(tmp_path, world.far.dsn) as daemon,
        Client(daemon, f"{LOCAL_PROJECT}.localhost") as late,
        world.client(A, LOCAL_PROJECT) as near,
    ):
        near.put("/n.json", 0)
        wait_until(lambda: late.get("/n.json") == 0)
        world.fail_over_cut_off()
        lag_s, end = 0.0, time.monotonic() + PATIENCE_S
        while lag_s < LAG_S or len(acknowledged) < 50:
            number = len(acknowledged) + 1
            if near.request("PUT", "/n.json?timeout=5s", str(number)).status == 200:
                acknowledged.append((time.monotonic(), number))
            begin = time.monotonic()
            response = late.request("GET", "/n.json")
            assert response.status == 200
            lag_s = (int(response.headers["TreeDB-Lag-Ms"]) + 1) / 1000
            known = [n for at, n in acknowledged if at < begin - lag_s]
            assert response.json >= max(known, default=0), lag_s
            assert time.monotonic() < end
    world.heal()


def test_times_of_a_database_never_go_back(world: ClusterWorld, tmp_path: pathlib.Path) -> None:
    project = new_project()
    with (
        with_wrong_clock(tmp_path, world.near.dsn, -3600) as behind,
        world.client(A, project) as right,
        Client(behind, right.host) as wrong,
        Client(behind, f"{new_project()}.localhost") as alone,
    ):
        alone.put("/at.json", {".sv": "timestamp"})
        assert alone.get("/at.json") < (time.time() - 3500) * 1000
        keys, times = [], []
        for client in (right, wrong) * 5:
            response = client.request("POST", "/log.json", '{".sv": "timestamp"}')
            assert response.status == 200
            keys.append(response.json["name"])
            times.append(client.get(f"/log/{keys[-1]}.json"))
    assert keys == sorted(keys)
    assert times == sorted(times)


def test_a_daemon_whose_clock_is_far_ahead_takes_no_writes(
    world: ClusterWorld, tmp_path: pathlib.Path
) -> None:
    project = new_project()
    with (
        with_wrong_clock(tmp_path, world.near.dsn, 120) as ahead,
        world.client(A, project) as right,
        Client(ahead, right.host) as wrong,
    ):
        message = check_error(wrong.request("PUT", "/a.json", "1"), 503, "unavailable")
        assert "clock" in message
        right.put("/a.json", 2)
        assert wrong.get("/a.json") == 2
        check_error(wrong.request("PUT", "/a.json", "1"), 503, "unavailable")
        check_error(wrong.request("GET", "/.health"), 503, "unavailable")
