"""Judges what listeners were notified of, write by write, against the change log of the server.

Many writers write without waiting, over HTTP and WebSockets, so that the server commits many writes
together. Listeners of paths and of queries follow, as streams and over WebSockets, at each process
of a service. Afterwards the change log says in which order the writes were made: so the value after
each of them is known, and each listener must have passed through just these values, by at most one
event for each write. An event of a stream has the number of its write; messages over a WebSocket
have none, so there must be an order of writes in which all listens of one socket can have been
notified of what they received.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote

import attrs

from tests.closing import Closing
from tests.realtime import BARRIER, Push, RealtimeClient
from tests.realtime_copy import normalised, set_value, split
from tests.rest import Client, Wire, print_request
from tests.sse import KEEP_ALIVE, EventStream, Frame
from treedbd.tree.edit import apply, make_patch, make_put
from treedbd.tree.query import Query, parse_query, selection_to_json
from treedbd.tree.types import Path, Place, Value
from treedbd.tree.value import members, plain, value_at

Json = Any
Write: TypeAlias = tuple[str, str, Json]
"""A method, a path and a body."""

KEYS: Final = ("a", "b", "c", "d", "e", "f", "1", "2", "10", "é")
PIPE: Final = 20
"""Requests that a writer over HTTP sends without waiting, at most."""


class Watched(NamedTuple):
    """What is listened to: a path, and maybe a query, as REST and as sockets spell it."""

    path: str
    parameters: dict[str, str] | None = None
    query_object: dict[str, Any] | None = None

    @property
    def target(self) -> str:
        """The target of a stream that resumes, so its events have the numbers of their writes."""
        pairs = {"resume": "true"} | (self.parameters or {})
        return f"/{self.path}.json?" + "&".join(
            f"{key}={quote(text)}" for key, text in pairs.items()
        )

    @property
    def keys(self) -> Path:
        """The keys of the path."""
        return tuple(split(self.path))

    @property
    def query(self) -> Query | None:
        """The query."""
        return None if self.parameters is None else parse_query(self.parameters)


def ordered(order: str, **parameters: str) -> dict[str, str]:
    return {"orderBy": json.dumps(order)} | parameters


WATCHED: Final = (
    Watched(""),
    Watched("d"),
    Watched("d/a"),
    Watched("d/a/n"),
    Watched("d/none/x"),
    Watched("d", ordered("$key"), {"i": ".key"}),
    Watched("d", ordered("$key", limitToFirst="2"), {"i": ".key", "l": 2, "vf": "l"}),
    Watched("d", ordered("$key", limitToLast="1"), {"i": ".key", "l": 1, "vf": "r"}),
    Watched("d", ordered("$key", startAt='"b"', endAt='"e"'), {"i": ".key", "sp": "b", "ep": "e"}),
    Watched("d", ordered("$value", limitToLast="3"), {"i": ".value", "l": 3, "vf": "r"}),
    Watched("d", ordered("$value", startAt="3"), {"i": ".value", "sp": 3, "vf": "l"}),
    Watched("d", ordered("n", limitToFirst="3"), {"i": "n", "l": 3, "vf": "l"}),
    Watched("d", ordered("n", equalTo="4"), {"i": "n", "sp": 4, "ep": 4}),
    Watched(
        "d",
        ordered("n", startAfter="2", endBefore="7", limitToLast="2"),
        {"i": "n", "sp": 2, "sin": False, "ep": 7, "ein": False, "l": 2, "vf": "r"},
    ),
    Watched("d", ordered("m/x", limitToLast="2"), {"i": "m/x", "l": 2, "vf": "r"}),
    Watched("d", ordered("$priority", limitToFirst="2"), {"l": 2, "vf": "l"}),
    Watched("d", ordered("$priority", startAt="2"), {"sp": 2}),
    Watched("d", {"where": '{"n":{">=":3}}'}),
    Watched("d", {"where": '{"n":{"!=":null},"m/x":{"<":6}}', "limitToLast": "2"}),
    Watched("d", ordered("n", limitToFirst="1", where='{"$priority":{"exists":false}}')),
    Watched("d/a", ordered("$value", limitToLast="1"), {"i": ".value", "l": 1, "vf": "r"}),
    Watched("", ordered("$key"), {"i": ".key"}),
)


class History:
    """The value of a tree after each of its writes, by number."""

    def __init__(self, read_log: Callable[[int], list[dict[str, Any]]]) -> None:
        """`read_log` returns entries of the change log after a number."""
        self._read_log = read_log
        self.roots: Final[list[Value]] = [None]
        self._shown: dict[int, list[str]] = {}

    def read(self) -> None:
        """Add what was written since the last call."""
        while entries := self._read_log(len(self.roots) - 1):
            for entry in entries:
                assert entry["seq"] == len(self.roots), "The numbers of writes have no gaps."
                self.roots.append(apply(self.roots[-1], _changes(entry)))

    def shown(self, watched: Watched, *, is_export: bool) -> list[str]:
        """Return what a listener shows after each write, printed."""
        kept = self._shown.setdefault(hash((watched.target, is_export)), [])
        query, before = watched.query, object()
        for number, root in enumerate(self.roots):
            value = value_at(root, watched.keys)
            if number >= len(kept):
                kept.append(kept[-1] if value is before else _show(value, query, is_export))
            before = value
        return kept


def _changes(entry: dict[str, Any]) -> Any:
    path = split(entry["path"])
    is_priority = path[-1:] == [".priority"]
    place = Place(tuple(path[:-1] if is_priority else path), is_priority)
    assert entry["kept"], "The log has the body of each write."
    if entry["method"] == "PATCH":
        return make_patch(place.path, entry["data"]).changes
    return make_put(place, entry["data"]).changes


def _show(value: Value, query: Query | None, is_export: bool) -> str:
    if query is not None:
        return printed(selection_to_json(query.select(members(value)), is_export=is_export))
    return printed(value if is_export else plain(value))


def printed(value: Json) -> str:
    """Print a value so that equal texts mean equal values."""
    return json.dumps(_bare(value), sort_keys=True)


def _bare(value: Json) -> Json:
    """Return a value in which arrays are objects."""
    if isinstance(value, list):
        return {str(at): _bare(item) for at, item in enumerate(value) if item is not None}
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items()}
    return value


@attrs.define
class ShownEvent:
    """One event: what its listener shows after it, and the number of its write if it has one."""

    shown: str
    number: int | None = None


class Stream(Closing):
    """A stream that is read in a thread of its own."""

    def __init__(self, client: Client, watched: Watched) -> None:
        self.watched: Final = watched
        self.events: Final[list[ShownEvent]] = []
        self.error: BaseException | None = None
        self._value: Json = None
        self._changed = threading.Condition()
        self._stream: Final = EventStream(client, watched.target)
        assert self._stream.status == 200, (watched, self._stream.status)
        self._take(self._stream.next_change())
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the stream."""
        with contextlib.suppress(OSError):
            self._stream.wire.socket.shutdown(2)
        self._thread.join(30)
        self._stream.close()

    def wait_for(self, number: int, seconds: float) -> None:
        """Wait until an event of a write, or of a later one, was received."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.error is not None or (self.events[-1].number or 0) >= number, seconds
            ), (self.watched, self.events[-1], number)

    def _follow(self) -> None:
        try:
            for frame in self._stream.frames():
                if frame.event != KEEP_ALIVE:
                    self._take(frame)
        except (OSError, ValueError):
            pass
        except BaseException as error:
            self.error = error

    def _take(self, frame: Frame) -> None:
        assert frame.event in ("put", "patch"), frame
        changes = {"": frame.value} if frame.event == "put" else frame.value
        for name, value in changes.items():
            keys = split(frame.path) + split(name)
            if keys[-1:] != [".priority"]:  # a GET shows none
                self._value = set_value(self._value, keys, _without_priorities(value))
        number = int((frame.id or "").partition("-")[0])
        with self._changed:
            self.events.append(ShownEvent(printed(self._value), number))
            self._changed.notify_all()


def _without_priorities(value: Json) -> Json:
    """Return a value, as it was sent, as a GET shows it."""
    if isinstance(value, list):
        value = {str(at): item for at, item in enumerate(value)}
    if not isinstance(value, dict):
        return value
    if ".value" in value:
        return value[".value"]
    found = {key: _without_priorities(item) for key, item in value.items() if key != ".priority"}
    return {key: item for key, item in found.items() if item is not None} or None


class Socket(Closing):
    """A WebSocket with many listens, at most one of them without a query, read in a thread.

    A message without a tag could be of any of several. `events` are those of all its listens, in
    the order in which they came, each with the place of its listen in `watched`.
    """

    def __init__(self, client: Client, watched: Sequence[Watched]) -> None:
        self.watched: Final = watched
        self.events: Final[list[tuple[int, ShownEvent]]] = []
        self.error: BaseException | None = None
        self._values: list[Json] = [None] * len(watched)
        self._client: Final = RealtimeClient(client)
        for tag, each in enumerate(watched):
            query = None if each.parameters is None else each.query_object
            self._client.listen(each.path, query, None if query is None else tag)
        self._apply()
        self.end = ""
        self._is_over = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Receive the events of all writes that are acknowledged by now."""
        self._stop()
        self.end = f"end {id(self)}"
        self._client.put(BARRIER, self.end)
        self._apply()

    def close(self) -> None:
        """Close the connection."""
        self._stop()
        self._client.close()

    def _stop(self) -> None:
        self._is_over = True
        self._thread.join(30)

    def _follow(self) -> None:
        try:
            while not self._is_over:
                with contextlib.suppress(TimeoutError):
                    self._client.next_push(0.1)
                self._apply()
        except BaseException as error:
            self.error = error

    def _apply(self) -> None:
        received = self._client.received
        pushed, received[:] = [each for each in received if isinstance(each, Push)], []
        for push in pushed:
            self._take(push)

    def _take(self, push: Push) -> None:
        assert push.action in ("d", "m"), push
        tag = push.body.get("t")
        for at, watched in enumerate(self.watched):
            is_mine = (tag == at) if watched.query is not None else tag is None
            keys = list(watched.keys)
            if not is_mine or push.keys[: len(keys)] != keys:
                continue
            below, data = push.keys[len(keys) :], push.body["d"]
            for name, value in ({"": data} if push.action == "d" else data).items():
                new = normalised(value)
                self._values[at] = set_value(self._values[at], below + split(name), new)
            self.events.append((at, ShownEvent(printed(self._values[at]))))


