"""Requests of the program itself, which reach the handlers without a connection.

They have the parsed form of a request over HTTP and take the same way from there, so that all that
holds for one holds for the other. The options of a query, as a program gives them (`QueryOptions`),
become the parameters that a URL would have.
"""

from __future__ import annotations

import random
from collections.abc import Coroutine, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.catalog import Catalog
from treedbd.database.requests import ConditionFailed, Unavailable
from treedbd.embedding.values import copy, encode, wait_for
from treedbd.http1.content import WaitingBytesRefused
from treedbd.limits import DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S, Limits
from treedbd.names import DatabaseName
from treedbd.store.engine import DamagedRow, StoreFailed
from treedbd.tree.hashes import parse_etags
from treedbd.tree.path import make_place
from treedbd.tree.query import check_combination
from treedbd.tree.types import InvalidData, InvalidPath, InvalidQuery, Json, Place
from treedbd.web.auth.identity import Identity
from treedbd.web.request import STANDARD, DataRequest, Parameters
from treedbd.web.response import Response
from treedbd.web.streams.registry import StreamsExhausted, TooManyStreams

if TYPE_CHECKING:  # its methods are called, none is made here
    from treedbd.web.resource import TreeResource

Scalar: TypeAlias = str | int | float | bool | None
Bound: TypeAlias = Scalar | tuple[Scalar, str]
"""A value; or a value and, for children that have equal ones, a key."""

_BOUNDS: Final = ("start_at", "start_after", "end_at", "end_before", "equal_to")
_ORDER: Final = "order_by"
_LIMITS: Final = ("limit_to_first", "limit_to_last")

T = TypeVar("T")
PAUSE_S: Final = 0.001
"""By how much the longest pause before another try grows with each."""
MAX_PAUSE_S: Final = 0.05


class QueryOptions(TypedDict, total=False):
    """Which children are read, by the names that the command has for it.

    Attributes:
        order_by: the path of a field of each child, or `$key`, `$value` or `$priority`.
        limit_to_first: how many, at most.
        limit_to_last: how many, at most, counted from the end.
        start_at: the least value; with a tuple the least value and key.
        start_after: what comes before the first.
        end_at: the greatest value.
        end_before: what comes after the last.
        equal_to: the value.
        where: conditions on each child, such as `{"age": {">=": 18}}`.

    """

    order_by: str
    limit_to_first: int
    limit_to_last: int
    start_at: Bound
    start_after: Bound
    end_at: Bound
    end_before: Bound
    equal_to: Bound
    where: Mapping[str, Json]


def make_parameters(options: Mapping[str, Any]) -> Parameters:
    """Return the parameters of options; raise `InvalidQuery`, or `TypeError` for an unknown one."""
    parameters: Parameters = {}
    names: dict[str, str] = {}
    for name, value in options.items():
        if name not in QueryOptions.__annotations__:
            raise TypeError(f"{name} is not an option of a query")
        first, *more = name.split("_")
        parameter = first + "".join(map(str.capitalize, more))
        names[parameter] = name
        parameters[parameter] = _text_of(name, value)
    check_combination(parameters, lambda parameter: names.get(parameter, _ORDER))
    return parameters


def _text_of(name: str, value: Any) -> str:
    if name in _LIMITS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidQuery(f"{name} must be an int of at least 1.")
        return str(value)
    parts = value if name in _BOUNDS and isinstance(value, tuple) else (value,)
    try:
        return ",".join(encode(part).decode() for part in parts)
    except InvalidData as error:
        raise InvalidQuery(f"{name} cannot be used: {error}") from None


class LocalRequest:
    """As much of a request as the handlers of reads and writes use, without a connection.

    Attributes:
        method: that of the request.
        headers: none.
        content: the body.
        contender: what identifies the caller among those that write at the same time, if it may.
        trace: none: it is part of what the program does.

    """

    def __init__(self, method: bytes, body: bytes, contender: int | None) -> None:
        self.method: Final = method
        self.contender: Final = contender
        self.headers: Final[dict[bytes, list[bytes]]] = {}
        self.content: Final = BytesIO(body)
        self.trace: Final = None

    def getClientAddress(self) -> None:
        """Return that there is no client."""

    def notifyFinish(self) -> Deferred[None]:
        """Return what never fires: who cancels a request cancels what it waits for."""
        return Deferred()


@attrs.define(eq=False)
class LocalAccess:
    """What the databases of a program are made from.

    Attributes:
        resource: serves the requests.
        catalog: opens the databases.
        clock: the clock of the reactor, in seconds.
        limits: how much may be sent and read.
        refusal: why nothing is served at present, None if it is.

    """

    resource: TreeResource
    catalog: Catalog
    clock: IReactorTime
    limits: Limits
    refusal: str | None = "The service has not been started."

    async def serve(
        self, name: DatabaseName, wanted: DataRequest, body: bytes, contender: int | None = None
    ) -> Response:
        """Return the response to a request; raise what a program may see."""
        return await wait_for(self.translated(self._serve(name, wanted, body, contender)))

    async def pause_after(self, failures: int) -> None:
        """Wait before the next try of what others were faster at, the longer the more often.

        The time is random: else those that collide would collide again, and the same one be first.
        """
        most = min(MAX_PAUSE_S, PAUSE_S * (failures - 1))
        if most > 0:
            seconds = random.uniform(0, most)  # noqa: S311
            await wait_for(_sleep(self.clock, seconds))

    async def _serve(
        self, name: DatabaseName, wanted: DataRequest, body: bytes, contender: int | None
    ) -> Response:
        request = LocalRequest(wanted.method, body, contender)
        response = await self.resource.serve(request, name, wanted)
        if response is None:
            raise CancelledError
        return response

    async def translated(self, work: Coroutine[Deferred[Any], Any, T]) -> T:
        """Run `work`; its errors become those that a program may see, without values of ours."""
        try:
            if self.refusal is not None:
                work.close()
                raise Unavailable(self.refusal)
            return await work
        except ConditionFailed as error:
            error.current = copy(error.current)
            raise
        except (WaitingBytesRefused, StreamsExhausted, TooManyStreams) as error:
            raise Unavailable(str(error)) from None
        except DamagedRow:
            raise StoreFailed("The data stored there is damaged.") from None


async def _sleep(clock: IReactorTime, seconds: float) -> None:
    await deferLater(clock, seconds)


def make_request(
    method: bytes,
    place: Place,
    identity: Identity,
    limits: Limits,
    parameters: Parameters | None = None,
    *,
    if_match: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    wants_etag: bool = False,
) -> DataRequest:
    """Return the parsed form of a request; raise `InvalidQuery`."""
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
        where_children=limits.where_children,
        identity=identity,
        takes_whole=True,
    )


def parse_place(path: str) -> Place:
    """Return the place at a path, `users/ada`, with or without a leading slash.

    The empty path is the root; a last key `.priority` names a priority. Raises `InvalidPath`.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidPath("The path holds a surrogate, which UTF-8 cannot.") from None
    return make_place([key for key in path.split("/") if key])
