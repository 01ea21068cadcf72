"""Histories of databases, written by the code that serves them, archived, and known in all moments.

`WrittenHistory` writes at random: values, priorities, server values, merges, removals, long bodies;
its clock is set forward and back, its databases are deleted and made again. What it has written is
delivered to an archive from time to time, as segments, and bases are made. It keeps the tree after
each write, so what is restored can be compared.
"""

from __future__ import annotations

import itertools
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import attrs
import orjson
from twisted.python.failure import Failure

from tests.database.world import ADMIN, TurnClock, make_database, run_at_once
from treedbd.archive.bases import dump, name_base
from treedbd.archive.index import Archive
from treedbd.archive.merge import merge
from treedbd.archive.places import FolderPlace, initialise
from treedbd.archive.sealing import Key
from treedbd.archive.segments import (
    Deleted,
    Entry,
    Gap,
    Record,
    Rules,
    make_header,
    name_segment,
    write_segment,
)
from treedbd.database.requests import LargeBody, Write
from treedbd.database.runtime import Runtime
from treedbd.limits import MIB
from treedbd.store.nodes import Nodes
from treedbd.store.sqlite.engine import SqliteEngine
from treedbd.tree.edit import Edit, Method, make_patch, make_put
from treedbd.tree.types import STORED, Change, InvalidData, Json, Path, Place, Value

START_MS = 1_796_000_000_000
WHOLE_BYTES = 32 * MIB
NAMES = ("a", "b", "c", "users", "ada", "1", "2", "x" * 40)


@attrs.define
class Moment:
    """A moment of a database: after the write `sequence`, whose time is `ms`."""

    sequence: int
    ms: int
    tree: Value


@attrs.define
class Life:
    """A database from its creation to its deletion, if it was deleted."""

    moments: list[Moment] = attrs.field(factory=list)
    deleted_ms: int | None = None


class Served:
    """A database that is served, and what was delivered of its log."""

    def __init__(self, file: pathlib.Path, random_bytes: random.Random) -> None:
        self.file = file
        self.engine = SqliteEngine.create(file)
        self.clock = TurnClock()
        runtime = Runtime(self.clock, random_bytes.randbytes, run_at_once, entry_bytes=WHOLE_BYTES)
        self.database = make_database(self.engine, runtime, retain_events=1_000_000)
        self.life = Life()
        self.delivered = (0, b"")

    def write(self, edit: Edit, ms: int, large: bytes | None = None) -> None:
        """Do a write, if it is valid, and keep the tree after it."""
        body = None
        if large is not None:
            pieces = [large[at : at + 10_000] for at in range(0, len(large), 10_000)]
            body = LargeBody(lambda: iter(pieces), len(large), 10 * MIB, 2**40)
        found: list[Any] = []
        write = Write(edit, ms, ADMIN, wants_echo=False, large=body)
        self.database.write(write).addBoth(found.append)
        while not found:
            self.clock.run()
        if isinstance(found[0], Failure):
            found[0].trap(InvalidData)
        elif found[0].commit is not None:
            tree = self.engine.read(lambda view: Nodes(view).get(()))
            self.life.moments.append(Moment(self.sequence(), ms, tree))

    def sequence(self) -> int:
        return self.engine.read(lambda view: view.sequence())

    def news(self, db: str) -> Iterator[Entry]:
        """Yield the entries that were not delivered."""
        after = self.delivered[0]
        for entry in self.engine.read(lambda view: list(view.entries(after))):
            yield Entry(db, entry.sequence, entry.op_id, entry.content)

    def close(self) -> None:
        self.engine.close()