def _put_field(choice: random.Random, key: str, _: str) -> Write:
    return "PUT", f"d/{key}/n", choice.choice([None, *range(9)])


def _merge_children(choice: random.Random, key: str, other: str) -> Write:
    return "PATCH", "d", {key: random_child(choice), other: random_child(choice)}


def _merge_fields(choice: random.Random, key: str, other: str) -> Write:
    return "PATCH", "", {f"d/{key}/n": choice.randint(0, 8), f"d/{other}/m/x": choice.randint(0, 8)}


def _merge_child(choice: random.Random, key: str, _: str) -> Write:
    return "PATCH", f"d/{key}", {"n": choice.randint(0, 8), "m": {"x": choice.randint(0, 8)}}


def _transfer(choice: random.Random, key: str, other: str) -> Write:
    one, two = f"d/{key}/n", f"d/{other}/k"
    return "PATCH", "", {one: increment(-1), two: increment(1), "e": choice.random()}


def _remove(choice: random.Random, key: str, _: str) -> Write:
    return "DELETE", choice.choice([f"d/{key}", f"d/{key}/n", f"d/{key}/m", f"d/{key}/m/x"]), None


def _put_priority(choice: random.Random, key: str, _: str) -> Write:
    return "PUT", f"d/{key}/.priority", choice.choice([None, 1, 2, 3, "p"])


