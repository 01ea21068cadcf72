"""Real input: the data files of the package `vega_datasets`, written, read and queried.

Its JSON files are written as they are, its tables of comma-separated values as arrays of objects,
the usual shape of such data in JSON.
"""

from __future__ import annotations

import csv
import functools
import importlib.resources
import json
from importlib.resources.abc import Traversable
from typing import Any

import pytest

from tests import expected
from tests.daemon import Daemon
from tests.expected import QueryModel
from tests.rest import Client, escape

Record = dict[str, Any]


def find_all() -> dict[str, Traversable]:
    """Return every file of data in the package, by name."""
    found = {}
    package = importlib.resources.files("vega_datasets")
    for file in (*package.iterdir(), *package.joinpath("_data").iterdir()):
        name, _, kind = file.name.rpartition(".")
        if kind in ("json", "csv"):
            found[name] = file
    return found


def is_table(file: Traversable) -> bool:
    """Return whether the JSON of a file is an array."""
    with file.open("rb") as opened:
        return file.name.endswith(".csv") or opened.read(100).lstrip()[:1] == b"["


@functools.cache
def read(name: str) -> bytes:
    """Return the JSON of a file."""
    file = FILES[name]
    if file.name.endswith(".json"):
        return file.read_bytes()
    rows = csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines())
    return json.dumps([_typed(row) for row in rows]).encode()


def _typed(row: dict[str, str]) -> Record:
    """Convert numbers, turn empty text into null, and make keys legal."""
    return {key.replace(".", "_").replace("/", " per "): _value(text) for key, text in row.items()}


def _value(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text or None


FILES = find_all()
TABLES = sorted(name for name, file in FILES.items() if is_table(file))


def is_storable(value: Any) -> bool:
    """Return whether all keys of a value are legal: none has a character like `.`."""
    if isinstance(value, list):
        return all(map(is_storable, value))
    if isinstance(value, dict):
        return not any(set(key) & set(".#$[]/") for key in value) and all(
            map(is_storable, value.values())
        )
    return True


def patched(record: Record) -> Record:
    """Return a record as it is after the PATCH of the test."""
    return {**record, "checked": True, "note": {"by": ["a", None, "c"]}}


def test_the_expected_files_exist() -> None:
    assert {"cars", "iris", "barley", "driving", "airports", "seattle-weather"} <= FILES.keys()
    assert len(TABLES) >= 12


def test_every_file_reads_back_equal_and_survives_a_kill(shared_daemon: Daemon) -> None:
    with Client(shared_daemon) as client:
        stored = {}
        for name in FILES:
            text = read(name)
            parsed = json.loads(text)
            response = client.request("PUT", f"/data/{name}.json", text)
            if not is_storable(parsed):
                assert response.status == 400
                continue
            assert response.status == 200, name
            stored[name] = expected.shown(parsed)
            assert expected.comparable(response.json) == expected.comparable(stored[name])
            shown = client.request("GET", f"/data/{name}.json", headers={"X-Vendor-ETag": "true"})
            assert shown.body == response.body
            assert len(shown.body) == len(expected.compact(stored[name]))
            assert shown.headers["ETag"] == expected.entity_tag(stored[name])
        assert len(stored) >= 15
        assert client.get("/data.json?shallow=true") == dict.fromkeys(stored, True)
        sizes = client.get("/data.json?shallow=true&v=2")
        for name, value in stored.items():
            assert sizes[name] == {".sz": len(expected.compact(value))}

        for name in TABLES:
            if name in stored:
                stored[name] = patch(client, name, stored[name])
        assert expected.comparable(client.get("/data.json")) == expected.comparable(stored)
        shared_daemon.kill()
    shared_daemon.start()
    with Client(shared_daemon) as client:
        assert expected.comparable(client.get("/data.json")) == expected.comparable(stored)
        for name, value in stored.items():
            assert expected.comparable(client.get(f"/data/{name}.json")) == expected.comparable(
                value
            )


def patch(client: Client, name: str, records: list[Record]) -> list[Record]:
    """Change, remove and add records of a table; return the new table."""
    last = len(records) - 1
    body = {
        "0/checked": True,
        "0/note": {"by": ["a", None, "c"]},
        f"{last // 2}": None,
        f"{last}/{next(iter(records[last]))}": None,
        f"{last + 1}": {"new": True},
    }
    response = client.request("PATCH", f"/data/{name}.json", json.dumps(body))
    assert response.status == 200
    first_field, *_ = records[last]
    shorter = {key: value for key, value in records[last].items() if key != first_field}
    changed: list[Any] = [patched(records[0]), *records[1:last], shorter, {"new": True}]
    changed[last // 2] = None
    after: list[Record] = expected.shown(changed)
    assert expected.comparable(client.get(f"/data/{name}.json")) == expected.comparable(after)
    return after


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_queried_by_each_of_its_fields(shared_daemon: Daemon, name: str) -> None:
    records = json.loads(read(name))
    with Client(shared_daemon, f"queried-{TABLES.index(name)}.localhost") as client:
        assert client.request("PUT", "/t.json?print=silent", read(name)).status == 204
        value = expected.tree(records)
        fields = sorted(records[0])[:4]
        middle = records[len(records) // 2]
        queries = [
            QueryModel("$key", {"startAt": ("3",), "limitToFirst": 5}),
            QueryModel("$key", {"limitToLast": 3}),
            QueryModel("$value", {"limitToFirst": 2}),
        ]
        for field in fields:
            bound = (middle[field],)
            queries += [
                QueryModel(field, {"equalTo": bound}),
                QueryModel(field, {"startAt": bound, "limitToFirst": 7}),
                QueryModel(field, {"endBefore": bound, "limitToLast": 7}),
            ]
        for query in queries:
            response = client.request("GET", f"/t.json?{query.query_string()}")
            assert response.status == 200, (query.query_string(), response)
            result = query.result(value)
            assert expected.comparable(response.json) == expected.comparable(result), (
                query.query_string()
            )
            assert list(response.json or ()) == list(result or ()), query.query_string()


def test_queries_of_a_user_over_the_cars(shared_daemon: Daemon) -> None:
    cars = json.loads(read("cars"))
    with Client(shared_daemon, "cars.localhost") as client:
        client.put("/cars.json", cars)
        strong = client.get('/cars.json?orderBy="Horsepower"&startAt=200')
        assert [car["Name"] for car in strong.values()] == [
            car["Name"]
            for _, car in sorted(
                (
                    ((car["Horsepower"], at), car)
                    for at, car in enumerate(cars)
                    if (car["Horsepower"] or 0) >= 200
                ),
                key=lambda ranked: ranked[0],
            )
        ]
        japanese = client.get(
            f"/cars.json?orderBy={escape(json.dumps('Origin'))}&equalTo=%22Japan%22"
        )
        assert len(japanese) == sum(car["Origin"] == "Japan" for car in cars)
        assert client.get("/cars/0/Name.json") == cars[0]["Name"]
        page = client.get("/cars.json?shallow=true&limitToFirst=3&startAfter=9")
        assert list(page) == ["10", "11", "12"]
