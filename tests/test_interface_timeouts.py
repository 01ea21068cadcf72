"""Time-outs: their syntax, and the effect of a request that timed out."""

from __future__ import annotations

import contextlib
import json
import pathlib
import select
import threading
import time
from collections.abc import Iterator

import pytest

from tests.daemon import Daemon
from tests.injection import inject, shelf_files
from tests.rest import Client, Wire, check_error, escape, print_request

SLOW_DISK_S = 4.0


@pytest.fixture(scope="module")
def large(shared_daemon: Daemon) -> str:
    """The host of a tree of thirty megabytes."""
    with Client.of_new_tree(shared_daemon) as client:
        part = {f"record {at}": {"text": f"{at:05}" * 60, "n": at} for at in range(9000)}
        for at in range(10):
            client.put(f"/big/part{at}.json", part)
        return client.host


@contextlib.contextmanager
def slow_disk(daemon: Daemon, label: str, folder: pathlib.Path) -> Iterator[None]:
    effect = f"delay_enter={int(SLOW_DISK_S * 1000)}ms"
    files = shelf_files(daemon.data, label)
    with inject(daemon.pid, "fdatasync", effect, files, folder / "trace"):
        yield


@pytest.mark.parametrize(
    "text", ["5s", "900s", "15min", "900000ms", "1min", "30000ms", "1s", "14min"]
)
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", "1"), ("DELETE", None)])
def test_a_time_out_is_a_number_and_a_unit(
    tree: Client, text: str, method: str, body: str | None
) -> None:
    assert tree.request(method, f"/a.json?timeout={text}", body).status == 200


@pytest.mark.parametrize(
    "text",
    [
        *("", "0s", "0ms", "0min", "00s", "16min", "901s", "900001ms", "99999999999999999999min"),
        *("1", "s", "ms", "1h", "1m", "1sec", "1S", "1MS", "1Min", "1 s", " 1s", "1s ", "1.5s"),
        *("-1s", "+1s", "1e1s", "0x1s", "\u0661s", "1s1s", "ss", "1_0s", "null", '"1s"', "1ns"),
    ],
)
@pytest.mark.parametrize(("method", "body"), [("GET", None), ("PUT", "1"), ("DELETE", None)])
def test_any_other_time_out_is_refused(
    tree: Client, text: str, method: str, body: str | None
) -> None:
    response = tree.request(method, f"/a.json?timeout={escape(text)}", body)
    check_error(response, 400, "invalid_query")
    assert tree.get("/.json") is None


def test_a_waiting_write_times_out_and_one_under_way_is_completed(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    host = "slow.localhost"
    with Client(shared_daemon, host) as client, Client(shared_daemon, host) as under_way:
        client.put("/before.json", 1)
        with slow_disk(shared_daemon, "slow/default", tmp_path), under_way.connect() as first:
            start = time.monotonic()
            first.send(print_request("PUT", "/first.json?timeout=100ms", "1", host=host))
            for _ in range(2):  # by now the first write is being made durable
                assert client.get("/first.json") is None
            writes = [("PUT", '"late"'), ("POST", "1"), ("PATCH", '{"a":1}'), ("DELETE", None)]
            for method, body in writes:
                response = client.request(method, "/before.json?timeout=150ms", body)
                check_error(response, 504, "timeout")
            assert time.monotonic() - start < SLOW_DISK_S
            response = first.receive("PUT")
            assert (response.status, response.body) == (200, b"1")
            assert time.monotonic() - start >= SLOW_DISK_S
        assert client.get("/.json") == {"before": 1, "first": 1}
        client.put("/after.json", 2)
        assert client.get("/.json") == {"before": 1, "first": 1, "after": 2}


def test_a_write_that_waits_less_than_its_time_out_is_done(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    host = "patient.localhost"
    with Client(shared_daemon, host) as client:
        client.put("/before.json", 1)
        with slow_disk(shared_daemon, "patient/default", tmp_path), client.connect() as first:
            first.send(print_request("PUT", "/first.json", "1", host=host))
            assert client.request("PUT", "/second.json?timeout=20s", "2").status == 200
            assert first.receive("PUT").status == 200
        assert client.get("/.json") == {"before": 1, "first": 1, "second": 2}


def test_reads_and_other_databases_do_not_wait_for_a_slow_disk(
    shared_daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    host = "stuck.localhost"
    with Client(shared_daemon, host) as client, Client(shared_daemon, "free.localhost") as free:
        client.put("/a.json", 1)
        free.put("/a.json", 1)
        with slow_disk(shared_daemon, "stuck/default", tmp_path), client.connect() as writer:
            start = time.monotonic()
            writer.send(print_request("PUT", "/a.json", "2", host=host))
            for at in range(20):
                assert client.get("/a.json?timeout=2s") == 1
                assert free.request("PUT", "/a.json?timeout=2s", str(at)).status == 200
            assert time.monotonic() - start < SLOW_DISK_S
            assert writer.receive("PUT").status == 200
        assert client.get("/a.json") == 2


def test_the_time_out_begins_with_the_complete_request(shared_daemon: Daemon, tree: Client) -> None:
    with Wire(shared_daemon.http) as wire:
        request = print_request("PUT", "/a.json?timeout=1s", '"whole"', host=tree.host)
        wire.send(request[:-3])
        threading.Event().wait(1.2)
        wire.send(request[-3:])
        assert wire.receive("PUT").status == 200


def test_the_time_out_of_a_write_includes_parsing_its_body(tree: Client) -> None:
    body = json.dumps({f"k{at}": {"n": at} for at in range(90_000)})
    for method in ("PUT", "POST", "PATCH"):
        response = tree.request(method, "/a.json?timeout=10ms", body)
        check_error(response, 504, "timeout")
    assert tree.get("/.json") is None


@pytest.mark.parametrize("query", ["", "&print=pretty", "&callback=f"])
def test_a_read_that_times_out_is_504(shared_daemon: Daemon, large: str, query: str) -> None:
    with Client(shared_daemon, large) as client:
        for path in ("/big.json", "/.json"):
            target, no_page = f"{path}?timeout=1ms{query}", {"Sec-Fetch-Site": "none"}
            check_error(client.request("GET", target, headers=no_page), 504, "timeout")
        assert client.get("/big/part1/record%207/n.json") == 7


def test_a_read_that_times_out_after_its_first_bytes_is_cut_off(
    shared_daemon: Daemon, large: str
) -> None:
    with Wire(shared_daemon.http) as wire:
        start = time.monotonic()
        wire.send(print_request("GET", "/big.json?timeout=2s", host=large))
        end = select.poll()
        end.register(wire.socket, select.POLLHUP | select.POLLERR | select.POLLRDHUP)
        assert end.poll(20_000)
        assert 1.5 < time.monotonic() - start < 10
        with pytest.raises(OSError, match=r"."):
            wire.receive()


def test_a_large_read_within_its_time_out_is_complete(shared_daemon: Daemon, large: str) -> None:
    with Client(shared_daemon, large) as client:
        response = client.request("GET", "/big.json?timeout=1min")
        assert response.status == 200
        assert len(response.body) > 30_000_000
