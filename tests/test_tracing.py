"""Spans of requests at a collector: what they hold, whose traces they continue, what is dropped."""

from __future__ import annotations

import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.collector import Collector, ReceivedSpan
from tests.daemon import Daemon
from tests.realtime import RealtimeClient
from tests.rest import Client, configured
from tests.sse import EventStream

ENVIRONMENT: Final = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT: Final = "b7ad6b7169203331"
SERVER: Final = 2
INTERNAL: Final = 1
# A token of the kind that is refused here; what matters is where it does not turn up.
TOKEN: Final = "eyJhbGciOiJIUzI1NiJ9.eyJ1aWQiOiJhZGEifQ.c2VjcmV0LXNpZ25hdHVyZQ"


def traceparent(flags: str) -> dict[str, str]:
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}


def config(endpoint: str, keys: str = "", top: str = "") -> str:
    return f"""
{top}
default_project = "app"
[tracing]
endpoint = "{endpoint}"
{keys}
[projects.app]
rules_file = "open.json"
"""


def traced_daemon(folder: pathlib.Path, text: str, *arguments: str) -> Daemon:
    configured(folder, text)
    return Daemon(folder, config=text, environment=ENVIRONMENT, arguments=arguments)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Daemon]:
    environment = {**ENVIRONMENT, "OTEL_EXPORTER_OTLP_HEADERS": "x-collector-key=abc"}
    folder = tmp_path_factory.mktemp("traced")
    text = config(collector.url, 'service_name = "tree"')
    configured(folder, text)
    with Daemon(folder, config=text, environment=environment) as running:
        yield running


def spans_at(collector: Collector, path: str, count: int = 1) -> list[ReceivedSpan]:
    """Return the spans of the requests for a path, once there are so many, with their parts."""

    def requests(spans: list[ReceivedSpan]) -> list[ReceivedSpan]:
        return [span for span in spans if span.attributes.get("url.path") == path]

    spans = collector.await_spans(lambda spans: len(requests(spans)) >= count)
    ids = {span.id for span in requests(spans)}
    return [span for span in spans if span.id in ids or span.parent in ids]


def test_a_write_has_the_spans_of_its_rules_its_commit_and_its_notifications(
    daemon: Daemon, collector: Collector
) -> None:
    with Client(daemon) as client, EventStream(client, "/watched.json") as stream:
        stream.next_change()
        client.put("/watched/a.json", 1)
        assert stream.next_change().value == 1
    collector.await_spans(lambda spans: any(span.name == "notify" for span in spans))
    spans = {span.name: span for span in spans_at(collector, "/watched/a.json")}
    assert set(spans) == {"PUT /{path}.json", "rules", "commit", "notify"}
    request = spans.pop("PUT /{path}.json")
    assert (request.kind, request.parent, request.is_error) == (SERVER, "", False)
    expected = {
        "http.request.method": "PUT",
        "http.route": "/{path}.json",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "client.address": "127.0.0.1",
        "treedb.project": "app",
        "treedb.database": "default",
    }
    assert expected.items() <= request.attributes.items()
    for part in spans.values():
        assert (part.kind, part.parent, part.trace) == (INTERNAL, request.id, request.trace)
        assert request.began <= part.began <= part.ended
    assert spans["rules"].ended <= spans["commit"].began
    assert spans["commit"].ended <= spans["notify"].began
    assert spans["rules"].attributes == {"treedb.rules.allowed": True}
    assert spans["commit"].attributes == {"treedb.batch.writes": 1}
    assert request.resource["service.name"] == "tree"
    assert len(request.resource["service.instance.id"]) == 36
    assert collector.headers["x-collector-key"] == "abc"


def test_a_stream_has_a_span_when_it_ends(daemon: Daemon, collector: Collector) -> None:
    with Client(daemon) as client, EventStream(client, "/stream.json") as stream:
        stream.next_change()
    (span,) = (each for each in spans_at(collector, "/stream.json") if each.kind == SERVER)
    assert span.attributes["http.response.status_code"] == 200


def test_a_websocket_has_a_span_when_it_ends_and_its_writes_are_done(
    daemon: Daemon, collector: Collector
) -> None:
    with Client(daemon) as tree, RealtimeClient(tree) as client:
        client.listen("socket")
        client.put("socket", 1)
        tree.put("/socket.json", 2)
        assert client.next_push().body["d"] == 2
        client.leave()
    (span,) = (each for each in spans_at(collector, "/.ws") if each.kind == SERVER)
    assert (span.attributes["http.response.status_code"], span.is_error) == (101, False)
    assert span.attributes["http.route"] == "/.ws"


def test_reads_that_a_connection_repeats_have_spans_too(
    daemon: Daemon, collector: Collector
) -> None:
    with Client(daemon) as client:
        for _ in range(5):
            client.get("/repeated.json")
    spans = spans_at(collector, "/repeated.json", 5)
    assert [span.name for span in spans if span.kind == SERVER] == ["GET /{path}.json"] * 5
    assert "rules" in {span.name for span in spans}


