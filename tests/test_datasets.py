"""Real input: the data files of the package `vega_datasets`, stored, read, queried and kept.

Its JSON files go in as they are. Its tables of comma-separated values go in as arrays of objects,
the shape in which such data reaches a database over JSON.
"""

from __future__ import annotations

import csv
import importlib.resources
import json
from typing import Any

import pytest

from tests import expected
from tests.daemon import Daemon
from tests.expected import Question
from tests.rest import Client, escape

Record = dict[str, Any]


def read_all() -> dict[str, bytes]:
    """Return the JSON of every file that the package carries, by name."""
    found = {}
    package = importlib.resources.files("vega_datasets")
    for file in (*package.iterdir(), *package.joinpath("_data").iterdir()):
        name, _, kind = file.name.rpartition(".")
        if kind == "json":
            found[name] = file.read_bytes()
        elif kind == "csv":
            rows = csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines())
            found[name] = json.dumps([_typed(row) for row in rows]).encode()
    return found


def _typed(row: dict[str, str]) -> Record:
    """Make numbers of what looks like numbers, nulls of what is empty, and legal keys."""
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


FILES = read_all()
TABLES = sorted(name for name, text in FILES.items() if text.lstrip()[:1] == b"[")


def is_storable(value: Any) -> bool:
    """Tell whether the tree may hold a value: it may not where a key has a character like `.`."""
    if isinstance(value, list):
        return all(map(is_storable, value))
    if isinstance(value, dict):
        return not any(set(key) & set(".#$[]/") for key in value) and all(
            map(is_storable, value.values())
        )
    return True


def patched(record: Record) -> Record:
    """Return a record as the PATCH of a test leaves it."""
    return {**record, "checked": True, "note": {"by": ["a", None, "c"]}}


def test_the_files_are_there() -> None:
    assert {"cars", "iris", "barley", "driving", "airports", "seattle-weather"} <= FILES.keys()
    assert len(TABLES) >= 12


def test_every_file_is_put_and_read_back_equal_and_survives_a_kill(shared_daemon: Daemon) -> None:
    with Client(shared_daemon) as client:
        stored = {}
        for name, text in FILES.items():
            parsed = json.loads(text)
            answer = client.ask("PUT", f"/data/{name}.json", text)
            if not is_storable(parsed):
                assert answer.status == 400
                continue
            assert answer.status == 200, name
            stored[name] = expected.shown(parsed)
            assert expected.spell(answer.json) == expected.spell(stored[name])
            read = client.ask("GET", f"/data/{name}.json", headers={"X-Vendor-ETag": "true"})
            assert read.body == answer.body
            assert len(read.body) == len(expected.compact(stored[name]))
            assert read.headers["ETag"] == expected.entity_tag(stored[name])
        assert len(stored) >= 15
        assert client.get("/data.json?shallow=true") == dict.fromkeys(stored, True)
        sizes = client.get("/data.json?shallow=true&v=2")
        for name, value in stored.items():
            assert sizes[name] == {".sz": len(expected.compact(value))}

        for name in TABLES:
            if name in stored:
                stored[name] = patch(client, name, stored[name])
        assert expected.spell(client.get("/data.json")) == expected.spell(stored)
        shared_daemon.kill()
    shared_daemon.start()
    with Client(shared_daemon) as client:
        assert expected.spell(client.get("/data.json")) == expected.spell(stored)
        for name, value in stored.items():
            assert expected.spell(client.get(f"/data/{name}.json")) == expected.spell(value)


def patch(client: Client, name: str, records: list[Record]) -> list[Record]:
    """Change, remove and add records of a table; return what it is then."""
    last = len(records) - 1
    body = {
        "0/checked": True,
        "0/note": {"by": ["a", None, "c"]},
        f"{last // 2}": None,
        f"{last}/{next(iter(records[last]))}": None,
        f"{last + 1}": {"new": True},
    }
    answer = client.ask("PATCH", f"/data/{name}.json", json.dumps(body))
    assert answer.status == 200
    first_field, *_ = records[last]
    shorter = {key: value for key, value in records[last].items() if key != first_field}
    changed: list[Any] = [patched(records[0]), *records[1:last], shorter, {"new": True}]
    changed[last // 2] = None
    after: list[Record] = expected.shown(changed)
    assert expected.spell(client.get(f"/data/{name}.json")) == expected.spell(after)
    return after


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_queried_by_each_of_its_fields(shared_daemon: Daemon, name: str) -> None:
    records = json.loads(FILES[name])
    with Client(shared_daemon, f"queried-{TABLES.index(name)}.localhost") as client:
        assert client.ask("PUT", "/t.json?print=silent", FILES[name]).status == 204
        value = expected.tree(records)
        fields = sorted(records[0])[:4]
        middle = records[len(records) // 2]
        questions = [
            Question("$key", {"startAt": ("3",), "limitToFirst": 5}),
            Question("$key", {"limitToLast": 3}),
            Question("$value", {"limitToFirst": 2}),
        ]
        for field in fields:
            bound = (middle[field],)
            questions += [
                Question(field, {"equalTo": bound}),
                Question(field, {"startAt": bound, "limitToFirst": 7}),
                Question(field, {"endBefore": bound, "limitToLast": 7}),
            ]
        for question in questions:
            answer = client.ask("GET", f"/t.json?{question.query()}")
            assert answer.status == 200, (question.query(), answer)
            shown = question.answer(value)
            assert expected.spell(answer.json) == expected.spell(shown), question.query()
            assert list(answer.json or ()) == list(shown or ()), question.query()


def test_the_cars_answer_as_a_user_would_ask(shared_daemon: Daemon) -> None:
    cars = json.loads(FILES["cars"])
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
