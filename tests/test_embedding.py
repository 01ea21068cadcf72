"""The example of the documentation: an application that embeds the tree."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.daemon import connect, request

ENDPOINT = "tcp:0:interface=127.0.0.1"
EXAMPLE = pathlib.Path(__file__).parent.parent / "docs" / "embedding.py"


@pytest.fixture
def site(tmp_path: pathlib.Path) -> Iterator[str]:
    """The URL of the running example, whose data is in the folder of the test."""
    with running_example(tmp_path) as process:
        yield url_of(process)


@contextlib.contextmanager
def running_example(folder: pathlib.Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command(ENDPOINT),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = (re.search(r"Site starting on (\d+)", line) for line in process.stdout)
    return next(f"http://127.0.0.1:{found[1]}" for found in lines if found)


def command(endpoint: str) -> list[str]:
    return [sys.executable, str(EXAMPLE), endpoint]


def test_the_tree_is_served_under_a_prefix_beside_the_applications_own_pages(site: str) -> None:
    assert request(site, "GET", "/").body == b"The application's own page.\n"
    assert request(site, "PUT", "/db/people.json", '{"ada": 36}').short == (200, b'{"ada":36}')
    assert request(site, "GET", "/db/people/ada.json").short == (200, b"36")
    assert request(site, "GET", "/db//.json").short == (200, b'{"people":{"ada":36}}')
    assert request(site, "GET", "/db/.health").short == (200, b'{"status":"ok"}')
    assert request(site, "GET", "/db/a%2Fb.json").status == 400
    assert request(site, "GET", "/people.json").status == 404


def test_any_host_reaches_the_default_project(site: str) -> None:
    for host in ("www.example.com", "localhost", "shop.localhost:80"):
        response = request(site, "PUT", "/db/host.json", "1", {"Host": host})
        assert response.short == (200, b"1")


def test_a_stream_works_in_the_applications_own_site(site: str) -> None:
    connection = connect(site)
    connection.request("GET", "/db/people.json", headers={"Accept": "text/event-stream"})
    stream = connection.getresponse()
    assert stream.getheader("Content-Type") == "text/event-stream; charset=utf-8"
    assert stream.getheader("Connection") == "close"
    assert stream.getheader("Transfer-Encoding") is None
    assert [stream.readline() for _ in range(3)] == [
        b"event: put\n",
        b'data: {"path":"/","data":null}\n',
        b"\n",
    ]
    request(site, "PUT", "/db/people/ada.json", "36")
    assert [stream.readline() for _ in range(3)] == [
        b"event: put\n",
        b'data: {"path":"/ada","data":36}\n',
        b"\n",
    ]
    connection.close()


def test_no_token_reaches_the_log_of_the_applications_own_site(tmp_path: pathlib.Path) -> None:
    with running_example(tmp_path) as process:
        site = url_of(process)
        request(site, "GET", "/db/people.json?auth=hush.hush.hush")
        request(site, "GET", "/?auth=hush")
        process.terminate()
        assert process.stdout is not None
        log = process.stdout.read()
    assert "'/db/people.json' 40" in log
    assert "'/' 200" in log
    assert "hush" not in log


@pytest.mark.parametrize("is_port_taken", [True, False])
def test_a_second_application_ends_with_one_sentence(
    site: str, tmp_path: pathlib.Path, is_port_taken: bool
) -> None:
    endpoint = f"tcp:{urlsplit(site).port}:interface=127.0.0.1" if is_port_taken else ENDPOINT
    done = subprocess.run(
        command(endpoint), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("embedding: ")
    assert ("in use by another treedb" in done.stderr) is not is_port_taken
    assert "Traceback" not in done.stdout + done.stderr
