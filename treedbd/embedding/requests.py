"""The calls of a program as requests, its values, and waiting in its coroutines.

The requests reach the handlers without a connection. They have the parsed form of a request over
HTTP and take the same way from there, so the same rules, limits and errors hold. The options of a
query (`QueryOptions`) become the parameters that a URL would have.

Values are passed as JSON text, so neither side can change those of the other. A written value is
printed, and then parsed like a body; a read value is parsed from the response of a GET. So the same
values are valid as over HTTP, and the same numbers are returned.

`wait_for` waits in coroutines of Twisted and in tasks of asyncio.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Coroutine, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict, TypeVar

import attrs
import orjson
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from treedbd.database.catalog import Catalog
from treedbd.database.requests import ConditionFailed, TooLarge, Unavailable
from treedbd.http1.content import Content, WaitingBytesRefused
from treedbd.limits import MAX_BODY_NESTING, MAX_SHOWN_BYTES, Limits
from treedbd.names import DatabaseName
from treedbd.store.engine import DamagedRow, StoreFailed
from treedbd.tree.query import check_combination
from treedbd.tree.types import InvalidData, InvalidQuery, Json
from treedbd.tree.value import compact, parse
from treedbd.web.listeners import StreamsExhausted, TooManyStreams
from treedbd.web.request import DataRequest, Parameters
from treedbd.web.response import Response

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
"""How much the longest pause before another try grows with each failure."""
MAX_PAUSE_S: Final = 0.05
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class TooLargeToRead(TooLarge):
    """A value is too large to be returned at once."""

    def __init__(self) -> None:
        super().__init__(
            f"The value has more than {MAX_SHOWN_BYTES} bytes of JSON: read it in parts, with "
            "limit_to_first and start_after, or its children one by one."
        )


def encode(value: object) -> bytes:
    """Return a value as JSON text; raise `InvalidData` if it is not JSON.

    Lists may be tuples. An integer beyond 64 bits becomes a float.
    """
    try:
        text = orjson.dumps(value, option=_OPTIONS)
    except TypeError:
        return orjson.dumps(_checked(value, 0))
    if b"null" in text:  # orjson prints NaN and infinity as null
        _checked(value, 0)
    return text


def decode(response: Response) -> Json:
    """Return the value that a response shows; raise `TooLargeToRead`."""
    return parse(text_of(response.body))


def text_of(body: object) -> bytes:
    """Return the text of a body; raise `TooLargeToRead`."""
    if isinstance(body, bytes):
        return body
    if not isinstance(body, Content):
        raise TypeError(f"a {type(body).__name__} has not been rendered")
    reader = body.open("", may_refuse=False)  # closing it frees a body without other readers
    try:
        if body.size > MAX_SHOWN_BYTES:
            raise TooLargeToRead
        return body.whole()
    finally:
        reader.close()


def copy(json: Json) -> Json:
    """Return a copy of JSON for the program, which may change it."""
    return parse(compact(json))


def _checked(value: Any, level: int) -> Json:
    """Return a copy of a value; raise `InvalidData` with the reason if it is not JSON."""
    if level > MAX_BODY_NESTING:
        raise InvalidData(f"The data is nested deeper than {MAX_BODY_NESTING} levels.")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_text(value)
    if isinstance(value, int | float):
        return _check_number(value)
    if isinstance(value, list | tuple):
        return [_checked(item, level + 1) for item in value]
    if not isinstance(value, Mapping):
        raise InvalidData(
            f"A value of type {type(value).__name__} is not JSON: use dict, list, str, int, float, "
            "bool or None."
        )
    for key in value:
        if not isinstance(key, str):
            raise InvalidData(f"A key must be a str, not {type(key).__name__}.")
    return {_check_text(key): _checked(item, level + 1) for key, item in value.items()}


def _check_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidData("A string holds a surrogate, which UTF-8 cannot.") from None
    return str(text)


def _check_number(number: int | float) -> int | float:
    if isinstance(number, int) and -(2**63) <= number < 2**64:
        return int(number)
    try:
        double = float(number)
    except OverflowError:
        double = math.inf
    if not math.isfinite(double):
        raise InvalidData("A number is out of range.")
    return double


class QueryOptions(TypedDict, total=False):
    """Which children are read; the names are those of the options of `treedb get`.

    Attributes:
        order_by: the path of a field of each child, or `$key`, `$value` or `$priority`.
        limit_to_first: how many, at most.
        limit_to_last: how many, at most, counted from the end.
        start_at: the least value; with a tuple the least value and key.
        start_after: a value below the least one.
        end_at: the greatest value.
        end_before: a value above the greatest one.
        equal_to: the only value.
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
        parameters[parameter] = _print_option(name, value)
    check_combination(parameters, lambda parameter: names.get(parameter, _ORDER))
    return parameters


