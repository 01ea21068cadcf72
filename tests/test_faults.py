"""A failing or full disk: errors in JSON, no false acknowledgement, and automatic recovery."""

from __future__ import annotations

import json
import pathlib
import re
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Self

import pytest

from tests.closing import Closing
from tests.daemon import Daemon, Response
from tests.injection import SmallDisk, inject, shelf_files
from tests.rest import Client, check_error, print_request
from tests.system import wait_until

MIB = 1_048_576
RECOVERY_S = 30
RETRY_S = 0.05
CLIENTS = 8
LOGGED = ["x" * 100_000] * 36
"""What fills most of the log, so that a checkpoint is near."""
WRITES = [("PUT", "2"), ("POST", "2"), ("PATCH", '{"x":2}'), ("DELETE", None)]


def is_healthy(client: Client) -> bool:
    return client.request("GET", "/.health").status == 200


def check_health(client: Client, *words: str) -> None:
    """Check that `/.health` reports the trouble."""
    check_error(client.request("GET", "/.health"), 503, "unavailable")
    message = check_error(client.request("GET", "/.health?auth=owner"), 503, "unavailable")
    for word in words:
        assert word in message
    assert client.request("HEAD", "/.health").status == 503


# A disk that does not respond


STUCK_DISK = """
import pathlib, threading
from treedbd.store.sqlite.writer import SqliteTransaction

commit = SqliteTransaction.commit

def wait_for_ever_if_told(transaction):
    if pathlib.Path("stuck").exists():
        pathlib.Path("waiting").touch()
        threading.Event().wait()
    commit(transaction)

SqliteTransaction.commit = wait_for_ever_if_told
"""


def test_a_disk_that_does_not_respond_holds_up_the_end_for_ten_seconds_at_most(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK_DISK)
    with Daemon(tmp_path, environment={"PYTHONPATH": str(tmp_path)}) as daemon:
        with Client(daemon) as client, client.connect() as writer, client.connect() as queued:
            client.put("/a.json", 1)
            (tmp_path / "stuck").touch()
            writer.send(print_request("PUT", "/a.json", "2"))
            wait_until((tmp_path / "waiting").exists)
            queued.send(print_request("PUT", "/b.json", "3"))
            daemon.signal(signal.SIGTERM)
            check_error(queued.receive("PUT"), 503, "unavailable")
            assert daemon.wait() == 0
        assert "The disk did not respond within 3." in daemon.log
        assert "Traceback" not in daemon.log
        (tmp_path / "stuck").unlink()
        daemon.start()
        assert daemon.request("GET", "/.json").json == {"a": 1}


# A sync that fails


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_after_a_failed_sync_nothing_is_acknowledged_until_the_store_is_open_again(
    daemon: Daemon, tmp_path: pathlib.Path, error: str
) -> None:
    files = shelf_files(daemon.data)
    with Client(daemon) as client, Client(daemon, "other.localhost") as other:
        client.put("/.json", {"kept": {"a": 1}, "b": 2})
        with inject(daemon.pid, "fdatasync", f"error={error}", files, tmp_path / "trace"):
            for _ in range(3):
                for method, body in WRITES:
                    check_error(client.request(method, "/b.json", body), 503, "unavailable")
                assert client.get("/.json") == {"kept": {"a": 1}, "b": 2}
                assert client.get("/kept.json?shallow=true") == {"a": True}
                check_health(client, "demo")
            other.put("/a.json", "nothing wrong here")
        wait_until(lambda: is_healthy(client))
        assert client.get("/.json") == {"kept": {"a": 1}, "b": 2}
        for at in range(5):
            client.put("/after.json", at)
        daemon.kill()
    daemon.start()
    with Client(daemon) as client:
        assert client.get("/.json") == {"kept": {"a": 1}, "b": 2, "after": 4}


