"""The daemon is killed: what was acknowledged is there afterwards, and nothing is there by half.

Eight clients write while it happens. Each keeps a place of its own and knows what must stand
there: all that was acknowledged, and the one write that had no answer yet either whole or not at
all. Beside that they raise one counter by compare-and-swap.
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
from tests.daemon import Daemon
from tests.expected import set_at
from tests.rest import Answer, Client, print_request

Tree: TypeAlias = dict[str, Any]

CLIENTS = 8
PATIENCE_S = 60
KILL = "signal=KILL"
TAG = {"X-Vendor-ETag": "true"}
LARGEST_FILL = 5000
"""More than a row of the store holds, so that rows split and join all the time."""


class ShuttingDown(OSError):
    """A client was told that the daemon takes no more."""


def check(answer: Answer) -> Answer:
    """Return an answer that says that all is well; raise `ShuttingDown` if it says that."""
    if answer.status == 503 and "shutting down" in answer.json["message"]:
        raise ShuttingDown
    assert answer.status == 200, answer
    return answer


class Counter:
    """One number that all clients raise by compare-and-swap."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged = {0}
        self._in_doubt = 0

    def increase(self, client: Client) -> None:
        """Try once."""
        read = check(client.ask("GET", "/counter.json", headers=TAG))
        wanted = (read.json or 0) + 1
        with self._lock:
            self._in_doubt += 1
        answer = client.ask("PUT", "/counter.json", str(wanted), {"If-Match": read.headers["ETag"]})
        with self._lock:
            self._in_doubt -= 1
            if answer.status != 412:
                check(answer)
                assert wanted not in self._acknowledged, f"{wanted} was given twice"
                self._acknowledged.add(wanted)

    def settle(self, client: Client) -> None:
        """Check the number that is there after a crash."""
        found = client.get("/counter.json") or 0
        last = max(self._acknowledged)
        assert last <= found <= last + self._in_doubt
        self._acknowledged.add(found)
        self._in_doubt = 0


class Writer:
    """A client that knows what must stand at its place."""

    def __init__(self, number: int, counter: Counter) -> None:
        self.place = f"client{number}"
        self._random = random.Random(number)
        self._counter = counter
        self._count = 0
        self._known: Tree = {}
        self._doubt: Callable[[Tree], Tree] | None = None

    def write(self, client: Client) -> None:
        """Do one write of some kind and take note of its answer; raise OSError without one."""
        self._count += 1
        kinds = (self._put, self._patch, self._patch, self._push, self._remove)
        kind = self._random.choice((*kinds, self._counter.increase))
        kind(client)

    def settle(self, client: Client) -> None:
        """Check what is there after a crash, and take it for known."""
        found = client.get(f"/{self.place}.json") or {}
        if found != self._known and self._doubt is not None:
            self._known = self._doubt(found)
        assert found == self._known
        self._doubt = None

    def _value(self) -> Tree:
        return {"n": self._count, "fill": "x" * self._random.randrange(LARGEST_FILL)}

    def _item(self) -> str:
        return f"items/k{self._random.randrange(6)}"

    def _put(self, client: Client) -> None:
        path, value = self._item(), self._value()
        self._write(client, "PUT", path, value, set_at(self._known, path, value))

    def _remove(self, client: Client) -> None:
        path = self._random.choice([self._item(), "log", "first"])
        self._write(client, "DELETE", path, None, set_at(self._known, path, None))

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
        self._write(client, "PATCH", "", body, after)

    def _push(self, client: Client) -> None:
        before, value = self._known, self._value()

        def pushed(found: Tree) -> Tree:
            new = found.get("log", {}).keys() - before.get("log", {}).keys()
            after: Tree = set_at(before, f"log/{min(new, default='none')}", value)
            return after

        self._doubt = pushed
        answer = check(client.ask("POST", f"/{self.place}/log.json", json.dumps(value)))
        self._known = set_at(before, f"log/{answer.json['name']}", value)
        self._doubt = None

    def _write(self, client: Client, method: str, path: str, body: Any, after: Tree) -> None:
        self._doubt = lambda found: after
        target = f"/{self.place}/{path}.json"
        check(client.ask(method, target, None if method == "DELETE" else json.dumps(body)))
        self._known = after
        self._doubt = None


