"""The methods of requests: those of a resource, the one that a request has, and streams."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

from treedbd.http1.headers import Headers, accepts_events, first
from treedbd.tree.types import InvalidQuery
from treedbd.web.parameters import METHOD_OVERRIDE, ON_DISCONNECT, Parameters

READING: Final = frozenset({b"GET", b"HEAD"})
WRITING: Final = frozenset({b"PUT", b"POST", b"PATCH", b"DELETE"})
WITH_BODY: Final = frozenset({b"PUT", b"POST", b"PATCH"})
OVERRIDES: Final = frozenset({b"GET", b"PUT", b"PATCH", b"DELETE"})
"""The methods that a POST can be overridden to."""

_ORDER: Final = ("GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS")


@attrs.frozen
class AllowedMethods:
    """The methods of a resource; `header` lists them as the header `Allow` does."""

    names: frozenset[bytes]
    header: bytes

    @classmethod
    def of(cls, names: Iterable[str] | None) -> AllowedMethods:
        """Return the methods with these names, in their usual order."""
        listed = frozenset(names or ())
        ordered = [name.encode() for name in _ORDER if name in listed]
        return cls(frozenset(ordered), b", ".join(ordered))


class MethodNotAllowed(Exception):
    """A method that the resource does not have; `allowed` are those that it has."""

    def __init__(self, message: str, allowed: AllowedMethods) -> None:
        super().__init__(message)
        self.allowed = allowed


def parse_method(
    method: bytes, headers: Headers, parameters: Parameters, allowed: AllowedMethods
) -> bytes:
    """Return the method of a request, overrides included; raise `MethodNotAllowed`."""
    if method == b"POST":
        override = first(headers, b"x-http-method-override") or parameters.get(METHOD_OVERRIDE)
        if override:
            method = override.upper().encode()
            if method not in OVERRIDES:
                raise MethodNotAllowed(
                    "A POST may be overridden to GET, PUT, PATCH or DELETE.", allowed
                )
    check_method(method, allowed)
    return method


def check_method(method: bytes, allowed: AllowedMethods) -> None:
    """Raise `MethodNotAllowed` for a method that the resource does not have."""
    if method not in allowed.names:
        raise MethodNotAllowed(f"The methods here are {allowed.header.decode()}.", allowed)


def wants_stream(method: bytes, headers: Headers, parameters: Parameters) -> bool:
    """Return whether a request opens a stream; raise `InvalidQuery` for what only a stream has."""
    is_stream = b"accept" in headers and method in READING and accepts_events(headers)
    if ON_DISCONNECT in parameters and not is_stream:
        raise InvalidQuery(f"{ON_DISCONNECT} works with a stream only.")
    return is_stream
