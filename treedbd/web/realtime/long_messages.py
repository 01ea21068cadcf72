"""Long writes: their values, found in messages without parsing these as a whole.

Each client prints the members in an order of its own, and the value is a member of the body: so
what precedes it and what follows it is recognised at both ends of the message. What is between is
parsed piece by piece while it is applied, as a large body of a request over HTTP is, and refused
there if it is not exactly one JSON value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs
import orjson

from treedbd.limits import KIB
from treedbd.tree.value import compact
from treedbd.web.realtime.messages import RealtimeRequest, is_number
from treedbd.web.realtime.pieces import LongMessage
from treedbd.web.realtime.requests import value_of

_SPACE: Final = rb"[ \t\r\n]*"
_COLON: Final = _SPACE + b":" + _SPACE
_COMMA: Final = _SPACE + b"," + _SPACE
_OPEN: Final = rb"\{" + _SPACE
_CLOSE: Final = _SPACE + rb"\}"
_SCALAR: Final = rb'(?:"(?:[^"\\]|\\.){0,32768}"|-?[0-9]{1,17}|null|true|false)'
_BODY_MEMBER: Final = rb'"[pht]"' + _COLON + _SCALAR
_REQUEST_MEMBER: Final = rb'(?:"r"%b[0-9]{1,17}|"a"%b"[a-z]{1,9}")' % (_COLON, _COLON)
_KIND: Final = rb'"t"%b"d"' % _COLON
# No member comes twice: so at whatever place the tail is looked for, it is soon known.
_HEAD: Final = re.compile(
    _SPACE + _OPEN + rb"(?:%b%b)?" % (_KIND, _COMMA) + rb'"d"' + _COLON + _OPEN
    + rb"((?:%b%b){0,2})" % (_REQUEST_MEMBER, _COMMA) + rb'"b"' + _COLON + _OPEN
    + rb"((?:%b%b){0,3})" % (_BODY_MEMBER, _COMMA) + rb'"d"' + _COLON
)  # fmt: skip
_TAIL: Final = re.compile(
    rb"((?:%b%b){0,3})" % (_COMMA, _BODY_MEMBER) + _CLOSE
    + rb"((?:%b%b){0,2})" % (_COMMA, _REQUEST_MEMBER) + _CLOSE
    + rb"(?:%b%b)?" % (_COMMA, _KIND) + _CLOSE + _SPACE + rb"\Z"
)  # fmt: skip
_VALUE_END: Final = re.compile(rb'["\]}0-9el](?=[ \t\r\n]*[,}])')
_HEAD_BYTES: Final = 128 * KIB
_TAIL_BYTES: Final = 4096
"""In so many bytes at the ends of a message must be what is not the value."""


@attrs.frozen
class LongWrite:
    """A request whose value is `message[start:end]`; its body has the other members only."""

    request: RealtimeRequest
    message: LongMessage
    start: int
    end: int

    @property
    def size(self) -> int:
        """The bytes of the value."""
        return self.end - self.start

    def pieces(self) -> Iterator[bytes]:
        """Yield the value."""
        return self.message.pieces(self.start, self.end)


def find_long_write(message: bytes | LongMessage) -> LongWrite | None:
    """Return the write that a message asks for, None if it is in another form than clients use."""
    if isinstance(message, bytes):
        message = LongMessage((message,), len(message))
    head = _HEAD.match(message.read(0, _HEAD_BYTES))
    if head is None:
        return None
    last_at = max(head.end(), message.size - _TAIL_BYTES)
    last = message.read(last_at, message.size)
    tail = None
    for found in _VALUE_END.finditer(last):
        tail = _TAIL.match(last, found.end())
        if tail is not None:
            break
    if tail is None:
        return None
    outer, body = _members(head[1], tail[2]), _members(head[2], tail[1])
    number, action = outer.get("r"), outer.get("a")
    if not is_number(number) or not isinstance(action, str):
        return None
    request = RealtimeRequest(number, action, body)
    return LongWrite(request, message, head.end(), last_at + tail.start())


def as_long_write(request: RealtimeRequest) -> LongWrite:
    """Return a write that was parsed at once as one whose value is parsed in its turn.

    So however a client has printed it, a value with many members is never normalised at once.
    """
    body = dict(request.body)
    value = compact(value_of(body))
    del body["d"]
    message = LongMessage((value,), len(value))
    return LongWrite(attrs.evolve(request, body=body), message, 0, len(value))


def _members(first: bytes, second: bytes) -> dict[str, Any]:
    """Return members, of which each of the `first` has a comma behind it, the others before."""
    joined = b",".join(filter(None, (first.rstrip(b", \t\r\n"), second.lstrip(b", \t\r\n"))))
    try:
        members: dict[str, Any] = orjson.loads(b"{%b}" % joined)
    except orjson.JSONDecodeError:
        return {}
    return members