def test_the_trace_of_a_client_is_continued(daemon: Daemon, collector: Collector) -> None:
    daemon.request("PUT", "/continued.json", "1", traceparent("01"))
    spans = spans_at(collector, "/continued.json")
    assert {span.trace for span in spans} == {TRACE}
    assert [span.parent for span in spans if span.kind == SERVER] == [PARENT]


@pytest.mark.parametrize(
    "value",
    ["", "00", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-1"],
)
def test_a_malformed_traceparent_begins_a_trace_of_its_own(
    daemon: Daemon, collector: Collector, value: str
) -> None:
    path = f"/malformed{len(value)}{value[:2]}.json"
    daemon.request("GET", path, headers={"traceparent": value})
    (request,) = (span for span in spans_at(collector, path) if span.kind == SERVER)
    assert request.parent == ""
    assert request.trace not in ("0" * 32, TRACE)


def test_no_token_is_exported_wherever_it_is_sent(daemon: Daemon, collector: Collector) -> None:
    bearer = {"Authorization": f"Bearer {TOKEN}", "tracestate": f"a={TOKEN}"}
    daemon.request("GET", f"/hidden.json?auth={TOKEN}")
    daemon.request("GET", f"/hidden.json?access_token={TOKEN}", headers=bearer)
    daemon.request("GET", f"/hidden/{TOKEN}.json")
    daemon.request("GET", f"/hidden.json%3Fauth={TOKEN}")
    daemon.request(TOKEN.replace(".", "-"), "/hidden.json")
    daemon.request("PUT", "/hidden/last.json", f'"{TOKEN}"', bearer | traceparent("01"))
    spans_at(collector, "/hidden/last.json")
    exported = b"".join(collector.bodies)
    assert b"/hidden" in exported
    for part in TOKEN.split("."):
        assert part.encode() not in exported


def test_routes_of_their_own_are_named(daemon: Daemon, collector: Collector) -> None:
    daemon.request("GET", "/.health")
    assert [span.name for span in spans_at(collector, "/.health")] == ["GET /.health"]


def test_nobody_has_more_sampled_than_is_set_but_a_trusted_proxy(tmp_path: pathlib.Path) -> None:
    with Collector() as collector:
        text = config(collector.url, "sample = 0.0", 'trusted_proxies = ["127.0.0.1"]')
        with traced_daemon(tmp_path, text) as daemon:
            port = int(daemon.http.rpartition(":")[2])
            head = (
                f"GET /forced.json HTTP/1.1\r\nHost: x\r\ntraceparent: 00-{TRACE}-{PARENT}-01\r\n"
            )
            with socket.create_connection(("127.0.0.1", port), 30, ("127.0.0.2", 0)) as client:
                client.sendall(head.encode() + b"\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200")
            daemon.request("GET", "/own.json")
            daemon.request("GET", "/left-out.json", headers=traceparent("00"))
            daemon.request("GET", "/proxied.json", headers=traceparent("01"))
            spans_at(collector, "/proxied.json")
            assert daemon.stop() == 0
        paths = {span.attributes.get("url.path") for span in collector.await_spans(bool)}
        assert paths - {None} == {"/proxied.json"}


def test_each_worker_exports_as_an_instance_of_its_own(tmp_path: pathlib.Path) -> None:
    with Collector() as collector:
        with traced_daemon(tmp_path, config(collector.url), "--workers", "2") as daemon:
            count = 0
            instances: set[str] = set()
            while len(instances) < 2:
                count += 1
                assert count < 200
                daemon.request("GET", f"/worker{count}.json")
                spans = spans_at(collector, f"/worker{count}.json")
                instances |= {span.resource["service.instance.id"] for span in spans}
            assert daemon.stop() == 0
        assert len(instances) == 2


def test_spans_that_wait_are_exported_at_the_stop(tmp_path: pathlib.Path) -> None:
    with Collector() as collector:
        text = config(collector.url)
        configured(tmp_path, text)
        with Daemon(
            tmp_path, config=text, environment={"OTEL_BSP_SCHEDULE_DELAY": "600000"}
        ) as daemon:
            daemon.request("GET", "/late.json")
            assert daemon.stop() == 0
        assert spans_at(collector, "/late.json")


def test_a_dead_collector_costs_one_warning_and_no_answer(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with traced_daemon(tmp_path, config(url)) as daemon:
            for number in range(50):
                assert daemon.request("PUT", f"/{number}.json", "1").status == 200
            daemon.signal(signal.SIGTERM)
            assert daemon.wait(10) == 0
            assert daemon.log.count("Traces cannot be exported to") == 1
            assert "Traceback" not in daemon.log


def test_a_collector_that_is_not_there_is_said_once(tmp_path: pathlib.Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with traced_daemon(tmp_path, config(url)) as daemon:
        daemon.request("PUT", "/a.json", "1")
        daemon.await_line("Traces cannot be exported to")
        daemon.request("PUT", "/a.json", "1")
        assert daemon.stop() == 0
        assert daemon.log.count("Traces cannot be exported to") == 1
        assert "Traceback" not in daemon.log


def test_without_an_endpoint_no_library_is_loaded() -> None:
    program = (
        "import sys; from treedbd.service import TreeService; from treedbd.config.settings import "
        "Settings; TreeService(Settings.from_values(engine='memory')); "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
