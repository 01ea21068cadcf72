"""Plays the database part of `pyrebase4` against a daemon.

Runs under pytest in the client environment, not in treedb's own. The environment variable
`PLAY_URL` is the `databaseURL`, `PLAY_TOKEN` the token of an admin, or empty in development mode.
The project is `auto` or `firebase`, as `PLAY_DIALECT` says.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
from typing import Any

import pyrebase
import pytest
from requests.exceptions import HTTPError

URL = os.environ["PLAY_URL"]
TOKEN = os.environ["PLAY_TOKEN"] or None
IS_VENDORS = os.environ["PLAY_DIALECT"] == "firebase"
PATIENCE_S = 30
PEOPLE = {
    "ada": {"age": 36, "name": "Ada", "is_author": True},
    "alan": {"age": 41, "name": "Alan"},
    "grace": {"age": 85, "name": "Grace", "is_author": True},
}

_places = itertools.count()


@pytest.fixture(scope="module")
def database() -> Any:
    app = pyrebase.initialize_app(
        {"apiKey": "none", "authDomain": "none", "databaseURL": URL, "storageBucket": "none"}
    )
    return app.database()


@pytest.fixture
def place() -> str:
    """The name of a place where nothing is yet."""
    return f"place{next(_places)}"


def test_what_is_set_is_got(database: Any, place: str) -> None:
    assert database.child(place).set(PEOPLE, TOKEN) == PEOPLE
    found = database.child(place).get(TOKEN)
    assert (found.key(), found.val()) == (place, PEOPLE)
    assert [child.key() for child in found.each()] == list(PEOPLE)
    assert database.child(place, "ada", "age").get(TOKEN).val() == 36
    assert database.child("no").child("where").get(TOKEN).val() is None


@pytest.mark.parametrize("value", [True, 0, -1.5, "žluťoučký 🐎", ["a", "b"], {"k": [1, 2]}])
def test_values_of_every_kind(database: Any, place: str, value: Any) -> None:
    assert database.child(place).set(value, TOKEN) == value
    assert database.child(place).get(TOKEN).val() == value


def test_push_gives_a_key_and_keys_made_by_the_client_sort_alike(database: Any, place: str) -> None:
    first = database.child(place).push({"at": 1}, TOKEN)["name"]
    second = database.generate_key()
    database.child(place).child(second).set({"at": 2}, TOKEN)
    assert len(first) == len(second) == 20
    found = database.child(place).get(TOKEN)
    assert found.val() == {first: {"at": 1}, second: {"at": 2}}


def test_update_reaches_deep_places_and_removes(database: Any, place: str) -> None:
    database.child(place).set(PEOPLE, TOKEN)
    changes = {"ada/age": 37, "alan": None, "new/deep": "x"}
    assert database.child(place).update(changes, TOKEN) == changes
    expected = {**PEOPLE, "ada": {**PEOPLE["ada"], "age": 37}, "new": {"deep": "x"}}
    del expected["alan"]
    assert database.child(place).get(TOKEN).val() == expected


def test_remove(database: Any, place: str) -> None:
    database.child(place).set(1, TOKEN)
    assert database.child(place).remove(TOKEN) is None
    assert database.child(place).get(TOKEN).val() is None


def test_queries(database: Any, place: str) -> None:
    database.child(place).set(PEOPLE, TOKEN)

    def keys(query: Any) -> list[str]:
        return list(query.get(TOKEN).val() or ())

    def people() -> Any:
        return database.child(place)

    assert keys(people().order_by_child("age").limit_to_last(2)) == ["alan", "grace"]
    assert keys(people().order_by_child("age").start_at(41)) == ["alan", "grace"]
    assert keys(people().order_by_child("age").start_at(40).end_at(50)) == ["alan"]
    assert keys(people().order_by_child("name").equal_to("Ada")) == ["ada"]
    assert keys(people().order_by_child("is_author").equal_to(True)) == ["ada", "grace"]
    assert keys(people().order_by_key().limit_to_first(1)) == ["ada"]
    assert keys(people().order_by_key().start_at("b")) == ["grace"]
    assert keys(people().shallow()) == list(PEOPLE)
    by_age = database.sort(people().get(TOKEN), "age", reverse=True)
    assert [child.key() for child in by_age.each()] == ["grace", "alan", "ada"]
    database.child(place).set({"a": 3, "b": 1, "c": 2}, TOKEN)
    assert keys(people().order_by_value().limit_to_first(2)) == ["b", "c"]


def test_writes_on_condition(database: Any, place: str) -> None:
    nothing = database.child(place).get_etag(TOKEN)
    assert nothing["value"] is None
    assert (nothing["ETag"] == "null_etag") is IS_VENDORS
    assert database.child(place).conditional_set({"a": 1}, nothing["ETag"], TOKEN) == {"a": 1}
    refused = database.child(place).conditional_set("late", nothing["ETag"], TOKEN)
    present = database.child(place).get_etag(TOKEN)
    assert refused["ETag"] == present["ETag"]
    assert (refused["value"] if IS_VENDORS else refused["value"]["data"]) == {"a": 1}
    assert database.child(place).conditional_remove(nothing["ETag"], TOKEN) == refused
    assert database.child(place).conditional_remove(present["ETag"], TOKEN) is None
    assert database.child(place).get(TOKEN).val() is None


def test_a_stream_tells_what_is_written(database: Any, place: str) -> None:
    heard: queue.Queue[dict[str, Any]] = queue.Queue()
    stream = database.child(place).stream(heard.put, TOKEN, stream_id="s1")
    first = heard.get(timeout=PATIENCE_S)
    assert first == {"path": "/", "data": None, "event": "put", "stream_id": "s1"}
    database.child(place).child("a").set({"b": "čaj"}, TOKEN)
    database.child(place).update({"a/c": 2}, TOKEN)
    name = database.child(place).push(3, TOKEN)["name"]
    database.child(place).remove(TOKEN)
    expected = [
        ("put", "/a", {"b": "čaj"}),
        ("patch", "/", {"a/c": 2}),
        ("put", f"/{name}", 3),
        ("put", "/", None),
    ]
    for event, path, data in expected:
        told = heard.get(timeout=PATIENCE_S)
        assert (told["event"], told["path"], told["data"]) == (event, path, data)
    # Its reader may see the end of the connection before close() has done with it.
    with contextlib.suppress(AttributeError):
        stream.close()
    stream.thread.join(PATIENCE_S)
    assert not stream.thread.is_alive()


def test_a_refusal_says_why(database: Any, place: str) -> None:
    with pytest.raises(HTTPError, match="400") as caught:
        database.child(place).set({"a$b": 1}, TOKEN)
    assert '"error"' in caught.value.strerror


if TOKEN is not None:

    def test_rules_deny_whoever_has_no_token(database: Any, place: str) -> None:
        with pytest.raises(HTTPError, match="401 Client Error") as caught:
            database.child(place).get()
        assert caught.value.strerror == '{\n  "error" : "Permission denied"\n}\n'