def _merge_above(choice: random.Random, _: str, __: str) -> Write:
    return "PATCH", "", {"d": random_children(choice), "e": choice.random()}


KINDS: Final[dict[Callable[[random.Random, str, str], Write], int]] = {
    lambda choice, key, _: ("PUT", f"d/{key}", random_child(choice)): 15,
    _put_field: 15,
    _merge_children: 10,
    _merge_fields: 10,
    _merge_child: 10,
    _transfer: 8,
    _remove: 12,
    _put_priority: 8,
    lambda choice, _, __: ("PUT", "d", random_children(choice)): 3,
    _merge_above: 3,
    lambda choice, _, __: ("PUT", "", {"d": random_children(choice), "e": 1}): 1,
    lambda choice, _, __: ("PUT", "e", choice.random()): 5,
}
"""The kinds of writes, and how often they come."""


def random_write(choice: random.Random) -> Write:
    """Return a write of any kind."""
    (make,) = choice.choices(list(KINDS), list(KINDS.values()))
    return make(choice, choice.choice(KEYS), choice.choice(KEYS))


def random_children(choice: random.Random) -> Json:
    """Return some children of the collection."""
    return {name: random_child(choice) for name in choice.sample(KEYS, 4)}


def random_child(choice: random.Random) -> Json:
    """Return a child of the collection."""
    kind = choice.random()
    if kind < 0.15:
        return None
    if kind < 0.35:
        return choice.choice([True, False, choice.randint(0, 8), "x", 2.5])
    if kind < 0.45:
        return {".value": choice.randint(0, 8), ".priority": choice.randint(0, 4)}
    child = {"n": choice.randint(0, 8), "m": {"x": choice.randint(0, 8), "y": 1}}
    return child | ({".priority": choice.randint(0, 4)} if kind < 0.6 else {})


def increment(by: int) -> Json:
    """Return the server value that adds a number."""
    return {".sv": {"increment": by}}


