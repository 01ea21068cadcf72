"""The names of receivers, resolved to addresses that may be called.

A webhook must not reach what only this machine or its network may reach, unless the operator allows
it (`names.AllowedTargets`). So a name is resolved here, every address that it has is checked, and
the connection is made to an address that was checked: a name that has other addresses a moment
later changes nothing.

Resolving blocks, for as long as a name server likes, so it has threads of its own: no commit waits
for it. Calls for the same name share one, and there are at most `NAMES_AT_ONCE`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from twisted.internet.defer import Deferred, fail, succeed
from twisted.python.failure import Failure

from treedbd.database.runtime import in_own_thread
from treedbd.names import AllowedTargets

LookUp: TypeAlias = Callable[[str], Sequence[str]]
"""Returns the addresses of a host; blocks, and raises OSError."""

NAMES_AT_ONCE: Final = 16
MAX_ADDRESSES: Final = 8
"""Addresses of a name that are used, the first of them."""


class AddressRefused(Exception):
    """A host may not be called; `str()` is a clause without an address."""


class CannotResolve(Exception):
    """A name has no address, as far as is known; `str()` is a clause."""


def look_up(host: str) -> list[str]:
    """Return the addresses of a host as the system knows them; blocks, and raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Finds the addresses at which a host may be called; belongs to the reactor's thread."""

    def __init__(self, reactor: Any, allowed: AllowedTargets, look_up: LookUp = look_up) -> None:
        """Look names up by `look_up`, each in a thread of its own."""
        self._reactor, self._allowed, self._look_up = reactor, allowed, look_up
        self._waiting: dict[str, list[Deferred[Sequence[str]]]] = {}

    def resolve(self, host: str) -> Deferred[Sequence[str]]:
        """Return the addresses of a host, all of which may be called.

        Errbacks with `AddressRefused` if any may not, and with `CannotResolve`.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            found = self._find(host)
        else:
            found = succeed([host])
        return found.addCallback(self._check, host)

    def _check(self, addresses: Sequence[str], host: str) -> Sequence[str]:
        if not addresses:
            raise CannotResolve("its name has no address")
        if not all(self._allowed.may_call(host, each) for each in addresses):
            raise AddressRefused("its address is not one that webhooks may call (webhooks.allow)")
        return addresses[:MAX_ADDRESSES]

    def _find(self, host: str) -> Deferred[Sequence[str]]:
        waiting = self._waiting.get(host)
        if waiting is None:
            if len(self._waiting) >= NAMES_AT_ONCE:
                return fail(CannotResolve("too many names are being resolved"))
            waiting = self._waiting[host] = []
            found = in_own_thread(self._reactor, lambda: self._look_up(host), "treedb-resolve")
            found.addBoth(self._found, host)
        waiter: Deferred[Sequence[str]] = Deferred(waiting.remove)
        waiting.append(waiter)
        return waiter

    def _found(self, found: Any, host: str) -> None:
        if isinstance(found, Failure):
            found = Failure(CannotResolve("its name cannot be resolved"))
        for waiter in self._waiting.pop(host):
            waiter.callback(found)
