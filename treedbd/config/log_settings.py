"""The settings of the log, `[log]`."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs

from treedbd.config.values import SettingLocation, key, number, one_of

LogFormat: TypeAlias = Literal["text", "json"]
AccessLog: TypeAlias = bool | Literal["combined"]

MAX_SLOW_REQUEST_S: Final = 86_400.0
MAX_SLOW_RULE_MS: Final = 3_600_000.0


def read_access_log(raw: object, location: SettingLocation) -> AccessLog:
    """Read true, false or "combined"."""
    if not isinstance(raw, bool) and raw != "combined":
        raise location.error('must be true or false, or "combined"')
    return raw


@attrs.frozen
class LogSettings:
    """`[log]`: the form of all lines, and which requests and rules are worth one.

    `format` is that of every line; `sample` the fraction of the lines of the access log that are
    written, but for errors of the server and slow requests. A request of more than `slow_request_s`
    seconds, and rules that take more than `slow_rule_ms` milliseconds for one request, are warned
    of; 0 is never.
    """

    format: LogFormat = key("text", one_of("text", "json"))
    sample: float = key(1.0, number(0.0, 1.0))
    slow_request_s: float = key(5.0, number(0.0, MAX_SLOW_REQUEST_S))
    slow_rule_ms: float = key(0.0, number(0.0, MAX_SLOW_RULE_MS))
