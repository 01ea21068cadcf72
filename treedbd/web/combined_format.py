r"""The combined log format of Apache and nginx, which many programs read.

    host ident authuser [time] "request line" status bytes "referer" "user agent"

What is absent is `-`. In quotes, and in the name of a user, quotation marks and backslashes are
escaped by a backslash; in all fields control characters and all that is not ASCII as `\xhh`. The
request line has the path without a query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

_ESCAPED: Final = re.compile(rb'["\\]|[^\x20-\x7e]')
_MONTHS: Final = (
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
)


def format_combined(fields: Mapping[str, object], now: float | None = None) -> str:
    """Return the line of a request with the `fields` of the access log, without its end."""
    at = _local(int(time.time() if now is None else now))
    user = _escape(fields.get("uid")).replace(" ", "\\x20")
    request = f"{fields['method']} {fields['path']} {fields['protocol']}"
    return (
        f"{_escape(fields['client'])} - {user} [{at}] "
        f'"{_escape(request)}" {fields["status"]} {fields["sent"] or "-"} '
        f'"{_escape(fields.get("referer"))}" "{_escape(fields.get("user_agent"))}"'
    )


def _escape(value: object) -> str:
    if not value:
        return "-"
    return _ESCAPED.sub(_escape_byte, str(value).encode("utf-8", "backslashreplace")).decode()


def _escape_byte(found: re.Match[bytes]) -> bytes:
    byte = found[0]
    return b"\\" + byte if byte in b'"\\' else b"\\x%02x" % byte[0]


@lru_cache(maxsize=2)
def _local(seconds: int) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    # The names of months are English whatever the locale.
    return f"{at.day:02d}/{_MONTHS[at.month - 1]}/{at:%Y:%H:%M:%S} +0000"