def _print_option(name: str, value: Any) -> str:
    if name in _LIMITS:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidQuery(f"{name} must be an int of at least 1.")
        return str(value)
    parts = value if name in _BOUNDS and isinstance(value, tuple) else (value,)
    try:
        return ",".join(encode(part).decode() for part in parts)
    except InvalidData as error:
        raise InvalidQuery(f"{name} cannot be used: {error}") from None


async def wait_for(work: Coroutine[Deferred[Any], Any, T]) -> T:
    """Run a coroutine that waits for Deferreds, in a coroutine of Twisted or a task of asyncio.

    A coroutine that Twisted runs (`Deferred.fromCoroutine`, `inlineCallbacks`) waits for a
    Deferred, a task of asyncio for a future of its loop. A current task decides which of them this
    is; so a task must not run coroutines of Twisted in its own step. Cancelling it cancels the
    coroutine.
    """
    if not _is_in_task():
        return await work
    running = Deferred.fromCoroutine(work)
    if running.called:
        return await running
    return await running.asFuture(asyncio.get_running_loop())


def _is_in_task() -> bool:
    try:
        return asyncio.current_task() is not None
    except RuntimeError:  # no loop is running
        return False


class LocalRequest:
    """The part of a request that the handlers of reads and writes use, without a connection.

    Attributes:
        method: that of the request.
        headers: always empty.
        content: the body.
        contender: identifies a transaction among those that write at the same time; None otherwise.
        trace: always None: the span is that of the program.
        is_local: always true: it has no client.

    """

    is_local: Final = True

    def __init__(self, method: bytes, body: bytes, contender: int | None) -> None:
        self.method: Final = method
        self.contender: Final = contender
        self.headers: Final[dict[bytes, list[bytes]]] = {}
        self.content: Final = BytesIO(body)
        self.trace: Final = None

    def getClientAddress(self) -> None:
        """Return None, since a program has no address."""

    def notifyFinish(self) -> Deferred[None]:
        """Return a Deferred that never fires: cancelling the call cancels what it waits for."""
        return Deferred()


@attrs.define(eq=False)
class LocalAccess:
    """The parts of the service that the databases of a program use.

    Attributes:
        resource: serves the requests.
        catalog: opens the databases.
        clock: the clock of the reactor, in seconds.
        limits: the limits of requests.
        refusal: why nothing is served at present, None while the service runs.

    """

    resource: TreeResource
    catalog: Catalog
    clock: IReactorTime
    limits: Limits
    refusal: str | None = "The service has not been started."

    async def serve(
        self, name: DatabaseName, wanted: DataRequest, body: bytes, contender: int | None = None
    ) -> Response:
        """Return the response to a request; raise errors that a program may see."""
        return await wait_for(self.translated(self._serve(name, wanted, body, contender)))

    async def pause_after(self, failures: int) -> None:
        """Wait before the next try of a transaction, longer after more failures.

        The time is random. Otherwise transactions that collide would collide again, and the same
        one would always win.
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
        """Run `work`; turn its errors into those that a program may see, with copies of values."""
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
