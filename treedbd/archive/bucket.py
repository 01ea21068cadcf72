"""Objects of an archive in a bucket of S3, or of what has its interface.

The credentials are those of the environment (`AWS_ACCESS_KEY_ID` and the others). An object that
must be new is written with a condition (`If-None-Match: *`), in one request; a larger one than
`MAX_CONDITIONAL_BYTES` in parts, after a look whether there is one. A bucket shows an object when
all of it was received; parts of one that is broken off stay hidden, and a rule of the bucket
should remove them after some days.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from treedbd.archive.places import NameTaken, ObjectInfo, ObjectMissing, PlaceFailed, check_name

MAX_CONDITIONAL_BYTES: Final = 64 * 1024 * 1024
_PART_BYTES: Final = 16 * 1024 * 1024
_PARTS_AT_ONCE: Final = 2
_READ_AT_ONCE: Final = 1024 * 1024
_LISTED_AT_ONCE: Final = 1000
_TIMEOUT: Final = timedelta(seconds=60)
_RETRY: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class BucketPlace:
    """A bucket, or what is below a prefix in it."""

    def __init__(self, url: str, *, endpoint: str = "", region: str = "") -> None:
        """Use `s3://bucket/prefix`; raise `PlaceFailed` for another URL."""
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if parts.scheme != "s3" or not parts.netloc or parts.query or "@" in parts.netloc:
            raise PlaceFailed("The URL of a bucket is s3://bucket/prefix, without credentials.")
        self.text = url
        options: dict[str, Any] = {}
        if endpoint:
            options["endpoint"] = endpoint
        if region:
            options["region"] = region
        with self._sentences():
            self._store = S3Store(
                parts.netloc,
                prefix=prefix or None,
                client_options={
                    "allow_http": endpoint.startswith("http://"),
                    "timeout": _TIMEOUT,
                },
                retry_config=_RETRY,
                **options,
            )

    def put(self, name: str, data: Iterable[bytes], *, is_new: bool) -> int:
        """Write an object; return its size in bytes."""
        check_name(name)
        pieces = iter(data)
        first = bytearray()
        for piece in pieces:
            first += piece
            if len(first) > MAX_CONDITIONAL_BYTES:
                return self._put_in_parts(name, itertools.chain([bytes(first)], pieces), is_new)
        with self._sentences(name):
            mode: Any = "create" if is_new else "overwrite"
            obstore.put(self._store, name, bytes(first), mode=mode, use_multipart=False)
        return len(first)

    def get(self, name: str) -> Iterator[bytes]:
        """Yield the content of an object in pieces."""
        check_name(name)
        with self._sentences(name):
            pieces = iter(obstore.get(self._store, name).stream(_READ_AT_ONCE))
        while True:
            with self._sentences(name):
                piece = next(pieces, None)
            if piece is None:
                return
            yield bytes(piece)

    def list(self, folder: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects below a folder in order of their names."""
        found = iter(
            obstore.list(
                self._store,
                folder or None,
                offset=after or None,
                chunk_size=_LISTED_AT_ONCE,
            )
        )
        last = after
        while True:
            with self._sentences():
                some = next(found, None)
            if some is None:
                return
            for meta in some:
                if meta["path"] <= last:
                    raise PlaceFailed(f"{self.text} does not list its objects in their order.")
                last = meta["path"]
                yield ObjectInfo(last, meta["size"])

    def delete(self, name: str) -> None:
        """Remove an object."""
        check_name(name)
        with self._sentences(name), contextlib.suppress(ObjectMissing):
            obstore.delete(self._store, name)

    def is_empty(self) -> bool:
        """Return whether there is no object."""
        return next(self.list(""), None) is None

    def clean(self) -> None:
        """Do nothing: parts of what was broken off are hidden, and the bucket removes them."""

    def _put_in_parts(self, name: str, data: Iterator[bytes], is_new: bool) -> int:
        if is_new and self._exists(name):
            raise NameTaken(name)
        counted = _Counted(data)
        with self._sentences(name):
            obstore.put(
                self._store,
                name,
                counted.pieces(),
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return counted.size

    def _exists(self, name: str) -> bool:
        try:
            with self._sentences(name):
                obstore.head(self._store, name)
        except ObjectMissing:
            return False
        return True

    @contextlib.contextmanager
    def _sentences(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except AlreadyExistsError:
            raise NameTaken(name) from None
        except (NotFoundError, FileNotFoundError):
            raise ObjectMissing(f"There is no {name or 'such bucket'} in {self.text}.") from None
        except (PermissionDeniedError, UnauthenticatedError):
            raise PlaceFailed(f"{self.text} does not accept these credentials.") from None
        except (BaseError, TimeoutError, OSError) as error:
            # The text of the error may have the request in it, so it is not shown.
            raise PlaceFailed(
                f"{self.text} cannot be used ({type(error).__name__}): see whether it can be "
                "reached, and whether endpoint, region and credentials are right."
            ) from None
        except BaseException as error:
            if type(error).__module__ != "pyo3_runtime":
                raise
            # A panic of the library is a BaseException: it would end the thread in silence.
            raise PlaceFailed(f"{self.text} cannot be used: see endpoint and region.") from None


class _Counted:
    """Pieces whose bytes are counted as they are read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.size = 0

    def pieces(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            yield piece
