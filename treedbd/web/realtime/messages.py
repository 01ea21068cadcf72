"""The messages of the real-time protocol: what clients send, parsed, and what the server sends.

Each is a JSON envelope: `{"t":"d","d":…}` holds data, `{"t":"c","d":…}` control. Data from a client
is a request `{"r":<number>,"a":<action>,"b":<body>}`, which is answered by
`{"r":<number>,"b":{"s":"ok" or an error word,"d":…}}`; data from the server beside the answers is
`{"a":<action>,"b":<body>}`. Source: `realtime-protocol.md`, sections 1 and 2.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeGuard

import attrs

from treedbd.store.nodes import spell_numbers
from treedbd.tree.event import Event
from treedbd.tree.types import Chunks, InvalidData, Json, Path
from treedbd.tree.value import compact, parse
from treedbd.web.realtime.pieces import OversizedMessage

OK: Final = "ok"
VALUE_END: Final = b"}}}"
"""What closes a message after a value in its body."""
PONG: Final = b'{"t":"c","d":{"t":"o","d":null}}'

_VERSION: Final = "5"
_EVENT_ACTIONS: Final = {"put": b"d", "patch": b"m"}
_FIRST_NUMBER: Final = re.compile(rb'\A\{(?:"t":"d",)?"d":\{(?:"a":"\w{1,9}",)?"r":([0-9]+),')
_LAST_NUMBER: Final = re.compile(rb'[,{]"r":([0-9]+)(?:,"a":"\w{1,9}")?\}(?:,"t":"d")?\}\Z')
_HIGHEST_NUMBER: Final = 2**53


class NotAnEnvelope(Exception):
    """What a client has sent is no message of the protocol."""


class UnknownAction(InvalidData):
    """A request for what the protocol does not have."""

    def __init__(self, action: str) -> None:
        super().__init__(f"There is no action {action[:20]}.")


@attrs.frozen
class RealtimeRequest:
    """A request of a client: its number, its action, and its body as it was sent."""

    number: int
    action: str
    body: dict[str, Any]


@attrs.frozen
class Ping:
    """A client asks for a sign of life."""


@attrs.frozen
class Ignored:
    """A control message that needs no answer."""


def parse_message(text: bytes) -> RealtimeRequest | Ping | Ignored:
    """Return what a message says; raise `NotAnEnvelope`."""
    try:
        envelope = parse(text)
    except InvalidData:
        raise NotAnEnvelope from None
    content: Any = envelope.get("d") if isinstance(envelope, dict) else None
    if not isinstance(envelope, dict) or not isinstance(content, dict):
        raise NotAnEnvelope
    if envelope.get("t") == "c":
        return Ping() if content.get("t") == "p" else Ignored()
    if envelope.get("t") != "d":
        raise NotAnEnvelope
    number, action, body = content.get("r"), content.get("a"), content.get("b", {})
    if not is_number(number) or not isinstance(action, str):
        raise NotAnEnvelope
    return RealtimeRequest(number, action, body if isinstance(body, dict) else {})


def is_number(json: object) -> TypeGuard[int]:
    """Return whether a client may give this number to a request."""
    return type(json) is int and 0 <= json <= _HIGHEST_NUMBER


def find_number(message: OversizedMessage) -> int | None:
    """Return the number of the request in a message that is too long, None if it is not found.

    Raises `NotAnEnvelope` for one that no request may have.
    """
    found = _FIRST_NUMBER.search(message.first) or _LAST_NUMBER.search(message.last)
    if found is None:
        return None
    number = int(found[1])
    if not is_number(number):
        raise NotAnEnvelope
    return number


def print_hello(now_ms: int, host: str, session: str) -> bytes:
    """Print the first message of a connection; `host` is as the client addressed it."""
    hello: Json = {"ts": now_ms, "v": _VERSION, "h": host, "s": session}
    envelope: Json = {"t": "c", "d": {"t": "h", "d": hello}}
    return compact(envelope)


def print_answer(number: int, status: str, data: Json) -> bytes:
    """Print the answer to a request."""
    return b"".join((answer_start(number, status), _print(data), VALUE_END))


def answer_start(number: int, status: str = OK) -> bytes:
    """Return the answer to a request up to its data, which `VALUE_END` follows."""
    return b'{"t":"d","d":{"r":%d,"b":{"s":%b,"d":' % (number, compact(status))


def print_push(action: str, body: Json) -> bytes:
    """Print what the server sends without a request."""
    envelope: Json = {"t": "d", "d": {"a": action, "b": body}}
    return _print(envelope)


def value_start(path: Path) -> bytes:
    """Return the message that a value was set at a path, up to the value.

    `value_end` follows it.
    """
    return _event_start("put", path)


def value_end(tag: int | None) -> bytes:
    """Return what follows the value in a message to a listen; one without a query has no tag."""
    return VALUE_END if tag is None else b',"t":%d%b' % (tag, VALUE_END)


def print_event(path: Path, event: Event) -> Chunks:
    """Print an event at a watched path, in chunks, up to what `value_end` returns."""
    start = _event_start(event.kind, path + event.path)
    if event.printed_export is not None:
        return (start, *event.printed_export)
    return (start + _print(event.exported),)


def _print(json: Json) -> bytes:
    """Print JSON that may hold any numbers."""
    return spell_numbers(compact(json))


def _event_start(kind: str, path: Path) -> bytes:
    place = compact("/".join(path))
    return b'{"t":"d","d":{"a":"%b","b":{"p":%b,"d":' % (_EVENT_ACTIONS[kind], place)