def write_over_http(client: Client, writes: Sequence[Write]) -> None:
    """Send writes over one connection without waiting for the answers."""
    with client.connect() as wire:
        for at in range(0, len(writes), PIPE):
            _send_all(wire, client.host, writes[at : at + PIPE])


def _send_all(wire: Wire, host: str, writes: Sequence[Write]) -> None:
    requests = [
        print_request(
            method,
            quote(f"/{path}.json"),
            None if method == "DELETE" else json.dumps(body),
            (),
            host,
        )
        for method, path, body in writes
    ]
    wire.send(b"".join(requests))
    for method, path, body in writes:
        response = wire.receive()
        assert response.status == 200, (method, path, body, response)


def write_over_socket(client: Client, writes: Sequence[Write]) -> None:
    """Send writes over one WebSocket without waiting for the answers."""
    with RealtimeClient(client) as socket:
        numbers = []
        for method, path, body in writes:
            action = "m" if method == "PATCH" else "p"
            numbers.append(socket.send_request(action, {"p": path, "d": body}))
        for number in numbers:
            assert socket.await_answer(number).status in ("ok", "failure")


def judge_stream(stream: Stream, history: History) -> int:
    """Raise unless each event shows what its write has left; return the number of events."""
    shown = history.shown(stream.watched, is_export=False)
    assert stream.error is None, stream.error
    last = None
    for event in stream.events:
        number = event.number
        assert number is not None
        if last is not None:
            assert number > last, ("two events of one write", stream.watched, number)
            unchanged = set(shown[last:number])
            assert unchanged == {shown[last]}, (
                "a write was not notified",
                stream.watched,
                last,
                number,
            )
        assert event.shown == shown[number], (stream.watched, number, event.shown, shown[number])
        last = number
    assert last is not None
    assert set(shown[last:]) == {shown[last]}, ("the end was not notified", stream.watched, last)
    return len(stream.events)


def judge_socket(socket: Socket, history: History) -> int:
    """Raise unless there is an order of writes that explains the events; return their number."""
    assert socket.error is None, socket.error
    end = next(
        number
        for number, root in enumerate(history.roots)
        if value_at(root, (BARRIER,)) == socket.end
    )
    shown = [history.shown(each, is_export=True)[: end + 1] for each in socket.watched]
    last: list[int | None] = [None] * len(shown)
    pointer = 0
    for at, event in socket.events:
        values, begin = shown[at], last[at]
        number = pointer if begin is None else max(pointer, begin + 1)
        while number < len(values) and values[number] != event.shown:
            is_passed = begin is not None and values[number] != values[begin]
            assert not is_passed, ("a write was not notified", socket.watched[at], begin, event)
            number += 1
        assert number < len(values), ("never shown", socket.watched[at], begin, event.shown)
        if begin is not None:
            assert set(values[begin:number]) == {values[begin]}, ("skipped", socket.watched[at])
        last[at], pointer = number, number
    for values, number_of_last in zip(shown, last, strict=True):
        assert number_of_last is not None
        assert set(values[number_of_last:]) == {values[number_of_last]}, "the end was not notified"
    return len(socket.events)


class Load:
    """Writers that write at once, each a share of random writes."""

    def __init__(self, clients: Sequence[Client], seed: int) -> None:
        """Write through each of the clients, which may reach different processes."""
        self._clients = clients
        self._random = random.Random(seed)

    def run(self, writers: int, writes: int) -> None:
        """Let so many writers send so many writes each, and wait until all are answered."""
        errors: list[BaseException] = []

        def write(number: int, batch: Sequence[Write]) -> None:
            act = write_over_socket if number % 2 else write_over_http
            try:
                act(self._clients[number % len(self._clients)], batch)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(
                target=write,
                args=(number, [random_write(self._random) for _ in range(writes)]),
                daemon=True,
            )
            for number in range(writers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not errors, errors
        assert not any(thread.is_alive() for thread in threads)


def entries_of(client: Client) -> Callable[[int], list[dict[str, Any]]]:
    """Return what reads the change log of a tree."""

    def read(after: int) -> list[dict[str, Any]]:
        target = f"/.settings/log.json?format=export&limitToFirst=1000&startAfter={after}"
        response = client.request("GET", target, headers={"Authorization": "Bearer owner"})
        assert response.status == 200, response
        found: list[dict[str, Any]] = response.json
        return found

    return read


def pairs(values: Sequence[Watched]) -> Iterator[list[Watched]]:
    """Yield what one socket each listens to: one path, and some queries."""
    plain = [each for each in values if each.parameters is None]
    queries = [each for each in values if each.query_object is not None]
    for number, each in enumerate(plain):
        yield [each, *queries[number :: len(plain)]]
