"""An archive in a bucket that is away for a while, and one of databases in PostgreSQL."""

from __future__ import annotations

import logging
import pathlib
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest
from moto.server import ThreadedMotoServer

from tests.archive.archived import FOLDER, archive_in, health, lag, make_daemon, put, read_back
from tests.postgresql import servers
from tests.system import find_port, wait_until
from treedbd.archive.index import Archive
from treedbd.archive.places import open_place

KEYS: Final = {
    "AWS_ACCESS_KEY_ID": "an-access-key",
    "AWS_SECRET_ACCESS_KEY": "a-secret-key",
    "AWS_REGION": "us-east-1",
}


@pytest.fixture
def server() -> Iterator[ThreadedMotoServer]:
    """Yield a server of S3 in this process, with the bucket `elsewhere`, which may be stopped.

    What is in buckets is that of all such servers of a process, so this one has a name of its own.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=find_port())
    server.start()
    request = urllib.request.Request(f"{endpoint_of(server)}/elsewhere", method="PUT")
    with urllib.request.urlopen(request):
        pass
    yield server
    server.stop()


def endpoint_of(server: ThreadedMotoServer) -> str:
    host, port = server.get_host_and_port()
    return f"http://{host}:{port}"


def test_a_bucket_that_was_away_gets_what_it_lacks(
    server: ThreadedMotoServer, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = endpoint_of(server)
    archive = f'to = "s3://elsewhere/p"\nendpoint = "{endpoint}"\nevery_s = 0.1'
    with make_daemon(tmp_path, archive, environment=KEYS) as daemon:
        put(daemon, "/a.json", 1)
        wait_until(lambda: lag(daemon) == 0)
        server.stop()
        put(daemon, "/b.json", 2)
        daemon.await_line("The archive cannot be written, and is tried again")
        for number in range(20):
            put(daemon, f"/k{number}.json", number)
        status, (reason,) = health(daemon)
        assert status == 503
        assert "AWS" not in reason
        assert "a-secret-key" not in daemon.log
        assert lag(daemon) > 0
        again = ThreadedMotoServer(ip_address="127.0.0.1", port=server.get_host_and_port()[1])
        again.start()
        try:
            daemon.await_line("The archive is written again")
            wait_until(lambda: lag(daemon) == 0)
            assert health(daemon)[0] == 200
            served = daemon.request("GET", "/.json", None, {"Authorization": "Bearer owner"}).json
            for name, value in KEYS.items():
                monkeypatch.setenv(name, value)
            found = Archive(open_place("s3://elsewhere/p", endpoint=endpoint), None)
            assert read_back(found, "app/default")[1] == served
            assert daemon.stop() == 0
        finally:
            again.stop()
    assert daemon.log.count("The archive cannot be written, and is tried again") == 1


def test_another_daemon_over_postgresql_goes_on_when_one_was_killed(
    tmp_path: pathlib.Path,
) -> None:
    elected = "This process is the reader archive"
    (tmp_path / FOLDER).mkdir()
    archive = f'to = "{tmp_path / FOLDER}"\nevery_s = 0.1'
    folders = [tmp_path / name for name in ("one", "other")]
    with servers(standbys=0) as running:
        arguments = ["--engine", running.primary.dsn()]
        for folder in folders:
            folder.mkdir()
        one, other = (make_daemon(each, archive, arguments=arguments) for each in folders)
        with one, other:
            one.await_line(elected)
            for number in range(10):
                put((one, other)[number % 2], f"/k{number}.json", number)
            wait_until(lambda: lag(one) == 0)
            one.kill()
            put(other, "/after.json", 1)
            other.await_line(elected)
            wait_until(lambda: lag(other) == 0)
            served = other.request("GET", "/.json", None, {"Authorization": "Bearer owner"}).json
            assert other.stop() == 0
    assert read_back(archive_in(tmp_path), "app/default")[1] == served