def test_one_failed_sync_is_enough_to_open_the_store_again(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    """The next sync would succeed without having written what the failed one did not."""
    trace = tmp_path / "trace"
    files = shelf_files(daemon.data)
    with Client(daemon) as client:
        client.put("/a.json", "before")
        watched = "openat,sendto,write"
        with inject(daemon.pid, "fdatasync", "error=EIO:when=1", [], trace, watched=watched):
            check_error(client.request("PUT", "/a.json", '"failed"'), 503, "unavailable")
            wait_until(lambda: is_healthy(client))
            assert client.get("/a.json") == "before"
            client.put("/a.json", "acknowledged")
    steps = []
    for line in trace.read_text().splitlines():
        if "INJECTED" in line:
            steps.append("failed")
        elif "openat(" in line and f'"{files[0]}"' in line and steps:
            steps.append("opened")
        elif "acknowledged" in line and "HTTP/1.1 200" in line:
            steps.append("acknowledged")
    assert steps[0] == "failed"
    assert steps.index("opened") < steps.index("acknowledged")


def test_a_crash_during_the_failure_loses_nothing(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    with Client(daemon) as client:
        for at in range(20):
            client.put(f"/k{at}.json", {"n": at, "fill": "x" * 700})
        before = client.get("/.json")
        with inject(
            daemon.pid, "fdatasync", "error=EIO", shelf_files(daemon.data), tmp_path / "trace"
        ):
            check_error(client.request("PUT", "/k1.json", '"failed"'), 503, "unavailable")
            daemon.kill()
    daemon.start()
    with Client(daemon) as client:
        assert client.get("/.json") == before
        client.put("/k1.json", 1)


class Writers(Closing):
    """Clients that write numbers, each to a path of its own, until they are closed."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._done = threading.Event()
        self.refused = threading.Semaphore(0)
        self.written = threading.Semaphore(0)
        self.last = [-1] * CLIENTS
        self.unexpected: list[Response] = []
        self._threads = [
            threading.Thread(target=self._write, args=(number,)) for number in range(CLIENTS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        at = 0
        with Client(self._daemon) as client:
            while not self._done.is_set():
                body = json.dumps({f"w{number}/n": at, f"w{number}/fill": "x" * (at % 3000)})
                response = client.request("PATCH", "/.json", body)
                if response.status == 200:
                    self.last[number] = at
                    self.written.release()
                elif response.status == 503 and response.json["error"] == "unavailable":
                    self.refused.release()
                    self._done.wait(RETRY_S)  # else all that is done meanwhile is to refuse
                else:
                    self.unexpected.append(response)
                at += 1

    def check(self, client: Client) -> None:
        """Check that each value is the last acknowledged one."""
        assert not self.unexpected
        found = client.get("/.json")
        assert [found[f"w{number}"]["n"] for number in range(CLIENTS)] == self.last


@pytest.mark.parametrize(
    ("call", "effect", "only_the_shelf"),
    [
        ("fdatasync", "error=EIO:when=3", False),
        ("fdatasync", "error=EIO:when=5+4", False),
        ("fdatasync", "error=ENOSPC:when=2+7", False),
        ("pwrite64", "error=EIO:when=40+200", False),
        ("pwrite64", "error=ENOSPC:when=30+170", False),
        # The writes of a checkpoint are durable in the log already.
        ("fdatasync", "error=EIO:when=1", True),
        ("pwrite64", "error=EIO:when=2+200", True),
        ("pwrite64", "error=ENOSPC:when=2+40", True),
    ],
)
def test_under_load_every_write_is_acknowledged_and_stored_or_refused_and_not_stored(
    daemon: Daemon, tmp_path: pathlib.Path, call: str, effect: str, only_the_shelf: bool
) -> None:
    files = shelf_files(daemon.data)
    with Client(daemon) as client:
        client.put("/first.json", LOGGED if only_the_shelf else 1)
        with Writers(daemon) as writers:
            for _ in range(30):
                assert writers.written.acquire(timeout=RECOVERY_S)
            affected = files[:1] if only_the_shelf else files
            with inject(daemon.pid, call, effect, affected, tmp_path / "trace"):
                for _ in range(100):
                    assert writers.written.acquire(timeout=RECOVERY_S)
                while "INJECTED" not in (tmp_path / "trace").read_text():
                    assert writers.written.acquire(timeout=RECOVERY_S)  # until a checkpoint
                if not only_the_shelf:
                    assert writers.refused.acquire(timeout=RECOVERY_S)
            wait_until(lambda: is_healthy(client))
            for _ in range(30):
                assert writers.written.acquire(timeout=RECOVERY_S)
        assert "INJECTED" in (tmp_path / "trace").read_text()
        writers.check(client)
        daemon.kill()
    daemon.start()
    with Client(daemon) as client:
        writers.check(client)
        assert is_healthy(client)


def test_a_shelf_that_cannot_be_read_is_503_and_never_a_wrong_value(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    with Client(daemon) as client:
        part = {f"k{at}": "x" * 1000 for at in range(1500)}
        for at in range(12):
            client.put(f"/big/{at}.json", part)
        daemon.restart()
    with Client(daemon) as client:
        with inject(
            daemon.pid, "pread64", "error=EIO", shelf_files(daemon.data), tmp_path / "trace"
        ):
            for target in ("/big.json", "/big/3/k7.json", "/big/4.json?shallow=true"):
                check_error(client.request("GET", target), 503, "unavailable")
        assert "INJECTED" in (tmp_path / "trace").read_text()
        wait_until(lambda: client.request("GET", "/big/3/k7.json").status == 200)
        assert client.get("/big.json") == [part] * 12
        wait_until(lambda: client.request("PUT", "/a.json", "1").status == 200)


@pytest.mark.parametrize(("number", "end"), [(0, Daemon.stop), (1, Daemon.kill)])
def test_a_disk_that_cannot_be_read_for_a_moment_at_the_start_is_no_damage(
    tmp_path: pathlib.Path, number: int, end: Callable[[Daemon], object]
) -> None:
    """Of the file, after a stop that has emptied its log; of the log, after a kill."""
    with Daemon(tmp_path) as daemon:
        with Client(daemon, "demo.localhost") as client:
            client.put("/kept.json", {f"k{at}": "x" * 1000 for at in range(100)})
        end(daemon)
    affected, trace = shelf_files(daemon.data)[number], tmp_path / "trace"
    daemon.hold()
    with (
        inject(daemon.pid, "pread64", "error=EIO:when=2..6", [affected], trace),
        daemon,
        Client(daemon, "demo.localhost") as client,
    ):
        wait_until(lambda: client.request("PUT", "/a.json", "1").status == 200)
        wait_until(lambda: client.request("GET", "/kept/k7.json").status == 200)
        assert client.get("/kept/k7.json") == "x" * 1000
        assert trace.read_text().count("INJECTED") >= 2
        assert "cannot be opened (Input/output error)" in daemon.log
        assert "damaged" not in daemon.log
        assert daemon.stop() == 0


# A full disk


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> Iterator[SmallDisk]:
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    with SmallDisk(folder, 12 * MIB) as small:
        yield small


def fill_up(client: Client, disk: SmallDisk) -> dict[str, str]:
    """Fill the disk, and write until a write is refused; return what was written before."""
    disk.fill()
    accepted: dict[str, str] = {}
    for at in range(200):
        response = client.request("PUT", f"/filling/f{at}.json", f'"{at:05}{"x" * 20_000}"')
        if response.status != 200:
            check_error(response, 503, "unavailable")
            return accepted
        accepted[f"f{at}"] = f"{at:05}{'x' * 20_000}"
    raise AssertionError("No write is refused.")


def test_on_a_full_disk_writes_are_refused_until_there_is_space_and_reads_work(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon:
        with Client(daemon) as client:
            kept = {f"k{at}": {"n": at, "fill": "y" * 3000} for at in range(50)}
            client.put("/kept.json", kept)
            client.put("/gone.json", kept)
            accepted = fill_up(client, disk)

            for method, body in WRITES[:3]:
                check_error(client.request(method, "/no.json", body), 503, "unavailable")
            assert client.get("/no.json") is None
            assert client.get("/kept.json") == kept
            assert (client.get("/filling.json") or {}) == accepted
            check_health(client, "full")

            response = client.request("DELETE", "/gone/k7.json")
            assert (response.status, response.body) == (200, b"null")
            assert client.get("/gone/k7.json") is None
            assert client.request("DELETE", "/gone.json").status == 200
            assert client.request("PUT", "/kept/k1.json", "null").status == 200
            assert client.request("PATCH", "/kept.json", '{"k2":null,"k3/n":null}').status == 200
            for key in ("k1", "k2"):
                del kept[key]
            kept["k3"] = {"fill": kept["k3"]["fill"]}
            assert client.get("/.json") == {
                "kept": kept,
                **({"filling": accepted} if accepted else {}),
            }

            disk.empty()
            wait_until(lambda: client.request("PUT", "/after.json", "1").status == 200)
            wait_until(lambda: is_healthy(client))
            client.put("/large.json", ["z" * 100_000] * 5)
            daemon.kill()
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/kept.json") == kept
            assert client.get("/gone.json") is None
            assert (client.get("/filling.json") or {}) == accepted
            assert client.get("/after.json") == 1
        assert daemon.stop() == 0


def write_until_full(client: Client) -> int:
    """Fill the disk by large writes of `/big/0` and so on; return the number that succeeded."""
    part = {f"k{at:04}": "x" * 1000 for at in range(1500)}
    accepted = 0
    while client.request("PUT", f"/big/{accepted}.json", json.dumps(part)).status == 200:
        accepted += 1
    return accepted


def test_on_a_disk_filled_by_large_writes_removals_succeed(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon, Client(daemon) as client:
        accepted = write_until_full(client)
        assert accepted >= 2
        disk.fill()
        for target in ("/big/0/k0001.json", "/big/1.json", "/big/0.json"):
            assert client.request("DELETE", target).status == 200
        assert list(client.get("/big.json?shallow=true") or ()) == [
            f"{at}" for at in range(2, accepted)
        ]


def test_after_removing_the_data_that_filled_the_disk_writes_succeed(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon, Client(daemon) as client:
        accepted = write_until_full(client)
        for at in range(accepted):
            assert client.request("DELETE", f"/big/{at}.json").status == 200
        wait_until(lambda: client.request("PUT", "/after.json", "1").status == 200)


def test_a_daemon_killed_on_a_full_disk_restarts_there_without_loss(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon:
        with Client(daemon) as client:
            kept = {f"k{at}": {"n": at, "fill": "y" * 3000} for at in range(50)}
            client.put("/kept.json", kept)
            accepted = fill_up(client, disk)
            daemon.kill()
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/kept.json") == kept
            assert (client.get("/filling.json") or {}) == accepted
            assert client.request("DELETE", "/kept/k1.json").status == 200
            del kept["k1"]
            daemon.kill()
        # Another program uses up the space that the reserve has freed.
        disk.fill("more")
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/kept.json") == kept
            assert (client.get("/filling.json") or {}) == accepted
            disk.empty()
            disk.empty("more")
            wait_until(lambda: client.request("PUT", "/after.json", "1").status == 200)
            wait_until(lambda: is_healthy(client))


def test_without_a_byte_left_and_the_reserve_spent_reads_go_on_and_removals_are_accepted(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon:
        with Client(daemon) as client:
            kept = {f"k{at}": {"n": at, "fill": "y" * 3000} for at in range(50)}
            client.put("/kept.json", kept)
            fill_up(client, disk)
            disk.fill("where the reserve was")
            daemon.kill()
        # As after a failure of the power: it is not synced, and SQLite has no room for another.
        (disk.folder / "demo" / "default.shelf-shm").unlink()
        disk.fill("where the index of the log was")
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/kept.json") == kept
            for key in ("k1", "k2", "k3"):
                assert client.request("DELETE", f"/kept/{key}.json").status == 200
                del kept[key]
            assert client.get("/kept.json") == kept
            daemon.kill()
        daemon.start()
        with Client(daemon) as client:
            assert client.get("/kept.json") == kept


@pytest.mark.parametrize("leave", [0, 32_768])
def test_a_new_database_on_a_full_disk_is_refused_and_leaves_no_file(
    tmp_path: pathlib.Path, disk: SmallDisk, leave: int
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon, Client(daemon, "new.localhost") as client:
        disk.fill(leave=leave)
        for _ in range(3):
            check_error(client.request("PUT", "/a.json", "1"), 503, "unavailable")
            assert client.get("/a.json") is None
        assert not list(disk.folder.glob("new/*.shelf*"))
        disk.empty()
        wait_until(lambda: client.request("PUT", "/a.json", "1").status == 200)
        assert client.get("/a.json") == 1
        wait_until(lambda: is_healthy(client))


def test_writes_on_a_disk_that_repeatedly_becomes_full_are_not_lost(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon:
        with Client(daemon) as client:
            client.put("/first.json", 1)
            with Writers(daemon) as writers:
                for _ in range(3):
                    for _ in range(30):
                        assert writers.written.acquire(timeout=RECOVERY_S)
                    disk.fill()
                    assert writers.refused.acquire(timeout=RECOVERY_S)
                    disk.empty()
                    wait_until(lambda: is_healthy(client))
                for _ in range(30):
                    assert writers.written.acquire(timeout=RECOVERY_S)
            writers.check(client)
            daemon.kill()
        daemon.start()
        with Client(daemon) as client:
            writers.check(client)


def test_a_full_disk_is_logged_at_once_and_room_only_when_what_was_refused_would_pass(
    tmp_path: pathlib.Path, disk: SmallDisk
) -> None:
    with Daemon(tmp_path, disk=disk) as daemon, Client(daemon) as client:
        client.put("/a.json", 1)
        disk.fill(leave=3 * MIB)
        large = json.dumps({f"k{at:04}": "x" * 1000 for at in range(3000)})
        for _ in range(3):
            check_error(client.request("PUT", "/large.json", large), 503, "unavailable")
            wait_until(lambda: client.request("PUT", "/a.json", "2").status == 200)
        wait_until(lambda: "has room for small writes" in daemon.log)
        full = re.findall(
            r"The disk is full: \S+/demo had [0-9,]+ bytes free, and a write to default\.shelf "
            r"that needs about ([0-9,]+) was refused\. Only removals",
            daemon.log,
        )
        assert len(full) == 1
        assert 4 * MIB < int(full[0].replace(",", "")) < 10 * MIB
        assert daemon.log.count("has room for small writes") == 1
        assert "has room again" not in daemon.log
        disk.empty()
        wait_until(lambda: "has room again" in daemon.log)
