from __future__ import annotations

import itertools
import logging
import urllib.request
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.archive.contract import PlaceContract
from treedbd.archive import bucket
from treedbd.archive.bucket import BucketPlace
from treedbd.archive.places import NameTaken, PlaceFailed, initialise, open_place

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Yield the address of a server of S3 in this process, with the bucket `attic`."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "an-access-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-key")
        patch.setenv("AWS_REGION", "us-east-1")
        yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="module", autouse=True)
def attic(endpoint: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/attic", method="PUT")):
        pass


@pytest.fixture
def place(endpoint: str) -> BucketPlace:
    return BucketPlace(f"s3://attic/p/{next(NUMBERS)}", endpoint=endpoint)


class TestBucket(PlaceContract):
    """The contract over a bucket."""


def test_a_large_object_is_put_in_parts(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "MAX_CONDITIONAL_BYTES", 1_000_000)
    content = [bytes((number,)) * 1_000_000 for number in range(40)]
    assert place.put("a/b", content, is_new=True) == 40_000_000
    assert b"".join(place.get("a/b")) == b"".join(content)
    with pytest.raises(NameTaken):
        place.put("a/b", content, is_new=True)
    with pytest.raises(ValueError, match="broken off"):
        place.put("a/c", broken_off(content), is_new=False)
    assert [info.name for info in place.list("a/")] == ["a/b"]


def broken_off(content: list[bytes]) -> Iterator[bytes]:
    yield from content[:20]
    raise ValueError("broken off")


def test_more_objects_than_a_page_are_listed(
    place: BucketPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_LISTED_AT_ONCE", 2)
    for number in range(7):
        place.put(f"a/{number}", [b"1"], is_new=True)
    assert [info.name for info in place.list("a/")] == [f"a/{number}" for number in range(7)]


def test_errors_say_what_is_wrong_without_the_request(endpoint: str) -> None:
    for url in ("s3://", "s3://key:secret@attic/p", "s3://attic/p?x=1"):
        with pytest.raises(PlaceFailed, match="without credentials"):
            open_place(url)
    missing = open_place("s3://missing/p", endpoint=endpoint)
    with pytest.raises(PlaceFailed) as failed:
        initialise(missing, None, 1)
    assert "s3://missing/p" in str(failed.value)
    assert "secret" not in str(failed.value)


def test_a_bucket_that_is_away_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_RETRY", {"max_retries": 0})
    place = BucketPlace("s3://attic/p", endpoint="http://127.0.0.1:1", region="us-east-1")
    with pytest.raises(PlaceFailed, match="cannot be used"):
        place.put("a/b", [b"1"], is_new=True)
    with pytest.raises(PlaceFailed, match="cannot be used"):
        next(place.get("a/b"))
    with pytest.raises(PlaceFailed, match="cannot be used"):
        list(place.list(""))


def test_an_endpoint_that_is_not_set_is_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket, "_RETRY", {"max_retries": 0})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    place = BucketPlace("s3://attic/p", endpoint="", region="")
    with pytest.raises(PlaceFailed, match="whether it can be reached"):
        list(place.list(""))
    wrong = BucketPlace("s3://attic/p", endpoint="no URL")
    with pytest.raises(PlaceFailed, match="see endpoint and region"):
        list(wrong.list(""))