class Load:
    """All clients at work, each in a thread, until the daemon is no more."""

    def __init__(self) -> None:
        counter = Counter()
        self._counter = counter
        self._writers = [Writer(number, counter) for number in range(CLIENTS)]
        self._acknowledged = threading.Semaphore(0)
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._is_stopping = False

    def stop(self, daemon: Daemon) -> None:
        """Stop the daemon in good order while they write."""
        self._is_stopping = True
        daemon.signal(signal.SIGTERM)
        self.end(daemon, 0)
        self._is_stopping = False

    def begin(self, daemon: Daemon) -> None:
        """Let them write."""
        self._acknowledged = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._work, args=(daemon, writer)) for writer in self._writers
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, count: int) -> None:
        """Wait until so many more writes have been acknowledged."""
        for _ in range(count):
            assert self._acknowledged.acquire(timeout=PATIENCE_S), self._errors

    def end(self, daemon: Daemon, status: int = -signal.SIGKILL) -> None:
        """Wait until the daemon has ended with this status and everyone has noticed."""
        assert daemon.wait(PATIENCE_S) == status
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self._errors, self._errors

    def settle(self, daemon: Daemon) -> None:
        """Check that the daemon, started again, has everything."""
        with Client(daemon) as client:
            for writer in self._writers:
                writer.settle(client)
            self._counter.settle(client)
            assert client.ask("GET", "/.health").status == 200

    def _work(self, daemon: Daemon, writer: Writer) -> None:
        try:
            with Client(daemon) as client:
                while True:
                    writer.write(client)
                    self._acknowledged.release()
        except ShuttingDown as told:
            if not self._is_stopping:
                self._errors.append(told)
        except OSError:
            return
        except BaseException as error:
            self._errors.append(error)


def test_what_was_acknowledged_outlives_kills_at_random_moments(daemon: Daemon) -> None:
    moments = random.Random(2)
    load = Load()
    for _ in range(8):
        load.begin(daemon)
        load.wait(moments.choice([1, 5, 20, 50, 100, 200]))
        daemon.kill()
        load.end(daemon)
        daemon.start()
        load.settle(daemon)
    assert daemon.stop() == 0


def test_a_stop_in_good_order_loses_nothing_of_those_at_work(daemon: Daemon) -> None:
    load = Load()
    for _ in range(3):
        load.begin(daemon)
        load.wait(100)
        load.stop(daemon)
        daemon.start()
        load.settle(daemon)
    assert "Traceback" not in daemon.log


@pytest.mark.parametrize(
    ("call", "only_the_shelf", "moments"),
    [
        ("fdatasync", False, [1, 2, 3, 5, 8, 13]),
        ("pwrite64", False, [1, 2, 3, 7, 20, 50, 121]),
        # The shelf itself is written when the log is folded into it.
        ("fdatasync", True, [1, 2]),
        ("pwrite64", True, [1, 2, 3, 5, 9]),
    ],
)
def test_what_was_acknowledged_outlives_kills_at_calls_of_the_store(
    daemon: Daemon, tmp_path: pathlib.Path, call: str, only_the_shelf: bool, moments: list[int]
) -> None:
    files = injection.shelf_files(daemon.data)
    with Client(daemon) as client:
        client.put("/before.json", 1)
    load = Load()
    for moment in moments:
        effect = f"{KILL}:when={moment}"
        concerned = files[:1] if only_the_shelf else files
        with injection.attached(daemon.pid, call, effect, concerned, tmp_path / "trace"):
            load.begin(daemon)
            load.end(daemon)
        daemon.start()
        load.settle(daemon)


def sweep(
    daemon: Daemon,
    call: str,
    files: list[pathlib.Path],
    trace: pathlib.Path,
    attempt: Callable[[int], None],
) -> int:
    """Kill the daemon at the first, second, third, … call that an attempt makes.

    `attempt` raises OSError where it has no answer. Ends, with the number of kills, when one makes
    no more such calls.
    """
    for moment in range(1, 100):
        effect = f"{KILL}:when={moment}"
        with injection.attached(daemon.pid, call, effect, files, trace):
            try:
                attempt(moment)
            except OSError:
                daemon.wait(PATIENCE_S)
            else:
                return moment - 1
        daemon.start()
    raise AssertionError("The sweep does not end.")


@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
def test_a_patch_is_whole_or_not_at_all_at_whichever_call_it_is_killed(
    daemon: Daemon, tmp_path: pathlib.Path, call: str
) -> None:
    """One PATCH of many places in rows far apart, killed at each call that its commit makes."""
    places = [f"part{at}/record" for at in range(6)]
    with Client(daemon) as client:
        body = {f"{place}{at}": "x" * 1500 for place in places for at in range(4)}
        assert client.ask("PATCH", "/.json", json.dumps(body)).status == 200
        assert client.ask("PATCH", "/.json", json.dumps(marks(places, 0))).status == 200
    seen = [0]

    def attempt(moment: int) -> None:
        """Write the next mark everywhere; the last one that is known is what must be there."""
        with Client(daemon) as client:
            found = {client.get(f"/{place}0/mark.json") for place in places}
            assert len(found) == 1, "A PATCH is torn."
            assert found <= {seen[-1], moment - 1}
            body = json.dumps(marks(places, moment))
            answer = client.ask("PATCH", "/.json", body)
            assert answer.status == 200
            seen.append(moment)

    kills = sweep(daemon, call, injection.shelf_files(daemon.data), tmp_path / "trace", attempt)
    assert kills >= (12 if call == "pwrite64" else 1)


def marks(places: list[str], mark: int) -> Tree:
    return {f"{place}0/mark": mark for place in places} | {
        f"{place}1": f"{mark % 10}" * 1600 for place in places
    }


