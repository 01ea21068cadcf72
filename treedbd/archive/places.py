"""Where the objects of an archive are: a folder, or a bucket (`bucket`).

An object has a name such as `segments/20261129/000000000001.jsonl.zst`. It appears whole and
durable under its name, or not at all, and is never changed. All calls block; they are made in
threads.

In a folder an object is written to a file beside its place, synced, and then linked or renamed; the
directory is synced last. A process that is killed leaves the unfinished file, which is locked while
it is written, and which `clean` removes.

**The marker.** The folder may be on a disk that is not mounted; then what is there is an empty
directory of another disk, which must not be filled. So an archive has the object `MARKER`. Without
it nothing is written, but for `initialise`, which makes it in an empty place. The caller remembers
the id in it: a place that has another one, or none, is not the archive that was used before.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import re
import uuid
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, Final, Protocol

import attrs
import orjson

from treedbd.files import (
    create_directory,
    make_directory,
    open_private,
    read_installation,
    sync_directory,
)

MARKER: Final = "treedb-archive.json"
FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}(/[A-Za-z0-9][A-Za-z0-9._-]{0,200})*")
_READ_AT_ONCE: Final = 1024 * 1024
_SYNCED_AT_ONCE: Final = 4 * 1024 * 1024
"""Bytes after which a long object is synced: all at its end would make the syncs of databases on
the same disk wait for it."""
_UNFINISHED: Final = ".unfinished"
_NOT_OF_OTHERS: Final = "lost+found"
"""What a file system has in its first directory."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errors of a file system that has no hard links."""
_MAX_MARKER_BYTES: Final = 4096


class PlaceFailed(Exception):
    """The place cannot be used at present, or the object not be read; `str()` is a sentence."""


class ObjectMissing(PlaceFailed):
    """There is no object of that name (any longer)."""


class NameTaken(Exception):
    """There is an object of that name; `str()` is the name."""


@attrs.frozen
class ObjectInfo:
    """An object: its name, and its size in bytes."""

    name: str
    size: int


