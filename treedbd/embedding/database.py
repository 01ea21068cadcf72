"""A database as the program that embeds the service uses it: by coroutines, without HTTP.

Each call is the request of the same name, with the same rules and errors; calls and requests see at
once what the other has written. Values are plain Python, `dict`, `list`, `str`, `int`, `float`,
`bool` and `None`, as a GET prints them, and belong to the caller.

The coroutines can be awaited in coroutines of Twisted, and in tasks of asyncio while its reactor
runs. A write that has begun is done even if the coroutine is cancelled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from inspect import isawaitable
from typing import Any, Final, TypeAlias, Unpack

import attrs

from treedbd.database.requests import ConditionFailed
from treedbd.embedding.requests import LocalAccess, QueryOptions, decode, encode, make_parameters
from treedbd.embedding.watch import Watch, WatchQueue
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_SHOWN_BYTES, MAX_TIMEOUT_S
from treedbd.names import DatabaseName
from treedbd.tree.hashes import parse_etags
from treedbd.tree.path import make_place
from treedbd.tree.types import InvalidPath, InvalidQuery, Json
from treedbd.tree.value import parse
from treedbd.web.auth.identity import Identity
from treedbd.web.auth.verifier import Auth, identity_of
from treedbd.web.request import STANDARD, DataRequest, Parameters, PayloadTooLarge

DEFAULT_TRIES: Final = 100


class TransactionMark(Enum):
    """The type of `ABORT`."""

    ABORT = "abort"


ABORT: Final = TransactionMark.ABORT
"""What the function of a transaction returns to write nothing."""

Update: TypeAlias = Callable[[Any], "Json | TransactionMark | Awaitable[Json | TransactionMark]"]
"""Returns the new value for the present one, or `ABORT`; may be called several times."""


@attrs.frozen
class TaggedValue:
    """A value with its entity tag, for `if_match`."""

    value: Any
    etag: str


class LocalDatabase:
    """A database of a service in this process.

    `TreeService.database` returns it, and `as_auth` another one for the same database. A path is
    `users/ada`, with or without a leading slash; the empty path is the root, and a last key
    `.priority` names a priority.

    Every coroutine can raise:

    - `PermissionDenied`: the rules do not allow it;
    - `InvalidPath`, `InvalidData`, `InvalidQuery`: an argument is not valid;
    - `UnknownDatabase`: the project does not list the database;
    - `TooLarge`: a value or a body has too many bytes;
    - `DeadlinePassed`: it took longer than `timeout`, in seconds; nothing was written;
    - `OutcomeInDoubt`: whether it was written is not known yet (with several daemons only);
    - `Unavailable`: the service cannot do it at present; `StoreFailed`, `DiskFull` and
      `CannotOpenStore` are raised by reads of a store that fails.

    Attributes:
        name: the name of the database.

    """

    def __init__(self, access: LocalAccess, name: DatabaseName, identity: Identity) -> None:
        """Use the database `name` as `identity`; called by `TreeService.database`."""
        self.name: Final = name
        self._access = access
        self._identity = identity

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name.label}>"

    def as_auth(self, auth: Auth) -> LocalDatabase:
        """Return the same database for another caller, such as `{"uid": "ada"}`.

        The rules see `auth` under this name; None is an anonymous caller. Rules do not bind
        `ADMIN`. Raises `InvalidData` if it is not JSON.
        """
        return LocalDatabase(self._access, self.name, identity_of(auth))

    async def get(
        self,
        path: str = "",
        *,
        shallow: bool = False,
        sizes: bool = False,
        export: bool = False,
        timeout: float = DEFAULT_TIMEOUT_S,
        **query: Unpack[QueryOptions],
    ) -> Any:
        """Return the value at a path; None if there is nothing.

        With `shallow` it is a dict in which each key is True. With `sizes` leaves have their values
        there, and containers their bytes of JSON: `{".sz": 12}`. With `export` priorities are
        shown. A query returns a dict in its order.
        """
        parameters = make_parameters(query)
        if shallow or sizes:
            parameters["shallow"] = "true"
        if sizes:
            parameters["v"] = "2"
        if export:
            parameters["format"] = "export"
        wanted = self._make(b"GET", path, parameters, timeout=timeout)
        return decode(await self._access.serve(self.name, wanted, b""))

    async def get_with_etag(
        self, path: str = "", *, timeout: float = DEFAULT_TIMEOUT_S
    ) -> TaggedValue:
        """Return the value at a path, and its entity tag, for `if_match`; None has a tag too."""
        wanted = self._make(b"GET", path, timeout=timeout, wants_etag=True)
        response = await self._access.serve(self.name, wanted, b"")
        return TaggedValue(decode(response), dict(response.headers)[b"ETag"].decode())

    async def put(
        self,
        path: str,
        value: object,
        *,
        if_match: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Set a path to a value; None removes the path. The write is durable when it returns.

        Returns the stored value, with server values such as `{".sv": "timestamp"}` resolved; None
        if it is too large to be returned. `if_match` is a tag, several between commas, or `*` for
        anything: if the value at the path has another tag, `ConditionFailed` is raised, with the
        present value and its tag.
        """
        return await self._write(b"PUT", path, value, if_match, timeout)

    async def patch(
        self,
        path: str,
        members: Mapping[str, object],
        *,
        if_match: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Set some children of a path, all or none; their names may be paths.

        Returns the members, server values resolved. `if_match` as for `put`.
        """
        return await self._write(b"PATCH", path, dict(members), if_match, timeout)

    async def push(
        self,
        path: str,
        value: object,
        *,
        if_match: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> str:
        """Add a child under a new key, which sorts after all earlier ones; return the key.

        `if_match` is the tag of `path`, as for `put`.
        """
        named = await self._write(b"POST", path, value, if_match, timeout)
        key: str = named["name"]
        return key

    async def remove(
        self, path: str, *, if_match: str | None = None, timeout: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Remove the value at a path, if there is one. `if_match` as for `put`."""
        wanted = self._make(b"DELETE", path, if_match=if_match, timeout=timeout)
        await self._access.serve(self.name, wanted, b"")

    async def transaction(
        self,
        path: str,
        update: Update,
        *,
        tries: int = DEFAULT_TRIES,
        timeout: float = DEFAULT_TIMEOUT_S,
    ) -> Any:
        """Replace the value at a path by the result of `update`; return the committed value.

        `update` is called with the present value, which it may change, and returns the new one, or
        an awaitable of it. If another write was committed meanwhile, it is called again with the
        value of that one; after `tries` calls `ConditionFailed` is raised. If it returns `ABORT`,
        nothing is written, and the present value is returned. `timeout` is that of each try. As a
        PUT does, it drops priorities.
        """
        present = await self.get_with_etag(path, timeout=timeout)
        contender = object()
        tried = 0
        while True:
            tried += 1
            shown = encode(present.value)
            new = update(present.value)
            if isawaitable(new):
                new = await new
            if new is ABORT:
                return parse(shown)
            try:
                return await self._write(
                    b"PUT", path, new, present.etag, timeout, contender=id(contender)
                )
            except ConditionFailed as failed:
                if tried >= tries:
                    raise
                await self._access.pause_after(tried)
                present = TaggedValue(failed.current, failed.tag)
                if not failed.is_shown:
                    present = await self.get_with_etag(path, timeout=timeout)

    def watch(
        self, path: str = "", *, resume_after: str | None = None, **query: Unpack[QueryOptions]
    ) -> Watch:
        """Watch a path, or the children that a query selects: return an iterator of events.

        The first event is a `put` of the present value. With `resume_after`, the `id` of an event
        of an earlier watch of this path, the events since then come instead, unless they are no
        longer kept (`retain_events`) or there is a query.

        An invalid path or query raises at once, any other error when the first event is awaited or
        `async with` is entered: the watch begins only then.
        """
        wanted = self._make(b"GET", path, make_parameters(query))
        return Watch(
            WatchQueue(
                access=self._access,
                name=self.name,
                wanted=wanted,
                identity=self._identity,
                resume_after=resume_after,
            )
        )

    async def _write(
        self,
        method: bytes,
        path: str,
        value: object,
        if_match: str | None,
        timeout: float,
        contender: int | None = None,
    ) -> Any:
        body = encode(value)
        if len(body) > self._access.limits.write_body_bytes:
            raise PayloadTooLarge(self._access.limits.write_body_bytes)
        wanted = self._make(method, path, if_match=if_match, timeout=timeout)
        if len(body) > MAX_SHOWN_BYTES and method != b"POST":
            wanted = attrs.evolve(wanted, print="silent")
        response = await self._access.serve(self.name, wanted, body, contender)
        return None if response.status == 204 else decode(response)

    def _make(
        self,
        method: bytes,
        path: str,
        parameters: Parameters | None = None,
        *,
        if_match: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        wants_etag: bool = False,
    ) -> DataRequest:
        """Return the parsed form of a request; raise `InvalidPath` or `InvalidQuery`."""
        try:
            path.encode()
        except UnicodeEncodeError:
            raise InvalidPath("The path holds a surrogate, which UTF-8 cannot.") from None
        place = make_place([key for key in path.split("/") if key])
        if not 0 < timeout <= MAX_TIMEOUT_S:
            raise InvalidQuery(f"timeout must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds.")
        return DataRequest(
            method=method,
            place=place,
            parameters={} if parameters is None else parameters,
            print="compact",
            timeout_s=timeout,
            wants_etag=wants_etag,
            condition=None if if_match is None else parse_etags(if_match),
            token=None,
            override=None,
            dialect=STANDARD,
            wants_explanation=False,
            accepts_events=False,
            last_event_id=None,
            where_children=self._access.limits.where_children,
            identity=self._identity,
            takes_whole=True,
        )
