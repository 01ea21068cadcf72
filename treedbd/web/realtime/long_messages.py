"""Long writes: their values, found in messages without parsing these as a whole.

Each client prints the members in an order of its own, and the value is a member of the body: so
what precedes it and what follows it is recognised at both ends of the message. What is between is
parsed piece by piece while it is applied, as a large body of a request over HTTP is, and refused
there if it is not exactly one JSON value.
"""

from __future__ import annotations

import re
from typing import Any, Final

import attrs
import orjson

from treedbd.web.realtime.messages import RealtimeRequest, is_number

_SPACE: Final = rb"[ \t\r\n]*"
_COLON: Final = _SPACE + b":" + _SPACE
_COMMA: Final = _SPACE + b"," + _SPACE
_OPEN: Final = rb"\{" + _SPACE
_CLOSE: Final = _SPACE + rb"\}"
_SCALAR: Final = rb'(?:"(?:[^"\\]|\\.){0,32768}"|-?[0-9]{1,17}|null|true|false)'
_BODY_MEMBER: Final = rb'"[pht]"' + _COLON + _SCALAR
_REQUEST_MEMBER: Final = rb'(?:"r"%b[0-9]{1,17}|"a"%b"[a-z]{1,9}")' % (_COLON, _COLON)
_KIND: Final = rb'"t"%b"d"' % _COLON
_HEAD: Final = re.compile(
    _SPACE + _OPEN + rb"(?:%b%b)?" % (_KIND, _COMMA) + rb'"d"' + _COLON + _OPEN
    + rb"((?:%b%b)*)" % (_REQUEST_MEMBER, _COMMA) + rb'"b"' + _COLON + _OPEN
    + rb"((?:%b%b)*)" % (_BODY_MEMBER, _COMMA) + rb'"d"' + _COLON
)  # fmt: skip
_TAIL: Final = re.compile(
    rb"((?:%b%b)*)" % (_COMMA, _BODY_MEMBER) + _CLOSE
    + rb"((?:%b%b)*)" % (_COMMA, _REQUEST_MEMBER) + _CLOSE
    + rb"(?:%b%b)?" % (_COMMA, _KIND) + _CLOSE + _SPACE + rb"\Z"
)  # fmt: skip
_VALUE_END: Final = re.compile(rb'["\]}0-9el](?=[ \t\r\n]*[,}])')
_TAIL_BYTES: Final = 4096


@attrs.frozen
class LongWrite:
    """A request whose value is `message[start:end]`; its body has the other members only."""

    request: RealtimeRequest
    message: bytes = attrs.field(repr=False)
    start: int
    end: int


def find_long_write(message: bytes) -> LongWrite | None:
    """Return the write that a message asks for, None if it is in another form than clients use."""
    head = _HEAD.match(message)
    if head is None:
        return None
    tail = None
    for found in _VALUE_END.finditer(message[-_TAIL_BYTES:]):
        at = len(message) - min(_TAIL_BYTES, len(message)) + found.end()
        tail = _TAIL.match(message, at) if at > head.end() else None
        if tail is not None:
            break
    if tail is None:
        return None
    outer, body = _members(head[1], tail[2]), _members(head[2], tail[1])
    number, action = outer.get("r"), outer.get("a")
    if not is_number(number) or not isinstance(action, str):
        return None
    return LongWrite(RealtimeRequest(number, action, body), message, head.end(), tail.start())


def _members(first: bytes, second: bytes) -> dict[str, Any]:
    """Return members, of which each of the `first` has a comma behind it, the others before."""
    joined = b",".join(filter(None, (first.rstrip(b", \t\r\n"), second.lstrip(b", \t\r\n"))))
    try:
        members: dict[str, Any] = orjson.loads(b"{%b}" % joined)
    except orjson.JSONDecodeError:
        return {}
    return members
