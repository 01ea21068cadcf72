"""What `rates.py` measures: each case is one load on one server.

A case of treedb names the case that it is a multiple of, and often one that is its floor: for a
read the same number of bytes as a constant reply of the HTTP server that treedb uses, without
anything else of treedb; for a write SQLite or the disk without a server.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import attrs
from callers import request
from load import Beside, Load, sample
from rules import PROFILE, make_token, place
from servers import LOAD_CORE
from workers import measure_writes
from worlds import DEEP, Daemon, Measure, Size, World, answer_size, object_path

KLEIN = "Klein, 50 B"
SMALL = f"{DEEP}/text.json"
QUERY = "orderBy=%22age%22&startAt={}&limitToFirst={}"
LONE_PER_S = 200
SERVED, TLS, FIRST = attrgetter("small"), attrgetter("small_tls"), attrgetter("first")
LEAVES, FIRST_LEAVES = attrgetter("leaves"), attrgetter("first_leaves")
PEOPLE, RULED = attrgetter("people"), attrgetter("ruled")
MANY = 20_000  # requests that are made beforehand
CONNECTIONS = 32
WORKERS = 2


@attrs.frozen
class Case:
    """A row: what is measured, and the least to reach.

    `of` is the case that it is a multiple of, None if its own rate counts; `unit` says so after the
    figure, unless it is Klein. With `is_change` the multiple is printed as a change in percent.
    `every` is for what takes long: it is measured in every so many rounds only.
    """

    name: str
    make: Callable[[World], Measure]
    aim: float | None = None
    floor: str | None = None
    of: str | None = KLEIN
    unit: str = ""
    is_change: bool = False
    is_reference: bool = False
    every: int = 1


def loaded(make: Callable[[World], Load]) -> Callable[[World], Measure]:
    """Return a maker of measurements, from one of loads."""

    def start(world: World) -> Measure:
        load = make(world)
        return lambda seconds: sample(load, seconds, LOAD_CORE)

    return start


def repeated(
    get: Callable[[World], Daemon], target: str, **options: Any
) -> Callable[[World], Measure]:
    """Measure the same GET again and again."""

    def make(world: World) -> Load:
        daemon = get(world)
        return daemon.load(itertools.repeat(request(daemon.base, target)), **options)

    return loaded(make)


def chosen(requests: list[bytes]) -> Iterator[bytes]:
    """Return requests in random order; each has as much chance to be next."""
    return itertools.cycle(random.Random(1).choices(requests, k=2 * max(MANY, len(requests))))


def leaves_at_random(get: Callable[[World], Daemon]) -> Callable[[World], Measure]:
    """Measure GETs of any of the leaves."""

    def make(world: World) -> Load:
        daemon = get(world)
        return daemon.load(chosen(world.reads_of_leaves(daemon.base)))

    return loaded(make)


def users_at_random(world: World) -> Load:
    """Return GETs of what belongs to any of the users, by that user."""
    base = world.ruled.base
    requests = [
        request(base, f"{place(user)}/{name}.json", headers=f"Authorization: Bearer {token}\r\n")
        for user in range(world.size.users)
        for token in [make_token(user)]
        for name in PROFILE
    ]
    return world.ruled.load(chosen(requests))


def beside_writes(world: World) -> Load:
    """Return the GET of 50 B beside lone writes."""
    base = world.small.base
    writes = (request(base, "lone.json", "PUT", put_value(number)) for number in itertools.count())
    return world.small.load(
        itertools.repeat(request(base, SMALL)), beside=Beside(writes, LONE_PER_S)
    )


def generated(
    get: Callable[[World], Daemon],
    method: str,
    make: Callable[[int], tuple[str, str | None]],
    connections: int = CONNECTIONS,
) -> Callable[[World], Measure]:
    """Measure requests whose target and body are made from a number that is never the same."""

    def start(world: World) -> Load:
        daemon = get(world)
        made = map(make, itertools.count())
        requests = (request(daemon.base, target, method, body) for target, body in made)
        return daemon.load(requests, connections=connections)

    return loaded(start)


def put_value(number: int) -> str:
    """Return a string of 50 bytes of JSON."""
    return f'"{number:048}"'


def mixed(number: int, below: int) -> int:
    """Return a number that looks random, and is another one for each of `below` numbers.

    `below` must not be a multiple of 7919.
    """
    return number * 7919 % below


def profile(number: int) -> str:
    """Return a profile that the rules allow."""
    return json.dumps({**PROFILE, "age": number})


def patch(number: int) -> str:
    """Return a body of ten paths."""
    return json.dumps({f"d{each}/v": f"{number + each:024}" for each in range(10)})


def floor(name: str, target: str, *, secure: bool = False, **options: Any) -> Case:
    """Return the case of a constant reply, of the size of what treedb answers."""

    def make(world: World) -> Load:
        daemon = world.small_tls if secure else world.small
        size = answer_size(f"{daemon.base}/{target}")
        base = world.references.serve("floor", secure=secure)
        return Load(base, itertools.repeat(request(base, str(size))), **options)

    return Case(f"floor, {name}", loaded(make), is_reference=True)


def bare(kind: str, name: str, size: int) -> Case:
    """Return the case of a server that is not of treedb."""

    def make(world: World) -> Load:
        base = world.references.serve(kind)
        return Load(base, itertools.repeat(request(base, str(size))))

    return Case(name, loaded(make), is_reference=True)


def reference_cases() -> list[Case]:
    """Return the cases of the references."""
    objects = {name: f"{object_path(name)}.json" for name in ("10 KB", "1 MB")}
    new = {"reconnects": True}
    return [
        bare("klein", KLEIN, 50),
        bare("web", "twisted.web, 50 B", 50),
        floor("50 B", SMALL),
        floor("10 KB", objects["10 KB"]),
        floor("1 MB", objects["1 MB"]),
        floor("query", f"queried.json?{QUERY.format(10, 10)}"),
        floor("TLS, 50 B", SMALL, secure=True),
        floor("TLS, 1 MB", objects["1 MB"], secure=True),
        floor("new TLS connection", SMALL, secure=True, **new),
        Case("disk, a sync of 4 KB", lambda world: world.references.syncs(), is_reference=True),
        Case("SQLite, a row a commit", lambda w: w.references.commits(1), is_reference=True),
        Case("SQLite, 32 rows a commit", lambda w: w.references.commits(32), is_reference=True),
    ]


def read_cases(size: Size) -> list[Case]:
    """Return the cases of GET."""
    ten, big = (f"{object_path(name)}.json" for name in ("10 KB", "1 MB"))
    ruled = f"{place(1)}/name.json?auth={make_token(1)}"
    token, small = "GET 50 B, token and rules", "floor, 50 B"
    return [
        Case("GET 50 B, repeated", repeated(SERVED, SMALL), 6.5, small),
        Case(f"GET 100 B, {size.records:,} leaves at random", leaves_at_random(LEAVES), 3, small),
        Case("GET 100 B, first read", leaves_at_random(FIRST_LEAVES), None, small),
        Case("GET 10 KB, repeated", repeated(SERVED, ten), 5, "floor, 10 KB"),
        Case("GET 10 KB, first read", repeated(FIRST, ten), 2, "floor, 10 KB"),
        Case("GET 1 MB, repeated", repeated(SERVED, big), 0.25, "floor, 1 MB"),
        Case("GET 1 MB, first read", repeated(FIRST, big), 0.1, "floor, 1 MB"),
        Case(f"{token}, one user", repeated(RULED, ruled), 3.5, small),
        Case(f"{token}, {size.users:,} users", loaded(users_at_random), 3.5, small),
        Case(
            f"GET 50 B beside {LONE_PER_S} writes a second",
            loaded(beside_writes),
            0.9,
            of="GET 50 B, repeated",
            is_change=True,
        ),
    ]


def query_cases(size: Size) -> list[Case]:
    """Return the cases of queries."""
    name, constant = "query 10 of 100", "floor, query"

    def new(collection: str) -> Callable[[int], tuple[str, None]]:
        def make(number: int) -> tuple[str, None]:
            query = QUERY.format(f"{10 + number % 80}.{number:06}", 10)
            return f"{collection}.json?{query}", None

        return make

    def of_all(number: int) -> tuple[str, None]:
        return f"people.json?{QUERY.format(f'0.{mixed(number, 899_981):06}', 50)}", None

    again = repeated(SERVED, f"queried.json?{QUERY.format(10, 10)}")
    all_name = f"query 50 of {size.records:,} by index, each new"
    return [
        Case(f"{name}, repeated", again, 2.5, constant),
        Case(f"{name}, each new", generated(SERVED, "GET", new("queried")), 1.0, constant),
        Case(f"{name} by index, each new", generated(SERVED, "GET", new("indexed")), 1.0, constant),
        Case(all_name, generated(PEOPLE, "GET", of_all), 0.5),
    ]


def write_cases() -> list[Case]:
    """Return the cases of writes."""
    ruled = f"{place(1)}.json?auth={make_token(1)}"
    batch = "SQLite, 32 rows a commit"

    def put(number: int) -> tuple[str, str]:
        return f"{DEEP}/put.json", put_value(number)

    def put_at_random(number: int) -> tuple[str, str]:
        return f"put/k{mixed(number, 99_991):06}.json", put_value(number)

    def post(number: int) -> tuple[str, str]:
        return "posted.json", f'{{"text":"hello {number:030}"}}'

    return [
        Case("PUT 50 B, one path", generated(SERVED, "PUT", put), 1.6, batch),
        Case("PUT 50 B, paths at random", generated(SERVED, "PUT", put_at_random), 1.6, batch),
        Case(
            "PUT 50 B, one connection",
            generated(SERVED, "PUT", put, connections=1),
            0.7,
            "disk, a sync of 4 KB",
            of="SQLite, a row a commit",
            unit="of SQLite",
        ),
        Case(
            "PUT, token and rules",
            generated(RULED, "PUT", lambda number: (ruled, profile(number))),
            1.2,
        ),
        Case(
            "PATCH of 10 paths",
            generated(SERVED, "PATCH", lambda number: ("patched.json", patch(number))),
            0.9,
        ),
        Case("POST", generated(SERVED, "POST", post), 1.2),
    ]


def tls_cases() -> list[Case]:
    """Return the cases of TLS."""
    big, new = f"{object_path('1 MB')}.json", "new TLS connection"
    connecting = repeated(TLS, SMALL, reconnects=True)
    return [
        Case("TLS GET 50 B", repeated(TLS, SMALL), 3.5, "floor, TLS, 50 B"),
        Case("TLS GET 1 MB", repeated(TLS, big), 0.2, "floor, TLS, 1 MB"),
        Case("new TLS connection for each GET", connecting, 0.3, f"floor, {new}"),
    ]


def other_cases(size: Size) -> list[Case]:
    """Return the cases of events, of imports, and of several workers."""
    streams, sockets = (f"events to {size.streams:,} {kind}" for kind in ("streams", "sockets"))
    found = [
        Case(streams, World.stream_events, 18),
        Case(sockets, World.socket_events, 0.95, of=streams, unit="of streams"),
        Case(
            f"import of {size.import_mb:g} MB, running daemon",
            World.imports,
            15,
            of=None,
            unit="MB/s",
            every=3,
        ),
    ]
    for databases, aim in ((1, 1.6), (4, 1.7)):
        name = f"PUT of {databases} database{'s' if databases > 1 else ''}"

        def make(count: int, used: int = databases) -> Callable[[World], Measure]:
            return lambda world: measure_writes(world.workers(count), count, used)

        one = f"{name}, one worker"
        found.append(Case(one, make(1)))
        found.append(Case(f"{name}, two workers", make(WORKERS), aim, of=one, unit="of one worker"))
    return found


def make_cases(size: Size) -> list[Case]:
    """Return all cases, in the order of the table."""
    return [
        *reference_cases(),
        *read_cases(size),
        *query_cases(size),
        *write_cases(),
        *tls_cases(),
        *other_cases(size),
    ]