@pytest.mark.parametrize(
    ("call", "least"),
    [
        ("openat", 2),
        ("write", 1),
        ("fsync", 2),
        ("fdatasync", 2),
        ("pwrite64", 8),
        ("rename,renameat,renameat2,link,linkat", 1),
    ],
)
def test_the_first_write_of_a_database_is_whole_or_not_at_all(
    daemon: Daemon, tmp_path: pathlib.Path, call: str, least: int
) -> None:
    """Killed at any call it leaves no database, or a good one; and the next try succeeds."""
    folder = daemon.data / "fresh"
    names = ["d.shelf", "d.shelf.new", "d.shelf-wal", "d.shelf-reserve", "d.shelf-shm"]
    files = [daemon.data, folder, *(folder / name for name in names)]

    def attempt(moment: int) -> None:
        with Client(daemon, "d--fresh.localhost") as client:
            assert client.get("/.json") in (None, {"a": {"b": 1}, "c": 2})
            client.put("/.json", {"a": {"b": 1}, "c": 2})
            assert client.get("/c.json") == 2
            client.put("/.json", None)

    kills = sweep(daemon, call, files, tmp_path / "trace", attempt)
    assert kills >= least
    daemon.kill()
    daemon.start()
    with Client(daemon, "d--fresh.localhost") as client:
        assert client.get("/.json") is None
        assert client.ask("GET", "/.health").status == 200


@pytest.mark.parametrize(("call", "least"), [("pwrite64", 4), ("fdatasync", 2), ("ftruncate", 1)])
def test_the_start_after_a_kill_may_be_killed_too(
    tmp_path: pathlib.Path, call: str, least: int
) -> None:
    """What the log holds is folded at the start: killed there, the next start does it again."""
    expected = {f"k{at}": {"n": at, "fill": "x" * 900} for at in range(4)}
    with Daemon(tmp_path) as daemon:
        with Client(daemon) as client:
            for key, value in expected.items():
                client.put(f"/{key}.json", value)
        daemon.kill()
        kills = 0
        while is_killed_at_start(daemon, call, kills + 1, tmp_path / "trace"):
            kills += 1
        assert kills >= least
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/.json") == expected
        assert daemon.stop() == 0


def is_killed_at_start(daemon: Daemon, call: str, moment: int, trace: pathlib.Path) -> bool:
    files = injection.shelf_files(daemon.data)
    prefix = injection.prefix(call, f"{KILL}:when={moment}", files, trace)
    starting = Daemon(daemon.folder, prefix=prefix)
    try:
        starting.start()
    except AssertionError:
        assert starting.wait() == -signal.SIGKILL, starting.log
        return True
    starting.kill()
    return False


def test_an_answer_is_sent_only_after_the_log_was_synced(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """Seen from the system calls: the write, its sync, and only then the bytes of the answer."""
    log = injection.shelf_files(daemon.data)[1]
    trace = tmp_path / "trace"
    with Client(daemon) as client:
        client.put("/a.json", 0)
        calls = "pwrite64,fdatasync,fsync,write,writev,sendto,sendmsg"
        with injection.attached(daemon.pid, calls, "delay_enter=1", [], trace):
            for at in range(1, 6):
                client.put("/a.json", f"mark {at}")
    told = []
    for line in trace.read_text().splitlines():
        if f"{log}>" in line and "fdatasync" in line and "= 0" in line:
            told.append("synced")
        elif f"{log}>" in line and "pwrite64" in line and told[-1:] != ["written"]:
            told.append("written")
        elif "HTTP/1.1 200" in line:
            told.append("answered")
    assert told == ["written", "synced", "answered"] * 5


def test_the_names_of_new_files_are_durable_before_the_first_answer(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """A file whose directory was not synced may be gone when the power fails."""
    folder = daemon.data / "fresh"
    trace = tmp_path / "trace"
    watched = "mkdir,rename,openat,sendto,write"
    effect = "delay_enter=1"
    with (
        Client(daemon, "d--fresh.localhost") as client,
        injection.attached(daemon.pid, "fsync", effect, [], trace, watched=watched),
    ):
        client.put("/a.json", 1)
    lines = trace.read_text().splitlines()

    def places(*words: str) -> list[int]:
        return [at for at, line in enumerate(lines) if all(word in line for word in words)]

    answered = min(places("HTTP/1.1 200"))
    folder_synced = [at for at in places("fsync(", f"<{folder}>") if at < answered]
    data_synced = [at for at in places("fsync(", f"<{daemon.data}>") if at < answered]
    assert max(data_synced) > max(places("mkdir(", str(folder)))
    assert max(folder_synced) > max(places("rename(", "d.shelf"))
    assert max(folder_synced) > min(places("openat(", "d.shelf-wal", "O_CREAT"))


def test_a_client_that_is_cut_off_learns_by_asking_again(daemon: Daemon) -> None:
    """A push without an answer is there once or not at all, never twice."""
    with Client(daemon) as client:
        client.put("/log.json", None)
        with client.connect() as wire:
            wire.send(print_request("POST", "/log.json", '"in doubt"'))
            daemon.kill()
        daemon.start()
    with Client(daemon) as client:
        assert list((client.get("/log.json") or {}).values()) in ([], ["in doubt"])
