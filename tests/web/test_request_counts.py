"""How requests are counted for metrics: labels that no client chooses."""

from __future__ import annotations

import pathlib

from tests.web.tree_server import SETTINGS, TreeServer
from treedbd.http1.registry import NOTED_AT_ONCE, ServerOptions
from treedbd.http1.server import Http1Factory
from treedbd.web.activity import MAX_OTHERS, Activity, RequestCounts


class CountingServer(TreeServer):
    """A server whose requests and refusals are counted for metrics."""

    def __init__(self, folder: pathlib.Path, counts: RequestCounts) -> None:
        super().__init__(folder, refused=counts.note_refusal)
        self.activity = Activity(self.clock, count_too=counts.add)
        self.factory = Http1Factory(
            self.resource, SETTINGS.limits, self.clock, ServerOptions(activity=self.activity)
        )


def test_requests_are_counted_by_method_status_and_project(tmp_path: pathlib.Path) -> None:
    counts = RequestCounts(["demo"])
    server = CountingServer(tmp_path, counts)
    server.request("PUT", "/a.json", b'"12345"')
    server.request("GET", "/a.json")
    server.request("GET", "/a")
    server.request("BREW", "/a.json")
    server.activity.count()
    assert counts.answered == {
        (b"PUT", 200, "demo"): 1,
        (b"GET", 200, "demo"): 1,
        (b"GET", 404, ""): 1,
        (b"other", 405, ""): 1,
    }
    assert counts.received == {"demo": 7}
    assert counts.sent["demo"] == 14
    assert sum(counts.seconds.counts) == 4
    assert counts.refused == {"not_found": 1, "method_not_allowed": 1}


def test_many_requests_are_counted_before_a_second_is_over(tmp_path: pathlib.Path) -> None:
    counts = RequestCounts(["demo"])
    server = CountingServer(tmp_path, counts)
    peer = server.connect()
    for number in range(3 * NOTED_AT_ONCE):
        peer.send(f"GET /{number}.json HTTP/1.1\r\nHost: demo.localhost\r\n\r\n".encode())
        assert len(server.activity.answered) < NOTED_AT_ONCE
    assert counts.answered == {(b"GET", 200, "demo"): 3 * NOTED_AT_ONCE}


def test_a_stream_is_counted_without_its_time_and_bytes(tmp_path: pathlib.Path) -> None:
    counts = RequestCounts(["demo"])
    server = CountingServer(tmp_path, counts)
    server.open_stream("/a.json")
    server.resource.streams.end()
    server.activity.count()
    assert counts.answered == {(b"GET", 200, "demo"): 1}
    assert (sum(counts.seconds.counts), counts.sent) == (0, {})


def test_projects_that_are_not_configured_are_named_up_to_a_bound() -> None:
    assert RequestCounts(["shop"]).label_of("other") == ""
    counts = RequestCounts(["shop"], any_project=True)
    labels = {counts.label_of(f"p{number}") for number in range(MAX_OTHERS * 2)}
    assert len(labels) == MAX_OTHERS + 1
    assert "" in labels
    assert counts.label_of("p0") == "p0"
    assert counts.label_of("shop") == "shop"
