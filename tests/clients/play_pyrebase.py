"""Calls the database functions of `pyrebase4` with a daemon.

It runs under pytest in the environment of the clients, not in treedb's own. The variable `PLAY_URL`
is the `databaseURL`, `PLAY_TOKEN` the token of an admin (empty in development mode).
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
PATIENCE_S = 120
PEOPLE = {
    "ada": {"age": 36, "name": "Ada", "is_author": True},
    "alan": {"age": 41, "name": "Alan"},
    "grace": {"age": 85, "name": "Grace", "is_author": True},
}

_paths = itertools.count()


@pytest.fixture(scope="module")
def database() -> Any:
    app = pyrebase.initialize_app(
        {"apiKey": "none", "authDomain": "none", "databaseURL": URL, "storageBucket": "none"}
    )
    return app.database()


@pytest.fixture
def path() -> str:
    """A path without a value."""
    return f"path{next(_paths)}"


def test_a_value_that_was_set_is_read(database: Any, path: str) -> None:
    assert database.child(path).set(PEOPLE, TOKEN) == PEOPLE
    found = database.child(path).get(TOKEN)
    assert (found.key(), found.val()) == (path, PEOPLE)
    assert [child.key() for child in found.each()] == list(PEOPLE)
    assert database.child(path, "ada", "age").get(TOKEN).val() == 36
    assert database.child("no").child("where").get(TOKEN).val() is None


@pytest.mark.parametrize("value", [True, 0, -1.5, "žluťoučký 🐎", ["a", "b"], {"k": [1, 2]}])
def test_values_of_every_kind(database: Any, path: str, value: Any) -> None:
    assert database.child(path).set(value, TOKEN) == value
    assert database.child(path).get(TOKEN).val() == value


def test_keys_of_push_and_keys_of_the_client_sort_by_time(database: Any, path: str) -> None:
    first = database.child(path).push({"at": 1}, TOKEN)["name"]
    second = database.generate_key()
    database.child(path).child(second).set({"at": 2}, TOKEN)
    assert len(first) == len(second) == 20
    found = database.child(path).get(TOKEN)
    assert found.val() == {first: {"at": 1}, second: {"at": 2}}


def test_update_changes_deep_paths_and_removes(database: Any, path: str) -> None:
    database.child(path).set(PEOPLE, TOKEN)
    changes = {"ada/age": 37, "alan": None, "new/deep": "x"}
    assert database.child(path).update(changes, TOKEN) == changes
    expected = {**PEOPLE, "ada": {**PEOPLE["ada"], "age": 37}, "new": {"deep": "x"}}
    del expected["alan"]
    assert database.child(path).get(TOKEN).val() == expected


def test_remove(database: Any, path: str) -> None:
    database.child(path).set(1, TOKEN)
    assert database.child(path).remove(TOKEN) is None
    assert database.child(path).get(TOKEN).val() is None


def test_queries(database: Any, path: str) -> None:
    database.child(path).set(PEOPLE, TOKEN)

    def keys(query: Any) -> list[str]:
        return list(query.get(TOKEN).val() or ())

    def people() -> Any:
        return database.child(path)

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
    database.child(path).set({"a": 3, "b": 1, "c": 2}, TOKEN)
    assert keys(people().order_by_value().limit_to_first(2)) == ["b", "c"]


def test_conditional_writes(database: Any, path: str) -> None:
    nothing = database.child(path).get_etag(TOKEN)
    assert nothing["value"] is None
    assert nothing["ETag"] == "null_etag"
    assert database.child(path).conditional_set({"a": 1}, nothing["ETag"], TOKEN) == {"a": 1}
    refused = database.child(path).conditional_set("late", nothing["ETag"], TOKEN)
    present = database.child(path).get_etag(TOKEN)
    assert refused["ETag"] == present["ETag"]
    assert refused["value"] == {"a": 1}
    assert database.child(path).conditional_remove(nothing["ETag"], TOKEN) == refused
    assert database.child(path).conditional_remove(present["ETag"], TOKEN) is None
    assert database.child(path).get(TOKEN).val() is None


def test_a_stream_receives_writes(database: Any, path: str) -> None:
    received: queue.Queue[dict[str, Any]] = queue.Queue()
    stream = database.child(path).stream(received.put, TOKEN, stream_id="s1")
    first = received.get(timeout=PATIENCE_S)
    assert first == {"path": "/", "data": None, "event": "put", "stream_id": "s1"}
    database.child(path).child("a").set({"b": "čaj"}, TOKEN)
    database.child(path).update({"a/c": 2}, TOKEN)
    name = database.child(path).push(3, TOKEN)["name"]
    database.child(path).remove(TOKEN)
    expected = [
        ("put", "/a", {"b": "čaj"}),
        ("patch", "/", {"a/c": 2}),
        ("put", f"/{name}", 3),
        ("put", "/", None),
    ]
    for event, changed, data in expected:
        message = received.get(timeout=PATIENCE_S)
        assert (message["event"], message["path"], message["data"]) == (event, changed, data)
    # The reading thread may see the end of the connection before close() returns.
    with contextlib.suppress(AttributeError):
        stream.close()
    stream.thread.join(PATIENCE_S)
    assert not stream.thread.is_alive()


def test_an_error_has_a_reason(database: Any, path: str) -> None:
    with pytest.raises(HTTPError, match="400") as caught:
        database.child(path).set({"a$b": 1}, TOKEN)
    assert '"error"' in str(caught.value.strerror)


if TOKEN is not None:

    def test_rules_deny_requests_without_a_token(database: Any, path: str) -> None:
        with pytest.raises(HTTPError, match="401 Client Error") as caught:
            database.child(path).get()
        assert caught.value.strerror == '{\n  "error" : "Permission denied"\n}\n'
