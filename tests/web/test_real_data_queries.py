"""Queries over real data, with and without `where`, beside the same computed from the file."""

from __future__ import annotations

import csv
import io
import json
import pathlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from vega_datasets import local_data  # type: ignore[import-untyped]  # it has no types

from tests.web.tree_server import TreeServer

Row = dict[str, Any]
Keyed = tuple[str, Row]


def without_nulls(row: Row) -> Row:
    return {name: value for name, value in row.items() if value is not None}


def load_cars() -> list[Keyed]:
    """Return the cars, keyed so that the keys have the order of the file."""
    rows = json.loads(local_data.cars.raw())
    return [(f"car{at:03}", without_nulls(row)) for at, row in enumerate(rows)]


def load_airports() -> list[Keyed]:
    """Return the airports by their code, with their position one level deeper."""
    rows = csv.DictReader(io.StringIO(local_data.airports.raw().decode()))
    keyed = [
        (
            row["iata"],
            {
                **{name: row[name] for name in ("name", "city", "state", "country") if row[name]},
                "at": {"lat": float(row["latitude"]), "lon": float(row["longitude"])},
            },
        )
        for row in rows
    ]
    return [(key, row) for key, row in keyed if not key.isdigit()]


CARS, AIRPORTS = load_cars(), load_airports()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> TreeServer:
    folder: pathlib.Path = tmp_path_factory.mktemp("data")
    server = TreeServer(folder)
    server.write("PUT", "/cars", dict(CARS))
    server.write("PUT", "/airports", dict(AIRPORTS))
    return server


def ordered(rows: list[Keyed], measure: Callable[[Row], Any]) -> list[Keyed]:
    """Return rows by a measure that all of them have, equal ones by key."""
    return sorted(rows, key=lambda each: (measure(each[1]), each[0].encode()))


def cars(test: Callable[[Row], bool]) -> list[Keyed]:
    return [(key, row) for key, row in CARS if test(row)]


def airports(test: Callable[[str, Row], bool]) -> list[Keyed]:
    found = [(key, row) for key, row in AIRPORTS if test(key, row)]
    return sorted(found, key=lambda each: each[0].encode())


QUERIES: list[tuple[str, dict[str, Any], list[Keyed]]] = [
    (
        "cars",
        {"orderBy": "Horsepower", "limitToLast": 5},
        ordered(cars(lambda row: "Horsepower" in row), lambda row: row["Horsepower"])[-5:],
    ),
    (
        "cars",
        {"orderBy": "Miles_per_Gallon", "startAt": 30, "endBefore": 32},
        ordered(
            cars(lambda row: 30 <= row.get("Miles_per_Gallon", 0) < 32),
            lambda row: row["Miles_per_Gallon"],
        ),
    ),
    ("cars", {"orderBy": "Origin", "equalTo": "Japan"}, cars(lambda row: row["Origin"] == "Japan")),
    (
        "cars",
        {"orderBy": "Horsepower", "equalTo": None},
        cars(lambda row: "Horsepower" not in row),
    ),
    (
        "airports",
        {"orderBy": "at/lat", "startAfter": 70},
        ordered(airports(lambda _, row: row["at"]["lat"] > 70), lambda row: row["at"]["lat"]),
    ),
    (
        "cars",
        {"where": {"Origin": "Europe", "Cylinders": {"in": [5, 6]}}},
        cars(lambda row: row["Origin"] == "Europe" and row["Cylinders"] in (5, 6)),
    ),
    (
        "cars",
        {
            "orderBy": "Weight_in_lbs",
            "limitToLast": 7,
            "where": {"Name": {"startsWith": "ford"}, "Year": {"<": "1975"}},
        },
        ordered(
            cars(lambda row: row["Name"].startswith("ford") and row["Year"] < "1975"),
            lambda row: row["Weight_in_lbs"],
        )[-7:],
    ),
    (
        "cars",
        {
            "orderBy": "Horsepower",
            "startAt": 90,
            "limitToFirst": 10,
            "where": {"Miles_per_Gallon": {"exists": False}, "Origin": {"!=": "Japan"}},
        },
        ordered(
            cars(
                lambda row: (
                    row.get("Horsepower", 0) >= 90
                    and "Miles_per_Gallon" not in row
                    and row["Origin"] != "Japan"
                )
            ),
            lambda row: row["Horsepower"],
        )[:10],
    ),
    (
        "airports",
        {"where": {"at/lat": {">": 40, "<": 42}, "state": {"in": ["NY", "NJ", "CT"]}}},
        airports(
            lambda _, row: 40 < row["at"]["lat"] < 42 and row.get("state") in {"NY", "NJ", "CT"}
        ),
    ),
    (
        "airports",
        {
            "orderBy": "at/lon",
            "limitToFirst": 12,
            "where": {"$key": {">=": "L", "<": "T"}, "state": {"!=": "AK"}},
        },
        ordered(
            airports(lambda key, row: "L" <= key < "T" and row.get("state") != "AK"),
            lambda row: row["at"]["lon"],
        )[:12],
    ),
]


@pytest.mark.parametrize(("collection", "query", "expected"), QUERIES)
def test_a_query_selects_what_the_data_says(
    server: TreeServer, collection: str, query: dict[str, Any], expected: list[Keyed]
) -> None:
    parameters = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in query.items())
    reply = server.request("GET", f"/{collection}.json?{parameters}")
    assert reply.status == 200
    assert expected
    assert list(json.loads(reply.body).items()) == expected
