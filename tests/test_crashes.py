"""Crashes: after a kill every acknowledged write is there, and every write is whole or absent.

Eight clients write until the daemon is killed. Each writes below a path of its own and knows the
value that must be there: that of all acknowledged writes, with or without the one write that got no
response. They also increment one counter by compare-and-swap.
"""

from __future__ import annotations

import json
import pathlib
import random
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tests import injection
from tests.daemon import Daemon, Response
from tests.expected import set_at
from tests.rest import Client, print_request

Tree: TypeAlias = dict[str, Any]

CLIENTS = 8
PATIENCE_S = 60
KILL = "signal=KILL"
TAG = {"X-Vendor-ETag": "true"}
LARGEST_FILL = 5000
"""Larger than a row of the store, so that rows are split and joined all the time."""
LOGGED = ["x" * 100_000] * 37
"""What fills most of the log, so that a checkpoint is near."""


class ShuttingDown(OSError):
    """The daemon refuses a request because it is shutting down."""


def check(response: Response) -> Response:
    """Return a response if it is 200; raise `ShuttingDown` if the daemon is shutting down."""
    if response.status == 503 and "shutting down" in response.json["message"]:
        raise ShuttingDown
    assert response.status == 200, response
    return response


class Counter:
    """A number that all clients increment by compare-and-swap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged = {0}
        self._uncertain = 0

    def increment(self, client: Client) -> None:
        """Try once to increment the number."""
        read = check(client.request("GET", "/counter.json", headers=TAG))
        wanted = (read.json or 0) + 1
        with self._lock:
            self._uncertain += 1
        response = client.request(
            "PUT", "/counter.json", str(wanted), {"If-Match": read.headers["ETag"]}
        )
        with self._lock:
            self._uncertain -= 1
            if response.status != 412:
                check(response)
                assert wanted not in self._acknowledged, f"{wanted} was acknowledged twice"
                self._acknowledged.add(wanted)

    def check_recovered(self, client: Client) -> None:
        """Check the number after a crash."""
        found = client.get("/counter.json") or 0
        last = max(self._acknowledged)
        assert last <= found <= last + self._uncertain
        self._acknowledged.add(found)
        self._uncertain = 0


class Writer:
    """A client that knows what the value at its path must be."""

    def __init__(self, number: int, counter: Counter) -> None:
        self._path = f"client{number}"
        self._random = random.Random(number)
        self._counter = counter
        self._count = 0
        self._known: Tree = {}
        self._expected: Callable[[Tree], Tree] | None = None

    def write(self, client: Client) -> None:
        """Do one write of a random kind and record its response; raise OSError if there is none."""
        self._count += 1
        kinds = (self._put, self._patch, self._patch, self._push, self._remove)
        kind = self._random.choice((*kinds, self._counter.increment))
        kind(client)

    def check_recovered(self, client: Client) -> None:
        """Check the value after a crash, and record it as known."""
        found = client.get(f"/{self._path}.json") or {}
        if found != self._known and self._expected is not None:
            self._known = self._expected(found)
        assert found == self._known
        self._expected = None

    def _value(self) -> Tree:
        return {"n": self._count, "fill": "x" * self._random.randrange(LARGEST_FILL)}

    def _item(self) -> str:
        return f"items/k{self._random.randrange(6)}"

    def _put(self, client: Client) -> None:
        path, value = self._item(), self._value()
        self._send(client, "PUT", path, value, set_at(self._known, path, value))

    def _remove(self, client: Client) -> None:
        path = self._random.choice([self._item(), "log", "first"])
        self._send(client, "DELETE", path, None, set_at(self._known, path, None))

    def _patch(self, client: Client) -> None:
        body = {
            "first/n": self._count,
            "second/deep/n": self._count,
            self._item(): self._value(),
            "third": {"n": self._count},
            f"gone/g{self._count - 1}": None,
            f"gone/g{self._count}": self._value(),
        }
        after = self._known
        for path, value in body.items():
            after = set_at(after, path, value)
        self._send(client, "PATCH", "", body, after)

    def _push(self, client: Client) -> None:
        before, value = self._known, self._value()

        def pushed(found: Tree) -> Tree:
            new = found.get("log", {}).keys() - before.get("log", {}).keys()
            after: Tree = set_at(before, f"log/{min(new, default='none')}", value)
            return after

        self._expected = pushed
        response = check(client.request("POST", f"/{self._path}/log.json", json.dumps(value)))
        self._known = set_at(before, f"log/{response.json['name']}", value)
        self._expected = None

    def _send(self, client: Client, method: str, path: str, body: Any, after: Tree) -> None:
        self._expected = lambda found: after
        target = f"/{self._path}/{path}.json"
        check(client.request(method, target, None if method == "DELETE" else json.dumps(body)))
        self._known = after
        self._expected = None


class Load:
    """All clients, each in a thread, until the daemon has ended."""

    def __init__(self) -> None:
        counter = Counter()
        self._counter = counter
        self._writers = [Writer(number, counter) for number in range(CLIENTS)]
        self._acknowledged = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._is_stopping = False

    def stop(self, daemon: Daemon) -> None:
        """Stop the daemon by SIGTERM while the clients write."""
        self._is_stopping = True
        daemon.signal(signal.SIGTERM)
        self.end(daemon, 0)
        self._is_stopping = False

    def begin(self, daemon: Daemon) -> None:
        """Start the clients."""
        self._acknowledged = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, args=(daemon, writer)) for writer in self._writers
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, count: int) -> None:
        """Wait until `count` more writes have been acknowledged."""
        for _ in range(count):
            assert self._acknowledged.acquire(timeout=PATIENCE_S), self._errors

    def end(self, daemon: Daemon, status: int = -signal.SIGKILL) -> None:
        """Wait until the daemon has ended with this status, and all clients with it."""
        assert daemon.wait(PATIENCE_S) == status
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self._errors, self._errors

    def check_recovered(self, daemon: Daemon) -> None:
        """Check that the restarted daemon has all acknowledged writes."""
        with Client(daemon) as client:
            for writer in self._writers:
                writer.check_recovered(client)
            self._counter.check_recovered(client)
            assert client.request("GET", "/.health").status == 200

    def _work(self, daemon: Daemon, writer: Writer) -> None:
        try:
            with Client(daemon) as client:
                while True:
                    writer.write(client)
                    self._acknowledged.release()
        except ShuttingDown as error:
            if not self._is_stopping:
                self._errors.append(error)
        except OSError:
            return
        except BaseException as error:
            self._errors.append(error)


def test_acknowledged_writes_survive_kills_at_random_moments(daemon: Daemon) -> None:
    moments = random.Random(2)
    load = Load()
    for _ in range(8):
        load.begin(daemon)
        load.wait(moments.choice([1, 5, 20, 50, 100, 200]))
        daemon.kill()
        load.end(daemon)
        daemon.start()
        load.check_recovered(daemon)
    assert daemon.stop() == 0


def test_a_regular_stop_loses_no_acknowledged_write(daemon: Daemon) -> None:
    load = Load()
    for _ in range(3):
        load.begin(daemon)
        load.wait(100)
        load.stop(daemon)
        daemon.start()
        load.check_recovered(daemon)
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize(
    ("call", "only_the_shelf", "moments"),
    [
        ("fdatasync", False, [1, 2, 3, 5, 8, 13]),
        ("pwrite64", False, [1, 2, 3, 7, 20, 50, 121]),
        # The shelf itself is written at checkpoints.
        ("fdatasync", True, [1, 2]),
        ("pwrite64", True, [1, 2, 3, 5, 9]),
    ],
)
def test_acknowledged_writes_survive_kills_at_system_calls_of_the_store(
    daemon: Daemon, tmp_path: pathlib.Path, call: str, only_the_shelf: bool, moments: list[int]
) -> None:
    files = injection.shelf_files(daemon.data)
    with Client(daemon) as client:
        client.put("/before.json", 1)
    load = Load()
    for moment in moments:
        effect = f"{KILL}:when={moment}"
        affected = files[:1] if only_the_shelf else files
        if only_the_shelf:
            with Client(daemon) as client:
                client.put(f"/logged/{moment}.json", LOGGED)
        with injection.inject(daemon.pid, call, effect, affected, tmp_path / "trace"):
            load.begin(daemon)
            load.end(daemon)
        daemon.start()
        load.check_recovered(daemon)


def kill_at_each_call(
    daemon: Daemon,
    call: str,
    files: list[pathlib.Path],
    trace: pathlib.Path,
    attempt: Callable[[int], None],
) -> int:
    """Kill the daemon at the first, second, third, … call that an attempt makes.

    `attempt` raises OSError if it gets no response. Returns the number of kills, once an attempt
    makes fewer such calls.
    """
    for moment in range(1, 100):
        effect = f"{KILL}:when={moment}"
        with injection.inject(daemon.pid, call, effect, files, trace):
            try:
                attempt(moment)
            except OSError:
                daemon.wait(PATIENCE_S)
            else:
                return moment - 1
        daemon.start()
    raise AssertionError("There are too many calls.")


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_a_patch_killed_at_any_system_call_is_whole_or_absent(
    daemon: Daemon, tmp_path: pathlib.Path, call: str
) -> None:
    """One PATCH of many paths in distant rows, killed at each call that its commit makes."""
    paths = [f"part{at}/record" for at in range(6)]
    with Client(daemon) as client:
        body = {f"{path}{at}": "x" * 1500 for path in paths for at in range(4)}
        assert client.request("PATCH", "/.json", json.dumps(body)).status == 200
        assert client.request("PATCH", "/.json", json.dumps(marks(paths, 0))).status == 200
    possible = {0}

    def attempt(moment: int) -> None:
        """Write the next mark to all paths, which all have one of the marks that are possible."""
        with Client(daemon) as client:
            found = {client.get(f"/{path}0/mark.json") for path in paths}
            assert len(found) == 1, "A PATCH is torn."
            assert found <= possible
            possible.intersection_update(found)
            possible.add(moment)
            response = client.request("PATCH", "/.json", json.dumps(marks(paths, moment)))
            assert response.status == 200
            possible.intersection_update({moment})

    kills = kill_at_each_call(
        daemon, call, injection.shelf_files(daemon.data), tmp_path / "trace", attempt
    )
    assert kills >= (12 if call == "pwrite64" else 1)


def marks(paths: list[str], mark: int) -> Tree:
    return {f"{path}0/mark": mark for path in paths} | {
        f"{path}1": f"{mark % 10}" * 1600 for path in paths
    }


@pytest.mark.parametrize(
    ("call", "minimum"),
    [
        ("openat", 2),
        ("write", 1),
        ("fsync", 2),
        ("fdatasync", 2),
        ("pwrite64", 8),
        ("rename,renameat,renameat2,link,linkat", 1),
    ],
)
def test_the_first_write_of_a_database_is_whole_or_absent(
    daemon: Daemon, tmp_path: pathlib.Path, call: str, minimum: int
) -> None:
    """Killed at any call, it leaves no database or a valid one, and the next write succeeds."""
    folder = daemon.data / "fresh"
    names = ["d.shelf", "d.shelf.new", "d.shelf-wal", "d.shelf-reserve", "d.shelf-shm"]
    files = [daemon.data, folder, *(folder / name for name in names)]

    def attempt(moment: int) -> None:
        with Client(daemon, "d--fresh.localhost") as client:
            assert client.get("/.json") in (None, {"a": {"b": 1}, "c": 2})
            client.put("/.json", {"a": {"b": 1}, "c": 2})
            assert client.get("/c.json") == 2
            client.put("/.json", None)

    kills = kill_at_each_call(daemon, call, files, tmp_path / "trace", attempt)
    assert kills >= minimum
    daemon.kill()
    daemon.start()
    with Client(daemon, "d--fresh.localhost") as client:
        assert client.get("/.json") is None
        assert client.request("GET", "/.health").status == 200


@pytest.mark.parametrize(("call", "minimum"), [("pwrite64", 4), ("fdatasync", 2), ("ftruncate", 1)])
def test_the_first_use_after_a_kill_may_be_killed_too(
    tmp_path: pathlib.Path, call: str, minimum: int
) -> None:
    """The first use of a database checkpoints its log; if it is killed, the next does it again."""
    expected = {f"k{at}": {"n": at, "fill": "x" * 900} for at in range(4)}
    with Daemon(tmp_path) as daemon:
        with Client(daemon) as client:
            for key, value in expected.items():
                client.put(f"/{key}.json", value)
        daemon.kill()
        kills = 0
        while is_killed_at_first_use(daemon, call, kills + 1, tmp_path / "trace"):
            kills += 1
        assert kills >= minimum
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/.json") == expected
        assert daemon.stop() == 0


def is_killed_at_first_use(daemon: Daemon, call: str, moment: int, trace: pathlib.Path) -> bool:
    files = injection.shelf_files(daemon.data)
    daemon.hold()
    with injection.inject(daemon.pid, call, f"{KILL}:when={moment}", files, trace):
        try:
            daemon.start()
            with Client(daemon) as client:
                client.get("/.json")
        except (AssertionError, OSError):  # it may be killed while it announces that it is ready
            assert daemon.wait() == -signal.SIGKILL, daemon.log
            return True
    daemon.kill()
    return False


def test_a_response_is_sent_only_after_the_log_was_synced(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """The system calls are, in this order: the write, its sync, the bytes of the response."""
    log = injection.shelf_files(daemon.data)[1]
    trace = tmp_path / "trace"
    with Client(daemon) as client:
        client.put("/a.json", 0)
        calls = "pwrite64,fdatasync,fsync,write,writev,sendto,sendmsg"
        with injection.inject(daemon.pid, calls, "delay_enter=1", [], trace):
            for at in range(1, 6):
                client.put("/a.json", f"mark {at}")
    steps = []
    for line in trace.read_text().splitlines():
        if f"{log}>" in line and "fdatasync" in line and "= 0" in line:
            steps.append("synced")
        elif f"{log}>" in line and "pwrite64" in line and steps[-1:] != ["written"]:
            steps.append("written")
        elif "HTTP/1.1 200" in line:
            steps.append("sent")
    assert steps == ["written", "synced", "sent"] * 5


def test_the_names_of_new_files_are_durable_before_the_first_response(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """A file whose directory was not synced may be lost when the power fails."""
    folder = daemon.data / "fresh"
    trace = tmp_path / "trace"
    watched = "mkdir,rename,openat,sendto,write"
    effect = "delay_enter=1"
    with (
        Client(daemon, "d--fresh.localhost") as client,
        injection.inject(daemon.pid, "fsync", effect, [], trace, watched=watched),
    ):
        client.put("/a.json", 1)
    lines = trace.read_text().splitlines()

    def indices(*words: str) -> list[int]:
        return [at for at, line in enumerate(lines) if all(word in line for word in words)]

    first_sent = min(indices("HTTP/1.1 200"))
    folder_synced = [at for at in indices("fsync(", f"<{folder}>") if at < first_sent]
    data_synced = [at for at in indices("fsync(", f"<{daemon.data}>") if at < first_sent]
    assert max(data_synced) > max(indices("mkdir(", str(folder)))
    assert max(folder_synced) > max(indices("rename(", "d.shelf"))
    assert max(folder_synced) > min(indices("openat(", "d.shelf-wal", "O_CREAT"))


def test_a_push_without_a_response_is_done_at_most_once(daemon: Daemon) -> None:
    """A push without a response is there once or not at all, never twice."""
    with Client(daemon) as client:
        client.put("/log.json", None)
        with client.connect() as wire:
            wire.send(print_request("POST", "/log.json", '"in doubt"'))
            daemon.kill()
        daemon.start()
    with Client(daemon) as client:
        assert list((client.get("/log.json") or {}).values()) in ([], ["in doubt"])
