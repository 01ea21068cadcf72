"""However a large value is made, what is done of its write between two pauses is bounded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final

import attrs
import orjson
import pytest
from twisted.internet.defer import Deferred

from tests.database.world import Recorder, TurnClock, World
from treedbd.database.log_reader import LogReader
from treedbd.database.requests import LargeBody
from treedbd.limits import KIB, MIB
from treedbd.loop import STEP_SECONDS
from treedbd.tree.edit import ANY_LENGTH, Edit, Method, make_put
from treedbd.tree.types import STORED, Change, Path, Place

PATH: Final = ("a", "b")
BELOW: Final = ("a", "b", "c")
SIZE: Final = 96 * KIB
PIECE_BYTES: Final = 16 * KIB
MOST_CALLS: Final = 40_000
"""Calls between two pauses, of functions of any kind: they take a few milliseconds."""
MOST_BYTES: Final = 80 * KIB
"""Bytes that are parsed or printed at once."""


def repeat(count: int, item: str, *, opening: str = "[", closing: str = "]") -> bytes:
    """Return a document with so many items, in which `#` is the number of each."""
    items = (item.replace("#", str(at)) for at in range(count))
    return f"{opening}{','.join(items)}{closing}".encode()


def members(count: int, item: str) -> bytes:
    return repeat(count, item, opening="{", closing="}")


SHAPES: Final[dict[str, bytes]] = {
    "one string": json.dumps("x" * SIZE).encode(),
    "a string of escapes": json.dumps('"\\\n' * (SIZE // 6)).encode(),
    "a string of surrogates": json.dumps("\U0001f600" * (SIZE // 12)).encode(),
    "a string below": b'{"a":{"b":"%b"},"c":1}' % (b"x" * SIZE),
    "an array": repeat(SIZE // 2, "1"),
    "empty arrays": repeat(SIZE // 3, "[]"),
    "arrays": repeat(SIZE // 8, "[1,[2]]"),
    "exponents": repeat(SIZE // 6, "1e-90"),
    "members": members(SIZE // 12, '"k#":#'),
    "escaped keys": members(SIZE // 24, '"\\u00e9\\"#":"#"'),
    "long keys": members(SIZE // 420, f'"#{"k" * 690}":#'),
    "records": members(SIZE // 40, '"k#":{"name":"n#","list":[#,true]}'),
    "priorities": members(SIZE // 40, '"k#":{".value":#,".priority":#}'),
    "server values": members(SIZE // 40, '"k#":{".sv":"timestamp"}'),
    "deep": members(SIZE // 200, '"k#":' + '{"a":' * 29 + "1" + "}" * 29),
    "strings": repeat(4, json.dumps("x" * (SIZE // 4))),
    "white space": b"[1,%b2]" % (b" " * SIZE),
}
STRINGS: Final = ("one string", "a string of escapes", "a string of surrogates")
MERGES: Final[dict[str, bytes]] = {
    "members": SHAPES["members"],
    "paths": members(SIZE // 16, '"a/b/k#":#'),
    "records": SHAPES["records"],
    "removals": members(SIZE // 14, '"k#":null'),
    "one string": SHAPES["a string below"],
    "one member": b'{"a":%b}' % SHAPES["an array"],
}


class MeteredClock(TurnClock):
    """A clock that counts the calls between two looks at it: each pause looks at it.

    Attributes:
        longest: the most calls that there were.
        looks: how often it was looked at.

    """

    def __init__(self) -> None:
        super().__init__(2 * STEP_SECONDS)
        self.longest = self._calls = self.looks = 0

    def seconds(self) -> float:
        """Return the time."""
        self.longest = max(self.longest, self._calls)
        self._calls = 0
        self.looks += 1
        sys.setprofile(self._count)  # whatever greenlet this is
        return super().seconds()

    def _count(self, _: object, event: str, __: object) -> None:
        self._calls += event in ("call", "c_call")


@attrs.define(eq=False)
class TextMeter:
    """Parses and prints, and notes the longest text."""

    longest: int = 0
    _parse: Callable[..., Any] = attrs.field(default=orjson.loads, init=False)
    _print: Callable[..., bytes] = attrs.field(default=orjson.dumps, init=False)

    def parse(self, text: bytes | str) -> Any:
        self.longest = max(self.longest, len(text))
        return self._parse(text)

    def print(self, *arguments: Any, **options: Any) -> bytes:
        text = self._print(*arguments, **options)
        self.longest = max(self.longest, len(text))
        return text


class NotifiedWorld(World):
    """Its watchers are notified of all that is written.

    Attributes:
        looks_at_pieces: how often the clock was looked at before each piece of a body was read.

    """

    clock: MeteredClock

    def __init__(self) -> None:
        super().__init__(clock=MeteredClock())
        self.looks_at_pieces: list[int] = []
        self.above, self.at, self.below = (self._watch(path) for path in (("a",), PATH, BELOW))

    def _watch(self, path: Path) -> Recorder:
        recorder = Recorder()
        self.database.subscribe(path, None, recorder).watch(lambda _: None)
        return recorder

    def write_large(self, method: Method, text: bytes, size: int | None = None) -> None:
        """Do a write whose body comes in pieces; it must succeed.

        `size` is what was sent, if that was compressed.
        """
        place = Place(PATH)
        edit = Edit(method, place, None, (Change(place, STORED),))
        size = len(text) if size is None else size
        body = LargeBody(lambda: self._read(text), size, 10 * MIB, 2**40)
        results: list[Any] = []
        self.begin(edit, now=1000, wants_echo=False, large=body).addBoth(results.append)
        self.clock.run_until(lambda: bool(results))
        self.clock.run()
        assert results[0].commit is not None

    def _read(self, text: bytes) -> Iterator[bytes]:
        for at in range(0, len(text), PIECE_BYTES):
            self.looks_at_pieces.append(self.clock.looks)
            yield text[at : at + PIECE_BYTES]

    def print(self, path: Path, *, is_export: bool = False) -> bytes:
        return self.database.read(lambda nodes: b"".join(nodes.chunks(path, export=is_export)))


@pytest.fixture
def world() -> NotifiedWorld:
    return NotifiedWorld()


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> TextMeter:
    meter = TextMeter()
    monkeypatch.setattr(orjson, "loads", meter.parse)
    monkeypatch.setattr(orjson, "dumps", meter.print)
    return meter


@pytest.fixture(autouse=True)
def profile() -> Iterator[None]:
    """End the counting of calls."""
    yield
    sys.setprofile(None)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_is_stored_and_told_in_short_steps(
    world: NotifiedWorld, texts: TextMeter, shape: str
) -> None:
    world.write_large("put", SHAPES[shape])
    sys.setprofile(None)
    assert world.clock.longest <= MOST_CALLS
    assert texts.longest <= MOST_BYTES
    for recorder, path in ((world.at, ()), (world.above, PATH[1:])):
        (event,) = recorder.events
        assert (event.kind, event.path, event.is_missed) == ("put", path, False)
        assert b"".join(event.printed or ()) == world.print(PATH)
        assert b"".join(event.printed_export or ()) == world.print(PATH, is_export=True)
        assert max(map(len, event.printed or ())) <= MOST_BYTES
    (event,) = world.below.events
    assert (event.kind, event.path, event.data) == ("put", (), None)
    assert event.is_missed is (shape not in STRINGS)


@pytest.mark.parametrize("shape", MERGES)
def test_a_merge_is_stored_and_told_in_short_steps(
    world: NotifiedWorld, texts: TextMeter, shape: str
) -> None:
    world.write_large("patch", MERGES[shape])
    sys.setprofile(None)
    assert world.clock.longest <= MOST_CALLS
    assert texts.longest <= MOST_BYTES
    for recorder, path in ((world.at, ()), (world.above, PATH[1:])):
        (event,) = recorder.events
        assert (event.kind, event.path, event.is_missed) == ("patch", path, False)
        assert b"".join(event.printed or ()) == MERGES[shape]
        assert max(map(len, event.printed or ())) <= MOST_BYTES


@pytest.mark.parametrize("method", ["put", "patch"])
def test_a_body_that_was_compressed_is_read_piece_by_piece_also_for_the_log(
    world: NotifiedWorld, method: Method
) -> None:
    text = b'{"a":1%b}' % (b" " * SIZE)
    world.write_large(method, text, size=100)
    assert len(world.looks_at_pieces) >= len(text) // PIECE_BYTES
    assert all(before < after for before, after in pairwise(world.looks_at_pieces))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_reader_of_whole_entries_gets_what_a_large_put_has_written(
    world: NotifiedWorld, texts: TextMeter, shape: str
) -> None:
    reader = LogReader(world.database, world.runtime, "reader", is_whole=True)
    world.wait(Deferred.fromCoroutine(reader.begin()))
    world.write_large("put", SHAPES[shape])
    sys.setprofile(None)
    assert world.clock.longest <= MOST_CALLS
    assert texts.longest <= MOST_BYTES
    (entry,) = reader.read()
    other = World()
    other.write(make_put(Place(PATH), orjson.loads(entry.content)["sent"], ANY_LENGTH))
    sent = other.database.read(lambda nodes: b"".join(nodes.chunks(PATH, export=True)))
    assert sent == world.print(PATH, is_export=True)
