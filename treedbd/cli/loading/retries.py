"""Requests that are sent again while a server cannot be reached or is busy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from io import BytesIO
from typing import Any, Final, cast

import orjson
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater
from twisted.web.client import FileBodyProducer
from twisted.web.iweb import IBodyProducer, IResponse

from treedbd.cli.client import Client, read_error, receive
from treedbd.cli.exit import CommandFailed, warn
from treedbd.cli.options import NoResponse, Url
from treedbd.limits import MIB

DEFAULT_RETRY_S: Final = 60.0
LONGEST: Final = "15min"
"""The `timeout` of requests that may take long."""
TRANSIENT: Final = frozenset({408, 429, 502, 503, 504})
SIZE: Final = ".sz"
_LONGEST_LISTING: Final = 64 * MIB
_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 10.0


class Refused(CommandFailed):
    """A server has refused a request, with `status`; another one of the same would fail too."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Retries:
    """Sends requests until they succeed, or have failed for some time."""

    def __init__(self, reactor: Any, client: Client, retry_s: float, peer: str = "") -> None:
        """Give up a request that has failed for `retry_s` seconds; `peer` begins sentences."""
        self._prefix = f"{peer}: " if peer else ""
        self._reactor = reactor
        self._client = client
        self._retry_s = retry_s
        self._is_failing = False
        self._is_over = False
        self._pausing: Deferred[None] | None = None

    def give_up(self) -> None:
        """Try no request again from now on: what fails is an error at once."""
        self._is_over = True
        if self._pausing is not None:
            self._pausing.cancel()

    async def request(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> IResponse:
        """Return the response, whose status is 2xx; raise `CommandFailed`."""
        failures = self.failures()
        while True:
            source = None if body is None else cast(IBodyProducer, FileBodyProducer(BytesIO(body)))
            asked: float | None = None
            try:
                response = await self._client.send(method, url, headers, source)
                if 200 <= response.code < 300:
                    self._is_failing = False
                    return response
                sentence = self._prefix + await read_error(response, url)
                if response.code not in TRANSIENT:
                    raise Refused(response.code, sentence)
                asked = _retry_after(response)
            except NoResponse as error:
                sentence = str(error)
            await self.pause(failures, sentence, asked)

    def failures(self) -> Failures:
        """Return the failures of a request that begins now."""
        return Failures(self._retry_s, self._reactor.seconds())

    async def pause(self, failures: Failures, sentence: str, asked: float | None = None) -> None:
        """Wait before another attempt; raise `CommandFailed` if it has failed for too long.

        `asked` is the pause in seconds that the server asks for.
        """
        pause = failures.next_pause(self._reactor.seconds(), asked)
        if pause is None or self._is_over:
            raise CommandFailed(sentence)
        if not self._is_failing:
            self._is_failing = True
            warn(f"{sentence} Trying again for {self._retry_s:g} seconds.")
        self._pausing = deferLater(self._reactor, pause, lambda: None)
        try:
            await self._pausing
        except CancelledError:
            raise CommandFailed(sentence) from None


async def read_size(retries: Retries, url: Url) -> int | None:
    """Return about how many bytes of JSON are at a path, None if the server does not say it.

    Raises `CommandFailed` for a server that cannot be reached.
    """
    address = url.to_json().with_parameters({"shallow": "true", "v": "2", "timeout": LONGEST})
    pieces: list[bytes] = []
    left = _LONGEST_LISTING

    def consume(piece: bytes) -> None:
        nonlocal left
        left -= len(piece)
        if left < 0:
            raise NoResponse
        pieces.append(piece)

    try:
        await receive(await retries.request("GET", address), address, consume)
        return sum_sizes(orjson.loads(b"".join(pieces)))
    except (Refused, NoResponse, ValueError):
        return None


def sum_sizes(found: Any) -> int | None:
    """Return the bytes of the value of which `found` are the sizes; None if it has none."""
    if not isinstance(found, dict) or not found:
        return len(orjson.dumps(found))
    if all(each is True for each in found.values()):  # the server knows no sizes, or it is short
        return None
    sizes = (
        each[SIZE] if isinstance(each, dict) else len(orjson.dumps(each)) for each in found.values()
    )
    try:
        return sum(sizes) + sum(len(key.encode()) + 4 for key in found) + 1
    except (KeyError, TypeError):
        return None


class Failures:
    """The failures of one request in a row, which began at `begin`."""

    def __init__(self, retry_s: float, begin: float) -> None:
        self._end = begin + retry_s
        self._pause = _FIRST_PAUSE_S

    def next_pause(self, now: float, asked: float | None = None) -> float | None:
        """Return the seconds to wait, None if the time is over."""
        if now >= self._end:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE_S)
        pause *= random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        return min(max(pause, asked or 0.0), self._end - now)


def _retry_after(response: IResponse) -> float | None:
    (text,) = response.headers.getRawHeaders("Retry-After", [""])[:1]
    return float(text) if text.isascii() and text.isdigit() else None
