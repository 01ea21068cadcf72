"""What a daemon writes to its archive: everything that it has acknowledged, and what it says."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import shutil
import signal
import threading
from collections.abc import Iterator
from http.client import HTTPException
from typing import Final

from tests.archive.archived import (
    FOLDER,
    OWNER,
    archive_in,
    health,
    lag,
    make_daemon,
    put,
    read_back,
    scrape,
)
from tests.command import run_command
from tests.daemon import Daemon
from tests.system import wait_until
from treedbd.archive.ownership import NOTE
from treedbd.archive.places import MARKER
from treedbd.archive.sealing import make_key, read_key
from treedbd.archive.segments import Deleted, Rules
from treedbd.database.data_directory import READER_FILE

KILLS: Final = 4
WRITES: Final = 40
RULES: Final = '{"rules":{".read":true}}'


class Writer(threading.Thread):
    """Writes one number after the other until the daemon is away; `acknowledged` are durable."""

    def __init__(self, daemon: Daemon, numbers: Iterator[int]) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[str, int] = {}
        self._daemon, self._numbers = daemon, numbers

    def run(self) -> None:
        suppressed = contextlib.suppress(OSError, HTTPException)
        with contextlib.closing(self._daemon.connect()) as connection, suppressed:
            for number in self._numbers:
                connection.request("PUT", f"/k{number}.json", str(number), OWNER)
                response = connection.getresponse()
                response.read()
                if response.status == 200:
                    self.acknowledged[f"k{number}"] = number


def write_until_killed(daemon: Daemon, numbers: Iterator[int]) -> dict[str, int]:
    """Kill a daemon while it is written; return what it has acknowledged."""
    writer = Writer(daemon, numbers)
    writer.start()
    wait_until(lambda: len(writer.acknowledged) >= WRITES)
    daemon.kill()
    writer.join()
    return writer.acknowledged


def test_what_was_acknowledged_is_archived_though_the_daemon_is_killed(
    tmp_path: pathlib.Path,
) -> None:
    numbers, acknowledged = itertools.count(), dict[str, int]()
    with make_daemon(tmp_path, "every_s = 0.1\nbase_every_s = 0.2") as daemon:
        for _ in range(KILLS):
            acknowledged |= write_until_killed(daemon, numbers)
            daemon.start()
        wait_until(lambda: scrape(daemon).get("treedb_archive_last_base_timestamp_seconds"))
        put(daemon, "/last.json", 1)
        served = daemon.request("GET", "/.json", None, OWNER).json
        assert daemon.stop() == 0
    archive = archive_in(tmp_path)
    stretch, found = read_back(archive, "app/default")
    assert found.items() >= acknowledged.items()
    assert found == served
    assert stretch.first == 0
    assert len(archive.spans("app/default")) == 1
    assert archive.bases("app/default")


def test_what_had_not_arrived_before_a_kill_arrives_after_the_start(
    tmp_path: pathlib.Path,
) -> None:
    with make_daemon(tmp_path, "every_s = 0.1") as daemon:
        put(daemon, "/a.json", 1)
        wait_until(lambda: lag(daemon) == 0)
        (tmp_path / FOLDER).rename(tmp_path / "away")
        put(daemon, "/b.json", 2)
        daemon.await_line("The archive cannot be written")
        put(daemon, "/c.json", 3)
        daemon.kill()
        (tmp_path / "away").rename(tmp_path / FOLDER)
        daemon.start()
        wait_until(lambda: lag(daemon) == 0)
        assert daemon.stop() == 0
    stretch, found = read_back(archive_in(tmp_path), "app/default")
    assert found == {"a": 1, "b": 2, "c": 3}
    assert stretch.first == 0


def test_databases_and_rules_that_come_and_go_are_archived_as_they_do(
    tmp_path: pathlib.Path,
) -> None:
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(make_key())
    with make_daemon(tmp_path, 'every_s = 0.1\nkey_file = "key"') as daemon:
        put(daemon, "/a.json?ns=eu--app", 1)
        put(daemon, "/b.json?ns=other", 2)
        assert daemon.request("PUT", "/.settings/rules.json", RULES, OWNER).status == 200
        wait_until(lambda: lag(daemon) == 0)
        deleted = daemon.request(
            "DELETE", "/.settings/database.json?ns=eu--app&confirm=eu--app", None, OWNER
        )
        assert deleted.status == 200, deleted
        put(daemon, "/c.json?ns=eu--app", 3)
        put(daemon, "/e.json?ns=eu--app", 5)
        wait_until(lambda: lag(daemon) == 0)
        assert not archive_in(tmp_path, read_key(tmp_path / "key")).bases("app/eu")
        daemon.restart()
        put(daemon, "/d.json?ns=eu--app", 4)
        assert daemon.stop() == 0
    archive = archive_in(tmp_path, read_key(tmp_path / "key"))
    assert read_back(archive, "app/eu")[1] == {"c": 3, "d": 4, "e": 5}
    assert read_back(archive, "other/default")[1] == {"b": 2}
    assert {each.db for each in archive.events() if isinstance(each, Deleted)} == {"app/eu"}
    assert not archive.gaps("app/eu")
    texts = [
        record.text
        for segment in archive.segments()
        for record in archive.records(segment)
        if isinstance(record, Rules)
    ]
    assert texts == [RULES, RULES]  # again after the start


def test_what_the_change_log_did_not_keep_is_a_gap_and_a_base(tmp_path: pathlib.Path) -> None:
    more = "[readers]\nlag_bytes = 1_048_576\nlogged_bytes = 65_536\n[streams]\nretain_events = 3"
    with make_daemon(tmp_path, "every_s = 0.1", more) as daemon:
        put(daemon, "/a.json", 1)
        wait_until(lambda: lag(daemon) == 0)
        put(daemon, "/large.json", "x" * 70_000)
        await_base(daemon)
        (tmp_path / FOLDER).rename(tmp_path / "away")
        put(daemon, "/b.json", 2)
        daemon.await_line("The archive cannot be written")
        for number in range(70):  # the log is trimmed after 64
            put(daemon, f"/c{number}.json", "y" * (60_000 if number < 20 else 1))
        status, reasons = health(daemon)
        assert status == 503
        assert any(each.startswith("The archive cannot be written: ") for each in reasons)
        assert lag(daemon) > 0
        (tmp_path / "away").rename(tmp_path / FOLDER)
        await_base(daemon)
        wait_until(lambda: lag(daemon) == 0)
        served = daemon.request("GET", "/.json", None, OWNER).json
        wait_until(lambda: health(daemon)[0] == 200)
        assert daemon.stop() == 0
    archive = archive_in(tmp_path)
    assert read_back(archive, "app/default")[1] == served
    reasons = [gap.reason for gap in archive.gaps("app/default")]
    assert "no body" in reasons[0]
    assert "lagged too much" in reasons[-1]


def test_a_new_database_is_archived_from_its_first_entry_however_late_it_is_read(
    tmp_path: pathlib.Path,
) -> None:
    with make_daemon(tmp_path, "every_s = 0.1", "[streams]\nretain_events = 3") as daemon:
        put(daemon, "/a.json", 1)
        wait_until(lambda: lag(daemon) == 0)
        (tmp_path / FOLDER).rename(tmp_path / "away")
        put(daemon, "/b.json", 2)
        daemon.await_line("The archive cannot be written")
        put(daemon, "/long.json?ns=eu--app", "x" * 100_000)
        for number in range(70):  # the log is trimmed after 64
            put(daemon, f"/c{number}.json?ns=eu--app", number)
        (tmp_path / "away").rename(tmp_path / FOLDER)
        wait_until(lambda: lag(daemon) == 0)
        assert daemon.stop() == 0
    archive = archive_in(tmp_path)
    assert not archive.gaps("app/eu")
    assert not archive.bases("app/eu")
    found = read_back(archive, "app/eu")[1]
    assert found == {"long": "x" * 100_000} | {f"c{number}": number for number in range(70)}


def await_base(daemon: Daemon) -> None:
    """Wait for the next base."""
    daemon.await_line("A base of app is in the archive", daemon.mark(), 30)


def test_a_place_that_is_not_the_archive_is_not_written(tmp_path: pathlib.Path) -> None:
    place = tmp_path / FOLDER
    with make_daemon(tmp_path, "every_s = 0.1") as daemon:
        put(daemon, "/a.json", 1)
        wait_until(lambda: lag(daemon) == 0)
        assert daemon.stop() == 0
        place.rename(tmp_path / "disk")
        place.mkdir()
        daemon.start()
        daemon.await_line(f"has no {MARKER}, though the archive was there before")
        assert health(daemon)[0] == 503
        assert list(place.iterdir()) == []
        assert daemon.stop() == 0
        (place / "holiday.jpg").touch()
        (daemon.data / NOTE).unlink()
        daemon.start()
        daemon.await_line("is not an archive, and not empty")
        assert daemon.stop() == 0
        shutil.rmtree(place)
        (tmp_path / "disk").rename(place)
        daemon.start()
        daemon.await_line("is the archive of another data directory")
        put(daemon, "/b.json", 2)
        assert daemon.stop() == 0
        config = tmp_path / "treedb.toml"
        adopted = run_command("archive", "adopt", "--config", config, "--data", daemon.data)
        assert adopted.status == 0, adopted
        daemon.start()
        wait_until(lambda: lag(daemon) == 0)
        assert daemon.stop() == 0
    assert read_back(archive_in(tmp_path), "app/default")[1] == {"a": 1, "b": 2}


def kill_reader(daemon: Daemon) -> None:
    """Kill the process that has locked the file of the election."""
    inode = (daemon.data / f"{READER_FILE}archive").stat().st_ino
    for line in pathlib.Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            os.kill(int(fields[4]), signal.SIGKILL)
            return
    raise AssertionError("No process has locked the file.")


def test_one_of_several_workers_writes_and_another_takes_over(tmp_path: pathlib.Path) -> None:
    elected = r"This process is the reader archive"
    with make_daemon(tmp_path, "every_s = 0.1", arguments=["--workers", "2"]) as daemon:
        daemon.await_line(elected)
        for number in range(10):
            put(daemon, f"/k{number}.json", number)
        wait_until(lambda: lag(daemon) == 0)
        mark = daemon.mark()
        kill_reader(daemon)
        daemon.await_line(elected, mark)
        for number in range(10, 20):
            put(daemon, f"/k{number}.json", number)
        assert daemon.stop() == 0
    stretch, found = read_back(archive_in(tmp_path), "app/default")
    assert found == {f"k{number}": number for number in range(20)}
    assert stretch.first == 0
