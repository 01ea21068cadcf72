"""Which data directory writes an archive: one, until an operator says that another one goes on.

Two daemons that write one archive, such as one that was restored for a trial beside the one that
still runs, would mix their databases in it. So the archive has the object `WRITER` with a random
id, and the data directory whose file `NOTE` has the same id may write. The first daemon that finds
an archive without a writer becomes it; after that only `adopt` changes it. A daemon looks when it
opens the place, and whenever it finds an object that it has not written. Daemons over PostgreSQL
share their databases, and one of them is elected: each of them may write.

The note has also the id of the archive, by which a place is known again.
"""

from __future__ import annotations

import pathlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from treedbd.archive.places import (
    NameTaken,
    ObjectMissing,
    Place,
    PlaceFailed,
    initialise,
    open_place,
)
from treedbd.files import write_atomically

NOTE: Final = "treedb.archive"
"""In a data directory: the place and the id of the archive that was written, and the writer."""
WRITER: Final = "writer.json"
_MAX_BYTES: Final = 4096


@attrs.frozen
class Note:
    """What a data directory knows of its archive: the place, its id, and its own id as a writer."""

    to: str
    id: str
    writer: str


def read_note(folder: pathlib.Path) -> Note | None:
    """Return the note of a data directory, None without one; raise `PlaceFailed`."""
    file = folder / NOTE
    try:
        json: Any = orjson.loads(file.read_bytes())
        return Note(to=str(json["to"]), id=str(json["id"]), writer=str(json["writer"]))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PlaceFailed(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, LookupError, TypeError):
        raise PlaceFailed(f"{file} is damaged: run treedb archive adopt.") from None


def open_as_writer(
    place: Place, folder: pathlib.Path, to: str, now_ms: int, *, is_shared: bool = False
) -> Note:
    """Return the note of a data directory that may write an archive, which may begin here.

    `to` is how the configuration names the place. With `is_shared` other daemons may write too.
    Raises `PlaceFailed`.
    """
    known = read_note(folder)
    marker = initialise(place, known.id if known is not None and known.to == to else None, now_ms)
    writer = _read_writer(place)
    if known is not None and known.id == marker.id:
        own = known.writer
    else:
        own = uuid.uuid4().hex if writer is None or not is_shared else writer
    if writer not in (None, own) and not is_shared:
        raise PlaceFailed(_other_writer(place))
    note = Note(to=to, id=marker.id, writer=own)
    if note != known:
        _write_note(folder, note)
    if writer is None:  # last: a process that is killed before it begins here again
        _put_writer(place, own, now_ms, is_new=not is_shared)
    return note


def check_archive(place: Place, note: Note) -> None:
    """Raise `PlaceFailed` if there is another archive at the place by now, or none."""
    initialise(place, note.id, 0)


def check_writer(place: Place, note: Note) -> None:
    """Raise `PlaceFailed` if another data directory writes the archive by now."""
    if _read_writer(place) != note.writer:
        raise PlaceFailed(_other_writer(place))


def open_ordered(order: Mapping[str, Any]) -> Place:
    """Return the place that an order for a process names, if its writer may still write there.

    `archive` and `writer` of the order are the ids of a `Note`; either may be missing or None.
    Raises `PlaceFailed`.
    """
    place = open_place(
        order["to"], endpoint=order.get("endpoint", ""), region=order.get("region", "")
    )
    if order.get("archive") is not None:
        initialise(place, order["archive"], 0)
    if order.get("writer") not in (None, _read_writer(place)):
        raise PlaceFailed(_other_writer(place))
    return place


def adopt(place: Place, folder: pathlib.Path, to: str, now_ms: int) -> None:
    """Make a data directory the writer of an archive, and no other; raise `PlaceFailed`."""
    note = Note(to=to, id=initialise(place, None, now_ms).id, writer=uuid.uuid4().hex)
    _put_writer(place, note.writer, now_ms, is_new=False)
    _write_note(folder, note)


def _other_writer(place: Place) -> str:
    return (
        f"{place.text} is the archive of another data directory. If this one has replaced that, "
        "run treedb archive adopt; else name an empty place."
    )


def _read_writer(place: Place) -> str | None:
    content = b""
    try:
        for piece in place.get(WRITER):
            content += piece
            if len(content) > _MAX_BYTES:
                break
        return str(orjson.loads(content)["writer"])
    except ObjectMissing:
        return None
    except (ValueError, LookupError, TypeError):
        raise PlaceFailed(
            f"{WRITER} in {place.text} is damaged: run treedb archive adopt."
        ) from None


def _put_writer(place: Place, writer: str, now_ms: int, *, is_new: bool) -> None:
    content = orjson.dumps({"writer": writer, "since": now_ms}) + b"\n"
    try:
        place.put(WRITER, [content], is_new=is_new)
    except NameTaken:  # by another daemon, at the same moment
        raise PlaceFailed(_other_writer(place)) from None


def _write_note(folder: pathlib.Path, note: Note) -> None:
    try:
        write_atomically(folder / NOTE, orjson.dumps(attrs.asdict(note)) + b"\n")
    except OSError as error:
        raise PlaceFailed(f"{folder / NOTE} cannot be written ({error.strerror}).") from None
