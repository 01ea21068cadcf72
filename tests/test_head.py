"""HEAD has the headers of its GET, whatever the answer is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http.client import parse_headers

import pytest

from tests.rest import BODILESS, Client, print_request

SMALL = {"a": 1, "b": {".value": 2, ".priority": 3}}
MEDIUM = {f"k{number}": "x" * 50 for number in range(60)}
LONG = {f"k{number:04}": "x" * 50 for number in range(1000)}
LARGE = {f"k{number:05}": "x" * 100 for number in range(20_000)}
FRAMING = frozenset({"Date", "Transfer-Encoding", "Content-Length", "X-Request-Id"})
PLACES = ("small", "medium", "long", "large", "none")
FORMS = (
    *("", "?print=pretty", "?print=silent", "?shallow=true", "?format=export", "?callback=f"),
    *("?download=x", '?orderBy="$key"', '?orderBy="$key"&limitToFirst=3', "?print=nonsense"),
    *("?timeout=never", "?auth=malformed"),
)
OTHERS = (
    *("/", "/.docs/interface.md", "/.docs/missing.md", "/.openapi.json", "/favicon.ico", "/small"),
    *("/.settings/rules.json", "/.settings/rules.json?auth=owner", "/.lp?cb=1", "/.lp"),
    *("/.inspect/databases.json?auth=owner", "/.settings/log.json?auth=owner", "/a%2Fb.json"),
    "/small/b/.priority.json",
)
REQUESTS: tuple[Mapping[str, str], ...] = (
    *({}, {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "zstd, identity;q=0.5"}),
    {"X-TreeDB-ETag": "true", "Accept-Encoding": "gzip"},
    *({"X-Firebase-ETag": "true"}, {"If-None-Match": "*"}, {"If-None-Match": '"x"'}),
    {"If-None-Match": "*", "Accept-Encoding": "gzip"},
    {"Accept": "text/html", "Accept-Encoding": "gzip"},
    *({"Authorization": "Bearer owner"}, {"Origin": "http://localhost:8000"}),
    {"Sec-Fetch-Site": "none"},
)


@pytest.fixture(scope="module")
def filled(shared_tree: Client) -> Client:
    for name, value in zip(PLACES, (SMALL, MEDIUM, LONG, LARGE, None), strict=True):
        shared_tree.put(f"/{name}.json", value)
    return shared_tree


def head_of(
    client: Client, method: str, target: str, headers: Mapping[str, str], version: str
) -> tuple[int, list[tuple[str, str]], int | None, bool]:
    """Return the status, the headers but the framing, the length, and if the connection goes on."""
    with client.connect() as wire:
        request = print_request(method, target, None, headers, client.host)
        wire.send(request.replace(b"HTTP/1.1", version.encode(), 1))
        file = wire.socket.makefile("rb")
        status = int(file.readline().split(b" ")[1])
        found = parse_headers(file)
        length = found["Content-Length"]
        size = None if length is None else int(length)
        return (
            status,
            [each for each in found.items() if each[0] not in FRAMING],
            size,
            found["Connection"] != "close",
        )


def check_head(
    client: Client,
    target: str,
    version: str = "HTTP/1.1",
    requests: Sequence[Mapping[str, str]] = REQUESTS,
) -> None:
    for headers in requests:
        read = head_of(client, "GET", target, headers, version)
        head = head_of(client, "HEAD", target, headers, version)
        assert head[:2] == read[:2], (target, headers)
        # The length of what is sent while it is rendered or encoded is not known before.
        is_encoded = any(name == "Content-Encoding" for name, _ in read[1])
        if read[2] is not None or is_encoded or read[0] in BODILESS:
            assert head[2] == read[2], (target, headers)
        else:
            assert head[2] is not None, (target, headers)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", PLACES)
def test_head_of_a_value_has_the_headers_of_its_get(filled: Client, place: str, form: str) -> None:
    for _ in range(2):  # a second time the answer may be kept
        check_head(filled, f"/{place}.json{form}")


@pytest.mark.parametrize("place", PLACES)
def test_repeated_on_one_connection_it_has_the_same_headers(filled: Client, place: str) -> None:
    methods = ("GET", "GET", "HEAD", "HEAD", "GET", "HEAD")
    with filled.connect() as wire:
        for headers in REQUESTS:
            seen = []
            for method in methods:  # the answer is kept, and the same head is known
                wire.send(print_request(method, f"/{place}.json", None, headers, filled.host))
                response = wire.receive(method)
                fields = [each for each in response.headers.items() if each[0] not in FRAMING]
                seen.append((response.status, fields))
            assert seen == seen[:1] * len(methods), headers


@pytest.mark.parametrize("target", OTHERS)
def test_head_of_anything_else_has_the_headers_of_its_get(filled: Client, target: str) -> None:
    check_head(filled, target)


def test_head_of_the_health_has_the_headers_of_its_get(filled: Client) -> None:
    # To an admin the text differs from one moment to the next.
    check_head(
        filled, "/.health", requests=[each for each in REQUESTS if "Authorization" not in each]
    )


@pytest.mark.parametrize("place", ["small", "long", "large"])
def test_over_http_1_0_it_is_the_same(filled: Client, place: str) -> None:
    check_head(filled, f"/{place}.json", "HTTP/1.0")


@pytest.mark.parametrize(
    "target", ["/small.json", "/large.json?resume=true", "/large.json?shallow=1"]
)
@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_head_of_a_stream_has_the_headers_of_the_stream(
    filled: Client, target: str, version: str
) -> None:
    accept = {"Accept": "text/event-stream", "Accept-Encoding": "gzip"}
    head = head_of(filled, "HEAD", target, accept, version)
    assert head == head_of(filled, "GET", target, accept, version)
    if head[0] == 200:
        assert head[2:] == (None, False)


def test_requests_after_a_head_are_answered(filled: Client) -> None:
    with filled.connect() as wire:
        for place in ("long", "large", "small"):
            for coding in ("gzip", "identity"):
                headers = {"Accept-Encoding": coding}
                wire.send(print_request("HEAD", f"/{place}.json", None, headers, filled.host))
                assert wire.receive("HEAD").status == 200
        wire.send(print_request("GET", "/small.json", None, {}, filled.host))
        assert wire.receive().json == {"a": 1, "b": 2}
