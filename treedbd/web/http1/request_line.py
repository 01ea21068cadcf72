"""The request line of a head (RFC 9112, section 3), and what no head may hold."""

from __future__ import annotations

import re
from typing import NoReturn

from treedbd.web.http1.errors import BAD_TARGET, ProtocolError, malformed

REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^\x00-\x20\x7f]+) (HTTP/1\.[01])\r\n")
"""Method, target, version."""
_LINE_WITH_BAD_TARGET = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [^\r\n]* HTTP/1\.[01]\r\n")
_TARGET_BUT_A_PATH = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://.*|\*")
NEVER_IN_A_HEAD = re.compile(rb"(?<!\r)\n|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def refuse_line(data: bytes, at: int) -> NoReturn:
    """Raise the `ProtocolError` for the line at `at`, which is not a request line."""
    if _LINE_WITH_BAD_TARGET.match(data, at):
        raise ProtocolError(BAD_TARGET)
    raise malformed("The request line must be: method, target, HTTP/1.1 or HTTP/1.0.")


def check_target(target: bytes) -> None:
    """Raise `ProtocolError` for a target that is neither a URL nor `*`; a path needs no check."""
    if not _TARGET_BUT_A_PATH.fullmatch(target):
        raise ProtocolError(BAD_TARGET)
