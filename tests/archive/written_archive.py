"""An archive of one database that is written step by step, and a model of what it holds."""

from __future__ import annotations

import pathlib
import random
from typing import Final

import orjson

from treedbd.archive.bases import BaseHeader, name_base
from treedbd.archive.index import Archive
from treedbd.archive.packing import pack
from treedbd.archive.places import FolderPlace, initialise
from treedbd.archive.segments import (
    Deleted,
    Entry,
    Record,
    make_header,
    name_segment,
    write_segment,
)

START_MS: Final = 1_796_000_000_000
State = tuple[int, bytes]


class WrittenArchive:
    """Writes segments and bases of `db` at a time that passes.

    Attributes:
        log: the ids of the writes of the database, by their numbers less one.
        times: the time of each write that was made, by number and id.
        previous: the write before each write.

    """

    def __init__(self, folder: pathlib.Path, db: str = "app/default") -> None:
        self.place: Final = FolderPlace(folder, may_create=True)
        initialise(self.place, None, START_MS)
        self.db: Final = db
        self.now_ms = START_MS
        self.log: list[bytes] = []
        self.times: dict[State, int] = {}
        self.previous: dict[State, State] = {}
        self.bases: set[State] = set()
        self.archived: set[State] = set()
        self._bodiless: set[State] = set()
        self._sent = 0
        self._random = random.Random(7)

    @property
    def end(self) -> State:
        return self._state(len(self.log))

    def archive(self) -> Archive:
        return Archive(self.place)

    def write(self, count: int, *, body: bool = True) -> None:
        """Make some writes."""
        for _ in range(count):
            before = self.end
            self.log.append(self._random.randbytes(16))
            self.times[self.end] = self.now_ms
            self.previous[self.end] = before
            if not body:
                self._bodiless.add(self.end)

    def replace(self, kept: int) -> None:
        """Put an older copy of the file in its place, of which `kept` writes are known."""
        del self.log[kept:]
        self._sent = min(self._sent, len(self.log))

    def send(self, *, again: int = 0, extra: tuple[Record, ...] = ()) -> None:
        """Write a segment of what was not sent, and of the last entries `again`."""
        after = max(0, self._sent - again)
        unsent = range(after + 1, len(self.log) + 1)
        records: list[Record] = [*extra, *map(self._entry, unsent)]
        number = self.archive().next_number()
        header = make_header(number, self.now_ms, {self.db: self._state(after)}, records)
        if records:
            name = name_segment(number, self.now_ms)
            self.place.put(name, write_segment(header, records), is_new=True)
        self.archived.update(map(self._state, unsent))
        self._sent = len(self.log)

    def skip(self) -> None:
        """Lose what was not sent."""
        self._sent = len(self.log)

    def delete(self) -> None:
        """Remove the database, and begin with an empty one."""
        self.send(extra=(Deleted(self.db, self.now_ms),))
        self.replace(0)

    def base(self) -> None:
        """Write a base, whose rows do not matter, a second after what was before."""
        self.now_ms += 1000
        sequence, op_id = self.end
        time_ms = self.times.get(self.end, self.now_ms)
        header = BaseHeader(
            db=self.db,
            sequence=sequence,
            op_id=op_id,
            time_ms=self.now_ms,
            rows_format=5,
            segment=self.archive().next_number(),
            last_entry=orjson.dumps({"time": time_ms}),
        )
        line = orjson.dumps(
            {
                "treedb-base": 1,
                "db": self.db,
                "seq": sequence,
                "op": op_id.hex(),
                "time": header.time_ms,
                "rows_format": 5,
                "segment": header.segment,
                "entry": header.last_entry.decode(),
            }
        )
        self.place.put(name_base(header), pack([line + b"\n"]), is_new=True)
        self.bases.add(self.end)

    def is_reachable(self, state: State) -> bool:
        """Return whether a state can be restored from what was written."""
        while state[0]:
            if state in self.bases:
                return True
            if state not in self.archived or state in self._bodiless:
                return False
            state = self.previous[state]
        return True

    def _state(self, sequence: int) -> State:
        return (sequence, self.log[sequence - 1]) if sequence else (0, b"")

    def _entry(self, sequence: int) -> Entry:
        state = self._state(sequence)
        content = orjson.dumps({"time": self.times[state], "method": "put", "path": []})
        if state not in self._bodiless:
            content = content[:-1] + b',"sent":1}'
        return Entry(self.db, sequence, state[1], content)


def found_in(archive: Archive, db: str = "app/default") -> set[State]:
    """Return the states that an archive says it can restore, and check each stretch."""
    found: set[State] = set()
    for stretch in archive.spans(db):
        entries = list(archive.entries(stretch, stretch.first))
        numbers = [entry.sequence for entry in entries]
        assert numbers == list(range(stretch.first + 1, stretch.first + 1 + len(entries)))
        found.update((entry.sequence, entry.op_id) for entry in entries)
        found.update((base.sequence, base.header.op_id) for base in stretch.bases)
        assert (stretch.through, stretch.through_op) in found
        assert stretch.through == max([*numbers, *(base.sequence for base in stretch.bases)])
    return found - {(0, b"")}