class Place(Protocol):
    """Where objects are. All methods block, and raise `PlaceFailed`.

    Attributes:
        text: how the operator names the place.

    """

    text: str

    def put(self, name: str, data: Iterable[bytes], *, is_new: bool) -> int:
        """Write an object; return its size in bytes. It is durable and whole on return.

        If `data` raises, or the call does, there is not a part of it. With `is_new` raises
        `NameTaken` if there is one of that name; otherwise that one is replaced.
        """
        ...

    def get(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces; raise `ObjectMissing` if there is none."""
        ...

    def list(self, folder: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder in order of their names, from those after `after` on.

        `folder` is empty or ends with a slash. Only objects of an archive are found.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens if there is none."""
        ...

    def is_empty(self) -> bool:
        """Return whether there is nothing at all, so that an archive can begin here."""
        ...

    def clean(self) -> None:
        """Remove what writers that were killed have left."""
        ...


@attrs.frozen
class Marker:
    """What makes a place an archive: its id, and when it was made (ms since 1970)."""

    id: str
    created_ms: int


def open_place(
    text: str, *, endpoint: str = "", region: str = "", may_create: bool = False
) -> Place:
    """Return the place that a text names: the path of a folder, or `s3://bucket/prefix`.

    `endpoint` and `region` are of a bucket; empty ones are those of the environment. With
    `may_create` a folder is made if it is missing. Raises `PlaceFailed`.
    """
    if not text.startswith("s3://"):
        if "://" in text:
            raise PlaceFailed(f"{text.partition('://')[0]}:// is not supported: use s3://.")
        return FolderPlace(pathlib.Path(text), may_create=may_create)
    try:
        bucket: Any = import_module("treedbd.archive.bucket")
    except ImportError:
        raise PlaceFailed(
            "An archive in a bucket needs the library obstore, which is not installed: run "
            f"{read_installation().line_for('s3')}"
        ) from None
    place: Place = bucket.BucketPlace(text, endpoint=endpoint, region=region)
    return place


def read_marker(place: Place) -> Marker | None:
    """Return the marker of a place, None if it has none; raise `PlaceFailed`."""
    try:
        content = b"".join(_bounded(place.get(MARKER), _MAX_MARKER_BYTES))
    except ObjectMissing:
        return None
    try:
        json: Any = orjson.loads(content)
        if json["format"] != FORMAT:
            raise PlaceFailed(f"{place.text} is an archive of a newer version of treedb.")
        return Marker(str(json["id"]), int(json["created"]))
    except (ValueError, LookupError, TypeError):
        raise PlaceFailed(f"{MARKER} in {place.text} is damaged.") from None


def initialise(place: Place, known_id: str | None, now_ms: int) -> Marker:
    """Return the marker of the archive; make it if the place is empty and was never used.

    `known_id` is the id of the archive that was used before, None if there was none. Raises
    `PlaceFailed`, also if this is not that archive.
    """
    marker = read_marker(place)
    if known_id is not None and marker is None:
        raise PlaceFailed(
            f"{place.text} has no {MARKER}, though the archive was there before: mount its disk, "
            "or name the right place."
        )
    if known_id is not None and marker is not None and marker.id != known_id:
        raise PlaceFailed(f"{place.text} is another archive than the one that was used before.")
    if marker is not None:
        return marker
    if not place.is_empty():
        raise PlaceFailed(f"{place.text} is not an archive, and not empty: name an empty folder.")
    marker = Marker(uuid.uuid4().hex, now_ms)
    content = orjson.dumps({"format": FORMAT, "id": marker.id, "created": marker.created_ms})
    try:
        place.put(MARKER, [content], is_new=True)
    except NameTaken:  # another process has just made it
        return read_marker(place) or marker
    return marker


def check_name(name: str) -> None:
    """Raise ValueError for a name that no object has."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name[:100]!r} is not the name of an object.")


class FolderPlace:
    """A folder, which may be on another disk or of another machine."""

    def __init__(self, path: pathlib.Path, *, may_create: bool = False) -> None:
        """Use the folder; raise `PlaceFailed` if it is missing and not `may_create`."""
        self.text = os.fspath(path)
        self._path = path.absolute()
        self._durable: set[pathlib.Path] = set()
        if may_create:
            with self._sentences():
                create_directory(self._path)
        if not self._path.is_dir():
            raise PlaceFailed(f"{self.text} is not a folder.")

    def put(self, name: str, data: Iterable[bytes], *, is_new: bool) -> int:
        """Write an object durably; return its size in bytes."""
        check_name(name)
        with self._sentences():
            if name != MARKER and not (self._path / MARKER).is_file():
                raise PlaceFailed(f"{self.text} has no {MARKER}: is its disk mounted?")
            target = self._path / name
            self._make_parents(target)
            unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}{_UNFINISHED}")
            descriptor = open_private(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                size = _write(descriptor, data)
                _publish(unfinished, target, is_new=is_new)
            finally:
                os.close(descriptor)
                unfinished.unlink(missing_ok=True)
            sync_directory(target.parent)
            return size

    def get(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        check_name(name)
        with self._sentences():
            try:
                file = (self._path / name).open("rb")
            except (FileNotFoundError, NotADirectoryError):
                raise ObjectMissing(f"There is no {name} in {self.text}.") from None
        with file:
            while True:
                with self._sentences():
                    piece = file.read(_READ_AT_ONCE)
                if not piece:
                    return
                yield piece

    def list(self, folder: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder in order of their names."""
        if folder:
            check_name(folder.removesuffix("/"))
        start = self._path / folder
        try:
            with self._sentences():
                start.stat()
        except ObjectMissing:
            return
        for info in self._walk(start, folder):
            if info.name > after:
                yield info

    def delete(self, name: str) -> None:
        """Remove an object."""
        check_name(name)
        with self._sentences(), contextlib.suppress(FileNotFoundError):
            file = self._path / name
            file.unlink()
            sync_directory(file.parent)
            with contextlib.suppress(OSError):  # others are in it
                if file.parent != self._path:
                    file.parent.rmdir()
                    self._durable.discard(file.parent)

    def is_empty(self) -> bool:
        """Return whether the folder is empty, but for unfinished files."""
        with self._sentences():
            names = {each.name for each in self._path.iterdir()} - {_NOT_OF_OTHERS}
            return all(each.endswith(_UNFINISHED) for each in names)

    def clean(self) -> None:
        """Remove unfinished files that no process writes."""
        with self._sentences():
            for file in sorted(self._path.rglob(f".*{_UNFINISHED}")):
                with contextlib.suppress(FileNotFoundError), file.open("rb") as left:
                    if _try_lock(left.fileno()):
                        file.unlink()

    def _make_parents(self, target: pathlib.Path) -> None:
        missing = []
        parent = target.parent
        while not parent.is_dir():
            missing.append(parent)
            parent = parent.parent
        if not parent.is_relative_to(self._path):
            raise PlaceFailed(f"{self.text} is not a folder.")
        for each in reversed(missing):
            with contextlib.suppress(FileExistsError):
                make_directory(each)
        # A directory that is there may be of a process that was killed before it synced the parent.
        for each in target.relative_to(self._path).parents:
            if (folder := self._path / each) not in self._durable and folder != self._path:
                sync_directory(folder.parent)
                self._durable.add(folder)

    def _walk(self, folder: pathlib.Path, name: str) -> Iterator[ObjectInfo]:
        found: list[tuple[str, os.DirEntry[str]]] = []
        with self._sentences(), contextlib.suppress(FileNotFoundError), os.scandir(folder) as there:
            # A slash comes after some characters of names: `a-b/c` is before `a/b`.
            found = sorted((e.name + "/" * e.is_dir(follow_symlinks=False), e) for e in there)
        for key, entry in found:
            if not _NAME.fullmatch(entry.name):
                continue
            if key.endswith("/"):
                yield from self._walk(folder / entry.name, f"{name}{key}")
            elif entry.is_file(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError):
                    yield ObjectInfo(name + key, entry.stat().st_size)

    @contextlib.contextmanager
    def _sentences(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise ObjectMissing(f"{self.text} cannot be used ({error.strerror}).") from None
        except OSError as error:
            raise PlaceFailed(f"{self.text} cannot be used ({error.strerror}).") from None


def _write(descriptor: int, data: Iterable[bytes]) -> int:
    """Write all of an unfinished file, which is locked meanwhile, and sync it."""
    _try_lock(descriptor)
    size = synced = 0
    with open(descriptor, "wb", buffering=_READ_AT_ONCE, closefd=False) as file:
        for piece in data:
            size += file.write(piece)
            if size - synced >= _SYNCED_AT_ONCE:
                file.flush()
                os.fdatasync(descriptor)
                synced = size
        file.flush()
        os.fsync(descriptor)
    return size


def _publish(unfinished: pathlib.Path, target: pathlib.Path, *, is_new: bool) -> None:
    """Give a file its name."""
    if not is_new:
        unfinished.rename(target)
        return
    try:
        os.link(unfinished, target)
    except FileExistsError:
        raise NameTaken(target.name) from None
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if target.exists():  # between this and the rename no other writer is expected
            raise NameTaken(target.name) from None
        unfinished.rename(target)


def _try_lock(descriptor: int) -> bool:
    """Lock a file; return whether no other process has. File systems without locks have none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _bounded(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            return
        yield piece