class WrittenHistory:
    """What was written to some databases, and their archive.

    Attributes:
        lives: of each database, `project/name`, its lives.
        rules: the rules of the project, each with the time at which they came into force.

    """

    def __init__(self, folder: pathlib.Path, seed: int, key: Key | None = None) -> None:
        self.random = random.Random(seed)
        self.place = FolderPlace(folder / "archive", may_create=True)
        initialise(self.place, None, START_MS)
        self.key = key
        self.now = START_MS
        self.number = 1
        self.lives: dict[str, list[Life]] = {}
        self.rules: list[tuple[int, str]] = []
        self._folder = folder
        self._files = itertools.count()
        self._served: dict[str, Served] = {}
        self._records: list[Record] = []

    def archive(self) -> Archive:
        return Archive(self.place, self.key)

    def run(self, steps: int, databases: int = 2) -> None:
        """Do some steps, and deliver all."""
        for _ in range(steps):
            self.step(f"app/db{self.random.randrange(databases)}")
        self.deliver()

    def step(self, db: str) -> None:
        """Do one step."""
        draw = self.random.random()
        if draw < 0.85:
            self.write(db)
        elif draw < 0.91:
            self.deliver()
        elif draw < 0.935:
            self.make_base(db)
        elif draw < 0.96:
            self.now += self.random.choice((-400_000, -3000, -50, 3000, 400_000))
        elif draw < 0.97:
            self.delete(db)
        elif draw < 0.985:
            self.put_rules()
        else:
            merge(self.archive(), self.now)

    def write(self, db: str) -> None:
        """Do one write; create the database if it is missing."""
        served = self._serve(db)
        self.now += self.random.choice((0, 1, 7, 1500))
        served.write(*self._draw_write())

    def put(self, db: str, path: str, value: Json) -> None:
        """Set what is at a path, one second after the write before."""
        self.now += 1000
        place = Place(tuple(filter(None, path.split("/"))))
        self._serve(db).write(make_put(place, value), self.now)

    def _serve(self, db: str) -> Served:
        served = self._served.get(db)
        if served is None:
            file = self._folder / f"{next(self._files)}.shelf"
            served = self._served[db] = Served(file, self.random)
            self.lives.setdefault(db, []).append(served.life)
        return served

    def deliver(self) -> None:
        """Write a segment of all that is new."""
        after = {}
        for db, served in self._served.items():
            entries = list(served.news(db))
            if entries:
                after[db] = served.delivered
                served.delivered = entries[-1].sequence, entries[-1].op_id
                self._records += entries
        records, self._records = self._records, []
        if not records:
            return
        header = make_header(self.number, self.now, after, records)
        name = name_segment(self.number, self.now, self.key)
        self.place.put(name, write_segment(header, records, self.key), is_new=True)
        self.number += 1

    def leave_out(self, db: str) -> None:
        """Deliver nothing of what is new, as of an archive that begins here."""
        served = self._serve(db)
        last = list(served.news(db))[-1]
        served.delivered = last.sequence, last.op_id

    def note_gap(self, db: str, reason: str) -> None:
        """Leave out what is new, with the reason in the archive."""
        after = self._serve(db).delivered[0]
        self.leave_out(db)
        self._records.append(Gap(db, reason, after, self.now))

    def make_base(self, db: str) -> None:
        """Make a base, while entries before it may not be delivered yet."""
        served = self._served.get(db)
        if served is None or not served.sequence():
            return
        header, chunks = dump(
            served.file, db=db, time_ms=self.now, segment=self.number, key=self.key
        )
        name = name_base(header, self.key)
        if all(info.name != name for info in self.place.list("bases/")):
            self.place.put(name, chunks, is_new=True)

    def delete(self, db: str) -> None:
        """Deliver all, and delete a database."""
        served = self._served.pop(db, None)
        if served is None:
            return
        self._served[db] = served
        self.deliver()
        del self._served[db]
        served.close()
        served.life.deleted_ms = self.now
        self._records.append(Deleted(db, self.now))
        self.deliver()

    def put_rules(self, text: str | None = None) -> None:
        """Put other rules in force; they are archived, and not used."""
        if text is None:
            text = orjson.dumps({"rules": {".read": self.random.random()}}).decode()
        self.rules.append((self.now, text))
        self._records.append(Rules("app", text, self.now))

    def close(self) -> None:
        for served in self._served.values():
            served.close()

    def _draw_write(self) -> tuple[Edit, int, bytes | None]:
        draw, path = self.random.random(), self._draw_path()
        if draw < 0.45:
            return make_put(Place(path), self._draw_value(3)), self.now, None
        if draw < 0.65:
            members: dict[str, Json] = {}
            for key in self.random.sample(NAMES, self.random.randrange(1, 4)):
                members[key] = self._draw_value(2)
            if self.random.random() < 0.3:
                members.pop("a", None)
                members["a/b"] = self._draw_value(1)
            return make_patch(path, members), self.now, None
        if draw < 0.8:
            return make_put(Place(path), None), self.now, None
        if draw < 0.88:
            return make_put(Place(path, True), self.random.choice((None, 1, "p"))), self.now, None
        if draw < 0.95:
            values: tuple[Json, ...] = ({".sv": "timestamp"}, {".sv": {"increment": 3}})
            value = self.random.choice(values)
            return make_put(Place((*path, "n")), value), self.now, None
        return self._draw_large(path)

    def _draw_large(self, path: Path) -> tuple[Edit, int, bytes | None]:
        count = self.random.choice((10, 10, 10, 300, 300, 2000))
        value = {f"k{number}": self._draw_value(1) or 0 for number in range(count)}
        option = self.random.choice((0, orjson.OPT_INDENT_2))
        methods: tuple[Method, ...] = ("put", "patch")
        method = self.random.choice(methods)
        edit = Edit(method, Place(path), None, (Change(Place(path), STORED),))
        return edit, self.now, orjson.dumps(value, option=option)

    def _draw_path(self) -> Path:
        return tuple(self.random.choices(NAMES, k=self.random.choice((0, 1, 1, 2, 2, 2, 3))))

    def _draw_value(self, depth: int) -> Json:
        draw = self.random.random()
        if depth and draw < 0.4:
            names = self.random.sample(NAMES, self.random.randrange(4))
            value: dict[str, Json] = {name: self._draw_value(depth - 1) for name in names}
            if draw < 0.08:
                value[".priority"] = self.random.choice((1, "p", None))
            return value
        if draw < 0.5:
            return {".value": self.random.randrange(9), ".priority": 2}
        leaves: tuple[Json, ...] = (None, True, 7, 2.5, "text", "é\n" * 30, "long" * 1500)
        return self.random.choice(leaves)


def moment_at(lives: list[Life], ms: int) -> Moment | None:
    """Return the moment of a database at a time, None if there was none."""
    for life in reversed(lives):
        before = [each for each in life.moments if each.ms <= ms]
        if before:
            is_deleted = life.deleted_ms is not None and life.deleted_ms <= ms
            return None if is_deleted else before[-1]
    return None
